"""Aggregations: how the replies of a cohort represent the whole population."""

from .core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
