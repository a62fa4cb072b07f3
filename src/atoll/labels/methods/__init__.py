"""Methods for data without full labels, one idea a file."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .base import Method, local_sgd
    from .dsfl import DSFL
    from .efficientfda import EfficientFDA
    from .fade import FADE
    from .fedmatch import FedMatch
    from .fedpu import FedPU
    from .fedssl import FedSSL
    from .fixmatch import FixMatch
    from .generator import Generator, RowDecoder
    from .rscfed import RSCFed
    from .self_training import SelfTraining
    from .semifl import SemiFL
    from .supervised import Supervised
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "base": (
                "Method",
                "local_sgd",
            ),
            "dsfl": ("DSFL",),
            "efficientfda": ("EfficientFDA",),
            "fade": ("FADE",),
            "fedmatch": ("FedMatch",),
            "fedpu": ("FedPU",),
            "fedssl": ("FedSSL",),
            "fixmatch": ("FixMatch",),
            "generator": (
                "Generator",
                "RowDecoder",
            ),
            "rscfed": ("RSCFed",),
            "self_training": ("SelfTraining",),
            "semifl": ("SemiFL",),
            "supervised": ("Supervised",),
        },
    )

__all__ = [
    "DSFL",
    "EfficientFDA",
    "FADE",
    "FedMatch",
    "FedPU",
    "FedSSL",
    "FixMatch",
    "Generator",
    "Method",
    "RSCFed",
    "RowDecoder",
    "SelfTraining",
    "SemiFL",
    "Supervised",
    "local_sgd",
]
