"""A packed R-tree."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from .registry import Floats, Places, PointIndex, expand_spans

__all__ = ["BoxTree", "PackedTree"]

_FANOUT = 16


class BoxTree:
    """Boxes, and larger boxes around neighbors of them, up to one (Guttman 1984, R-tree).

    Args:
        low: the lower corners, in an order in which neighbors lie together; shape ``(n, 2)``.
        high: the upper corners.
    """

    def __init__(self, low: Floats, high: Floats) -> None:
        self._levels = [(low, high)]
        while len(low) > _FANOUT:
            begins = np.arange(0, len(low), _FANOUT)
            low, high = np.minimum.reduceat(low, begins), np.maximum.reduceat(high, begins)
            self._levels.append((low, high))

    @property
    def bytes(self) -> int:
        """Bytes of its arrays."""
        return sum(low.nbytes + high.nbytes for low, high in self._levels)

    def meeting(self, low: Floats, high: Floats) -> tuple[Places, Places]:
        """The pairs of a question and a box that meets the box asked for: of all questions level by level."""
        top = len(self._levels[-1][0])
        question = np.repeat(np.arange(len(low)), top)
        box = np.tile(np.arange(top), len(low))
        for depth in reversed(range(len(self._levels))):
            lower, upper = self._levels[depth]
            meets = ((lower[box] <= high[question]) & (upper[box] >= low[question])).all(axis=1)
            question, box = question[meets], box[meets]
            if depth:
                begin = box * _FANOUT
                box, pair = expand_spans(begin, np.minimum(begin + _FANOUT, len(self._levels[depth - 1][0])))
                question = question[pair]
        return question, box

    def closest(self, points: Floats) -> Places:
        """A box that is close to each point: the closest one at each level."""
        box = np.zeros(len(points), np.int64)
        for depth in reversed(range(len(self._levels))):
            lower, upper = self._levels[depth]
            size = len(lower) if depth == len(self._levels) - 1 else _FANOUT
            some = np.minimum(box[:, None] * _FANOUT * (depth < len(self._levels) - 1) + np.arange(size), len(lower) - 1)  # fmt: skip
            apart = np.maximum(np.maximum(lower[some] - points[:, None], points[:, None] - upper[some]), 0).max(axis=2)
            extent = (upper[some] - lower[some]).max(axis=2)  # of boxes that hold the point the smallest
            best = np.where(apart <= apart.min(axis=1, keepdims=True), extent, np.inf)
            box = some[np.arange(len(points)), best.argmin(axis=1)]
        return box


def pack_points(points: Floats, leaf: int) -> Places:
    """An order in which every ``leaf`` points lie in one tile: slices by x, and within each by y (Leutenegger, Edgington, Lopez 1997, STR)."""
    n = len(points)
    by_x = np.argsort(points[:, 0], kind="stable")
    slices = max(1, int(np.ceil(np.sqrt(n / leaf))))
    count = int(np.ceil(n / leaf / slices))
    size = leaf * (count if count < _FANOUT else -(-count // _FANOUT) * _FANOUT)  # no node takes leaves of two slices
    strip = np.empty(n, np.int64)
    strip[by_x] = np.arange(n) // size
    return np.lexsort((points[:, 0], points[:, 1], strip)).astype(np.int64)


class PackedTree(PointIndex):
    """An R-tree packed from the leaves up, with full nodes (Guttman 1984; packed as in Leutenegger, Edgington, Lopez 1997, "STR")."""

    name: ClassVar[str] = "tree"
    leaf: ClassVar[int] = 32
    """Points of a leaf."""

    def build(self, points: Floats) -> Places:
        """Pack the points."""
        order = pack_points(points, self.leaf)
        begins = np.arange(0, len(points), self.leaf)
        ordered = points[order]
        self._tree = BoxTree(np.minimum.reduceat(ordered, begins), np.maximum.reduceat(ordered, begins))
        return order

    @property
    def bytes(self) -> int:
        """Bytes of its arrays."""
        return super().bytes + (self._tree.bytes if len(self) else 0)

    def spans(self, low: Floats, high: Floats) -> tuple[Places, Places, Places]:
        """The leaves that boxes meet."""
        question, box = self._tree.meeting(low, high)
        return question, box * self.leaf, np.minimum((box + 1) * self.leaf, len(self))

    def near(self, points: Floats) -> Places:
        """A place in a leaf that is close."""
        return self._tree.closest(points) * self.leaf + self.leaf // 2
