"""What people may see: jobs, sites, events, logs and results, within the shares of each."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from atoll.core.errors import JobError
from atoll.runs.versions import versions

from ..confinement.folders import HeldFolder
from ..daemon.control import RESULT_NAME, text, whole
from ..identity import Peer
from ..store.changes import visible
from ..store.records import TERMINAL, JobFilter, JobRecord, JobState, JobStore
from .dispatch import Dispatcher, JobNews
from .site_session import LastSeen, Members, SiteSession

__all__ = ["BYTES", "JOBS", "PAGE", "Looking", "People", "Quotas"]


# ------------------------------------------------------------------ what one person may take of a server: jobs, disk, and time of its one event loop


JOBS = 1000
"""Jobs of a person that have not ended, unless the server says otherwise."""
BYTES = 16 << 30
"""Bytes of the bundles of a person's jobs."""
_READ = 2
"""Submissions that are read at once, of all people together."""
_REST = 9.0
"""After a list, the next one of the same person waits for this many times what it took: one person takes a tenth of the loop."""
_OPEN = frozenset(set(JobState) - TERMINAL)


class Quotas:
    """Refuses what would be more than a person's share of jobs and disk.

    Args:
        store: what the server remembers.
        jobs: most jobs of a person that have not ended.
        size: most bytes of the bundles of all jobs of a person.
    """

    def __init__(self, store: JobStore, jobs: int = JOBS, size: int = BYTES) -> None:
        self._store = store
        self._jobs = jobs
        self._size = size
        self._kept: dict[str, int] = {}

    def require(self, peer: Peer, size: int) -> None:
        """Refuse a submission for which there is no room.

        Args:
            peer: who submits.
            size: bytes of the bundle.

        Raises:
            JobError: names the quota and how much of it is used.
        """
        there = self._store.count(JobFilter(states=_OPEN, submitter=peer.name))
        if there >= self._jobs:
            raise JobError(
                f"{peer} has {there} jobs that have not ended, the most at once",
                where="submission",
                remedy="wait for some to end, abort some, or let the server's operator raise --quota",
            )
        kept = self._of(peer.name)
        if kept + size > self._size:
            raise JobError(
                f"the bundles of the jobs of {peer} have {kept} bytes, and with this one more than {self._size}",
                where="submission",
                remedy="delete jobs that you no longer need: atoll delete JOB",
            )

    def add(self, person: str, size: int) -> None:
        """Count a bundle that is kept from now on."""
        if person in self._kept:  # else all are counted when that is asked for
            self._kept[person] += size

    def forget(self, person: str) -> None:
        """Count a person's bundles anew: some are gone."""
        self._kept.pop(person, None)

    def _of(self, person: str) -> int:
        if person not in self._kept:
            self._kept[person] = self._store.count_kept(person)
        return self._kept[person]


class People:
    """Lets each person have one thing at a time done for them, so that nobody waits for more than one thing of another."""

    def __init__(self) -> None:
        self._reading = asyncio.Semaphore(_READ)
        self._submitting: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._listing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def submission(self, person: str) -> asyncio.Lock:
        """Return what is held while a person's submission is taken."""
        return self._submitting[person]

    def reading(self) -> asyncio.Semaphore:
        """Return what is held while a bundle is read in a thread, which shares the interpreter with the loop."""
        return self._reading

    @contextlib.asynccontextmanager
    async def listing(self, person: str) -> AsyncIterator[None]:
        """Hold while a list is made without a pause; the person's next list waits in proportion."""
        lock = self._listing[person]
        await lock.acquire()
        with self._release_later(lock):
            yield

    @staticmethod
    @contextlib.contextmanager
    def _release_later(lock: asyncio.Lock) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            asyncio.get_running_loop().call_later(_REST * (time.perf_counter() - begin), lock.release)


# ------------------------------------------------------------------ what people may see: jobs, sites, events, logs and results


_CHUNK = 1 << 20
_FAULTS = 20
"""Most names in a job's folder that are told with what is wrong with them."""
_LINE = {
    "round_trip": "round_trip",
    "skew": "skew",
    "resumes": "resumes",
    "received": "received_bytes",
    "sent": "sent_bytes",
}
"""What is told of a site's line -> its name in ``LineStats``; None while the site has no line."""
PAGE = 1000
"""Most jobs, events or lines of one answer."""


