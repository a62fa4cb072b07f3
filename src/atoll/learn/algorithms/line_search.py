"""Backtracking by trial steps: clients report their loss at a set of step sizes, and the server takes the largest sufficient one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean
from atoll.core.algebra.tree import Tree
from atoll.learn.algorithm import Algorithm, Gradient, LocalWork
from atoll.learn.card import Card

__all__ = ["LossesAlong", "armijo"]

_MOST = 1e30  # replaces an infinite loss, which would make the server reject the reply


@dataclass(frozen=True, kw_only=True)
class LossesAlong(Algorithm):
    """A pass that reports ``F_k(w - a p)`` for ``a = 0`` and for each trial step; the broadcast contains ``p`` as ``"direction"``.

    Attributes:
        sizes: the trial steps.
    """

    sizes: tuple[float, ...] = (1.0,)
    batch_size: int | None = None
    steps: int | None = 1
    card: ClassVar[Card] = Card(family="second order", part=True, note="A part of other algorithms: it does not train.")

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the model, and no losses yet."""
        del client
        return {"params": broadcast["params"], "losses": (0.0,) * (1 + len(self.sizes))}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Compute the losses; the first is the loss of the model itself."""
        params, along = local["params"], broadcast["direction"]
        found = [grad.loss(params)]
        found += [grad.loss(T.sub(params, T.scale(along, size))) for size in self.sizes]
        return {"params": params, "losses": tuple(T.where(loss < _MOST, loss, _MOST) for loss in found)}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Report the losses."""
        del broadcast, client
        return {
            "losses": Mean(local["losses"], examples=work.examples, role="side")
        }, None  # stages act only on updates


def armijo(losses: Sequence[Any], sizes: Sequence[float], slope: float, share: float) -> float:
    """Return the first ``a`` of ``sizes`` with ``F(w - a p) <= F(w) - share a max(0, <p, g>)``; 0 if there is none, so the loss never grows.

    Args:
        losses: ``F(w)``, and ``F(w - a p)`` for each ``a``.
        sizes: the trial steps, largest first.
        slope: ``<p, g>``.
        share: required share of the decrease that a linear model predicts.
    """
    before = float(losses[0])
    for size, loss in zip(sizes, losses[1:], strict=True):
        if float(loss) <= before - share * size * max(0.0, slope):
            return size
    return 0.0
