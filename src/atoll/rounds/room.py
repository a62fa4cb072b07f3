"""What this room adds: programs as jobs, and stop rules."""

from __future__ import annotations

from atoll.core.rooms import PartKind, is_class

__all__ = ["JOBS", "PARTS"]

JOBS = {"program": "atoll.rounds.program:ProgramJob"}
PARTS = (
    PartKind(
        "stop rule", ("atoll.rounds.loop",), is_class("atoll.rounds.loop:StopRule"), "When a run ends.",
        "StopRule",
    ),
)  # fmt: skip
