"""Local SVRG: variance-reduced local steps around an anchor gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate
from atoll.core.algebra.tree import Tree
from atoll.learn.algorithm import Algorithm, Gradient, LocalWork
from atoll.learn.card import Card

from .fedavg import FedAvg
from .full_gradient import FullGradient

__all__ = ["LocalSVRG"]


@dataclass(frozen=True, kw_only=True)
class LocalSVRG(FedAvg):
    """Local steps ``v = g_j(y) - g_j(x) + grad F_k(x)`` on mini-batches ``j``; the anchor ``x`` is the broadcast model.

    The variance of mini-batches goes; the drift of FedAvg stays (full batches: it is FedAvg). One full local gradient a round, two gradients
    a step. No client state. Up and down: one model each.
    """

    citation: ClassVar[str] = (
        "Johnson, Zhang. Accelerating Stochastic Gradient Descent using Predictive Variance Reduction. NeurIPS 2013; in local steps."
    )
    card: ClassVar[Card] = Card(note="It reduces the variance of mini-batches, not FedAvg's drift.")

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """The anchor, and the local steps."""
        del phase
        return (FullGradient(), self)

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """The model and the anchor."""
        return {"params": broadcast["params"], "anchor": client["anchor"]}

    def direction(self, local: Tree, grad: Gradient, broadcast: Tree) -> tuple[Tree, Tree]:
        """``g_j(y) - g_j(x) + grad F_k(x)``."""
        change = T.sub(grad(local["params"]), grad(broadcast["params"]))
        return T.add(change, local["anchor"]), local

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """The update; the anchor is forgotten."""
        return super().finish(local, broadcast, client, work)[0], None
