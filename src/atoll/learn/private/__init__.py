"""Mechanisms of differential privacy: ``Training(privacy=...)``. Each rewrites the parts of a training, so that no algorithm or engine knows it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .base import Mechanism
    from .central import AdaptiveClip, CentralDP
    from .claim import Attendance, Guarantee
    from .distributed import DistributedDP
    from .example import ExampleDP
    from .ftrl import DPFTRL
    from .local import FedSelDP, GaussianLDP, LaplaceLDP, LocalDP, SignsLDP
    from .nbafl import NbAFL
    from .shuffled import ShuffledDP
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "base": ("Mechanism",),
            "central": (
                "AdaptiveClip",
                "CentralDP",
            ),
            "claim": (
                "Attendance",
                "Guarantee",
            ),
            "distributed": ("DistributedDP",),
            "example": ("ExampleDP",),
            "ftrl": ("DPFTRL",),
            "local": (
                "FedSelDP",
                "GaussianLDP",
                "LaplaceLDP",
                "LocalDP",
                "SignsLDP",
            ),
            "nbafl": ("NbAFL",),
            "shuffled": ("ShuffledDP",),
        },
    )

__all__ = [
    "DPFTRL",
    "AdaptiveClip",
    "Attendance",
    "CentralDP",
    "DistributedDP",
    "ExampleDP",
    "FedSelDP",
    "GaussianLDP",
    "Guarantee",
    "LaplaceLDP",
    "LocalDP",
    "Mechanism",
    "NbAFL",
    "ShuffledDP",
    "SignsLDP",
]
