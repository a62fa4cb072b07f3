"""Programs that are no training: consensus by ADMM, related models, matrix factorisation, bandits, convex problems, and surveys of clients' data.

Run them from Python: ``atoll.simulate(made.program, islands)``.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .bandits import DiscountedUCB, FederatedBandit, LinUCB, NoisyPrefix, Played
    from .consensus import DADMM, DLM, AsyncADMM
    from .convex import AggregatedGradients, AggregatedOutput, gradient_deviation, output_scale
    from .factorisation import MatrixFactorisation, SumsOnly, ratings_from_messages, ratings_from_sums
    from .multitask import Mocha, MultiTaskADMM
    from .surveys import Divergence, EncryptedMatching, GradientDivergence, Matched
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "bandits": ("DiscountedUCB", "FederatedBandit", "LinUCB", "NoisyPrefix", "Played"),
            "consensus": ("DADMM", "DLM", "AsyncADMM"),
            "convex": ("AggregatedGradients", "AggregatedOutput", "gradient_deviation", "output_scale"),
            "factorisation": ("MatrixFactorisation", "SumsOnly", "ratings_from_messages", "ratings_from_sums"),
            "multitask": ("Mocha", "MultiTaskADMM"),
            "surveys": ("Divergence", "EncryptedMatching", "GradientDivergence", "Matched"),
        },
    )

__all__ = [
    "DADMM",
    "DLM",
    "AggregatedGradients",
    "AggregatedOutput",
    "AsyncADMM",
    "DiscountedUCB",
    "Divergence",
    "EncryptedMatching",
    "FederatedBandit",
    "GradientDivergence",
    "LinUCB",
    "Matched",
    "MatrixFactorisation",
    "Mocha",
    "MultiTaskADMM",
    "NoisyPrefix",
    "Played",
    "SumsOnly",
    "gradient_deviation",
    "output_scale",
    "ratings_from_messages",
    "ratings_from_sums",
]
