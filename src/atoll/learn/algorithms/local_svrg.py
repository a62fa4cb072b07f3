"""Local SVRG: variance-reduced local steps around an anchor gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate
from atoll.core.algebra.tree import Tree
from atoll.learn.algorithm import Algorithm, Gradient, LocalWork, Phased
from atoll.learn.card import Card

from .fedavg import FedAvg
from .full_gradient import FullGradient

__all__ = ["LocalSVRG"]


@dataclass(frozen=True, kw_only=True)
class LocalSVRG(FedAvg, Phased):
    """Local steps ``v = g_j(y) - g_j(x) + grad F_k(x)`` on mini-batches ``j``; the anchor ``x`` is the broadcast model.

    This removes the variance of mini-batches, not FedAvg's drift (with full batches, it is FedAvg). It costs one full local gradient per round and two gradients
    per step. No client state. Up and down: one model each.
    """

    citation: ClassVar[str] = (
        "Johnson, Zhang. Accelerating Stochastic Gradient Descent using Predictive Variance Reduction. NeurIPS 2013; in local steps."
    )
    card: ClassVar[Card] = Card(note="It reduces the variance of mini-batches, not FedAvg's drift.")

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """Run the anchor, and the local steps."""
        del phase
        return (FullGradient(), self)

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the model and the anchor."""
        return {"params": broadcast["params"], "anchor": client["anchor"]}

    def direction(self, local: Tree, grad: Gradient, broadcast: Tree) -> tuple[Tree, Tree]:
        """Return ``g_j(y) - g_j(x) + grad F_k(x)``."""
        change = T.sub(grad(local["params"]), grad(broadcast["params"]))
        return T.add(change, local["anchor"]), local

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply with the update; the anchor is discarded."""
        return super().finish(local, broadcast, client, work)[0], None
