"""Clipping bounds how much one client can change."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.requests.stage import Guarding, Stage, StageContext

__all__ = ["Clip"]


@dataclass(frozen=True)
class Clip(Stage, Guarding):
    """Scale an update down to an L2 norm of at most ``bound``: ``u * min(1, bound / ||u||_2)``.

    The norm is over all entries of the update together. McMahan et al. 2018, "Learning Differentially Private Recurrent Language Models",
    section 3 ("flat clipping").

    Attributes:
        bound: largest L2 norm, per client, before weighting.
        alone: nothing leaves beside the update: measurements stay at the client. Noise that the server adds protects only what it is added to.
    """

    bound: float = 1.0
    alone: bool = False
    linear: ClassVar[bool] = False
    unbiased: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.bound) and self.bound > 0):
            raise ConfigError(f"bound={self.bound}", where="Clip", remedy="use a finite number > 0")

    def encode(self, value: Tree, context: StageContext) -> Tree:
        """Scale one client's update."""
        del context
        norm = float(_norms(T.map(lambda leaf: leaf[None], value))[0])
        return value if norm <= self.bound else T.scale(value, self.bound / norm)

    def encode_block(self, block: Tree, context: StageContext) -> Tree:
        """Scale each client's update in a block."""
        del context
        factor = self.bound / _norms(block).clip(min=self.bound)
        return T.map(lambda leaf: leaf * factor.reshape(-1, *([1] * (leaf.ndim - 1))), block)

    def covers(self, other: Stage) -> bool:
        """Whether the other stage is a clip whose bound is not smaller."""
        if type(other) is not type(self) or not isinstance(other, Clip):
            return False
        return self.bound <= other.bound and self.alone >= other.alone

    @property
    def guards(self) -> bool:
        """Whether it acts alone."""
        return self.alone

    def sensitivity(self, before: float | None) -> float | None:
        """Return at most ``bound``."""
        return self.bound if before is None else min(before, self.bound)


def _norms(block: Tree) -> Any:
    """The norm of each client's update, shape ``(clients,)``, computed without overflow of the squares."""
    rows = [leaf.reshape(leaf.shape[0], -1) for leaf in T.leaves(block)]
    xp = T.namespace(rows[0])
    with np.errstate(over="ignore"):
        norms = sum((row * row).sum(-1) for row in rows) ** 0.5
    if bool(xp.isfinite(norms).all()):
        return norms
    peak = xp.amax(xp.stack([xp.amax(abs(row), -1) for row in rows if row.shape[1]]), 0)
    peak = xp.where(peak > 0, peak, xp.ones_like(peak))
    return peak * sum(((row / peak[:, None]) ** 2).sum(-1) for row in rows) ** 0.5
