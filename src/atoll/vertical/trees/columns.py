"""One owner's columns: XGBoost's cuts of them, the bins of its rows, and the rows at each node of the tree in growth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import MessageError
from atoll.trees.blocks import cuts_of_column
from atoll.trees.kernel import gradient_histogram
from atoll.trees.sketch import binned

from ..model import require
from .categories import category_cuts, pack_rights, read_rights

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["LARGEST", "OwnedColumns", "Splits"]

LARGEST = float(np.finfo(np.float32).max)
"""A threshold below which all numbers are: the split sends rows without the feature one way and all others the other."""


@dataclass
class Splits:
    """The splits on one owner's columns, in the order in which they were made: the owner's part of a model.

    Attributes:
        feature: column of each split.
        threshold: a row goes left if its value is below it.
        default_left: whether rows without the value go left.
        right: of a split by categories, the inputs of those that go right, whatever the threshold; else none.
    """

    feature: list[int] = field(default_factory=list)
    threshold: list[float] = field(default_factory=list)
    default_left: list[bool] = field(default_factory=list)
    right: list[tuple[int, ...]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.feature)

    def add(self, feature: int, threshold: float, default_left: bool, right: tuple[int, ...] = ()) -> int:
        """Keep a split; return its number."""
        self.right.append(right)
        self.feature.append(feature)
        self.threshold.append(threshold)
        self.default_left.append(default_left)
        return len(self) - 1

    def walk(self, x: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Whether each row goes left at each split, ``(rows, splits)``: all of them, so that nobody sees which ones a row passes."""
        values = x[:, np.array(self.feature, np.int64)]
        left = values < np.array(self.threshold, np.float32)
        for split, inputs in enumerate(self.right):
            if inputs:
                left[:, split] = ~(x[:, list(inputs)] == 1).any(axis=1)
        return np.where(np.isnan(values), np.array(self.default_left, np.bool_), left)

    def packed(self) -> dict[str, Any]:
        """The splits as a message."""
        return {
            "feature": np.array(self.feature, np.int32),
            "threshold": np.array(self.threshold, np.float32),
            "default_left": np.array(self.default_left, np.bool_),
            **pack_rights(self.right),
        }

    @classmethod
    def unpacked(cls, message: Any) -> Splits:
        """The inverse of `packed`."""
        feature, threshold, default = (
            np.asarray(message[name]).tolist() for name in ("feature", "threshold", "default_left")
        )
        return cls(feature, threshold, default, read_rights(message, len(feature)))


