"""Pacing: when a round begins and ends."""

from .base import Pacing
from .synchronous import Synchronous

__all__ = ["Pacing", "Synchronous"]
