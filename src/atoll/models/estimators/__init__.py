"""scikit-learn estimators as learners.

======================  =====================================================  ==================================
estimators              local training                                         algorithm
======================  =====================================================  ==================================
with ``partial_fit``    ``epochs`` passes of ``partial_fit`` from the global   FedAvg and its like
                        model: SGDClassifier, SGDRegressor, Perceptron,
                        MLPClassifier, MLPRegressor
with ``fit``,           a whole ``fit``; with ``warm_start`` from the global   FedAvg and its like: coefficients
``coef_``               model: LogisticRegression, LinearRegression, Ridge,    are averaged
                        LinearSVC, Lasso, ...
naive Bayes             counts and sums: GaussianNB, MultinomialNB,            ``SufficientStatistics``: exact
                        BernoulliNB, ComplementNB
``Pipeline``            that of its last estimator, on rows that passed the    that of its last estimator
                        transformers; `FitTransformers` fits these first
======================  =====================================================  ==================================

The estimator's own settings (learning rate, penalty, solver) control the local training. The algorithm's ``epochs`` count passes. Its ``lr``,
``batch_size`` and ``steps`` have no effect, so Atoll refuses them unless they are defaults; it also refuses a ``loss``. The given estimator is
never changed.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from atoll.core.errors import CompositionError, ConfigError
from atoll.learn.learner import LearnerSettings, require_fit
from atoll.learn.local.opaque import OpaqueLearner
from atoll.learn.wrapped import innermost

from .base import split
from .fitting import FitTransformers

__all__ = ["FitTransformers", "adapt"]


def adapt(model: Any, settings: LearnerSettings, data: Any) -> OpaqueLearner:
    """Make a learner from a scikit-learn estimator.

    Raises:
        ConfigError: this kind of estimator does not support federated training.
        CompositionError: the algorithm does not fit the estimator, or a setting of the training has no effect on it.
        DataError: the estimator does not fit the data.
    """
    from .bayes import BayesLearner, is_bayes
    from .coefficients import FittedLearner
    from .incremental import IncrementalLearner, NetworkLearner

    before, model = split(model)
    name = type(model).__name__
    require_fit(settings.algorithm, name, (BayesLearner if is_bayes(model) else OpaqueLearner).offers)
    _refuse_idle(name, settings, innermost(settings.algorithm))
    if is_bayes(model):
        return BayesLearner(model, settings, data, before)
    if name in ("MLPClassifier", "MLPRegressor"):
        return NetworkLearner(model, settings, data, before)
    if hasattr(model, "partial_fit"):
        return IncrementalLearner(model, settings, data, before)
    if hasattr(model, "fit") and (hasattr(model, "predict") or hasattr(model, "decision_function")):
        return FittedLearner(model, settings, data, before)
    raise ConfigError(
        f"{name} is not an estimator that predicts", where="model", remedy="use a classifier or regressor"
    )


_IDLE = {"lr": "learning rate", "decay": "learning rate", "batch_size": "batch size", "steps": "number of iterations"}


def _refuse_idle(name: str, settings: LearnerSettings, algorithm: Any) -> None:
    """Refuse settings without effect: the estimator trains by its own settings."""
    if settings.loss != "auto":
        raise CompositionError(
            f"loss={settings.loss!r} has no effect on {name}, which has its own loss",
            where="Training.loss",
            remedy="leave loss out, and set the estimator's own, as in SGDClassifier(loss='log_loss')",
        )
    defaults = {field.name: field.default for field in fields(algorithm)}
    for setting, word in _IDLE.items():
        value = getattr(algorithm, setting, None)
        if defaults.get(setting, MISSING) is not MISSING and value != defaults[setting]:
            raise CompositionError(
                f"{setting}={value!r} has no effect on {name}, which trains with its own {word}",
                where=type(algorithm).__name__,
                remedy=f"leave {setting} out: {type(algorithm).__name__}'s epochs count passes, and the estimator has all other settings",
            )
