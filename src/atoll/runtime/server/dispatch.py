"""Carries out what the scheduler decides: offers, attempts and their ends, and what the store records about them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any

from atoll.core.errors import AtollError, JobError

from ..daemon.control import text, whole
from ..resources import Answer
from ..scheduler import Scheduler
from ..store.changes import LOG_WIDTH, visible
from ..store.records import JobRecord, JobState, JobStore
from ..terms import Action, Deploy, JobTerms, Offer, Refuse, Release, Wait, read_terms
from .attempt import Attempt, AttemptOutcome, make_crashed, make_failed, state_after
from .site_session import Members, SiteSession

__all__ = ["Dispatcher", "JobNews", "SiteSessions"]


# ------------------------------------------------------------------ news of changes, for requests that follow a log or wait for a job


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


# ------------------------------------------------------------------ the sites that are connected to a server


class SiteSessions(Mapping[str, SiteSession]):
    """Sessions by the name of their site, and which of them can be reached: a cut line is not lost yet."""

    def __init__(self) -> None:
        self._sessions: dict[str, SiteSession] = {}
        self._reached: dict[str, bool] = {}

    def __getitem__(self, site: str) -> SiteSession:
        return self._sessions[site]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sessions)

    def __len__(self) -> int:
        return len(self._sessions)

    def put(self, session: SiteSession) -> None:
        """Add a site's new line, in place of an older one."""
        self._sessions[session.name], self._reached[session.name] = session, True

    def remove(self, session: SiteSession) -> bool:
        """Remove a lost line; return whether it was its site's newest, so that the site is gone."""
        if self._sessions.get(session.name) is not session:
            return False
        del self._sessions[session.name]
        return True

    def take_changes(self) -> list[tuple[str, bool]]:
        """Return the sites that have become reachable or unreachable since the last call."""
        now = {site: session.connected for site, session in self._sessions.items()}
        found = [(site, there) for site, there in now.items() if there != self._reached.get(site)]
        self._reached = now
        return found

    def without(self, sites: Iterable[str]) -> list[str]:
        """Return those of some sites that are not connected."""
        return sorted(set(sites) - self._sessions.keys())

    def tell(self, site: str, op: str, **fields: Any) -> None:
        """Send a site a frame, if it is connected."""
        session = self._sessions.get(site)
        if session is not None:
            session.tell(op, **fields)


# ------------------------------------------------------------------ carries out what the scheduler decides
#
# Carries out what the scheduler decides: offers, attempts and their ends, and what the store records about them.


_LOG = logging.getLogger("atoll.runtime")

_AGAIN = 1.0
"""Seconds between two tries to record how a job ended."""

Begin = Callable[[JobRecord, list[SiteSession], Callable[[Sequence[str]], None]], Awaitable[Attempt]]


