"""Pacing: when a round begins and ends."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .barrier import PartialBarrier
    from .base import Pacing
    from .fedasync import FedAsync
    from .fedbuff import FedBuff
    from .hybridfl import HybridFL
    from .safa import SAFA
    from .staleness import ConstantStaleness, HingeStaleness, PolynomialStaleness, Staleness
    from .steering import PaceSteering
    from .synchronous import Synchronous
    from .tiered import Tiered
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "barrier": ("PartialBarrier",),
            "base": ("Pacing",),
            "fedasync": ("FedAsync",),
            "fedbuff": ("FedBuff",),
            "hybridfl": ("HybridFL",),
            "safa": ("SAFA",),
            "staleness": (
                "ConstantStaleness",
                "HingeStaleness",
                "PolynomialStaleness",
                "Staleness",
            ),
            "steering": ("PaceSteering",),
            "synchronous": ("Synchronous",),
            "tiered": ("Tiered",),
        },
    )

__all__ = [
    "SAFA",
    "ConstantStaleness",
    "FedAsync",
    "FedBuff",
    "HingeStaleness",
    "HybridFL",
    "PaceSteering",
    "Pacing",
    "PartialBarrier",
    "PolynomialStaleness",
    "Staleness",
    "Synchronous",
    "Tiered",
]
