"""Your own training loop as a model: any code that turns parameters and data into parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.learn.learner import LearnerSettings
from atoll.learn.local.opaque import OpaqueLearner

__all__ = ["CustomLearner"]

Evaluate = Callable[[Tree, Any], Mapping[str, float]]


@dataclass(frozen=True, kw_only=True)
class CustomLearner:
    """A model made of functions. Parameters are a dict of NumPy arrays (nested, if you like).

    Attributes:
        init: ``rng -> params``; ``rng`` is a NumPy generator.
        train: ``(params, data, rng) -> params``; ``data`` has ``x``, ``y`` and ``len``. The parameters are a copy and can be changed in
            place. All randomness must come from ``rng``, or runs cannot be repeated.
        evaluate: ``(params, data) -> {"loss": ..., "accuracy": ...}``, means over the rows; you can measure anything. Clients can report
            their ``"loss"`` to a selection rule if you return it.
        scores: ``(params, x) -> outputs``, for ``Evaluation(metrics=...)``.
        export: ``params -> model``, for ``result.model``; by default the parameters themselves.

    Example:
        >>> import atoll, numpy as np
        >>> data = atoll.data.linear(5, examples=200, seed=0)
        >>> def fit(params, data, rng):
        ...     mean = data.y.mean()
        ...     return {"mean": np.array([mean])}
        >>> model = CustomLearner(init=lambda rng: {"mean": np.zeros(1)}, train=fit)
        >>> result = atoll.simulate(atoll.Training(model=model, rounds=1), data, engine="inline")
        >>> bool(np.isclose(result.params["mean"][0], data.pooled().y.mean()))
        True
    """

    init: Callable[[np.random.Generator], Tree]
    train: Callable[[Tree, Any, np.random.Generator], Tree]
    evaluate: Evaluate | None = None
    scores: Callable[[Tree, Any], Any] | None = None
    export: Callable[[Tree], Any] | None = None

    def learner(self, settings: LearnerSettings, data: Any) -> _Custom:
        """Return a learner for a data set; it trusts the functions to fit the data."""
        del data
        return _Custom(self, settings)


class _Custom(OpaqueLearner):
    """The functions as a learner."""

    def __init__(self, model: CustomLearner, settings: LearnerSettings) -> None:
        # names of tasks seed random numbers: they stay the same when the module moves
        super().__init__("atoll.learn.custom", settings)
        self.model = model
        self.reports = () if model.evaluate is None else ("loss",)
        if model.scores is not None:
            self.scores = model.scores

    def init(self, rng: Rng) -> Tree:
        """Start with the user's parameters."""
        return self.model.init(rng.generator())

    def fit(self, params: Tree, data: Any, rng: Rng, memory: Tree) -> tuple[Tree, Tree]:
        """Run the user's loop, on a copy."""
        return self.model.train(T.map(np.array, params), data, rng.generator()), memory

    def evaluate(self, params: Tree, data: Any) -> dict[str, float]:
        """Return the user's means as sums."""
        n = float(len(data))
        if self.model.evaluate is None or not n:
            return {"n": n}
        return {"n": n, **{name: float(value) * n for name, value in self.model.evaluate(params, data).items()}}

    def export(self, params: Tree) -> Any:
        """Return the user's model."""
        return params if self.model.export is None else self.model.export(params)

    def check(self, data: Any) -> None:
        """Accept all data: the requirements of the functions are unknown."""
