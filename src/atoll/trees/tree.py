"""Trees as arrays, and ensembles of them that predict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import DataError

from .objectives import TreeLoss

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["Ensemble", "Tree", "base_score"]


@dataclass(frozen=True)
class Tree:
    """A binary tree; node 0 is its root, and a row goes left if ``x[feature] < threshold``, or where the node says if the feature is missing.

    Attributes:
        feature: feature of each node's split, ``(nodes,)``; -1 for a leaf.
        threshold: where it splits, in single precision, as XGBoost's are; in double precision if LightGBM grew it, as are all numbers then.
        left: left child of each node; the right one is next to it. -1 for a leaf.
        value: what a leaf adds to the margin; of an inner node, what it would add.
        hessian: sum of second derivatives at each node: XGBoost's "cover".
        gain: by how much a split lowers the loss, times two; 0 for a leaf.
        default_left: whether rows without the feature go left.
        group: the output that it adds to.
    """

    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    left: NDArray[np.int32]
    value: NDArray[np.float32]
    hessian: NDArray[np.float32]
    gain: NDArray[np.float32]
    default_left: NDArray[np.bool_]
    group: int = 0

    def __len__(self) -> int:
        return len(self.feature)

    def leaves(self, x: NDArray[np.float32]) -> NDArray[np.int64]:
        """The leaf of each row."""
        at = np.zeros(len(x), np.int64)
        going = np.arange(len(x))
        while True:
            going = going[self.feature[at[going]] >= 0]
            if not len(going):
                return at
            node = at[going]
            values = x[going, self.feature[node]]
            goes = (values < self.threshold[node]) | (self.default_left[node] & np.isnan(values))
            at[going] = self.left[node] + ~goes


@dataclass(frozen=True)
class Ensemble:
    """The result of `Trees`: trees whose leaves add up.

    Attributes:
        objective: the loss.
        base: the margin before the first tree, ``(outputs,)``.
        features: names of the features.
        trees: in the order in which they were grown.
        rounds: how many trees there were after each round.
        library: ``"xgboost"`` or ``"lightgbm"``: whose arithmetic (single or double precision) and model file the trees have.
    """

    objective: TreeLoss
    base: NDArray[np.float64]
    features: Sequence[str]
    trees: Sequence[Tree] = ()
    rounds: Sequence[int] = ()
    library: str = "xgboost"

    @property
    def base_score(self) -> float:
        """XGBoost's base score: the prediction before the first tree; 0 with several outputs, see `model_file`."""
        return base_score(self.objective, self.base)

    def margins(self, x: ArrayLike) -> NDArray[Any]:
        """The margins of rows, ``(rows, outputs)``.

        Args:
            x: ``(rows, features)``; NaN is a feature that is missing.

        Raises:
            DataError: the rows have another number of features.
        """
        rows = np.asarray(x, np.float32)
        if rows.ndim != 2 or rows.shape[1] != len(self.features):
            raise DataError(
                f"rows of shape {rows.shape[1:]} for trees over {len(self.features)} features",
                where="Ensemble",
                remedy="give one column a feature, in the order of `features`",
            )
        made = np.tile(self.base.astype(np.float64 if self.library == "lightgbm" else np.float32), (len(rows), 1))
        for tree in self.trees:
            made[:, tree.group] += tree.value[tree.leaves(rows)]
        return made

    def predict(self, x: ArrayLike) -> NDArray[np.float32]:
        """Predictions: probabilities of the second class, ``(rows,)``, of all classes, ``(rows, classes)``, or numbers, ``(rows,)``."""
        made = self.objective.predict(self.margins(x))
        return made[:, 0] if self.objective.outputs == 1 else made

    def importance(self) -> dict[str, float]:
        """Map each feature to the share of the gain that its splits have."""
        gains = np.zeros(len(self.features))
        for tree in self.trees:
            inner = tree.feature >= 0
            np.add.at(gains, tree.feature[inner], tree.gain[inner])
        total = gains.sum() or 1.0
        return {name: float(gain / total) for name, gain in zip(self.features, gains, strict=True)}


def base_score(objective: TreeLoss, base: NDArray[np.float64]) -> float:
    """The prediction for a margin, in single precision; 0 with several outputs."""
    return 0.0 if objective.outputs > 1 else float(objective.predict(base[None].astype(np.float32))[0, 0])
