"""Accountants: the cost of releases, and budgets that limit it."""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
