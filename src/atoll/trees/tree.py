"""Trees as arrays, and ensembles of them that predict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import DataError
from atoll.data.missing import known_rows
from atoll.data.model_columns import ModelColumns, ModelEstimator, RowPredictions, TableModel

from .objectives import LOGISTIC, POISSON, SQUARED, TreeLoss

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import ArrayLike, NDArray

__all__ = ["Ensemble", "Scores", "Tree", "auc", "base_score", "score"]


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
        columns: what the trees know of the rows that they take: codes of text, missing values, classes. ``None`` of trees that nobody described.
    """

    objective: TreeLoss
    base: NDArray[np.float64]
    features: Sequence[str]
    trees: Sequence[Tree] = ()
    rounds: Sequence[int] = ()
    library: str = "xgboost"
    columns: ModelColumns | None = None

    @property
    def base_score(self) -> float:
        """XGBoost's base score: the prediction before the first tree; 0 with several outputs, see `model_file`."""
        return base_score(self.objective, self.base)

    def margins(self, x: Any) -> NDArray[Any]:
        """The margins of rows, ``(rows, outputs)``.

        Args:
            x: ``(rows, features)``; NaN is a feature that is missing. Or a table, a frame or a dict of columns, which are matched by name.

        Raises:
            DataError: the rows have another number of features, or a table lacks one.
        """
        named = isinstance(x, Mapping) or hasattr(x, "columns")
        rows = np.asarray(self._described().matrix(x) if named else x, np.float32)
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

    def predict(self, x: Any) -> NDArray[np.float32]:
        """Predictions as XGBoost's: probabilities of the second class, ``(rows,)``, of all classes, ``(rows, classes)``, or numbers, ``(rows,)``.

        Classes are those of ``to_sklearn().predict(x)``. For the argument, see `margins`.
        """
        made = self.objective.predict(self.margins(x))
        return made[:, 0] if self.objective.outputs == 1 else made

    def predict_proba(self, x: Any) -> NDArray[np.float32]:
        """The probabilities of the classes, ``(rows, classes)``; a table is matched by the names of its columns.

        Raises:
            CompositionError: the trees predict numbers.
        """
        return self.table_model().predict_proba(x)

    def to_sklearn(self) -> ModelEstimator:
        """A fitted scikit-learn estimator, whose ``predict`` gives classes (or numbers) and whose ``predict_proba`` gives these probabilities."""
        return self.table_model().to_sklearn()

    def table_model(self) -> TableModel:
        """The trees as a model that predicts rows of tables."""
        return TableModel("trees", self._described(), self._answer, self.objective.name != SQUARED)

    def _answer(self, rows: Any, where: str) -> RowPredictions:
        columns = self._described()
        made = self.predict(columns.matrix(rows, where))
        if self.objective.name == SQUARED:
            return RowPredictions(made)
        return columns.decide(np.stack([1 - made, made], axis=1) if made.ndim == 1 else made)

    def _described(self) -> ModelColumns:
        if self.columns is not None:
            return self.columns
        outputs = self.objective.outputs
        classes = () if self.objective.name == SQUARED else tuple(map(str, range(max(2, outputs))))
        task = "classification" if classes else "regression"
        return ModelColumns(tuple(self.features), missing=True, task=task, classes=classes)

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


# How good an ensemble is on the server's test rows, while it grows.


def auc(y: ArrayLike, predicted: ArrayLike) -> float:
    """The area under the ROC curve: how often a row of class 1 has a larger prediction than one of class 0; ties count half.

    ``(sum of ranks of class 1 - n_1 (n_1 + 1) / 2) / (n_1 n_0)``, Hanley, McNeil 1982. NaN if a class is missing. Of the probabilities of several classes,
    ``(rows, classes)``, it is the mean over the classes that have rows, each against all others.
    """
    values = np.asarray(predicted)
    if values.ndim == 2 and values.shape[1] > 1:
        labels = np.asarray(y)
        each = [auc(labels == k, values[:, k]) for k in range(values.shape[1]) if (labels == k).any()]
        return float(np.mean(each)) if each else float("nan")
    truth, values = np.asarray(y) > 0, values.reshape(len(values))
    order = np.argsort(values, kind="stable")
    _, first, inverse, counts = np.unique(values[order], return_index=True, return_inverse=True, return_counts=True)
    ranks = np.empty(len(values))
    ranks[order] = (first + (counts + 1) / 2)[inverse]
    ones = int(truth.sum())
    if ones in (0, len(truth)):
        return float("nan")
    return float((ranks[truth].sum() - ones * (ones + 1) / 2) / (ones * (len(truth) - ones)))


def score(objective: TreeLoss, y: ArrayLike, predicted: NDArray[Any]) -> tuple[str, float]:
    """The measure of an objective: ``auc``, ``rmse`` or ``accuracy``."""
    truth = np.asarray(y)
    if objective.name == LOGISTIC:
        return "auc", auc(truth, predicted.reshape(len(truth)))
    if objective.name in (SQUARED, POISSON):
        return "rmse", float(np.sqrt(np.mean((predicted.reshape(len(truth)) - truth) ** 2)))
    return "accuracy", float((predicted.argmax(axis=1) == truth).mean())


class Scores:
    """Scores on the test rows, each tree walked once.

    Args:
        objective: the loss.
        test: the server's rows, or ``None``: then there are no scores.
    """

    def __init__(self, objective: TreeLoss, test: Any) -> None:
        self.objective, self.test = objective, None if test is None else known_rows(test, "trees")
        self._margin: NDArray[np.float32] | None = None

    @property
    def fresh(self) -> bool:
        """Whether no tree was scored yet."""
        return self._margin is None

    def of(self, new: Iterable[Tree], base: ArrayLike, before: Iterable[Tree] = ()) -> dict[str, float]:
        """The scores after the ``new`` trees.

        Args:
            new: trees since the last call.
            base: margins before the first tree.
            before: all trees before them, for the first call of a resumed run.
        """
        if self.test is None:
            return {}
        rows = np.asarray(self.test["x"], np.float32)
        if self._margin is None:
            self._margin = np.tile(np.asarray(base, np.float32), (len(rows), 1))
            new = [*before, *new]
        for tree in new:
            self._margin[:, tree.group] += tree.value[tree.leaves(rows)]
        name, value = score(self.objective, self.test["y"], self.objective.predict(self._margin))
        return {f"test/{name}": value}
