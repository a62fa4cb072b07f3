"""The methods of `atoll.fitting.Fit`, one a file."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .bayes import NaiveBayes
    from .components import PCA, TruncatedSVD
    from .cox import Cox
    from .glm import GLM
    from .kaplan_meier import KaplanMeier
    from .kmeans import KMeans
    from .mixture import GaussianMixture
    from .prepared import Columns
    from .ridge import Ridge
    from .svm import SVM
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "bayes": ("NaiveBayes",),
            "components": ("PCA", "TruncatedSVD"),
            "cox": ("Cox",),
            "glm": ("GLM",),
            "kaplan_meier": ("KaplanMeier",),
            "kmeans": ("KMeans",),
            "prepared": ("Columns",),
            "mixture": ("GaussianMixture",),
            "ridge": ("Ridge",),
            "svm": ("SVM",),
        },
    )

__all__ = [
    "GLM",
    "PCA",
    "SVM",
    "Columns",
    "Cox",
    "GaussianMixture",
    "KMeans",
    "KaplanMeier",
    "NaiveBayes",
    "Ridge",
    "TruncatedSVD",
]
