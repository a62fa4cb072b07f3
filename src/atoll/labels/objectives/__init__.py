"""Losses that need few labels or none: pure functions of a model's outputs, a loss for each example unless they say otherwise."""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
