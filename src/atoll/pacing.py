"""Pacings: when a round begins and ends."""

from .core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
