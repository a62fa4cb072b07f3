"""Whether a job that failed or was aborted can be resumed: what is kept of it, where, and for how long."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from pathlib import Path

from atoll.core.errors import AtollError, JobError
from atoll.runtime.confinement.folders import remove_tree
from atoll.runtime.store.records import JobRecord
from atoll.runtime.store.states import JobState, require_resumable
from atoll.runtime.store.store import JobStore

from ..daemon.place import clear_places
from .site_session import SiteSession

__all__ = ["KEPT", "clear", "forgotten", "remind", "require_kept", "tidy"]

KEPT = 30 * 86400.0
"""Seconds for which sites keep the private state of a job after a failure or an abort."""
_EVERY = 3600.0
"""Seconds between two checks of what sites keep."""


def forgotten(record: JobRecord, now: float) -> bool:
    """Tell whether sites need to keep only the privacy ledger of a job: it has its result, or ended too long ago.

    Args:
        record: the job.
        now: seconds since 1970.
    """
    if record.state is JobState.FINISHED:
        return True
    return record.state.terminal and now - record.times[-1][1] > KEPT


def require_kept(record: JobRecord, state: Path, sessions: Mapping[str, SiteSession], now: float) -> None:
    """Refuse to resume a job without a state to resume from. Sites that are away are assumed to keep what they had.

    Args:
        record: the job.
        state: the folder of its results and checkpoints at the server.
        sessions: the connected sites by name.
        now: seconds since 1970.

    Raises:
        JobError: something is missing; the message names it, and the remedy is to clone the job.
    """
    require_resumable(record.id, record.state)
    if not record.attempts:
        raise _make_gone_error(record, "it never began, so there is nothing to resume from")
    if not state.is_dir():
        raise _make_gone_error(record, f"its folder is no longer at the server: {state}")
    if forgotten(record, now):
        days = (now - record.times[-1][1]) / 86400
        raise _make_gone_error(
            record, f"it ended {days:.0f} days ago, and sites keep a job's state for {KEPT / 86400:.0f}"
        )
    for site in record.sites:
        if site in sessions and record.id not in sessions[site].kept:
            raise _make_gone_error(record, f"site {site!r} no longer keeps anything of it")


def _make_gone_error(record: JobRecord, what: str) -> JobError:
    return JobError(
        f"the job cannot be resumed: {what}",
        where=f"job {record.id}",
        remedy=f"run it again from its beginning: atoll clone {record.id}",
    )


async def remind(session: SiteSession, store: JobStore, now: float) -> None:
    """Tell a site which jobs it need not keep; it may have been away when they ended.

    Args:
        session: the site.
        store: the jobs; the site keeps what it has of jobs that were never in the store.
        now: seconds since 1970.
    """
    for job in sorted(session.kept):
        with contextlib.suppress(AtollError):
            if store.deleted(job) or forgotten(store.get(job), now):
                session.stop(job, 0, end=True)
        await asyncio.sleep(0)  # the list may be long: give others a turn


async def clear(folder: Path, store: JobStore) -> None:
    """Remove the files of deleted jobs that are still here, because the server was killed meanwhile.

    Args:
        folder: the server's.
        store: the jobs.
    """
    with contextlib.suppress(OSError):
        await asyncio.to_thread(clear_places, folder)
    for path in (folder / "jobs").glob("[!.]*"):
        with contextlib.suppress(AtollError, OSError):
            if await asyncio.to_thread(store.deleted, path.name):
                await asyncio.to_thread(remove_tree, path)


async def tidy(sessions: Mapping[str, SiteSession], store: JobStore) -> None:
    """Remind all sites regularly, for as long as the server runs."""
    while True:
        await asyncio.sleep(_EVERY)
        for session in list(sessions.values()):
            await remind(session, store, time.time())
