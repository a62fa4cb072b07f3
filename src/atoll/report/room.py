"""What the room of reports adds: trackers."""

from __future__ import annotations

import inspect

from atoll.core.rooms import PartKind

__all__ = ["PARTS"]

PARTS = (
    PartKind(
        "tracker",
        ("atoll.report.trackers",),
        inspect.isclass,
        "Further receivers of each round's record.",
    ),
)
