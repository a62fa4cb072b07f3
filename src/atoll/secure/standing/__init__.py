"""Masked sums whose parties agree on keys once and then add up many times; `MultiRound` is the reducer."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .reducer import MultiRound
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(__name__, {"reducer": ("MultiRound",)})

__all__ = ["MultiRound"]
