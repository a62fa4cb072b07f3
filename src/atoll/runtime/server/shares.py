"""What one person may take of a server: jobs, disk, and time of its one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator

from atoll.core.errors import JobError
from atoll.runtime.identity import Peer
from atoll.runtime.store.records import JobFilter
from atoll.runtime.store.states import TERMINAL, JobState
from atoll.runtime.store.store import JobStore

__all__ = ["BYTES", "JOBS", "People", "Quotas"]

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
