"""Algorithms: what clients and the server of a training compute."""

from .core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
