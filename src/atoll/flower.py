"""`atoll.bridges.flower` under its old address, which jobs that were written before still name."""

from .core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, moved="atoll.bridges.flower")
