"""Federated statistics: summaries of columns that no party reveals."""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
