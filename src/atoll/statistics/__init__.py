"""Federated statistics: summaries of columns that no party reveals."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .aggregates.drift import Drift
    from .aggregates.moments import CentralMoments
    from .aggregates.sketch import Sketch
    from .job import Statistics
    from .summary import BinCounts, ColumnSummary, RowsSummary, Summary
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "aggregates.drift": ("Drift",),
            "job": ("Statistics",),
            "aggregates.moments": ("CentralMoments",),
            "aggregates.sketch": ("Sketch",),
            "summary": ("ColumnSummary", "BinCounts", "RowsSummary", "Summary"),
        },
    )

__all__ = ["BinCounts", "CentralMoments", "ColumnSummary", "Drift", "RowsSummary", "Sketch", "Statistics", "Summary"]
