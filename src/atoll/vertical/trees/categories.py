"""Splits of columns of categories, as XGBoost finds them with ``enable_categorical``: one category against the others, or a partition of all.

A column of n categories has n inputs, 1 for the rows of one category. The sums of an input's upper bin are those of its category, so that whoever knows the sums of all n finds both kinds:

* n below ``max_cat_to_onehot``: each category goes right, without and with the rows that have none;
* else the categories are put in the order of ``-G / (H + lambda)``, which is 0 where H is below ``min_child_weight``, and the first ones go right: first with missing rows on the left, then on the
  right. For squared loss one of these is the best of all ``2^n`` partitions (Fisher 1958, "On grouping for maximum homogeneity"; Breiman et al. 1984, section 8.8).

XGBoost 3, ``src/tree/hist/evaluate_splits.h``, ``EnumerateOneHot`` and ``EnumeratePart``. A category without training rows has sums of 0 and takes its place among the others; those behind the last
one with rows, by name, XGBoost does not know, and their rows go left. So do rows of categories that were not there at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.trees.histogram import BestSplit, Growth

from ..model import require

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["CategoryGrowth", "category_cuts", "pack_rights", "read_rights"]

_CUT = np.ones(1, np.float32)
"""Between the rows of other categories, 0, and those of the input's own, 1."""


def category_cuts(x: NDArray[np.float32], groups: NDArray[np.int64]) -> dict[int, NDArray[np.float32]]:
    """The cut of each input of a column of categories; none behind the last category that has rows.

    Args:
        x: the training rows.
        groups: the number of each input's column of categories, -1 for a column of numbers.
    """
    made: dict[int, NDArray[np.float32]] = {}
    for group in np.unique(groups[groups >= 0]).tolist():
        inputs = np.flatnonzero(groups == group)
        held = np.flatnonzero((x[:, inputs] == 1).any(axis=0))
        last = held[-1] if len(held) else -1
        made |= {int(f): _CUT if i <= last else _CUT[:0] for i, f in enumerate(inputs)}
    return made


@dataclass(frozen=True)
class _CategorySplit(BestSplit):
    """A split by categories.

    Attributes:
        inputs: those of the categories that go right.
    """

    inputs: tuple[int, ...] = ()


@dataclass
class CategoryGrowth(Growth):
    """A tree in growth, some of whose inputs are categories.

    Attributes:
        groups: the inputs of each column of categories, ascending.
        one_hot: columns with fewer categories split one off (XGBoost's ``max_cat_to_onehot``).
        right: of each node that categories split, the inputs of those that go right.
    """

    groups: Sequence[Sequence[int]] = ()
    one_hot: int = 4
    right: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def apply(self, node: int, best: BestSplit) -> None:
        """See `Growth.apply`."""
        super().apply(node, best)
        if isinstance(best, _CategorySplit):
            self.right[node] = best.inputs

    def find_best(self, sums: NDArray[np.float64], whole: NDArray[np.float64]) -> BestSplit | None:
        """See `Growth.find_best`."""
        if not self.groups:
            return super().find_best(sums, whole)
        numbers = sums.copy()
        numbers[[f for group in self.groups for f in group]] = 0  # nothing splits on these as on numbers
        found = [super().find_best(numbers, whole), *(self._find_best_of(group, sums, whole) for group in self.groups)]
        known = [one for one in found if one is not None]
        return min(known, key=lambda one: (-one.gain, one.feature), default=None)

    def _find_best_of(
        self, group: Sequence[int], sums: NDArray[np.float64], whole: NDArray[np.float64]
    ) -> BestSplit | None:
        """The best split of one column of categories; those without a cut are none of them: their rows go left."""
        members = np.array([f for f in group if len(self.cuts[f])], np.int64)
        if not len(members):
            return None
        own, absent = sums[members, 1], sums[members[0], -1]
        if len(members) < self.one_hot:
            order, taken = np.arange(len(members)), [slice(c, c + 1) for c in range(len(members)) for _ in range(2)]
            right = np.repeat(own, 2, axis=0)
            missing_left = np.tile([True, False], len(members))
        else:
            order = np.argsort(self._weigh(own), kind="stable")
            first = np.cumsum(own[order], axis=0)[:-1]
            right = np.concatenate([first, first[::-1]])
            missing_left = np.repeat([True, False], len(first))
            taken = [slice(0, j) for j in (*range(1, len(members)), *range(len(members) - 1, 0, -1))]
        if not len(right):
            return None
        right = right + np.where(missing_left[:, None], 0.0, absent)
        left = whole - right
        gains = self.limits.score(left) + self.limits.score(right) - self.limits.score(whole)
        gains = np.where(self.limits.allow(left, right), gains, -np.inf)
        at = int(gains.argmax())
        inputs = tuple(sorted(members[order[taken[at]]].tolist()))
        return _CategorySplit(float(gains[at]), int(members[0]), 0, bool(missing_left[at]), left[at], right[at], inputs)

    def _weigh(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """By what the categories are ordered."""
        known = (sums[:, 1] >= self.limits.min_child_weight) & (sums[:, 1] > 0)
        made = np.zeros(len(sums))
        made[known] = self.limits.weight(sums[known])
        return made


def pack_rights(rights: Sequence[Sequence[int]]) -> dict[str, NDArray[np.int32]]:
    """The inputs that go right at each of several splits as a message; none for splits of numbers alone."""
    pairs = [(split, one) for split, mine in enumerate(rights) for one in mine]
    if not pairs:
        return {}
    split, right = np.array(pairs, np.int32).T
    return {"right_of": split, "right": right}


def read_rights(message: Any, splits: int) -> list[tuple[int, ...]]:
    """The inverse of `pack_rights`, for so many splits.

    Raises:
        MessageError: it names other splits.
    """
    made: list[list[int]] = [[] for _ in range(splits)]
    split, right = (np.asarray(message.get(name, np.zeros(0, np.int32))) for name in ("right_of", "right"))
    good = split.ndim == 1 and split.shape == right.shape and split.dtype.kind == right.dtype.kind == "i"
    require(good and bool(((split >= 0) & (split < splits)).all()), "categories that go right at no split", "SecureBoost")  # fmt: skip
    for at, one in zip(split.tolist(), right.tolist(), strict=True):
        made[at].append(one)
    return [tuple(mine) for mine in made]
