"""Estimators with ``fit`` and coefficients: every client fits, and the server averages the coefficients."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError

from .base import EstimatorLearner, fresh, quietly, seed_estimator

__all__ = ["FittedLearner"]


class FittedLearner(EstimatorLearner):
    """Linear models with ``fit``: LogisticRegression, LinearRegression, Ridge, LinearSVC, ...

    A fit that converges does not depend on its start, so one round is enough (one-shot averaging; McDonald et al. 2009). With
    ``warm_start=True`` and few iterations (``max_iter``), rounds continue from the global model, as in FedAvg. A client that lacks some
    classes leaves their coefficients unchanged. A client with only one class cannot fit and does not count; Atoll warns about it.
    """

    def prime(self, model: Any) -> Any:
        """Fit on made-up rows; the coefficients are overwritten."""
        model.fit(*self.rows())
        if not hasattr(model, "coef_") or not hasattr(model, "intercept_"):
            raise ConfigError(
                f"{type(model).__name__} has no coefficients to average",
                where="model",
                remedy="use a linear model, or one with partial_fit",
            )
        return model

    def read(self, model: Any) -> Tree:
        """Return ``coef`` and ``intercept``."""
        return {"coef": np.array(model.coef_, ndmin=1), "intercept": np.array(model.intercept_, ndmin=1)}

    def write(self, model: Any, params: Tree) -> Any:
        """Set both, in the shapes that the estimator uses."""
        coef, intercept = np.array(params["coef"]), np.array(params["intercept"])
        model.coef_ = coef.reshape(np.shape(model.coef_))
        model.intercept_ = intercept.reshape(np.shape(model.intercept_))[()]
        return model

    def fit(self, params: Tree, data: Any, rng: Rng, memory: Tree) -> tuple[Tree, Tree]:
        """Run a whole fit on the client's rows."""
        y = self.target(data.y)
        places = np.zeros(0, np.int64) if self.classes is None else np.searchsorted(self.classes, np.unique(y))
        if len(places) == 1:
            warnings.warn(
                f"{type(self.template).__name__} cannot be fitted to one class: clients with rows of only one class do not count. "
                "Use an estimator with partial_fit (SGDClassifier(loss='log_loss')), which learns from such clients too, or another partition",
                RuntimeWarning,
                stacklevel=2,
            )
            return None, memory
        model = seed_estimator(fresh(self.template), rng)
        whole = self.classes is None or len(places) == len(self.classes)
        if model.get_params().get("warm_start"):
            self._start(model, params, whole, places)
        quietly(lambda: model.fit(self.inputs(data.x), y))
        return (self.read(model) if whole else self._fill(model, params, places)), memory

    def _start(self, model: Any, params: Tree, whole: bool, places: Any) -> None:
        """Start at the global model, or at its rows for the client's classes."""
        coef, intercept = np.array(params["coef"]), np.array(params["intercept"])
        if whole:
            coef = coef.reshape(np.shape(self.template.coef_))
            intercept = intercept.reshape(np.shape(self.template.intercept_))[()]
        else:
            coef, intercept = coef[places], intercept[places]
            if len(places) == 2:
                factor = 0.5 / self._row_share
                coef, intercept = factor * (coef[1:] - coef[:1]), factor * (intercept[1:] - intercept[:1])
        model.coef_, model.intercept_ = coef, intercept
        if self.classes is not None:
            model.classes_ = self.classes if whole else self.classes[places]

    def _fill(self, model: Any, params: Tree, places: Any) -> Tree:
        """Return the fitted rows of the client's classes, and the global rows of the others."""
        found = self.read(model)
        if len(places) == 2:  # one row for two classes: the second against the first
            factors = self._row_share * np.array([-1.0, 1.0])
            found = {"coef": factors[:, None] * found["coef"], "intercept": factors * found["intercept"]}
        filled = {name: np.array(value) for name, value in params.items()}
        for name, value in found.items():
            filled[name][places] = value
        return filled

    @property
    def _row_share(self) -> float:
        """Each row's share of the margin of two classes: softmax rows differ by the margin, one-against-all rows equal it."""
        return 0.5 if hasattr(self.template, "predict_proba") else 1.0
