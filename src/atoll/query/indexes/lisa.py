"""LISA: a learned index of points in shards."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from .pgm import PiecewiseGeometricIndex
from .registry import Floats, Places, PointIndex, expand_spans, require_keys, search_within

__all__ = ["MappedIndex"]

_CELL = 256
"""Points of a cell of the grid, on the average."""
_MOST_STRIPS = 256
_BELOW_ONE = 1 - 2.0**-30


class MappedIndex(PointIndex):
    """A grid of cells of equal numbers of points, a mapping of points to numbers that ascends in both coordinates within a cell, and a piecewise linear function that says in which shard a number is (Li et al. 2020, "LISA").

    A point's number is that of its cell, column by column, and which part of the cell's area lies below it. A box takes in every column one range of numbers, from its lower to its upper corner. New points are kept by their numbers
    beside the shards, until they are a quarter of the rest and the index is built anew; in the paper each shard has pages of its own that are divided. Its shard function is that of `PiecewiseGeometricIndex` here, and
    nearest points are found as in all indexes of points, without its lattice regression of a radius.
    """

    name: ClassVar[str] = "lisa"
    inserts: ClassVar[bool] = True

    def build(self, points: Floats) -> Places:
        """Lay the grid, and learn the shards."""
        n = len(points)
        self._strips = max(1, min(_MOST_STRIPS, int(np.sqrt(n / _CELL))))
        cuts = np.arange(1, self._strips) * n // self._strips
        self._low, self._high = points.min(axis=0), points.max(axis=0)
        self._columns = np.sort(points[:, 0])[cuts]
        strip = self._strip_of(points[:, 0])
        ordered = points[np.lexsort((points[:, 1], strip)), 1]
        counts = np.bincount(strip, minlength=self._strips)
        begins = np.cumsum(counts) - counts
        ranks = begins[:, None] + np.arange(1, self._strips) * counts[:, None] // self._strips
        self._cells = ordered[np.minimum(ranks, n - 1)].ravel()
        self._shards = PiecewiseGeometricIndex(self._numbers(points, strip))
        self._built, self._added = n, np.zeros(0)
        return self._shards.lookup([-np.inf], [np.inf]).rows

    def _strip_of(self, x: Floats) -> Places:
        return np.searchsorted(self._columns, x, side="right").astype(np.int64)

    def _numbers(self, points: Floats, strip: Places) -> Floats:
        """What points map to in some columns; one outside of its column counts as at its edge."""
        x, y = points.T
        begin = strip * (self._strips - 1)
        end = begin + self._strips - 1
        at = search_within(self._cells, np.nextafter(y, np.inf), begin, end) if self._strips > 1 else begin
        columns = np.concatenate([[self._low[0]], self._columns, [self._high[0]]])
        most = max(0, len(self._cells) - 1)
        rows = self._cells if len(self._cells) else np.zeros(1)
        lower = np.where(at > begin, rows[np.clip(at - 1, 0, most)], self._low[1])
        upper = np.where(at < end, rows[np.clip(at, 0, most)], self._high[1])
        part = _part(x, columns[strip], columns[strip + 1]) * _part(y, lower, upper)
        made: Floats = strip * self._strips + (at - begin) + np.minimum(part, _BELOW_ONE)
        return made

    def spans(self, low: Floats, high: Floats) -> tuple[Places, Places, Places]:
        """The ranges of numbers of each column that boxes meet."""
        first, last = self._strip_of(low[:, 0]), self._strip_of(high[:, 0])
        strip, question = expand_spans(first, last + 1)
        lower, upper = self._numbers(low[question], strip), self._numbers(high[question], strip)
        begins = self._shards.begins
        starts, stops = begins[self._shards.rank(lower)], begins[self._shards.rank(np.nextafter(upper, np.inf))]
        if not len(self._added):
            return question, starts, stops
        more = [self._built + np.searchsorted(self._added, ends, side) for ends, side in ((lower, "left"), (upper, "right"))]  # type: ignore[call-overload]  # fmt: skip
        return np.tile(question, 2), np.concatenate([starts, more[0]]), np.concatenate([stops, more[1]])

    def near(self, points: Floats) -> Places:
        """Where the number of each point is."""
        return self._shards.begins[self._shards.rank(self._numbers(points, self._strip_of(points[:, 0])))]

    def insert(self, points: Any) -> None:
        """Add rows, numbered on from the last.

        Args:
            points: of each new row.
        """
        made = require_keys(points, self.name, 2)
        rows = len(self) + np.arange(len(made))
        together = np.concatenate([self._points, made])
        numbers = np.concatenate([self._rows, rows])
        if not len(self) or len(together) > self._built + self._built // 4:
            ordered = np.empty_like(together)
            ordered[numbers] = together
            super().__init__(ordered)
            return
        new = together[self._built :]
        mapped = self._numbers(new, self._strip_of(new[:, 0]))
        order = np.argsort(mapped, kind="stable")
        self._added = mapped[order]
        self._points = np.concatenate([self._points[: self._built], new[order]])
        self._rows = np.concatenate([self._rows[: self._built], numbers[self._built :][order]])


def _part(values: Floats, low: Floats, high: Floats) -> Floats:
    """Which part of an interval lies below values."""
    width = high - low
    with np.errstate(over="ignore"):
        made: Floats = np.clip((values - low) / np.where(width > 0, width, 1.0), 0, 1)
    return made
