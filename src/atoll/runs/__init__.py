"""Runs: a configuration, and the folder that keeps the run's files."""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
