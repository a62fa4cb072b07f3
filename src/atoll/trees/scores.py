"""How good an ensemble is on the server's test rows, while it grows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.data.missing import known_rows

from .objectives import LOGISTIC, SQUARED, TreeLoss

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import ArrayLike, NDArray

    from .tree import Tree

__all__ = ["Scores", "auc", "score"]


def auc(y: ArrayLike, predicted: ArrayLike) -> float:
    """The area under the ROC curve: how often a row of class 1 has a larger prediction than one of class 0; ties count half.

    ``(sum of ranks of class 1 - n_1 (n_1 + 1) / 2) / (n_1 n_0)``, Hanley, McNeil 1982. NaN if a class is missing.
    """
    truth, values = np.asarray(y) > 0, np.asarray(predicted)
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
    if objective.name == SQUARED:
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
