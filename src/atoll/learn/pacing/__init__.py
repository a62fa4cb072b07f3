"""Pacing: when a round begins and ends."""

from .synchronous import Synchronous

__all__ = ["Synchronous"]
