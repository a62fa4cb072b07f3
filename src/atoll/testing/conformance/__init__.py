"""Laws that every part of a kind must keep. You check your parts with the functions that check ours."""

from __future__ import annotations

from .algorithm import check_algorithm, check_learner
from .engine import ENGINE_CHECKS, check_engine
from .reducer import check_reducer
from .stage import check_stage
from .task import check_task_many

__all__ = [
    "ENGINE_CHECKS",
    "check_algorithm",
    "check_engine",
    "check_learner",
    "check_reducer",
    "check_stage",
    "check_task_many",
]
