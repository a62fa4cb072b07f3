"""Whether a job can go on that failed or was aborted: what is kept of it, where, and for how long."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from pathlib import Path

from atoll.core.errors import AtollError, JobError
from atoll.runtime.store.records import JobRecord
from atoll.runtime.store.states import JobState, require_resumable
from atoll.runtime.store.store import JobStore

from .site_session import SiteSession

__all__ = ["KEPT", "forgotten", "remind", "require_kept", "tidy"]

KEPT = 30 * 86400.0
"""Seconds after a failure or an abort for which sites keep the private state of a job."""
_EVERY = 3600.0
"""Seconds between two looks at what sites keep."""


def forgotten(record: JobRecord, now: float) -> bool:
    """Whether sites need keep nothing of a job but its privacy ledger: it has its result, or ended too long ago.

    Args:
        record: the job.
        now: seconds since 1970.
    """
    if record.state is JobState.FINISHED:
        return True
    return record.state.terminal and now - record.times[-1][1] > KEPT


def require_kept(record: JobRecord, state: Path, sessions: Mapping[str, SiteSession], now: float) -> None:
    """Refuse to resume a job that has nothing to go on from. Sites that are away are believed to keep what they had.

    Args:
        record: the job.
        state: the folder of its results and checkpoints at the server.
        sessions: the connected sites by name.
        now: seconds since 1970.

    Raises:
        JobError: it names what is missing; the remedy is to clone the job.
    """
    require_resumable(record.id, record.state)
    if not record.attempts:
        raise _gone(record, "it never began, so there is nothing to go on from")
    if not state.is_dir():
        raise _gone(record, f"its folder is not at the server any more: {state}")
    if forgotten(record, now):
        days = (now - record.times[-1][1]) / 86400
        raise _gone(record, f"it ended {days:.0f} days ago, and sites keep what it left for {KEPT / 86400:.0f}")
    for site in record.sites:
        if site in sessions and record.id not in sessions[site].kept:
            raise _gone(record, f"site {site!r} keeps nothing of it any more")


def _gone(record: JobRecord, what: str) -> JobError:
    return JobError(
        f"the job cannot be resumed: {what}",
        where=f"job {record.id}",
        remedy=f"run it anew from its beginning: atoll clone {record.id}",
    )


async def remind(session: SiteSession, store: JobStore, now: float) -> None:
    """Tell a site which jobs it need not keep: it may have been away when they ended.

    Args:
        session: the site.
        store: the jobs; of those that are not there, it keeps what it has.
        now: seconds since 1970.
    """
    for job in sorted(session.kept):
        with contextlib.suppress(AtollError):
            if forgotten(store.get(job), now):
                session.stop(job, 0, end=True)
        await asyncio.sleep(0)  # the list may be long, and others have their turn


async def tidy(sessions: Mapping[str, SiteSession], store: JobStore) -> None:
    """Remind all sites again and again, for as long as the server runs."""
    while True:
        await asyncio.sleep(_EVERY)
        for session in list(sessions.values()):
            await remind(session, store, time.time())
