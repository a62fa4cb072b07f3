"""Estimators with ``partial_fit``: local passes from the global model."""

from __future__ import annotations

from typing import Any

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError

from .base import EstimatorLearner, fresh, quietly, seed_estimator

__all__ = ["IncrementalLearner", "NetworkLearner"]


class IncrementalLearner(EstimatorLearner):
    """Linear models with ``partial_fit``: SGDClassifier, SGDRegressor, Perceptron.

    A client keeps its own step count ``t_``, so that a decreasing learning rate continues from round to round.
    """

    def prime(self, model: Any) -> Any:
        """Run one pass over made-up rows; its coefficients are overwritten."""
        if model.get_params().get("average") or model.get_params().get("early_stopping"):
            raise ConfigError(
                "average and early_stopping keep other weights besides the model's, which averaging would miss",
                where=type(model).__name__,
                remedy="set average=False, early_stopping=False",
            )
        x, y = self.rows()
        self._pass(model, x, y)
        if not hasattr(model, "coef_"):
            raise ConfigError(
                f"{type(model).__name__} has no coefficients to average", where="model", remedy="use a linear model"
            )
        return model

    def _pass(self, model: Any, x: Any, y: Any) -> None:
        if self.classes is None:
            model.partial_fit(x, y)
        else:
            model.partial_fit(x, y, classes=self.classes)

    def read(self, model: Any) -> Tree:
        """Return ``coef`` and ``intercept``."""
        return {"coef": np.array(model.coef_, ndmin=1), "intercept": np.array(model.intercept_, ndmin=1)}

    def write(self, model: Any, params: Tree) -> Any:
        """Set both as new arrays, because ``partial_fit`` writes into them."""
        model.coef_ = np.array(params["coef"], order="C").reshape(np.shape(model.coef_))
        model.intercept_ = np.array(params["intercept"], order="C").reshape(np.shape(model.intercept_))
        return model

    def fit(self, params: Tree, data: Any, rng: Rng, memory: Tree) -> tuple[Tree, Tree]:
        """Return the result of ``epochs`` passes, each in its own order."""
        return self._passes(params, data, rng, memory, self.algorithm.epochs)

    def fit_for(self, params: Tree, data: Any, rng: Rng, memory: Tree, epochs: int | None) -> tuple[Tree, Tree]:
        """Run ``epochs`` passes, or whole fits if the algorithm counts steps."""
        if epochs is None or self.algorithm.steps is not None:
            return super().fit_for(params, data, rng, memory, epochs)
        return self._passes(params, data, rng, memory, epochs)

    def _passes(self, params: Tree, data: Any, rng: Rng, memory: Tree, epochs: int) -> tuple[Tree, Tree]:
        model, x, y = self.make_estimator(params), self.inputs(data.x), self.target(data.y)
        if hasattr(model, "t_"):
            model.t_ = 1.0 if memory is None else float(memory["t"])
        for epoch in range(epochs):
            seed_estimator(model, rng.child("epoch", epoch))
            quietly(lambda: self._pass(model, x, y))
        return self.read(model), {"t": float(model.t_)} if hasattr(model, "t_") else None


class NetworkLearner(IncrementalLearner):
    """MLPClassifier and MLPRegressor. The optimiser starts anew in every round, like FedAvg's local training."""

    def prime(self, model: Any) -> Any:
        """Run a pass over made-up rows with zero steps: it creates all attributes and keeps the initial weights."""
        settings = model.get_params()
        if settings["solver"] not in ("sgd", "adam") or settings["early_stopping"]:
            raise ConfigError(
                f"solver={settings['solver']!r}, early_stopping={settings['early_stopping']}",
                where=type(model).__name__,
                remedy="use solver='sgd' or 'adam' without early stopping",
            )
        wanted = {name: settings[name] for name in ("solver", "learning_rate_init", "alpha")}
        model.set_params(solver="sgd", learning_rate_init=1e-300, alpha=0.0)
        self._pass(model, *self.rows())
        model.set_params(**wanted)
        del model._optimizer  # the next partial_fit makes a new one
        model.t_ = 0
        return model

    def init(self, rng: Rng) -> Tree:
        """Start with the estimator's own random weights, from the run's seed unless it has a ``random_state``."""
        model = fresh(self.template)
        if model.random_state is None:
            seed_estimator(model, rng.child("weights"))
        return self.read(quietly(lambda: self.prime(model)))

    def read(self, model: Any) -> Tree:
        """Return ``coef_i`` and ``intercept_i`` of every layer."""
        layers = {f"coef_{i}": np.array(w) for i, w in enumerate(model.coefs_)}
        return {**layers, **{f"intercept_{i}": np.array(b) for i, b in enumerate(model.intercepts_)}}

    def write(self, model: Any, params: Tree) -> Any:
        """Set every layer."""
        model.coefs_ = [np.array(params[f"coef_{i}"]) for i in range(len(model.coefs_))]
        model.intercepts_ = [np.array(params[f"intercept_{i}"]) for i in range(len(model.intercepts_))]
        return model

    def _passes(self, params: Tree, data: Any, rng: Rng, memory: Tree, epochs: int) -> tuple[Tree, Tree]:
        trained, _ = super()._passes(params, data, rng, None, epochs)
        return trained, memory
