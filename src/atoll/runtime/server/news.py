"""News of changes, for requests that follow a log or wait for a job."""

from __future__ import annotations

import asyncio

__all__ = ["JobNews"]


class JobNews:
    """Wakes tasks that wait for news of a job, or of any job."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Event] = {}

    def tell(self, job: str) -> None:
        """Announce that a job has changed."""
        self.tell_log(job)
        self.tell_log("")

    def tell_log(self, job: str) -> None:
        """Announce new lines of a job's log, which wake nobody who waits for changes of any job."""
        event = self._waiting.pop(job, None)
        if event is not None:
            event.set()

    def of(self, job: str = "") -> asyncio.Event:
        """Return an event that is set at the next news of a job, or of any. Get it before you look, so that you miss nothing."""
        return self._waiting.setdefault(job, asyncio.Event())
