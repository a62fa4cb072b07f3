"""Pacing: when a round begins and ends."""

from .base import Pacing
from .hybridfl import HybridFL
from .safa import SAFA
from .synchronous import Synchronous

__all__ = ["HybridFL", "SAFA", "Pacing", "Synchronous"]
