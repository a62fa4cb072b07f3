"""Pacing: when a round begins and ends."""

from .base import Pacing
from .safa import SAFA
from .synchronous import Synchronous

__all__ = ["SAFA", "Pacing", "Synchronous"]
