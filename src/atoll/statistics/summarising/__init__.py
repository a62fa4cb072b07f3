"""Private summaries of data that may not move: points of a public set that stand for the parties' rows."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .features import RandomFeatures
    from .greedy import ChosenPoints, choose_points, discrepancy
    from .mwem import Mwem
    from .program import DataSummary, Points
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "features": ("RandomFeatures",),
            "greedy": ("ChosenPoints", "choose_points", "discrepancy"),
            "mwem": ("Mwem",),
            "program": ("DataSummary", "Points"),
        },
    )

__all__ = ["ChosenPoints", "DataSummary", "Mwem", "Points", "RandomFeatures", "choose_points", "discrepancy"]
