"""Only the largest entries, clipped."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.requests.context import StageContext
from atoll.core.requests.stage import Guarding, Stage

from ..remembering import one_of
from ..rows import lay_out, put_back

__all__ = ["Percentile"]


@dataclass(frozen=True)
class Percentile(Stage, Guarding):
    """Set entries whose magnitude is below a percentile of all magnitudes to zero, and clip the rest to ``[-limit, limit]``.

    Shokri and Shmatikov 2015, "Privacy-Preserving Deep Learning", and NVIDIA FLARE's PercentilePrivacy, which divides by the number of local steps before and
    multiplies after; we do not, so ``limit`` bounds the whole update. **It promises no privacy**: what it sends depends on the data without noise. For a promise, use
    `SparseVector` or `LocalLaplace`.

    Attributes:
        percentile: from 0 to below 100.
        limit: largest magnitude of an entry.
    """

    percentile: float = 10.0
    limit: float = 0.01
    linear: ClassVar[bool] = False
    unbiased: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 <= self.percentile < 100:
            raise ConfigError(
                f"percentile={self.percentile}", where="Percentile", remedy="use a number from 0 to below 100"
            )
        if not (math.isfinite(self.limit) and self.limit > 0):
            raise ConfigError(f"limit={self.limit}", where="Percentile", remedy="use a finite number > 0")

    def encode(self, value: Tree, context: StageContext) -> Tree:
        """Encode a block of one."""
        return T.map(lambda leaf: leaf[0], self.encode_block(one_of(value), context))

    def encode_block(self, block: Tree, context: StageContext) -> Tree:
        """Cut and clip each client's update."""
        del context
        rows, like = lay_out(block)
        sizes = np.abs(rows)
        least = np.percentile(sizes, self.percentile, axis=1, keepdims=True) if rows.shape[1] else sizes
        kept = np.where(sizes >= least, np.clip(rows, -self.limit, self.limit), 0.0)
        return put_back(kept.astype(rows.dtype), like)

    def covers(self, other: Stage) -> bool:
        """Whether this stage lets no more and no larger entries through."""
        if not isinstance(other, Percentile):
            return False
        return self.percentile >= other.percentile and self.limit <= other.limit

    def sensitivity(self, before: float | None) -> float | None:
        """Return that before it: no entry grows."""
        return before
