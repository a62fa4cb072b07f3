"""The recursive spatial model index."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from .registry import Floats, Places, PointIndex, require_keys
from .tree import BoxTree
from .zm import interleave_bits

__all__ = ["SpatialModelIndex"]

_MOST, _BLOCK = 10_000, 100
_KNOTS, _SIDE = 33, 1 << 16
"""Most points of a model at the bottom, and points of a block (Qi et al. 2020, section 6.1)."""


@dataclass
class _Model:
    """Says for points which of several parts of a Z-curve they are in.

    Attributes:
        knots: quantiles of both coordinates, between which ranks are lines; shape ``(2, knots)``.
        count: how many parts there are.
        begins: at the bottom, where each block begins on the curve.
        first: the number of the first block, at the bottom.
        parts: the models below, if it is not at the bottom.
    """

    knots: Floats
    count: int
    begins: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(1, np.uint64))
    first: int = 0
    parts: list[_Model] = field(default_factory=list)

    def place(self, points: Floats, side: int) -> NDArray[np.uint64]:
        """Where points are on a curve of ``side`` by ``side`` cells of their ranks."""
        steps = np.linspace(0, side, self.knots.shape[1])
        cells = [np.minimum(np.interp(points[:, axis], self.knots[axis], steps), side - 1) for axis in (0, 1)]
        return interleave_bits(*(one.astype(np.uint64) for one in cells))

    def choose(self, points: Floats) -> Places:
        """The part of each point."""
        if self.parts:
            return self.place(points, int(np.sqrt(self.count))).astype(np.int64)
        found = np.searchsorted(self.begins, self.place(points, _SIDE), side="right") - 1
        return np.clip(found, 0, self.count - 1).astype(np.int64)


class SpatialModelIndex(PointIndex):
    """Models that divide points among models, down to ones that say in which block along a Z-curve of ranks a point is (Qi et al. 2020, "Effectively Learning Spatial Indices", RSMI).

    A point goes where a model puts it, so that a lookup goes the same way; a model that puts nine of ten points into one part gives way to halves along the curve. Boxes are found by the boxes around blocks, as in the paper's exact variant
    RSMIa. Its models are networks with one hidden layer that learn the curve; here they learn the rank of each coordinate as lines between 33 quantiles, from which the place on the curve follows. New points go to the block that the models name, whose box grows; when they are as many as the others, the index is built anew.
    """

    name: ClassVar[str] = "rsmi"
    inserts: ClassVar[bool] = True

    def build(self, points: Floats) -> Places:
        """Fit all models, and pack blocks."""
        self._blocks: list[Places] = []
        self._root = self._make(points, np.arange(len(points)))
        order = np.concatenate(self._blocks)
        self._ends = np.cumsum([0, *map(len, self._blocks)]).astype(np.int64)
        ordered, begins = points[order], self._ends[:-1]
        self._low, self._high = np.minimum.reduceat(ordered, begins), np.maximum.reduceat(ordered, begins)
        self._tree = BoxTree(self._low, self._high)
        self._built, self._added = len(points), np.zeros(0, np.int64)
        self._blocks = []
        return order

    @property
    def bytes(self) -> int:
        """Bytes of its arrays."""
        return super().bytes + (self._tree.bytes if len(self) else 0)

    def _make(self, points: Floats, rows: Places) -> _Model:
        mine = points[rows]
        knots = np.quantile(mine, np.linspace(0, 1, _KNOTS), axis=0).T
        model = _Model(knots, -(-len(rows) // _BLOCK), first=len(self._blocks))
        curve = model.place(mine, _SIDE)
        order = np.argsort(curve, kind="stable")
        if len(rows) <= _MOST:
            model.begins = curve[order][::_BLOCK]
            self._blocks += np.split(rows[order], np.arange(_BLOCK, len(rows), _BLOCK))
            return model
        side = min(8, 2 ** int(np.ceil(np.log(len(rows) / _MOST) / np.log(4))))
        model.count = side * side
        part = model.place(mine, side).astype(np.int64)
        if np.bincount(part).max() > 0.9 * len(rows):  # the model hardly divides them
            part[order] = np.arange(len(rows)) * model.count // len(rows)
        for k in range(model.count):
            own = rows[part == k]
            model.parts.append(self._make(points, own) if len(own) else _Model(knots, 1, first=max(0, len(self._blocks) - 1)))  # fmt: skip
        return model

    def _block_of(self, points: Floats) -> Places:
        """The block that the models name for each point."""
        found = np.zeros(len(points), np.int64)
        waiting = [(self._root, np.arange(len(points)))]
        while waiting:
            model, mine = waiting.pop()
            part = model.choose(points[mine])
            if not model.parts:
                found[mine] = model.first + part
                continue
            waiting += [(model.parts[k], mine[part == k]) for k in np.unique(part)]
        return found

    def spans(self, low: Floats, high: Floats) -> tuple[Places, Places, Places]:
        """The blocks that boxes meet."""
        question, block = self._tree.meeting(low, high)
        starts, stops = self._ends[block], self._ends[block + 1]
        if not len(self._added):
            return question, starts, stops
        more = [self._built + np.searchsorted(self._added, block, side) for side in ("left", "right")]  # fmt: skip
        return np.tile(question, 2), np.concatenate([starts, more[0]]), np.concatenate([stops, more[1]])

    def near(self, points: Floats) -> Places:
        """The middle of the block that the models name."""
        block = self._block_of(points)
        return (self._ends[block] + self._ends[block + 1]) // 2

    def insert(self, points: Any) -> None:
        """Add rows, numbered on from the last.

        Args:
            points: of each new row.
        """
        made = require_keys(points, self.name, 2)
        numbers = np.concatenate([self._rows, len(self) + np.arange(len(made))])
        together = np.concatenate([self._points, made])
        if not len(self) or len(together) > 2 * self._built:
            ordered = np.empty_like(together)
            ordered[numbers] = together
            super().__init__(ordered)
            return
        new = together[self._built :]
        block = self._block_of(new)
        order = np.argsort(block, kind="stable")
        self._added = block[order]
        np.minimum.at(self._low, block, new)
        np.maximum.at(self._high, block, new)
        self._tree = BoxTree(self._low, self._high)
        self._points = np.concatenate([self._points[: self._built], new[order]])
        self._rows = np.concatenate([self._rows[: self._built], numbers[self._built :][order]])
