"""Horizontal learning: algorithms, selection, pacing, evaluation and the training job that composes them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .aggregation import Aggregation, EqualWeights, KeepGlobal, KeepLocal, Renormalised, Rescaled
    from .algorithm import Algorithm, LocalWork, RoundInfo
    from .algorithms import FedAvg, FedSGD, SufficientStatistics
    from .custom import CustomLearner
    from .divergence import Divergence, GradientDivergence
    from .ending import StopTraining
    from .evaluation import Evaluation
    from .history import History
    from .linear import Linear
    from .pacing import Synchronous
    from .selection import Everyone, Schedule, Selection, SizeProportional, Uniform
    from .stop import MaxTime, Patience, StopRule, Target
    from .training import Trained, Training
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "aggregation": ("Aggregation", "EqualWeights", "KeepGlobal", "KeepLocal", "Renormalised", "Rescaled"),
            "algorithm": ("Algorithm", "LocalWork", "RoundInfo"),
            "algorithms": ("FedAvg", "FedSGD", "SufficientStatistics"),
            "custom": ("CustomLearner",),
            "divergence": ("Divergence", "GradientDivergence"),
            "ending": ("StopTraining",),
            "evaluation": ("Evaluation",),
            "history": ("History",),
            "linear": ("Linear",),
            "pacing": ("Synchronous",),
            "selection": ("Everyone", "Schedule", "Selection", "SizeProportional", "Uniform"),
            "stop": ("MaxTime", "Patience", "StopRule", "Target"),
            "training": ("Trained", "Training"),
        },
    )

__all__ = [
    "Aggregation",
    "Algorithm",
    "CustomLearner",
    "Divergence",
    "EqualWeights",
    "Evaluation",
    "Everyone",
    "FedAvg",
    "FedSGD",
    "History",
    "GradientDivergence",
    "KeepGlobal",
    "KeepLocal",
    "Linear",
    "LocalWork",
    "MaxTime",
    "Patience",
    "Renormalised",
    "Rescaled",
    "RoundInfo",
    "Schedule",
    "Selection",
    "SizeProportional",
    "StopRule",
    "StopTraining",
    "SufficientStatistics",
    "Synchronous",
    "Target",
    "Trained",
    "Training",
    "Uniform",
]
