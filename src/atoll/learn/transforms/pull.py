"""Terms that pull a step towards a point: the proximal term and weight decay."""

from __future__ import annotations

import math
from dataclasses import dataclass

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError

from .base import Transform

__all__ = ["Proximal", "WeightDecay"]


def _require(where: str, name: str, value: float) -> None:
    if not (value >= 0 and math.isfinite(value)):
        raise ConfigError(f"{name}={value}", where=where, remedy="use 0 or more")


@dataclass(frozen=True)
class Proximal(Transform):
    """``v = g + mu (y - x)``: the gradient of ``F(y) + mu/2 ||y - x||^2``, with ``x`` the point at which the round began. ``mu=0`` is the identity.

    Attributes:
        mu: weight of the pull.
    """

    mu: float = 0.1

    def __post_init__(self) -> None:
        _require("Proximal", "mu", self.mu)

    def apply(self, v: Tree, memory: Tree, y: Tree, x: Tree) -> tuple[Tree, Tree]:
        """Return the direction after one step, and the memory."""
        return T.add(v, T.scale(T.sub(y, x), self.mu)), memory


@dataclass(frozen=True)
class WeightDecay(Transform):
    """``v = g + rate y``: the gradient of ``F(y) + rate/2 ||y||^2`` if it is the first transform, decoupled if it is the last.

    Attributes:
        rate: weight of the pull.
    """

    rate: float = 1e-4

    def __post_init__(self) -> None:
        _require("WeightDecay", "rate", self.rate)

    def apply(self, v: Tree, memory: Tree, y: Tree, x: Tree) -> tuple[Tree, Tree]:
        """Return the direction after one step, and the memory."""
        del x
        return T.add(v, T.scale(y, self.rate)), memory
