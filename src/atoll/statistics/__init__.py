"""Federated statistics: summaries of columns that no party reveals."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .aggregates.drift import Drift
    from .aggregates.moments import Moments
    from .aggregates.sketch import Sketch
    from .job import Statistics
    from .summary import Description, Histogram, Part, Summary
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "aggregates.drift": ("Drift",),
            "job": ("Statistics",),
            "aggregates.moments": ("Moments",),
            "aggregates.sketch": ("Sketch",),
            "summary": ("Description", "Histogram", "Part", "Summary"),
        },
    )

__all__ = ["Description", "Drift", "Histogram", "Moments", "Part", "Sketch", "Statistics", "Summary"]
