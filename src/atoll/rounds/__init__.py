"""Rounds: the loop that every iterative job shares, its records, and the rules that end it. It knows no learning."""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