class Looking:
    """Answers that change nothing. Each is a stream of frames.

    Args:
        store: what the server remembers.
        dispatcher: runs the jobs.
        news: wakes waiting requests.
        result: the folder of a job's results.
        members: the sites of the project.
        seen: when they were last connected.
    """

    def __init__(
        self,
        store: JobStore,
        dispatcher: Dispatcher,
        news: JobNews,
        result: Callable[[str], Path],
        members: Members,
        seen: LastSeen,
    ) -> None:
        self._members = members
        self._seen = seen
        self._store = store
        self._dispatcher = dispatcher
        self._news = news
        self._result_folder = result
        self._turns = People()

    def _summary(self, record: JobRecord) -> dict[str, Any]:
        """Return a job as people see it."""
        return {
            "job": record.id, "name": record.name, "state": str(record.state), "reason": self._dispatcher.why(record),
            "submitter": record.submitter, "org": record.org, "created": record.created, "attempts": record.attempts,
            "sites": list(record.sites), "error": None if record.error is None else dict(record.error),
            "times": [[str(state), when] for state, when in record.times],
        }  # fmt: skip

    async def _about(self, peer: Peer, frame: Any) -> AsyncIterator[Any]:
        """Return what runs here."""
        del peer, frame
        yield {"atoll": versions()["atoll"]}

    async def _jobs(self, peer: Peer, frame: Any) -> AsyncIterator[Any]:
        """Return jobs: one, or the newest of those that a filter leaves; with ``seen`` from an earlier answer, wait until they have changed. A site sees those that it takes part in, an analyst those that it has submitted."""
        job = self._one(frame)
        if peer.role in ("site", "analyst"):
            if job is None:
                frame = {**frame, "site" if peer.role == "site" else "submitter": peer.name}
            else:
                _require_part(peer, self._store.get(job))
        while True:
            news = self._news.of(job or "")
            if job is None:
                async with self._turns.listing(peer.name):
                    told, total = self._list(frame)
            else:
                told, total = [self._summary(self._store.get(job))], 1
            mark = hashlib.sha256(json.dumps([told, total]).encode()).hexdigest()
            if frame.get("seen") != mark:
                yield {"jobs": told, "seen": mark, "total": total}
                return
            await news.wait()

    def _one(self, frame: Any) -> str | None:
        """Return the id of the job that a request is about, if it is about one."""
        if frame.get("number") is not None:
            return self._store.find_numbered(whole(frame, "number")).id
        return None if frame.get("job") is None else self._store.get(str(frame["job"])).id

    def _list(self, frame: Any) -> tuple[list[dict[str, Any]], int]:
        wanted, limit = filter_of(frame), PAGE if frame.get("limit") is None else whole(frame, "limit")
        found = self._store.jobs(wanted, limit=max(0, min(limit, PAGE)))
        return [self._summary(record) for record in found], self._store.count(wanted)

    async def _sites(self, peer: Peer, frame: Any) -> AsyncIterator[Any]:
        """Return the sites of the project: those that are connected or were, those that never came, and those whose certificate was revoked."""
        del peer, frame
        sessions, plays = self._dispatcher.sessions, self._members.plays
        names = sorted({*sessions, *self._members.clients, *plays, *self._seen.list_revoked()})
        yield {"sites": [self._site(name, sessions.get(name), plays.get(name, "")) for name in names]}

    def _site(self, name: str, session: SiteSession | None, plays: str) -> dict[str, Any]:
        last = self._seen.of(name)
        there = session is not None and session.connected
        told = None if session is None else session.line.stats()
        return {
            "site": name, "org": "" if last is None else last.org, "plays": plays, "connected": there,
            "revoked": self._seen.revoked(name), "seen": time.time() if there else None if last is None else last.when,
            **{key: None if told is None else getattr(told, field) for key, field in _LINE.items()},
        }  # fmt: skip

    async def _events(self, peer: Peer, frame: Any) -> AsyncIterator[Any]:
        """Return the audit trail."""
        async with self._turns.listing(peer.name):
            found = self._store.events(job=frame.get("job"), after=_after(frame), limit=PAGE)
            told = [{**vars(event), "details": dict(event.details)} for event in found]
            head = self._store.head()
        yield {"events": told, "head": str(head)}

    async def _logs(self, peer: Peer, frame: Any) -> AsyncIterator[Any]:
        """Return log lines of a job; with ``follow``, until it has ended."""
        del peer
        job, after, follow = self._store.get(str(frame["job"])).id, _after(frame), frame.get("follow") is True
        while True:
            news = self._news.of(job)
            record = self._store.get(job)
            while lines := self._store.lines(job, after=after, limit=PAGE):
                after = lines[-1].number
                yield {"lines": [[line.number, line.when, line.node, line.text] for line in lines]}
            if not follow or record.state.terminal:
                return
            await news.wait()

    async def _result(self, peer: Peer, frame: Any) -> AsyncIterator[Any]:
        """Return the files of a job's results, in pieces; and what lies among them and is not sent, with the reason."""
        del peer
        record = self._store.get(str(frame["job"]))
        with self._open_folder(record) as folder:
            names, faults = self._files(record, folder)
            wanted = frame.get("files")
            for name in names if not isinstance(wanted, list) else [name for name in names if name in wanted]:
                seen = hashlib.sha256()
                with folder.open_file(name) as file:
                    yield {"file": name, "size": os.fstat(file.fileno()).st_size}
                    while piece := await asyncio.to_thread(file.read, _CHUNK):
                        seen.update(piece)
                        yield {"piece": piece}
                yield {"sha256": seen.hexdigest()}
            yield {"job": self._summary(record), "withheld": faults}

    def _open_folder(self, record: JobRecord) -> HeldFolder:
        folder = self._result_folder(record.id)
        try:
            return HeldFolder.open(folder.parent, folder.name)
        except OSError as error:
            raise self._none(record, "") from error

    def _files(self, record: JobRecord, folder: HeldFolder) -> tuple[list[str], dict[str, str]]:
        """The plain files of a job's results; and the names that are none, or that no folder of results may have, with what they are."""
        faults = {name: folder.fault_of(name) for name in folder.names()}
        faults |= {name: "a name that results cannot have" for name in faults if not RESULT_NAME.fullmatch(name)}
        kept = [name for name, fault in faults.items() if not fault]
        withheld = {visible(name, 100): fault for name, fault in faults.items() if fault and fault != "a folder"}
        if not kept or not record.state.terminal:
            told = "; ".join(f"{name} is {fault}" for name, fault in sorted(withheld.items())[:_FAULTS])
            raise self._none(record, f"; in its folder {told}" if told and record.state.terminal else "")
        return kept, dict(sorted(withheld.items())[:_FAULTS])

    @staticmethod
    def _none(record: JobRecord, more: str) -> JobError:
        ended = record.state.terminal
        return JobError(
            f"the job has no results: it is {record.state}" + (f" ({record.reason})" if record.reason else "") + more,
            where=f"job {record.id}",
            remedy=f"see why: atoll logs {record.id}; to run it again: atoll clone {record.id}"
            if ended
            else f"wait for its end: atoll logs {record.id} --follow",
        )


def _require_part(peer: Peer, record: JobRecord) -> None:
    """Refuse a site or an analyst that asks for a job of others.

    Raises:
        JobError: it is one.
    """
    if record.submitter != peer.name and (peer.role != "site" or peer.name not in record.sites):
        mine = "your own site" if peer.role == "site" else "your own"
        raise JobError(f"{peer} takes no part in this job", where=f"job {record.id}", remedy=f"ask for a job of {mine}")


def _after(frame: Any) -> int:
    return 0 if frame.get("after") is None else whole(frame, "after")


def filter_of(frame: Any) -> JobFilter:
    """Return the filter of a request.

    Raises:
        ValueError: a state that is none.
        MessageError: a word that is none.
    """
    words = {
        name: text(frame, name, 200) for name in ("submitter", "name", "site", "before") if frame.get(name) is not None
    }
    states = None if frame.get("states") is None else frozenset(JobState(state) for state in frame["states"])
    since = None if frame.get("since") is None else float(frame["since"])
    return JobFilter(states=states, since=since, **words)
