"""Federated statistics: summaries of columns that no party reveals."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .summary import Statistics, Summary
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(__name__, {"summary": ("Statistics", "Summary")})

__all__ = ["Statistics", "Summary"]
