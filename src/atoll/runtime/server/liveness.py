"""The one rule of liveness, for a job as a whole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from atoll.core.errors import JobError

__all__ = ["watch_progress"]

_WORKS = 0.01
"""Share of a core; a process that uses less waits and does not work."""


async def watch_progress(
    job: str, patience: float, moved: Callable[[], int], cpu: Callable[[], float | None]
) -> JobError:
    """Return once a job has shown no progress for too long: no byte has arrived from a site, and its own process did not work.

    The engine applies the rule to each site that owes a reply, and can say more; so this rule waits half as long again.

    Args:
        job: its id.
        patience: seconds without progress.
        moved: returns the bytes that have arrived from sites so far.
        cpu: returns the seconds of processor time of the job's process so far; None before there is one.
    """
    limit = 1.5 * patience + 5.0
    clock = asyncio.get_running_loop().time
    bytes_, spent, since = -1, 0.0, clock()
    while True:
        await asyncio.sleep(min(5.0, patience / 4))
        now, used, come = clock(), cpu(), moved()
        if used is None or come != bytes_ or used - spent > _WORKS * (now - since):
            bytes_, spent, since = come, used or 0.0, now
        elif now - since > limit:
            return JobError(
                f"for {now - since:.0f} s nothing arrived from any site, and the server's own process did not work",
                where=f"job {job}, running",
                remedy="see the job's log (atoll logs); raise `patience` if such pauses are normal",
            )
