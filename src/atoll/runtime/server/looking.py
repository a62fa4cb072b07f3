"""What people may see: jobs, sites, events, logs and results."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from atoll.core.errors import JobError
from atoll.runs.versions import versions
from atoll.runtime.identity import Peer
from atoll.runtime.store.records import JobRecord
from atoll.runtime.store.store import JobStore

from .dispatch import Dispatcher
from .news import JobNews
from .site_session import SiteSession

__all__ = ["Looking", "summary_of"]

_CHUNK = 1 << 20


def summary_of(record: JobRecord) -> dict[str, Any]:
    """Return a job as people see it."""
    return {
        "job": record.id, "name": record.name, "state": str(record.state), "reason": record.reason,
        "submitter": record.submitter, "org": record.org, "created": record.created, "attempts": record.attempts,
        "sites": list(record.sites), "error": None if record.error is None else dict(record.error),
        "times": [[str(state), when] for state, when in record.times],
    }  # fmt: skip


class Looking:
    """Answers that change nothing. Each is a stream of frames.

    Args:
        store: what the server remembers.
        dispatcher: runs the jobs.
        news: wakes waiting requests.
        result: the folder of a job's results.
    """

    def __init__(self, store: JobStore, dispatcher: Dispatcher, news: JobNews, result: Callable[[str], Path]) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._news = news
        self._result_folder = result

    async def _about(self, peer: Peer, frame: Any) -> AsyncIterator[Any]:
        """Return what runs here."""
        del peer, frame
        yield {"atoll": versions()["atoll"]}

    async def _jobs(self, peer: Peer, frame: Any) -> AsyncIterator[Any]:
        """Return jobs, all or one; with ``seen`` from an earlier answer, wait until they have changed."""
        del peer
        job = None if frame.get("job") is None else self._store.get(str(frame["job"])).id
        while True:
            news = self._news.of(job or "")
            records = self._store.jobs(limit=frame.get("limit")) if job is None else [self._store.get(job)]
            told = [summary_of(record) for record in records]
            mark = hashlib.sha256(json.dumps(told).encode()).hexdigest()
            if frame.get("seen") != mark:
                yield {"jobs": told, "seen": mark}
                return
            await news.wait()

    async def _sites(self, peer: Peer, frame: Any) -> AsyncIterator[Any]:
        """Return the sites that have a line, and its state."""
        del peer, frame
        yield {"sites": [_site(session) for _, session in sorted(self._dispatcher.sessions.items())]}

    async def _events(self, peer: Peer, frame: Any) -> AsyncIterator[Any]:
        """Return the audit trail."""
        del peer
        found = self._store.events(job=frame.get("job"), after=int(frame.get("after", 0)), limit=1000)
        yield {"events": [{**vars(event), "details": dict(event.details)} for event in found]}

    async def _logs(self, peer: Peer, frame: Any) -> AsyncIterator[Any]:
        """Return log lines of a job; with ``follow``, until it has ended."""
        del peer
        job, after, follow = (
            self._store.get(str(frame["job"])).id,
            int(frame.get("after", 0)),
            frame.get("follow") is True,
        )
        while True:
            news = self._news.of(job)
            record = self._store.get(job)
            while lines := self._store.lines(job, after=after, limit=1000):
                after = lines[-1].number
                yield {"lines": [[line.number, line.when, line.node, line.text] for line in lines]}
            if not follow or record.state.terminal:
                return
            await news.wait()

    async def _result(self, peer: Peer, frame: Any) -> AsyncIterator[Any]:
        """Return the files of a job's results, in pieces."""
        del peer
        record = self._store.get(str(frame["job"]))
        for path in self._files(record):
            yield {"file": path.name, "size": path.stat().st_size}
            seen = hashlib.sha256()
            with path.open("rb") as file:
                while piece := await asyncio.to_thread(file.read, _CHUNK):
                    seen.update(piece)
                    yield {"piece": piece}
            yield {"sha256": seen.hexdigest()}
        yield {"job": summary_of(record)}

    def _files(self, record: JobRecord) -> list[Path]:
        folder = self._result_folder(record.id)
        found = sorted(path for path in folder.glob("*") if path.is_file() and not path.name.startswith("."))
        if not found or not record.state.terminal:
            raise JobError(
                f"the job has no results: it is {record.state}" + (f" ({record.reason})" if record.reason else ""),
                where=f"job {record.id}",
                remedy=f"wait for its end, or see why: atoll logs {record.id}",
            )
        return found


def _site(session: SiteSession) -> dict[str, Any]:
    told = session.line.stats()
    return {
        "site": session.name, "org": session.line.peer.org, "plays": session.line.peer.plays, "connected": session.connected, "round_trip": told.round_trip,
        "skew": told.skew, "resumes": told.resumes, "received": told.received_bytes, "sent": told.sent_bytes,
    }  # fmt: skip
