"""Auditing: trainings with canaries, which try to refute the epsilon that a run claims."""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
