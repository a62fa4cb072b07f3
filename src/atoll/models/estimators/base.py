"""The shared part of all estimators: classes known beforehand, parameters in and out, evaluation."""

from __future__ import annotations

import copy
import importlib
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.errors import AtollError, ConfigError, DataError
from atoll.data.missing import known_rows
from atoll.learn.learner import LearnerSettings
from atoll.learn.local.opaque import OpaqueLearner

__all__ = ["EstimatorLearner", "Transformers", "dense", "flat", "fresh", "quietly", "seed_estimator", "split"]

# scikit-learn pipelines: fitted transformers, and an estimator that is trained.


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


def flat(x: Any) -> NDArray[np.float64]:
    """Return inputs as float64 rows, ``(n, features)``."""
    array = np.asarray(x, dtype=np.float64)
    return array.reshape(len(array), -1)


def fresh(model: Any) -> Any:
    """Return an unfitted estimator with the same settings."""
    return importlib.import_module("sklearn.base").clone(model)


def seed_estimator(model: Any, rng: Rng) -> Any:
    """Return the same estimator with a random state from a stream, if it has one."""
    if "random_state" in model.get_params():
        model.set_params(random_state=rng.key % (1 << 31))
    return model


def quietly(call: Callable[[], Any]) -> Any:
    """Call without warnings about convergence, which a few local steps do not reach, and about clients smaller than a batch."""
    exceptions = importlib.import_module("sklearn.exceptions")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", exceptions.ConvergenceWarning)
        warnings.filterwarnings("ignore", "Got `batch_size` less than 1", UserWarning)
        return call()


