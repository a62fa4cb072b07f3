"""Models that follow from sums over rows, fitted over all parties: clusters, mixtures, components, naive Bayes, linear models and survival."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .fitted import FittedModel
    from .job import Fit
    from .method import FitMethod
    from .methods import (
        GLM,
        PCA,
        SVM,
        Columns,
        Cox,
        GaussianMixture,
        KaplanMeier,
        KMeans,
        NaiveBayes,
        Ridge,
        TruncatedSVD,
    )
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "fitted": ("FittedModel",),
            "job": ("Fit",),
            "method": ("FitMethod",),
            "methods": (
                "GLM", "PCA", "SVM", "Columns", "Cox", "GaussianMixture", "KMeans", "KaplanMeier", "NaiveBayes", "Ridge", "TruncatedSVD",
            ),
        },
    )  # fmt: skip

__all__ = [
    "GLM",
    "PCA",
    "SVM",
    "Columns",
    "Cox",
    "Fit",
    "FitMethod",
    "FittedModel",
    "GaussianMixture",
    "KMeans",
    "KaplanMeier",
    "NaiveBayes",
    "Ridge",
    "TruncatedSVD",
]
