"""Masked sums whose parties agree on keys once and then add up many times; `MultiRound` is the reducer."""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
