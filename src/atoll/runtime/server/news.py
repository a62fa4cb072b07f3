"""Who wants to know that something has changed: those that follow a log or wait for a job."""

from __future__ import annotations

import asyncio

__all__ = ["News"]


class News:
    """Wakes those that wait for news of a job, or of any."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Event] = {}

    def tell(self, job: str) -> None:
        """Something of a job has changed: its state, or its log."""
        for name in (job, ""):
            event = self._waiting.pop(name, None)
            if event is not None:
                event.set()

    def of(self, job: str = "") -> asyncio.Event:
        """Set at the next news of a job, or of any. Ask for it before looking, and nothing is missed."""
        return self._waiting.setdefault(job, asyncio.Event())
