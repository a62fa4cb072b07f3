"""Horizontal learning: algorithms, selection, pacing, evaluation and the training job that composes them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .aggregation import Aggregation, EqualWeights, KeepGlobal, KeepLocal, Renormalised, Rescaled
    from .algorithm import Algorithm, LocalWork, RoundInfo
    from .algorithms import FedAvg, FedSGD, SufficientStatistics
    from .pacing import Synchronous
    from .prepared import Trained
    from .round.evaluation import Evaluation
    from .selection import Everyone, Schedule, Selection, SizeProportional, Uniform
    from .training import Training
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "aggregation": ("Aggregation", "EqualWeights", "KeepGlobal", "KeepLocal", "Renormalised", "Rescaled"),
            "algorithm": ("Algorithm", "LocalWork", "RoundInfo"),
            "algorithms": ("FedAvg", "FedSGD", "SufficientStatistics"),
            "pacing": ("Synchronous",),
            "prepared": ("Trained",),
            "round.evaluation": ("Evaluation",),
            "selection": ("Everyone", "Schedule", "Selection", "SizeProportional", "Uniform"),
            "training": ("Training",),
        },
        moved={"Divergence": "atoll.programs", "GradientDivergence": "atoll.programs"},
    )

__all__ = [
    "Aggregation",
    "Algorithm",
    "EqualWeights",
    "Evaluation",
    "Everyone",
    "FedAvg",
    "FedSGD",
    "KeepGlobal",
    "KeepLocal",
    "LocalWork",
    "Renormalised",
    "Rescaled",
    "RoundInfo",
    "Schedule",
    "Selection",
    "SizeProportional",
    "SufficientStatistics",
    "Synchronous",
    "Trained",
    "Training",
    "Uniform",
]
