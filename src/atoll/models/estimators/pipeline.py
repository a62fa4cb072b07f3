"""scikit-learn pipelines: fitted transformers, and an estimator that is trained."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError

__all__ = ["Transformers", "dense", "split"]


def dense(rows: Any) -> NDArray[np.float64]:
    """Return the output of a transformer as float64 rows; some give sparse matrices."""
    made: NDArray[np.float64] = np.asarray(rows.toarray() if hasattr(rows, "toarray") else rows, dtype=np.float64)
    return made


class Transformers:
    """The fitted transformers of a pipeline.

    Args:
        model: the pipeline.
    """

    def __init__(self, model: Any) -> None:
        self._model = model

    def __call__(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Transform rows, ``(n, columns)``."""
        for _, step in self._model.steps[:-1]:
            x = x if step in (None, "passthrough") else dense(step.transform(x))
        return x

    def pipeline(self, last: Any) -> Any:
        """Return a pipeline of these transformers and a fitted estimator."""
        name = self._model.steps[-1][0]
        return type(self._model)([*self._model.steps[:-1], (name, last)])


def split(model: Any) -> tuple[Transformers | None, Any]:
    """Return a pipeline's transformers and its estimator; another model is returned as it is.

    Raises:
        ConfigError: a transformer is not fitted.
    """
    if not isinstance(model, importlib.import_module("sklearn.pipeline").Pipeline):
        return None, model
    check = importlib.import_module("sklearn.utils.validation").check_is_fitted
    unfitted = importlib.import_module("sklearn.exceptions").NotFittedError
    for name, step in model.steps[:-1]:
        if step in (None, "passthrough"):
            continue
        try:
            check(step)
        except unfitted:
            raise ConfigError(
                f"the pipeline's transformer {name!r} ({type(step).__name__}) is not fitted",
                where="model",
                remedy="fit the transformers over all clients first: pipeline = atoll.simulate(FitTransformers(pipeline), islands).outcome, "
                "with FitTransformers from atoll.models.estimators",
            ) from None
    return Transformers(model), model.steps[-1][1]
