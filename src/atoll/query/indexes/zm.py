"""The Z-order model index."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from .registry import Floats, Places, PointIndex
from .rmi import RecursiveModelIndex

__all__ = ["ZOrderModelIndex", "interleave_bits"]

_BITS = 26
"""Bits of a coordinate: two of them make a whole number that a double holds exactly."""
_CUTS = 6
Words = NDArray[np.uint64]
_MASKS = [(16, 0x0000FFFF0000FFFF), (8, 0x00FF00FF00FF00FF), (4, 0x0F0F0F0F0F0F0F0F), (2, 0x3333333333333333), (1, 0x5555555555555555)]  # fmt: skip


def interleave_bits(x: Words, y: Words) -> Words:
    """The places of cells along a Z-curve: bits of ``y`` and ``x`` in turn (Morton 1966)."""

    def spread(one: Words) -> Words:
        for shift, mask in _MASKS:
            one = (one | one << np.uint64(shift)) & np.uint64(mask)
        return one

    made: Words = spread(x) | spread(y) << np.uint64(1)
    return made


class ZOrderModelIndex(PointIndex):
    """Points along a Z-curve, and a recursive model of where they are on it (Wang et al. 2019, "Learned Index for Spatial Queries", ZM).

    A box is one stretch of the curve with much beside it, so it is cut at the largest power of two that divides it, six times at most. Coordinates count in ``2^26`` steps of the extent of the points.
    """

    name: ClassVar[str] = "zm"

    def build(self, points: Floats) -> Places:
        """Order the points along the curve, and learn it."""
        self._corner = points.min(axis=0)
        width = points.max(axis=0) - self._corner
        self._width = np.where(width > 0, width, 1.0)
        places = interleave_bits(*self._cells(points).T).astype(np.float64)
        self._curve = RecursiveModelIndex(places)
        return self._curve.lookup([-np.inf], [np.inf]).rows

    def _cells(self, points: Floats) -> Words:
        with np.errstate(over="ignore"):
            made = np.clip((points - self._corner) / self._width, 0, 1) * ((1 << _BITS) - 1)
        cells: Words = made.astype(np.uint64)
        return cells

    def spans(self, low: Floats, high: Floats) -> tuple[Places, Places, Places]:
        """The stretches of the curve that boxes are cut into."""
        question, lower, upper = np.arange(len(low)), self._cells(low), self._cells(high)
        for _ in range(_CUTS):
            apart = lower ^ upper
            # The highest bit in which the corners differ, along the curve: y before x of one height.
            axis = (apart[:, 1] >= _highest(apart[:, 0])).astype(np.int64)
            every = np.arange(len(apart))
            bit = _highest(apart[every, axis])
            cut = np.flatnonzero((apart > 0).any(axis=1))
            edge = upper[cut, axis[cut]] & ~(bit[cut] - np.uint64(1))
            first, second = upper.copy(), lower[cut].copy()
            first[cut, axis[cut]] = edge - np.uint64(1)
            second[np.arange(len(cut)), axis[cut]] = edge
            question = np.concatenate([question, question[cut]])
            lower, upper = np.concatenate([lower, second]), np.concatenate([first, upper[cut]])
        places = [interleave_bits(*corner.T).astype(np.float64) for corner in (lower, upper)]
        starts = self._curve.begins
        return question, starts[self._curve.rank(places[0])], starts[self._curve.rank(places[1] + 1)]

    def near(self, points: Floats) -> Places:
        """The place on the curve."""
        return self._curve.begins[self._curve.rank(interleave_bits(*self._cells(points).T).astype(np.float64))]


def _highest(words: Words) -> Words:
    """The highest bit of each word alone."""
    exponent = np.frexp(words.astype(np.float64))[1]  # words of 26 bits are exact
    made: Words = np.where(words > 0, np.uint64(1) << np.maximum(exponent - 1, 0).astype(np.uint64), np.uint64(0))
    return made
