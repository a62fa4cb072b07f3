"""What you need to test your own parts: conformance laws, deliberate crashes, a timetable of replies, and strategies."""

from __future__ import annotations

from .conformance import (
    ENGINE_CHECKS,
    check_algorithm,
    check_engine,
    check_learner,
    check_reducer,
    check_stage,
    check_task_many,
)
from .crash import Killed, Life, killed_and_resumed, live
from .timetable import Timetable

__all__ = [
    "ENGINE_CHECKS",
    "Killed",
    "Life",
    "Timetable",
    "check_algorithm",
    "check_engine",
    "check_learner",
    "check_reducer",
    "check_stage",
    "check_task_many",
    "killed_and_resumed",
    "live",
]
