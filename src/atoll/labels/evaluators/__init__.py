"""Measures of what was learned with few labels or none: pure functions of features and scores, and metrics for every round."""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
