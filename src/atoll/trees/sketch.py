"""Bins and cuts: values as whole numbers that keep their order, and XGBoost's rule for which values become cuts.

Common bins: values of features as whole numbers that have their order, and how many of them lie in which intervals.

A single-precision number with its sign bit turned is a whole number of 32 bits that has the same order. Parties count how many of their values begin with which bits: all values
by the first 12, then those in the intervals that the server asks for, by 5 more at a time. The server sees counts, which a secure reducer can add up, and finds with them
the values that become cuts (`atoll.trees.histogram`). It learns these values, and how many rows lie near them; features that are missing are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .kernel import place_in_bins

__all__ = [
    "BITS",
    "FIRST",
    "STEP",
    "SketchSizes",
    "binned",
    "count_parts",
    "cuts_of_blocks",
    "ordered",
    "pruned",
    "value_of",
]


# Common bins: values of features as whole numbers that have their order, and how many of them lie in which intervals.


BITS, FIRST, STEP = 32, 12, 5
"""Bits of a number, those of the first contact, and those that each later one adds."""


def ordered(x: NDArray[Any]) -> NDArray[np.uint32]:
    """Whole numbers in the order of single-precision ``x``; zeros of both signs are one."""
    bits = (x.astype(np.float32) + np.float32(0.0)).view(np.uint32)
    return np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))


def value_of(key: NDArray[np.uint32]) -> NDArray[np.float32]:
    """The number whose place in the order is ``key``."""
    bits = np.where(key >> 31, key & np.uint32(0x7FFFFFFF), ~key)
    return bits.astype(np.uint32).view(np.float32)


def count_parts(x: NDArray[Any], starts: NDArray[np.uint32], bits: NDArray[np.uint32]) -> NDArray[np.int64]:
    """How many values of each feature lie in which parts of intervals.

    Args:
        x: ``(rows, features)``.
        starts: the lowest number of each interval, ``(features, intervals)``.
        bits: how many bits the numbers of an interval share; 0 for no interval. If none is given, all numbers are counted by their first 12 bits.

    Returns:
        ``(features, 4096)``, or ``(features, intervals * 32)``.
    """
    known = (ordered(column[~np.isnan(column)]) for column in x.astype(np.float32, copy=False).T)
    if not bits.any():
        return np.stack([np.bincount(column >> (BITS - FIRST), minlength=1 << FIRST) for column in known]).astype(
            np.int64
        )
    made = np.zeros((x.shape[1], starts.shape[1], 1 << STEP), np.int64)
    parts = np.arange(1 << STEP, dtype=np.uint32)
    for f, column in enumerate(known):
        column.sort()
        asked = np.flatnonzero(bits[f])
        width = np.uint32(BITS) - bits[f, asked]
        edges = starts[f, asked, None] + (parts << (width - np.uint32(STEP))[:, None])
        last = starts[f, asked] + np.uint32((1 << width.astype(np.uint64)) - np.uint64(1))
        places = np.column_stack((np.searchsorted(column, edges), np.searchsorted(column, last, side="right")))
        made[f, asked] = np.diff(places, axis=1)
    return made.reshape(x.shape[1], -1)


def binned(x: NDArray[Any], cuts: list[NDArray[np.float32]], missing: int = -1) -> Any:
    """The bin of each value, ``(rows, features)``: the number of cuts that are not above it, or ``missing`` for NaN."""
    made = np.empty(x.shape, np.uint8 if missing < 256 else np.uint16)
    for f, mine in enumerate(cuts):
        place_in_bins(x[:, f].astype(np.float32), mine, made, f, missing)
    return made


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
    begin, end = np.float32(below[0] + first), np.float32(below[-1] + rows[-1] - last)
    return _choose_nearest(low + high, high, low, (begin, end), size)


def _choose_nearest(
    twice: NDArray[np.float32],
    behind: NDArray[np.float32],
    before: NDArray[np.float32],
    ends: tuple[np.float32, np.float32],
    size: int,
) -> NDArray[np.int64]:
    """The first entry, the last, and those that hold or are nearest to ``size - 2`` ranks at equal steps between the ends.

    Args:
        twice: the middle rank of each entry, times two; bounds of ranks need not ascend.
        behind: the rank behind each entry.
        before: the rank before it.
        ends: the ranks between which the steps lie.
        size: how many entries may stay.
    """
    count, (begin, end) = len(twice), ends
    ranks = np.float32(2) * (np.arange(1, size - 1, dtype=np.float32) * (end - begin) / np.float32(size - 1) + begin)
    at = 1 + np.searchsorted(np.maximum.accumulate(twice[2:]), ranks, side="right")
    at, ranks = at[at < count - 1], ranks[at < count - 1]
    return np.unique(np.concatenate(([0], np.where(ranks < behind[at] + before[at + 1], at, at + 1), [count - 1])))


def cuts_of_blocks(
    block: NDArray[Any], values: NDArray[np.float32], rows: NDArray[Any], max_bin: int
) -> NDArray[np.float32]:
    """Where XGBoost's bins of a feature begin, ascending, from what its queue held each time; the lowest value is not among them.

    They are XGBoost's to the digit for up to 2^24 rows, where its single-precision counts are exact.

    Args:
        block: which filling of the queue each entry was in, from 0; the last need not be full.
        values: of the entries, in any order.
        rows: how many rows each entry stands for.
        max_bin: most bins.
    """
    if not len(values):
        return np.zeros(0, np.float32)
    sizes = SketchSizes.of(int(rows.sum()), max_bin)
    limit, middle, last = sizes.steps
    order = np.argsort(block, kind="stable")
    ends = np.flatnonzero(np.diff(block[order])) + 1
    *full, rest = (_Summary.of(values[mine], rows[mine]) for mine in np.split(order, ends))
    levels: list[_Summary | None] = []
    for summary in full:
        _push_summary(levels, summary, limit)
    found = rest.pruned(limit)
    for level in levels:
        if level is not None:
            found = found.merged(level).pruned(limit)
    kept = found.pruned(middle).pruned(last).values[1 : sizes.bins]
    return kept[np.isfinite(kept)]


def _push_summary(levels: list[_Summary | None], summary: _Summary, limit: int) -> None:
    """Merge a full queue with the levels, from the first to one that is empty or still has room."""
    for place, level in enumerate(levels):
        if level is None:
            levels[place] = summary.pruned(limit)
            return
        summary = summary.pruned(limit).merged(level)
        if len(summary.values) <= limit:
            levels[place] = summary
            return
        levels[place] = None
    levels.append(summary.pruned(limit))


class _Summary(NamedTuple):
    """Values, ascending, and of each: the least rows below it, the most rows up to it, and the rows that surely have it."""

    values: NDArray[np.float32]
    least: NDArray[np.float32]
    most: NDArray[np.float32]
    rows: NDArray[np.float32]

    @classmethod
    def of(cls, values: NDArray[np.float32], rows: NDArray[Any]) -> _Summary:
        found, at = np.unique(values, return_inverse=True)
        each = np.bincount(at, rows)
        most = np.cumsum(each)
        return cls(found, *(column.astype(np.float32) for column in (most - each, most, each)))

    def merged(self, other: _Summary) -> _Summary:
        values = np.union1d(self.values, other.values)
        bounds = [summary.at(values) for summary in (self, other)]
        least, most, rows = (first + second for first, second in zip(*bounds, strict=True))
        return _Summary(values, least, most, rows)

    def at(self, values: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """The bounds of other values: between two entries, at least the rows up to the lower one, at most those before the higher one."""
        place = np.searchsorted(self.values, values)
        held = np.append(self.values, np.float32(np.nan))[place] == values
        behind = np.concatenate((np.zeros(1, np.float32), self.least + self.rows))
        before = np.append(self.most - self.rows, self.most[-1])
        least = np.where(held, np.append(self.least, np.float32(0))[place], behind[place])
        most = np.where(held, np.append(self.most, np.float32(0))[place], before[place])
        return least, most, np.where(held, np.append(self.rows, np.float32(0))[place], np.float32(0))

    def pruned(self, size: int) -> _Summary:
        """At most ``size`` entries: the first, the last, and those that are nearest to ranks at equal steps; as `pruned`, where ranks are bounds."""
        if len(self.values) <= size:
            return self
        behind, before = self.least + self.rows, self.most - self.rows
        kept = _choose_nearest(self.most + self.least, behind, before, (self.most[0], self.least[-1]), size)
        return _Summary(*(column[kept] for column in self))
