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

    Attributes:
        limits: the settings.
        cuts: cuts of each feature.
        group: the output that the tree adds to.
    """

    limits: TreeLimits
    cuts: list[NDArray[np.float32]]
    group: int
    feature: list[int] = field(default_factory=lambda: [-1])
    cut: list[int] = field(default_factory=lambda: [0])
    left: list[int] = field(default_factory=lambda: [-1])
    gain: list[float] = field(default_factory=lambda: [0.0])
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
        columns = {"feature": np.int32, "cut": np.uint8, "left": np.int32}
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
        whole, least = self.total[node], self.limits.min_child_weight
        left = np.cumsum(sums, axis=1)[:, :-1]
        right = whole - left
        gains = self.limits.score(left) + self.limits.score(right) - self.limits.score(whole)
        allowed = (left[..., 1] >= least) & (right[..., 1] >= least) & (right[..., 1] > 0) & (left[..., 1] > 0)
        for f, cuts in enumerate(self.cuts):
            allowed[f, len(cuts) :] = False
        gains = np.where(allowed, gains, -np.inf)
        f, cut = divmod(int(gains.argmax()), gains.shape[1])
        if not gains[f, cut] > max(self.limits.gamma, _EPSILON):
            return
        child = len(self.feature)
        self.feature[node], self.cut[node], self.left[node] = f, cut, child
        self.gain[node] = float(gains[f, cut])
        for part in (left[f, cut], right[f, cut]):
            self._open.append(len(self.feature))
            self.total[len(self.feature)] = part
            for column, empty in ((self.feature, -1), (self.cut, 0), (self.left, -1), (self.gain, 0.0)):
                column.append(empty)  # type: ignore[arg-type]
        small, large = sorted((child, child + 1), key=lambda one: (self.total[one][1], one))
        self._pairs.append((node, small, large))

    def value(self) -> NDArray[np.float32]:
        """What each node adds, or would add, as a leaf: ``-eta G / (H + lambda)``."""
        totals = np.stack([self.total[node] for node in range(len(self.feature))])
        return (self.limits.eta * self.limits.weight(totals)).astype(np.float32)

    def tree(self) -> Tree:
        """The tree, with numbers in place of bins."""
        feature, totals = np.array(self.feature, np.int32), [self.total[n] for n in range(len(self.feature))]
        threshold = [self.cuts[f][c] if f >= 0 else 0.0 for f, c in zip(self.feature, self.cut, strict=True)]
        hessian = np.array([total[1] for total in totals], np.float32)
        columns = np.array(threshold, np.float32), np.array(self.left, np.int32), self.value(), hessian
        return Tree(feature, *columns, np.array(self.gain, np.float32), self.group)