class OwnedColumns:
    """The columns of one owner while trees grow on them.

    Args:
        x: the training rows in the common order, ``(rows, features)``, in single precision; NaN is missing.
        max_bin: most bins of a column.
        least: fewest rows of a bin: neighbouring bins with fewer are one. Rows without the value stay a bin of their own.
        groups: the number of each input's column of categories, -1 for a column of numbers; by default all are numbers.
    """

    def __init__(
        self, x: NDArray[np.float32], max_bin: int, least: int = 1, groups: Sequence[int] | None = None
    ) -> None:
        self.rows, self.features = x.shape
        self.groups = np.full(self.features, -1, np.int64) if groups is None else np.array(groups, np.int64)
        coded = category_cuts(x, self.groups)
        found = [coded[f] if f in coded else cuts_of_column(x[:, f], max_bin) for f in range(self.features)]
        self.cuts = [_join_bins(x[:, f], cuts, least) for f, cuts in enumerate(found)] if least > 1 else found
        self.width = max((len(cuts) for cuts in self.cuts), default=0) + 2
        self.bins: Any = np.ascontiguousarray(binned(x, self.cuts, self.width - 1))
        self.at: dict[int, NDArray[np.int32]] = {}
        self.begin()

    @property
    def counts(self) -> list[int]:
        """How many cuts each column has: all that others learn of them."""
        return [len(cuts) for cuts in self.cuts]

    @property
    def fullest(self) -> list[int]:
        """The bin of each column that has the most rows."""
        return [int(np.bincount(self.bins[:, f], minlength=1).argmax()) for f in range(self.features)]

    def begin(self) -> None:
        """Begin a tree: all rows are at its root."""
        self.at = {0: np.arange(self.rows, dtype=np.int32)}

    def rows_at(self, node: int) -> NDArray[np.int32]:
        """The rows at a leaf of the tree in growth, ascending.

        Raises:
            MessageError: the tree has no such leaf.
        """
        found = self.at.get(node)
        if found is None:
            raise MessageError(
                f"node {node} is no leaf of the tree in growth",
                where="SecureBoost",
                remedy="let all parties run the same version of Atoll",
            )
        return found

    def sums(self, pairs: NDArray[np.float32], nodes: Sequence[int]) -> NDArray[np.int64]:
        """Sums of gradients and second derivatives, ``(nodes, features, width, 2)``; the last bin is of the rows without the value.

        Args:
            pairs: whole numbers, ``(rows, 2)``.
            nodes: leaves of the tree in growth.
        """
        made = [gradient_histogram(self.bins, pairs, self.rows_at(node), self.width) for node in nodes]
        return (
            np.rint(np.stack(made)).astype(np.int64) if made else np.zeros((0, self.features, self.width, 2), np.int64)
        )

    def goes_left(
        self, node: int, feature: int, cut: int, default_left: bool, right: Sequence[int] = ()
    ) -> NDArray[np.bool_]:
        """Which rows of a leaf a split sends left: those up to bin ``cut``, or where categories go ``right`` those of all others, and those without the value if it says so.

        Raises:
            MessageError: the owner has no such column, bin or categories of one column, or the tree no such leaf.
        """
        if not 0 <= feature < self.features or not -1 <= cut <= len(self.cuts[feature]):
            raise MessageError(
                f"a split of column {feature} behind bin {cut}, which the owner does not have",
                where="SecureBoost",
                remedy="let all parties run the same version of Atoll",
            )
        rows = self.rows_at(node)
        mine = self.bins[rows, feature].astype(np.int64)
        absent = mine == self.width - 1
        if not len(right):
            return np.where(absent, default_left, mine <= cut)
        good = all(0 <= one < self.features and self.groups[one] == self.groups[feature] >= 0 for one in right)
        require(good, f"categories {list(right)[:10]}, which the column of input {feature} does not have", "SecureBoost")  # fmt: skip
        return np.where(absent, default_left, ~(self.bins[rows][:, list(right)] == 1).any(axis=1))

    def move(self, node: int, child: int, left: NDArray[np.bool_]) -> None:
        """Split a leaf: its rows go to the nodes ``child`` (left) and ``child + 1``.

        Raises:
            MessageError: the tree has no such leaf, or has it with other rows.
        """
        rows = self.rows_at(node)
        if left.shape != rows.shape or child <= node or child in self.at or child + 1 in self.at:
            raise MessageError(
                f"node {node} of {len(rows)} rows is to be split by {left.size} answers into node {child}",
                where="SecureBoost",
                remedy="let all parties run the same version of Atoll",
            )
        del self.at[node]
        self.at[child], self.at[child + 1] = rows[left], rows[~left]

    def threshold(self, feature: int, cut: int) -> float:
        """The number that a split behind bin ``cut`` compares with; below or above all numbers if only rows without the value go one way."""
        if 0 <= cut < len(self.cuts[feature]):
            return float(self.cuts[feature][cut])
        return -LARGEST if cut < 0 else LARGEST


def _join_bins(values: NDArray[np.float32], cuts: NDArray[np.float32], least: int) -> NDArray[np.float32]:
    """The cuts that leave at least so many rows in each bin, from below; none if the column has fewer."""
    known = values[~np.isnan(values)]
    below = np.searchsorted(np.sort(known), cuts, side="left")  # how many rows each cut has below it
    kept, last = [], 0
    for cut, rows in zip(cuts, below.tolist(), strict=True):
        if rows - last >= least and len(known) - rows >= least:
            kept.append(cut)
            last = rows
    return np.array(kept, dtype=cuts.dtype)
