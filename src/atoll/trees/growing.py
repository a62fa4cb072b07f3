"""A tree in growth at the server: which split each node gets, from sums of gradients alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .tree import Tree

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Growth", "TreeLimits"]

_EPSILON = 1e-6
"""The least gain of a split, as in XGBoost."""
_NOTHING = 1e-7
"""The share of a node's second derivatives up to which no row lacks a feature: sums round, and masked ones are whole numbers of a unit."""
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class TreeLimits:
    """What trees may become, in XGBoost's terms: see `atoll.trees.Trees`."""

    eta: float
    max_depth: int
    reg_lambda: float
    gamma: float
    min_child_weight: float

    def weight(self, total: NDArray[np.float64]) -> NDArray[np.float64]:
        """``-G / (H + lambda)``."""
        made: NDArray[np.float64] = -total[..., 0] / (total[..., 1] + self.reg_lambda)
        return made

    def score(self, total: NDArray[np.float64]) -> NDArray[np.float64]:
        """``G^2 / (H + lambda)``; 0 for nothing."""
        below = total[..., 1] + self.reg_lambda
        made: NDArray[np.float64] = np.divide(total[..., 0] ** 2, below, out=np.zeros_like(below), where=below > 0)
        return made


@dataclass
class Growth:
    """One tree, level by level.

    Chen, Guestrin 2016, equation 7: the gain of a split is ``G_L^2 / (H_L + lambda) + G_R^2 / (H_R + lambda) - G^2 / (H + lambda)`` (theirs
    is half of it), and it must exceed ``gamma``. Of two children, parties add up the one with less weight; the other is the difference to their parent.

    Where features are missing (section 3.4 there), the last bin has the sums of the rows without the feature. Each split is tried with them on its right
    and on its left, and with all other rows on one side; the node keeps the better direction, and of equal ones what XGBoost finds first.

    Attributes:
        limits: the settings.
        cuts: cuts of each feature.
        group: the output that the tree adds to.
        missing: whether features may be missing.
    """

    limits: TreeLimits
    cuts: list[NDArray[np.float32]]
    group: int
    missing: bool = False
    feature: list[int] = field(default_factory=lambda: [-1])
    cut: list[int] = field(default_factory=lambda: [0])
    left: list[int] = field(default_factory=lambda: [-1])
    gain: list[float] = field(default_factory=lambda: [0.0])
    default_left: list[bool] = field(default_factory=lambda: [False])
    total: dict[int, NDArray[np.float64]] = field(default_factory=dict)
    _sums: dict[int, NDArray[np.float64]] = field(default_factory=dict)
    _open: list[int] = field(default_factory=lambda: [0])
    _pairs: list[tuple[int, int, int]] = field(default_factory=list)
    depth: int = 0

    @property
    def asked(self) -> list[int]:
        """Nodes that the parties must add up next; none when the tree is grown."""
        if self.depth >= self.limits.max_depth:
            return []
        return [0] if self.depth == 0 else [small for _, small, _ in self._pairs]

    @property
    def message(self) -> dict[str, Any]:
        """The tree so far, in bins."""
        columns = {"feature": np.int32, "cut": np.int16, "left": np.int32, "default_left": np.bool_}
        return {"group": self.group, **{name: np.array(getattr(self, name), dtype) for name, dtype in columns.items()}}

    def take(self, histograms: NDArray[np.float64]) -> None:
        """Split the open nodes by the sums that `asked` wanted, ``(nodes, features, width, 2)``."""
        sums: dict[int, NDArray[np.float64]] = {}
        if self.depth == 0:
            sums[0] = histograms[0]
            self.total[0] = histograms[0][0].sum(axis=0)
        for (parent, small, large), found in zip(self._pairs, histograms, strict=False):
            sums[small], sums[large] = found, self._sums[parent] - found
        self._sums, self._pairs, open_ = sums, [], self._open
        self._open = []
        self.depth += 1
        for node in open_:
            self._split(node, sums[node])

    def _split(self, node: int, sums: NDArray[np.float64]) -> None:
        whole = self.total[node]
        left = self._candidates(sums, whole)
        right = whole - left
        gains = self.limits.score(left) + self.limits.score(right) - self.limits.score(whole)
        gains = np.where(self._allowed(left, right, sums[:, -1, 1] > _NOTHING * whole[1]), gains, -np.inf)
        f, place = divmod(int(gains.argmax()), gains.shape[1])
        if not gains[f, place] > max(self.limits.gamma, _EPSILON):
            return
        child, middle = len(self.feature), sums.shape[1] - 1
        self.default_left[node] = place >= middle
        self.feature[node], self.left[node] = f, child
        self.cut[node] = place if place < middle else 2 * middle - 2 - place
        self.gain[node] = float(gains[f, place])
        for part in (left[f, place], right[f, place]):
            self._open.append(len(self.feature))
            self.total[len(self.feature)] = part
            self.feature.append(-1)
            self.cut.append(0)
            self.left.append(-1)
            self.gain.append(0.0)
            self.default_left.append(False)
        small, large = sorted((child, child + 1), key=lambda one: (self.total[one][1], one))
        self._pairs.append((node, small, large))

    def _candidates(self, sums: NDArray[np.float64], whole: NDArray[np.float64]) -> NDArray[np.float64]:
        """What goes left in each split, ``(features, splits, 2)``.

        Split ``c`` sends the bins up to ``c`` left. Where features are missing, further ones send them left too: backwards from the last bin, as XGBoost
        looks for them, to the split that sends nothing else left.
        """
        if not self.missing:
            return np.cumsum(sums, axis=1)[:, :-1]
        known = np.cumsum(sums[:, :-1], axis=1)
        absent = sums[:, -1:]
        nothing = np.zeros_like(absent)
        return np.concatenate([known, absent + np.concatenate([nothing, known[:, :-1]], axis=1)[:, ::-1]], axis=1)

    def _allowed(
        self, left: NDArray[np.float64], right: NDArray[np.float64], absent: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Which splits may be, ``(features, splits)``; ``absent`` says of which features some rows have none."""
        least = self.limits.min_child_weight
        made: NDArray[np.bool_] = (left[..., 1] >= least) & (right[..., 1] >= least)
        made &= (right[..., 1] > 0) & (left[..., 1] > 0)
        counts, place = np.array([len(mine) for mine in self.cuts])[:, None], np.arange(left.shape[1])
        if not self.missing:
            return made & (place < counts)
        middle = left.shape[1] // 2
        cut = np.where(place < middle, place, 2 * middle - 2 - place)
        return made & np.where(
            place < middle, (cut < counts) | ((cut == counts) & absent[:, None]), (cut < counts) & absent[:, None]
        )

    def value(self) -> NDArray[np.float32]:
        """What each node adds, or would add, as a leaf: ``-eta G / (H + lambda)``."""
        totals = np.stack([self.total[node] for node in range(len(self.feature))])
        return (self.limits.eta * self.limits.weight(totals)).astype(np.float32)

    def tree(self) -> Tree:
        """The tree, with numbers in place of bins."""
        feature, totals = np.array(self.feature, np.int32), [self.total[n] for n in range(len(self.feature))]
        threshold = [self._threshold(f, c) if f >= 0 else 0.0 for f, c in zip(self.feature, self.cut, strict=True)]
        hessian = np.array([total[1] for total in totals], np.float32)
        columns = np.array(threshold, np.float32), np.array(self.left, np.int32), self.value(), hessian
        return Tree(feature, *columns, np.array(self.gain, np.float32), np.array(self.default_left), self.group)

    def _threshold(self, f: int, cut: int) -> float:
        """The number that a feature is below in the bins up to ``cut``; below or above all numbers if only missing rows go one way."""
        if 0 <= cut < len(self.cuts[f]):
            return float(self.cuts[f][cut])
        return -_LARGEST if cut < 0 else _LARGEST