class Dispatcher:
    """The jobs of a server, from the queue to their end.

    Args:
        store: what the server remembers.
        scheduler: decides what runs.
        members: the sites of the project, and the roles of its helpers.
        begin: makes an attempt of a job at sites; it calls its third argument when the attempt runs, with the sites
            that it leaves out.
        news: learns of every change.

    Attributes:
        sessions: connected sites by name.
    """

    def __init__(self, store: JobStore, scheduler: Scheduler, members: Members, begin: Begin, news: JobNews) -> None:
        self.sessions = SiteSessions()
        self._members = members
        self._store = store
        self._scheduler = scheduler
        self._begin = begin
        self._news = news
        self._attempts: dict[str, Attempt] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stirred = asyncio.Event()
        self._closing = False

    # ------------------------------------------------------------------ what happens

    def restart(self) -> None:
        """Queue the jobs in the store: a restarted server goes on with every job that had not ended."""
        found = self._store.restart(now=time.time())
        for record in found:
            self.submit(record)
        if found:
            _LOG.info("%d jobs that had not ended go on", len(found))

    def submit(self, record: JobRecord) -> None:
        """Add a job to the queue."""
        try:
            terms = read_terms(record.spec)
            helpers = self.placed(terms, record.sites).values()
            self._do(self._scheduler.submit(terms.want(record.id, record.sites, helpers), time.monotonic()))
        except AtollError as error:
            self._finish(record.id, make_failed(error))

    def why(self, record: JobRecord) -> str:
        """Return why a job is in its state; why it waits is known here alone, and not written down whenever that changes."""
        return (record.state is JobState.QUEUED and self._scheduler.why(record.id)) or record.reason

    def placed(self, terms: JobTerms, before: Sequence[str] = ()) -> dict[str, str]:
        """The helper of every party that needs one; see `Members.place`.

        Raises:
            ConfigError: nobody plays a role that the job needs.
        """
        there = [name for name, session in self.sessions.items() if session.connected]
        return self._members.place(terms, there, before)

    def abort(self, job: str, who: str) -> None:
        """End a job, whatever it is doing.

        Raises:
            JobError: there is no such job, or it has ended.
        """
        record = self._store.get(job)
        if record.state.terminal:
            raise JobError(
                f"the job has ended already: it is {record.state}", where=f"job {job}", remedy="see atoll jobs"
            )
        attempt = self._attempts.get(job)
        if attempt is not None:
            attempt.abort(who)
            return
        self._do(self._scheduler.end_job(job, time.monotonic()))
        self._move(job, JobState.ABORTED, who=who, reason=f"aborted by {who}")

    def resume(self, job: str, who: str, token: str) -> None:
        """Resume a job that failed or was aborted; see ``JobStore.resume``.

        Raises:
            JobError: there is no such job, it has not ended, or it has its result.
        """
        record = self._store.resume(job, now=time.time(), who=who, token=token)
        _LOG.info("job %s is %s: %s", job, record.state, record.reason)
        self._news.tell(job)
        self.submit(record)

    def add_site(self, session: SiteSession) -> None:
        """Take a site's new line."""
        self.sessions.put(session)
        helper = bool(session.plays)
        self._do(self._scheduler.add_site(session.name, time.monotonic(), session.holding, helper=helper))

    def left(self, session: SiteSession) -> None:
        """Note that the line of a site is lost."""
        if self.sessions.remove(session):
            self._do(self._scheduler.left(session.name, time.monotonic()))

    def take_answer(self, session: SiteSession, frame: Any) -> None:
        """Take a site's answer to an offer."""
        why = visible(text(frame, "why"), LOG_WIDTH)  # for a store, a log and a terminal
        answer = Answer(frame.get("ok") is True, why, frame.get("never") is True)
        job, ticket = text(frame, "job"), whole(frame, "ticket")
        self._do(self._scheduler.take_answer(job, session.name, ticket, answer, time.monotonic()))

    def know(self) -> None:
        """Take the project's sites anew."""
        self._do(self._scheduler.know(self._members.clients, time.monotonic()))
        self._stirred.set()

    async def run(self) -> None:
        """Watch time and sites until cancelled."""
        while True:
            now = time.monotonic()
            wake = self._scheduler.next_wake()
            pause = 0.5 if wake is None else min(0.5, max(0.01, wake - now))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stirred.wait(), pause)
            self._stirred.clear()
            self._look()
            self._do(self._scheduler.tick(time.monotonic()))

    async def close(self) -> None:
        """Stop the attempts; their jobs go on when the server is back."""
        self._closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _look(self) -> None:
        """Note which lines are cut: such a line is not lost, but its site cannot be asked meanwhile, and its work goes on."""
        now = time.monotonic()
        for site, there in self.sessions.take_changes():
            self._do(self._scheduler.add_site(site, now) if there else self._scheduler.left(site, now))

    # ------------------------------------------------------------------ what to do

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Offer(job, site, need, ticket):
                    self.sessions.tell(site, "offer", job=job, resources=need.tree(), ticket=ticket)
                case Release(job, site):
                    self.sessions.tell(site, "release", job=job)
                case Deploy(job, sites):
                    self._spawn(self._attempt(job, sites))
                case Refuse(job, error):
                    self._spawn(self._write_outcome(job, make_failed(error)))
                case Wait(job):
                    self._news.tell(job)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _attempt(self, job: str, sites: tuple[str, ...]) -> None:
        outcome = make_crashed("the server was stopped")
        try:
            if not self._store.get(job).state.terminal:  # somebody may have aborted it just now
                outcome = await self._carry_out(job, sites)
        except AtollError as error:
            outcome = make_failed(error)
        except Exception as error:  # a defect must not stop the server, nor leave the job without an end
            _LOG.exception("job %s", job)
            outcome = make_failed(
                JobError(f"{type(error).__name__}: {error}", where="server", remedy="see the server's log")
            )
        finally:
            self._attempts.pop(job, None)
            if not self._closing:  # else the job goes on when the server is back, as after a crash
                # Done before the job is queued again: a release must not follow the offers of the next attempt.
                self._do(self._scheduler.end_job(job, time.monotonic()))
                await self._write_outcome(job, outcome)

    async def _carry_out(self, job: str, sites: tuple[str, ...]) -> AttemptOutcome:
        self._move(job, JobState.SCHEDULED, reason="sites have reserved what it asks for")
        record = self._move(job, JobState.DEPLOYING, sites=sites, reason=f"attempt at {', '.join(sites)}")
        gone = self.sessions.without(sites)
        if gone:
            return make_crashed(f"site {', '.join(gone)} went away before the attempt began")
        attempt = await self._begin(
            record, [self.sessions[site] for site in sites], lambda late: self._runs(job, record.attempts, late)
        )
        self._attempts[job] = attempt
        return await attempt.run()

    def _runs(self, job: str, attempt: int, late: Sequence[str]) -> None:
        without = f", without {', '.join(late)}: nothing was heard from the job's process there" if late else ""
        self._move(job, JobState.RUNNING, reason=f"attempt {attempt}{without}")

    async def _write_outcome(self, job: str, outcome: AttemptOutcome) -> None:
        """Record the next attempt, or the end; on a full disk, try until there is room, for every job must end."""
        for pause in itertools.chain((0.0,), itertools.repeat(_AGAIN)):
            try:
                if not self._store.get(job).state.terminal:
                    self._finish(job, outcome)
                return
            except AtollError as error:
                if pause == 0.0:
                    _LOG.warning("job %s ended (%s), which cannot be recorded: %s", job, outcome.reason, error)
            await asyncio.sleep(pause)

    def _finish(self, job: str, outcome: AttemptOutcome) -> None:
        """Record the end of a job, or queue its next attempt."""
        record = self._store.get(job)
        most = 1 if outcome.kind != "crashed" else read_terms(record.spec).attempts
        state, why = state_after(record, outcome, most)
        moved = self._move(job, state, reason=why.reason, error=why.error, progress=why.progress)
        if not moved.state.terminal:
            self.submit(moved)

    def _move(self, job: str, state: JobState, *, reason: str = "", who: str = "server", **more: Any) -> JobRecord:
        record = self._store.move(job, state, now=time.time(), who=who, reason=reason, **more)
        _LOG.info("job %s is %s%s", job, state, f": {reason}" if reason else "")
        self._news.tell(job)
        self._stirred.set()
        return record
