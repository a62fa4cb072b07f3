"""Filters: what leaves out or bounds parts of an update without promising privacy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.requests.stage import Guarding, Stage, StageContext

from .remembering import one_of
from .rows import lay_out, put_back

__all__ = ["ExcludeVariables", "Percentile"]


@dataclass(frozen=True)
class ExcludeVariables(Stage, Guarding):
    """Send zeros in place of the variables whose paths match a pattern, so that the server keeps its own: ``ExcludeVariables(["head/*"])``.

    NVIDIA FLARE's ExcludeVars drops them from the message; here zeros travel, so that sums keep one form. It promises no privacy for the other variables,
    whose values may depend on those that are left out.

    Attributes:
        patterns: paths with ``*`` and ``?``; each must match a variable, or the client refuses to reply.
    """

    patterns: Sequence[str] = ()
    unbiased: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if isinstance(self.patterns, str) or not self.patterns:
            raise ConfigError(f"patterns={self.patterns!r}", where="ExcludeVariables", remedy='give a list: ["head/*"]')
        object.__setattr__(self, "patterns", tuple(self.patterns))

    def encode(self, value: Tree, context: StageContext) -> Tree:
        """Put zeros in place of the excluded variables."""
        del context
        paths = [path for path, _ in T.items(value)]
        for pattern in self.patterns:
            if not any(fnmatchcase(path, pattern) for path in paths):
                raise ConfigError(
                    f"no variable matches {pattern!r}",
                    where="ExcludeVariables",
                    remedy=f"the variables are {', '.join(paths[:20])}",
                )
        out = iter([any(fnmatchcase(path, pattern) for pattern in self.patterns) for path in paths])
        zeros = T.zeros_like(value)
        return T.map(lambda leaf, zero: zero if next(out) else leaf, value, zeros)

    def encode_block(self, block: Tree, context: StageContext) -> Tree:
        """The same for a block: paths do not depend on the client."""
        return self.encode(block, context)

    def covers(self, other: Stage) -> bool:
        """Whether this stage excludes all that the other does."""
        return isinstance(other, ExcludeVariables) and set(other.patterns) <= set(self.patterns)

    def sensitivity(self, before: float | None) -> float | None:
        """Return that before it: fewer entries are not further apart."""
        return before


# ---------------------------------------------------------------- only the largest entries, clipped


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
