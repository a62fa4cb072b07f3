"""Noise underneath secure sums: clients round their updates to a grid and add noise of whole numbers, in words that add up."""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
