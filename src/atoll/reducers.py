"""Reducers: how many replies become one sum that nobody sees the parts of."""

from .core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