class EstimatorLearner(OpaqueLearner):
    """An estimator as a learner.

    Args:
        model: the estimator; never changed.
        settings: the training's settings.
        data: the federated data set; its classes and features are used.
        before: the fitted transformers of a pipeline, which inputs pass first.
    """

    def __init__(self, model: Any, settings: LearnerSettings, data: Any, before: Transformers | None = None) -> None:
        # names of tasks seed random numbers: they stay where the module goes
        super().__init__(f"atoll.learn.estimators.base:{type(model).__name__}", settings)
        self.classifier = bool(importlib.import_module("sklearn.base").is_classifier(model))
        self.check(data)
        self.classes = _classes(data) if self.classifier else None
        self.before = before
        sample = _sample(data)
        self.features = self.inputs(sample.x[:1]).shape[1]
        self.outputs = int(np.prod(np.shape(sample.y)[1:], dtype=int))
        try:
            self.template = quietly(lambda: self.prime(fresh(model)))
        except AtollError:
            raise
        except ValueError as error:
            raise ConfigError(
                f"{type(model).__name__} cannot be used here: {error}", where="model", remedy="change its settings"
            ) from error

    def check(self, data: Any) -> None:
        """Refuse a classifier for numbers and a regressor for classes."""
        task = getattr(data, "task", None)
        if task is not None and self.classifier != (task in ("classification", "binary")):
            kind = "classifier" if self.classifier else "regressor"
            raise DataError(f"a {kind} for a {task} task", where="model", remedy="choose an estimator for this task")

    def usable(self, data: Any) -> Any:
        """Return those with a label."""
        return known_rows(data, "a scikit-learn estimator")

    def inputs(self, x: Any) -> NDArray[np.float64]:
        """Return the rows that the estimator takes, ``(n, features)``: through the pipeline's transformers if it has any."""
        return flat(x) if self.before is None else self.before(flat(x))

    def prime(self, model: Any) -> Any:
        """Return a fitted clone to write parameters into, with everything that ``predict`` needs, such as classes and shapes."""
        raise NotImplementedError

    def read(self, model: Any) -> Tree:
        """Return the parameters of a fitted estimator, as new arrays of at least one dimension."""
        raise NotImplementedError

    def write(self, model: Any, params: Tree) -> Any:
        """Write parameters into a primed estimator; return it."""
        raise NotImplementedError

    def rows(self) -> tuple[NDArray[np.float64], NDArray[Any]]:
        """Return made-up rows that contain every class, to prime an estimator."""
        count = 2 * len(self.classes) if self.classes is not None else 4
        x = np.random.Generator(np.random.Philox(0)).normal(size=(count, self.features))
        if self.classes is not None:
            return x, np.tile(self.classes, 2)
        shape = (count,) if self.outputs == 1 else (count, self.outputs)
        return x, np.zeros(shape)

    def target(self, y: Any) -> NDArray[Any]:
        """Return labels or target values in the estimator's form."""
        values = np.asarray(y)
        if self.classes is not None:
            return values.reshape(-1)
        return values.reshape(-1) if self.outputs == 1 else values.reshape(len(values), -1)

    def make_estimator(self, params: Tree) -> Any:
        """Return a fresh estimator with these parameters."""
        return self.write(copy.deepcopy(self.template), params)

    def init(self, rng: Rng) -> Tree:
        """Start with zeros."""
        del rng
        return {name: np.zeros_like(value) for name, value in self.read(self.template).items()}

    def export(self, params: Tree) -> Any:
        """Return a fitted estimator of the user's own class: a whole pipeline if one was given."""
        made = self.make_estimator(params)
        return made if self.before is None else self.before.pipeline(made)

    @property
    def link(self) -> str:
        """What the scores of a classifier are; see `atoll.learn.learner.SupportsLink`."""
        return "softmax" if hasattr(self.template, "predict_proba") else ""

    def scores(self, params: Tree, x: Any) -> NDArray[np.float64]:
        """Return predictions ``(n, outputs)`` of a regressor; log-probabilities or margins ``(n, classes)`` of a classifier.

        Two classes have one column: the log-odds or margin of the second.
        """
        model, rows = self.make_estimator(params), self.inputs(x)
        if self.classes is None:
            return np.asarray(model.predict(rows), dtype=np.float64).reshape(len(rows), -1)
        if len(self.classes) == 2 and hasattr(model, "decision_function"):
            return np.asarray(model.decision_function(rows), dtype=np.float64).reshape(-1, 1)
        if not hasattr(model, "predict_proba"):
            return np.asarray(model.decision_function(rows), dtype=np.float64)
        logs: NDArray[np.float64] = np.log(np.clip(model.predict_proba(rows), 1e-300, 1.0))
        return logs[:, 1:] - logs[:, :1] if len(self.classes) == 2 else logs

    def evaluate(self, params: Tree, data: Any) -> dict[str, float]:
        """Return sums over a data set.

        The loss is the squared error of a regressor, the log-loss of a classifier with probabilities, otherwise the hinge loss (for more than
        two classes, its mean over one-against-all margins).
        """
        data = self.usable(data)
        if len(data) == 0:
            return {"n": 0.0, "loss_sum": 0.0}
        z = self.scores(params, data.x)
        if self.classes is None:
            error = z - np.asarray(data.y, dtype=np.float64).reshape(len(z), -1)
            squared = float((error**2).mean(axis=1).sum())
            absolute = float(np.abs(error).mean(axis=1).sum())
            return {"n": float(len(z)), "loss_sum": squared, "squared_error": squared, "absolute_error": absolute}
        label = np.searchsorted(self.classes, self.target(data.y))
        guess = (z[:, 0] > 0).astype(int) if z.shape[1] == 1 else z.argmax(axis=1)
        loss = _losses(z, label, hasattr(self.template, "predict_proba")).sum()
        return {"n": float(len(z)), "loss_sum": float(loss), "correct": float((guess == label).sum())}


def _losses(z: NDArray[np.float64], label: NDArray[Any], probabilities: bool) -> NDArray[np.float64]:
    if z.shape[1] == 1:
        margin = np.where(label == 1, 1.0, -1.0) * z[:, 0]
        return np.logaddexp(0.0, -margin) if probabilities else np.maximum(0.0, 1.0 - margin)
    if probabilities:
        return np.asarray(-z[np.arange(len(z)), label])
    signs = np.where(np.arange(z.shape[1]) == label[:, None], 1.0, -1.0)
    return np.asarray(np.maximum(0.0, 1.0 - signs * z).mean(axis=1))


def _classes(data: Any) -> NDArray[np.int64]:
    """Return every class of the federation, even if no single client has them all."""
    if getattr(data, "task", None) == "binary":
        return np.array([-1, 1])
    count = getattr(data, "classes", None)
    if count is None:
        raise ConfigError(
            "the classes of the data are unknown beforehand",
            where="data",
            remedy="give the data set `classes` (atoll.data.Dataset(..., classes=...))",
        )
    return np.arange(int(count))


def _sample(data: Any) -> Any:
    test = getattr(data, "test", None)
    if test is not None and len(test):
        return test
    return next((data.shard(i) for i in range(len(data)) if len(data.shard(i))), data.shard(0))
