"""Momentum: Polyak's heavy ball and Nesterov's form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree

from ..checks import require_share
from .base import Transform

__all__ = ["Momentum"]


@dataclass(frozen=True)
class Momentum(Transform):
    """``m <- beta m + g``, and ``v = m``, or ``v = g + beta m`` in Nesterov's form.

    Polyak 1964; the Nesterov form as in Sutskever et al. 2013, rewritten at the look-ahead point. ``beta=0`` is the identity.

    Attributes:
        beta: share of the memory that remains per step, in [0, 1).
        nesterov: use Nesterov's look-ahead form.
        damped: ``m <- beta m + (1 - beta) g``, an exponential mean instead of a sum.
    """

    beta: float = 0.9
    nesterov: bool = False
    damped: bool = False
    remembers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_share("Momentum", beta=self.beta)

    def init(self, params: Tree) -> Tree:
        """Start with ``m = 0``."""
        return {"m": T.zeros_like(params)}

    def apply(self, v: Tree, memory: Tree, y: Tree, x: Tree) -> tuple[Tree, Tree]:
        """Return the direction after one step, and the memory."""
        del y, x
        fresh = T.scale(v, 1.0 - self.beta) if self.damped else v
        m = T.add(T.scale(memory["m"], self.beta), fresh)
        return (T.add(fresh, T.scale(m, self.beta)) if self.nesterov else m), {"m": m}
