"""The interpolation-friendly tree."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from .registry import Floats, Places
from .tree import PackedTree

__all__ = ["InterpolationTree"]


class InterpolationTree(PackedTree):
    """An R-tree whose large leaves are sorted by one coordinate and interpolate in it, so that a leaf is not scanned whole (Hadian, Kumar, Heinis 2020, "Hands-off Model Integration in Spatial Index Structures", IF).

    Each leaf takes the coordinate in which a line through its ends errs less, and knows the largest error; as lines ascend, one place more bounds a number between two points.
    """

    name: ClassVar[str] = "if"
    leaf: ClassVar[int] = 256

    def build(self, points: Floats) -> Places:
        """Pack the points, and sort and measure every leaf."""
        order = super().build(points)
        home = np.arange(len(points)) // self.leaf
        begins = np.arange(0, len(points), self.leaf)
        counts = np.minimum(self.leaf, len(points) - begins)
        made = []
        for axis in (0, 1):
            own = order[np.lexsort((points[order, axis], home))]
            values = points[own, axis]
            first, last = values[begins], values[begins + counts - 1]
            error = np.zeros(len(begins))
            miss = np.abs(_interpolate(values, first[home], last[home], counts[home]) - (np.arange(len(points)) - begins[home]))  # fmt: skip
            np.maximum.at(error, home, miss)
            made.append((own, first, last, error))
        self._axis = (made[1][3] < made[0][3]).astype(np.int64)
        self._first, self._last, self._error = (np.where(self._axis, made[1][k], made[0][k]) for k in (1, 2, 3))
        self._counts = counts
        return np.where(self._axis[home], made[1][0], made[0][0])

    def spans(self, low: Floats, high: Floats) -> tuple[Places, Places, Places]:
        """Parts of the leaves that boxes meet."""
        question, box = self._tree.meeting(low, high)
        axis, first, last, counts = self._axis[box], self._first[box], self._last[box], self._counts[box]
        reach = self._error[box] + 2
        begin = np.floor(_interpolate(low[question, axis], first, last, counts) - reach)
        end = np.ceil(_interpolate(high[question, axis], first, last, counts) + reach)
        start = np.clip(begin, 0, counts).astype(np.int64)
        stop = np.clip(end, 0, counts).astype(np.int64)
        return question, box * self.leaf + start, box * self.leaf + stop


def _interpolate(values: Floats, first: Floats, last: Floats, counts: Places) -> Floats:
    """The place of values between the first and the last key of a leaf."""
    width = last - first
    with np.errstate(over="ignore"):
        made: Floats = np.clip((values - first) / np.where(width > 0, width, 1.0), 0, 1) * (counts - 1)
    return made
