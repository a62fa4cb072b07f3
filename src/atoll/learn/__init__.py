"""Horizontal learning: algorithms, selection, pacing, evaluation and the training job that composes them."""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(
    __name__,
    moved={
        "EqualWeights": "atoll.aggregation",
        "Everyone": "atoll.selection",
        "FedAvg": "atoll.algorithms",
        "FedSGD": "atoll.algorithms",
        "KeepGlobal": "atoll.aggregation",
        "KeepLocal": "atoll.aggregation",
        "Renormalised": "atoll.aggregation",
        "Rescaled": "atoll.aggregation",
        "Schedule": "atoll.selection",
        "SizeProportional": "atoll.selection",
        "SufficientStatistics": "atoll.algorithms",
        "Synchronous": "atoll.pacing",
        "Uniform": "atoll.selection",
        "Divergence": "atoll.programs",
        "GradientDivergence": "atoll.programs",
    },
)
