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
======================  =====================================================  ==================================

The estimator's own settings (learning rate, penalty, solver) rule the local training; the algorithm's ``epochs`` count passes, its ``lr`` and
``batch_size`` are not used. The estimator given is never changed.
"""

from __future__ import annotations

from typing import Any

from atoll.core.errors import CompositionError, ConfigError
from atoll.learn.algorithms.statistics import SufficientStatistics
from atoll.learn.learner import LearnerSettings
from atoll.learn.opaque import OpaqueLearner
from atoll.learn.wrapped import Wrapped

__all__ = ["adapt"]


def adapt(model: Any, settings: LearnerSettings, data: Any) -> OpaqueLearner:
    """Make a learner of a scikit-learn estimator.

    Raises:
        ConfigError: this kind of estimator cannot be trained federatedly.
        CompositionError: the algorithm does not fit the estimator.
        DataError: the estimator does not fit the data.
    """
    from .bayes import BayesLearner, is_bayes
    from .coefficients import FittedLearner
    from .incremental import IncrementalLearner, NetworkLearner

    algorithm = settings.algorithm
    while isinstance(algorithm, Wrapped):
        algorithm = algorithm.base
    name = type(model).__name__
    if isinstance(algorithm, SufficientStatistics) != is_bayes(model):
        wanted = "SufficientStatistics()" if is_bayes(model) else "FedAvg()"
        raise CompositionError(
            f"{name} cannot be trained by {type(algorithm).__name__}",
            where="Training.algorithm",
            remedy=f"use algorithm={wanted}",
        )
    if is_bayes(model):
        return BayesLearner(model, settings, data)
    if name in ("MLPClassifier", "MLPRegressor"):
        return NetworkLearner(model, settings, data)
    if hasattr(model, "partial_fit"):
        return IncrementalLearner(model, settings, data)
    if hasattr(model, "fit") and (hasattr(model, "predict") or hasattr(model, "decision_function")):
        return FittedLearner(model, settings, data)
    raise ConfigError(
        f"{name} is not an estimator that predicts", where="model", remedy="use a classifier or regressor"
    )
