"""Naive Bayes: the statistics of all rows are the sum of the clients' statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.capability import Capability
from atoll.learn.capabilities import STATISTICS

from .base import EstimatorLearner, fresh

__all__ = ["BayesLearner", "is_bayes"]

_COUNTING = ("BernoulliNB", "ComplementNB", "MultinomialNB")


def is_bayes(model: Any) -> bool:
    """Return whether an estimator is a naive Bayes model with sums as statistics."""
    return type(model).__module__.startswith("sklearn.naive_bayes") and (
        type(model).__name__ in _COUNTING or type(model).__name__ == "GaussianNB"
    )


class BayesLearner(EstimatorLearner):
    """GaussianNB, MultinomialNB, BernoulliNB, ComplementNB, with ``SufficientStatistics``: the model of the pooled rows.

    Statistics of a class: its rows, and for counting models the sum of (binarised) features, for the Gaussian model the sums of features and of
    their squares; its variances are ``E[x^2] - E[x]^2``, so scale features with a mean that is large compared with their spread.
    """

    offers: ClassVar[frozenset[Capability]] = frozenset({STATISTICS})

    def _loss_of(self, sums: Mapping[str, float], n: float, name: str = "loss") -> tuple[Tree, float]:
        """Return the mean loss and its weight; without statistics, a weight of 0."""
        return super()._loss_of(sums, n if "loss_sum" in sums else 0, name)

    @property
    def gaussian(self) -> bool:
        """Whether features are numbers, not counts."""
        return hasattr(self.template, "var_")

    def prime(self, model: Any) -> Any:
        """Run one pass over made-up rows; its statistics are overwritten."""
        x, y = self.rows()
        return model.partial_fit(np.abs(x), y, classes=self.classes)

    def read(self, model: Any) -> Tree:
        """Return zero statistics of the right shapes."""
        shape = (len(model.classes_), model.n_features_in_)
        names = ("sum", "square") if hasattr(model, "var_") else ("features",)
        return {"rows": np.zeros(shape[0]), **{name: np.zeros(shape) for name in names}}

    def fit(self, params: Tree, data: Any, rng: Rng, memory: Tree) -> tuple[Tree, Tree]:
        """Return the statistics of these rows."""
        del params, rng
        x, y = self.inputs(data.x), self.target(data.y)
        if self.gaussian:
            member = (y[:, None] == self.classes).astype(np.float64)
            return {"rows": member.sum(axis=0), "sum": member.T @ x, "square": member.T @ (x * x)}, memory
        model = fresh(self.template).partial_fit(x, y, classes=self.classes)
        return {"rows": np.array(model.class_count_), "features": np.array(model.feature_count_)}, memory

    def write(self, model: Any, params: Tree) -> Any:
        """Write statistics into a primed model."""
        rows = np.asarray(params["rows"], dtype=np.float64)
        if hasattr(model, "var_"):
            return _gaussian(model, rows, np.asarray(params["sum"]), np.asarray(params["square"]))
        # A row of zeros adds only itself: it makes the model compute its probabilities from the counts.
        place = int(rows.argmax())
        model.class_count_ = rows - np.eye(len(rows))[place]
        model.feature_count_ = np.array(params["features"], dtype=np.float64)
        return model.partial_fit(np.zeros((1, model.n_features_in_)), model.classes_[place : place + 1])

    def evaluate(self, params: Tree, data: Any) -> dict[str, float]:
        """Return sums over a data set; only the number of rows before there are statistics."""
        if not np.sum(params["rows"]) > 0:
            return {"n": float(len(data))}
        return super().evaluate(params, data)


def _gaussian(model: Any, rows: NDArray[Any], sums: NDArray[Any], squares: NDArray[Any]) -> Any:
    """Return means and variances by class; a class that no client has keeps prior ~0 and the smallest variance."""
    n = rows.sum()
    spread = squares.sum(axis=0) / n - (sums.sum(axis=0) / n) ** 2
    count = np.maximum(rows, 1.0)[:, None]
    model.epsilon_ = max(model.var_smoothing * float(spread.max()), 1e-300)
    model.theta_ = sums / count
    model.var_ = np.maximum(squares / count - model.theta_**2, 0.0) + model.epsilon_
    model.class_count_ = rows
    model.class_prior_ = np.maximum(rows / n, 1e-300) if model.priors is None else np.asarray(model.priors)
    return model
