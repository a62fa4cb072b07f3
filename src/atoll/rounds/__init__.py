"""Rounds: the loop that every iterative job shares, its records, and the rules that end it. It knows no learning."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .by_device import ByDevice
    from .history import History
    from .loop import Course, Ended, Hooks, run_rounds
    from .program import ProgramJob, each_round
    from .stop import MaxTime, Patience, StopRule, Target
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "by_device": ("ByDevice",),
            "history": ("History",),
            "loop": ("Course", "Ended", "Hooks", "run_rounds"),
            "program": ("ProgramJob", "each_round"),
            "stop": ("MaxTime", "Patience", "StopRule", "Target"),
        },
    )

__all__ = [
    "ByDevice",
    "Course",
    "Ended",
    "History",
    "Hooks",
    "MaxTime",
    "Patience",
    "ProgramJob",
    "StopRule",
    "Target",
    "each_round",
    "run_rounds",
]
