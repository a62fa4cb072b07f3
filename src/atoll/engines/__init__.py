"""Engines, which run tasks: inline, batched, processes, a loopback socket and a Ray cluster. They know tasks, never algorithms."""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
