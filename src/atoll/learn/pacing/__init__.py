"""Pacing: when a round begins and ends."""

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

__all__ = [
    "ConstantStaleness",
    "FedAsync",
    "FedBuff",
    "HingeStaleness",
    "HybridFL",
    "Pacing",
    "PaceSteering",
    "PartialBarrier",
    "PolynomialStaleness",
    "SAFA",
    "Staleness",
    "Synchronous",
    "Tiered",
]
