"""Which values become cuts: XGBoost's rule. Whoever knows the ranks of values finds the cuts of the union by it.

XGBoost keeps a sketch of each feature's values: entries with a value, the rows below it, and the rows that have it. It prunes a sketch of ``m`` entries to ``s < m``: the first
and the last stay, and of ``s - 2`` ranks at equal steps between them, the entries that hold the ranks or are nearest to them. New values wait in a queue. While the queue holds all
of them (8,194 rows with 256 bins), the cuts do not depend on the order of the rows. Beyond that they do, by some ranks, unless the values are few.

Chen, Guestrin 2016, "XGBoost: A Scalable Tree Boosting System", appendix A, and its implementation: ``WQuantileSketch`` and ``HostSketchContainer`` of version 3.2. Ranks are
single-precision numbers there and here.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["SketchSizes", "pruned"]

_FACTOR = 8
"""A sketch is so many times finer than the bins."""


@dataclass(frozen=True)
class SketchSizes:
    """How many entries the sketch of a feature may have.

    Attributes:
        bins: of the last sketch, so many entries are where bins begin.
        queue: rows up to which their order does not matter.
        steps: the sizes to which the sketch is pruned in turn.
    """

    bins: int
    queue: int
    steps: tuple[int, int, int]

    @classmethod
    def of(cls, rows: int, max_bin: int) -> SketchSizes:
        """The sizes for a feature that ``rows`` rows have."""
        bins = max(1, min(max_bin, rows))
        error, levels = 1 / (bins * _FACTOR), 1
        while True:
            limit = min(rows, ceil(levels / error) + 1)
            if (limit << levels) >= rows:
                break
            levels += 1
        return cls(bins, 2 * limit, (limit, min(rows, max_bin * _FACTOR), bins + 1))


def pruned(
    below: NDArray[Any], rows: NDArray[Any], size: int, ends: tuple[int, int] | None = None
) -> NDArray[np.int64]:
    """Which entries stay, ascending: at most ``size``, the first and the last among them.

    Args:
        below: rows below each entry, ascending.
        rows: rows of each entry.
        size: how many may stay, at least 2.
        ends: rows of the lowest and of the highest value, if they are not all rows of the first and the last entry.
    """
    count = len(below)
    if count <= size:
        return np.arange(count)
    low, high = below.astype(np.float32), (below + rows).astype(np.float32)
    first, last = ends or (int(rows[0]), int(rows[-1]))
    begin = np.float32(below[0] + first)
    between = np.float32(below[-1] + rows[-1] - last) - begin
    twice = np.float32(2) * (np.arange(1, size - 1, dtype=np.float32) * between / np.float32(size - 1) + begin)
    at = np.maximum(np.searchsorted(low + high, twice, side="right") - 1, 1)
    at, twice = at[at < count - 1], twice[at < count - 1]
    nearest = np.where(twice < high[at] + low[at + 1], at, at + 1)
    return np.unique(np.concatenate(([0], nearest, [count - 1])))
