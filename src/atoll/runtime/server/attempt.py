"""One attempt of a job as the server's daemon runs it: deploy, relay, watch, stop; what its sites report, and how it can end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from atoll.core.errors import AtollError, JobError, MessageError
from atoll.core.requests.wire import pack_error, unpack_error
from atoll.engines.link import LinkClosed

from ..confinement.folders import HeldFolder
from ..daemon.control import carry
from ..daemon.launch import JobProcess
from ..line import Channel, PackedMessage
from ..store.changes import visible
from ..store.records import JobRecord, JobState, after_crash
from ..terms import JobTerms
from .site_session import Gone, SiteSession

__all__ = [
    "Attempt",
    "AttemptOutcome",
    "AttemptSites",
    "failed_at",
    "make_aborted",
    "make_crashed",
    "make_failed",
    "make_finished",
    "state_after",
    "watch_progress",
]


# ------------------------------------------------------------------ how an attempt can end, and how it is reported


_LONGEST = 4000
_END = {"finished": JobState.FINISHED, "failed": JobState.FAILED, "aborted": JobState.ABORTED}


@dataclass(frozen=True)
class AttemptOutcome:
    """How an attempt ended.

    Attributes:
        kind: finished: there is a result; failed: it would fail again; crashed: the next attempt continues; aborted: a
            person stopped it.
        reason: in words.
        error: the error, as ``pack_error`` gives it.
        progress: whether it has made a new checkpoint.
    """

    kind: Literal["finished", "failed", "crashed", "aborted"]
    reason: str = ""
    error: Mapping[str, Any] | None = None
    progress: bool = False


def make_finished() -> AttemptOutcome:
    """Return the outcome of an attempt with a result."""
    return AttemptOutcome("finished")


def make_failed(error: AtollError) -> AttemptOutcome:
    """Return the outcome of an attempt that would fail again."""
    return AttemptOutcome("failed", error.what, pack_error(error))


def failed_at(node: str, packed: Any) -> AttemptOutcome:
    """Return the outcome of a process that reported an error of its own.

    Args:
        node: the process: ``server`` or ``site 'a'``.
        packed: the error as it travelled.
    """
    found = _readable(packed)
    place = found.where or ""
    # The server's process may report what happened at a site; then it names the site.
    said = place.removeprefix("the ").startswith(("server", "site ")) if node == "server" else node in place
    named = place if said else f"{node}: {place}" if place else node
    return make_failed(type(found)(found.what, where=named, remedy=found.remedy or "see the log: atoll logs JOB"))


def _readable(packed: Any) -> AtollError:
    """Return an error as it travelled, bounded in length: it ends in a store, a log and a terminal."""
    try:
        found = unpack_error(packed)
        if not isinstance(found, AtollError) or not isinstance(found.what, str):
            raise TypeError(packed)
        return type(found)(
            visible(found.what, _LONGEST),
            where=None if found.where is None else visible(found.where, _LONGEST),
            remedy=None if found.remedy is None else visible(found.remedy, _LONGEST),
        )
    except (KeyError, TypeError, AttributeError):
        return MessageError("it reported an unreadable error", remedy="use the same version of Atoll everywhere")


def make_crashed(why: str) -> AttemptOutcome:
    """Return the outcome of an attempt whose process or daemon died; the next one continues from the last checkpoint."""
    return AttemptOutcome("crashed", why, pack_error(JobError(why, where="job", remedy="see the log: atoll logs JOB")))


def make_aborted(who: str) -> AttemptOutcome:
    """Return the outcome of an attempt that a person stopped."""
    return AttemptOutcome("aborted", f"aborted by {who}")


def state_after(record: JobRecord, outcome: AttemptOutcome, most: int) -> tuple[JobState, AttemptOutcome]:
    """Return a job's next state, and the outcome to record.

    Args:
        record: the job before.
        outcome: of its attempt.
        most: attempts in a row that may end without a checkpoint.
    """
    if outcome.kind != "crashed":
        return _END[outcome.kind], outcome
    barren = 0 if outcome.progress else record.barren + 1
    state = after_crash(barren, most)
    if state is not JobState.FAILED:
        return state, AttemptOutcome("crashed", outcome.reason, None, outcome.progress)
    return state, make_failed(
        JobError(
            f"{barren} attempts in a row ended without a checkpoint; the last one: {outcome.reason}",
            where=f"job {record.id}",
            remedy=f"see the log: atoll logs {record.id}",
        )
    )


# ------------------------------------------------------------------ the one rule of liveness, for a job as a whole


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


# ------------------------------------------------------------------ the sites of one attempt: what they report, and whether that ends it


_WORDS = 500
"""Most characters of a site's reason for ending an attempt."""


class AttemptSites:
    """Listens to the sites of an attempt until each has reported its end, or is lost.

    Args:
        job: its id.
        attempt: its number.
        sessions: the sites.

    Attributes:
        sessions: by name.
        ending: the first outcome that a site has brought about.
    """

    def __init__(self, job: str, attempt: int, sessions: Sequence[SiteSession]) -> None:
        self.sessions = {session.name: session for session in sessions}
        self.ending: asyncio.Future[AttemptOutcome] = asyncio.get_running_loop().create_future()
        self._dismissed: dict[str, float] = {}
        self._job = job
        self._attempt = attempt
        self._deployed = {name: asyncio.Event() for name in self.sessions}
        self._exited = {name: asyncio.Event() for name in self.sessions}
        self._heard = dict.fromkeys(self.sessions, _now())
        self._tasks = [asyncio.create_task(self._listen(session)) for session in sessions]

    def dismiss(self, site: str) -> None:
        """Dismiss a site that the server's process has let go: its end is not news, and its last report is due from now on."""
        self._dismissed.setdefault(site, _now())

    def let_go(self, site: str) -> None:
        """Leave out a site whose process has not begun; if it begins later, it is stopped."""
        self.dismiss(site)
        self.sessions[site].stop(self._job, self._attempt, end=False)

    async def wait_for_starts(self, patience: float) -> list[str]:
        """Wait until every site has started its process; return those that have not and have been silent for ``patience`` seconds."""
        begun = await asyncio.gather(*(self._begun(name, patience) for name in self.sessions))
        return sorted(name for name, there in zip(self.sessions, begun, strict=True) if not there)

    async def _begun(self, site: str, patience: float) -> bool:
        event = self._deployed[site]
        while not event.is_set() and (left := self._heard[site] + patience - _now()) > 0:
            await _set(event, left)
        return event.is_set()

    async def stop_processes(self, final: bool, within: float) -> None:
        """Stop every process, and wait until the sites confirm it; a site that is away gets the order when it is back.

        Args:
            final: the job has its result, and no attempt will follow.
            within: seconds to wait, from when a site was dismissed.
        """
        now = _now()
        for name, session in self.sessions.items():
            # A site whose process has ended must still learn whether the job has.
            session.stop(self._job, self._attempt, end=final)
            if not session.connected:
                self._exited[name].set()
        left = {name: within - (now - self._dismissed.get(name, now)) for name in self.sessions}
        await asyncio.gather(*(_set(event, left[name]) for name, event in self._exited.items()))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _listen(self, session: SiteSession) -> None:
        frames = session.listen(self._job, self._attempt)
        lost = asyncio.create_task(session.line.lost.wait())
        getting = asyncio.create_task(frames.get())
        try:
            while True:
                await asyncio.wait({getting, lost}, return_when=asyncio.FIRST_COMPLETED)
                if not getting.done():
                    if session.name in self._dismissed:
                        return
                    self._end(make_crashed(f"site {session.name!r} is gone: {session.line.error}"))
                    return
                frame = getting.result()
                if frame["op"] == "exited":
                    self._exit(session.name, frame)
                    return
                self._heard[session.name] = _now()
                if frame["op"] == "deployed":
                    self._deployed[session.name].set()
                getting = asyncio.create_task(frames.get())
        finally:
            lost.cancel()
            getting.cancel()
            self._exited[session.name].set()
            session.forget(self._job, self._attempt)

    def _exit(self, site: str, frame: Mapping[str, Any]) -> None:
        place, code = f"site {site!r}", frame.get("code")
        if site in self._dismissed:
            return  # the server's process let it go, and knows why
        if frame.get("error") is not None:
            self._end(failed_at(place, frame["error"]))
        elif frame.get("why"):
            self._end(make_crashed(visible(str(frame["why"]), _WORDS)))
        elif code != 0:
            self._end(make_crashed(f"the job's process at {place} ended with {code_in_words(code)}"))
        else:
            self._end(make_crashed(f"the job's process at {place} ended before the job"))

    def _end(self, outcome: AttemptOutcome) -> None:
        if not self.ending.done():
            self.ending.set_result(outcome)


def code_in_words(code: Any) -> str:
    """Describe an exit code as `subprocess` gives it: negative for a signal."""
    if isinstance(code, int) and code < 0:
        return f"signal {-code}"
    return f"exit code {code}" if type(code) is int else "no exit code"


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _set(event: asyncio.Event, within: float) -> None:
    """Wait for an event, but no longer than ``within`` seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within):
            await event.wait()


# ------------------------------------------------------------------ one attempt of a job as the server's daemon runs it: deploy, relay, watch, stop


_GRACE = 5.0
"""Seconds for the server's process to report its own error once a site has reported one."""
_STOPPING = 20.0
_DECISIONS = 64 << 20  # bytes of a file that are read
"""Seconds for a connected site to report that an attempt's process has ended."""


class Attempt:
    """Starts the processes of one attempt, connects them, and ends them all when one of them ends.

    Args:
        job: its id.
        number: the attempt's number.
        terms: the job's terms.
        sessions: its sites.
        folder: where the job's checkpoints lie; new ones are progress.
        deploy: the frame for the sites, with the bundle, serialised once.
        launch: starts the server's process, given the sites that it works with.
        running: called once the sites have deployed, with those that have not and are left out.
        helpers: the sites without clients; none of them is left out.
    """

    def __init__(
        self,
        job: str,
        number: int,
        terms: JobTerms,
        sessions: Sequence[SiteSession],
        folder: Path,
        deploy: PackedMessage,
        launch: Callable[[Sequence[str]], Awaitable[JobProcess]],
        running: Callable[[Sequence[str]], None],
        helpers: Collection[str] = (),
    ) -> None:
        self.job = job
        self.number = number
        self._terms = terms
        self._parties = AttemptSites(job, number, sessions)
        self._folder = folder
        self._deploying = deploy
        self._launch = launch
        self._running = running
        self._helpers = helpers
        self._aborted: asyncio.Future[AttemptOutcome] = asyncio.get_running_loop().create_future()
        self._relays: list[asyncio.Task[None]] = []
        self._moved = 0
        self._process: JobProcess | None = None

    def abort(self, who: str) -> None:
        """Stop it on a person's order."""
        if not self._aborted.done():
            self._aborted.set_result(make_aborted(who))

    async def run(self) -> AttemptOutcome:
        """Run it from deployment to the end of the last process."""
        before = self._progress()
        working = asyncio.create_task(self._work())
        watching = asyncio.create_task(watch_progress(self.job, self._terms.patience, lambda: self._moved, self._cpu))
        outcome = make_crashed("the server was stopped")
        try:
            ends: set[asyncio.Future[Any]] = {working, watching, self._aborted, self._parties.ending}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            outcome = await self._judge_end(working, watching)
        finally:
            tasks = (working, watching, *self._relays)
            for task in tasks:
                task.cancel()
            await asyncio.shield(self._stop(tasks, final=outcome.kind == "finished"))
        if outcome.kind == "crashed" and self._aborted.done():  # while the last processes were stopped: no next attempt
            outcome = self._aborted.result()
        return AttemptOutcome(outcome.kind, outcome.reason, outcome.error, bool(self._progress() - before))

    async def _judge_end(
        self, working: asyncio.Task[AttemptOutcome], watching: asyncio.Task[JobError]
    ) -> AttemptOutcome:
        """Decide which end counts: a person's order first, then what a site reported, then the end of the server's own process."""
        if self._aborted.done():
            return self._aborted.result()
        if self._parties.ending.done():
            told = self._parties.ending.result()
            if told.kind == "failed" and self._process is not None:
                # The server's process learned of it too, and can say more.
                await asyncio.wait({working}, timeout=_GRACE)
                if working.done() and working.result().kind == "failed":
                    return working.result()
            return told
        return working.result() if working.done() else make_failed(watching.result())

    async def _work(self) -> AttemptOutcome:
        try:
            here = await self._deploy_sites()
            self._process = await self._launch([session.name for session in here])
            for session in here:
                self._relays.append(asyncio.create_task(self._join(session, self._process.channel(session.name))))
            code = await self._process.wait()
            error = self._process.error()
        except AtollError as found:
            return make_failed(found)
        except (Gone, LinkClosed, OSError) as found:
            return make_crashed(f"at the server: {found}")
        if error is not None:
            return failed_at("server", error)
        return (
            make_finished()
            if code == 0
            else make_crashed(f"the job's process at the server ended with {code_in_words(code)}")
        )

    async def _deploy_sites(self) -> list[SiteSession]:
        """Start the attempt at the sites; return those that have started, if the job can do without the others."""
        sessions = self._parties.sessions
        for session in sessions.values():
            session.deploy(self.job, self._deploying)
        late = await self._parties.wait_for_starts(self._terms.patience)
        clients = [name for name in sessions if name not in self._helpers]
        begun = len([name for name in clients if name not in late])
        if late and (begun < self._terms.floor(len(clients)) or not set(late).isdisjoint(self._helpers)):
            raise JobError(
                f"for {self._terms.patience:g} s nothing was heard from the job's process at {', '.join(late)}",
                where=f"job {self.job}, deployment at site {late[0]!r}",
                remedy=f"see the log of `atoll site` at {late[0]}; raise `patience` if it needs longer to start",
            )
        for site in late:
            self._parties.let_go(site)
        self._running(late)
        return [session for session in sessions.values() if session.name not in late]

    async def _join(self, session: SiteSession, local: Channel) -> None:
        """Relay blocks. If the site's process has ended, the site reports it, and the server's process need not guess."""
        far = session.open(self.job, self.number)
        try:
            ending = await carry(far, local, self._count)
            if ending.channel is local:
                self._parties.dismiss(session.name)
        finally:
            far.close("the attempt has ended")

    def _count(self, moved: int) -> None:
        self._moved += moved

    def _cpu(self) -> float | None:
        return None if self._process is None else self._process.cpu()

    async def _stop(self, tasks: Sequence[asyncio.Task[object]], final: bool) -> None:
        if self._process is not None:
            await self._process.stop()
            await self._process.clear()
        # A machine that hangs does not report it: the job waits for it no longer than for anything else.
        await self._parties.stop_processes(final, min(_STOPPING, self._terms.patience))
        await asyncio.gather(*tasks, return_exceptions=True)

    def _progress(self) -> set[str]:
        """Return what the job has reached so far: its generations, and the steps that roles of its sessions have agreed on."""
        try:
            with HeldFolder.open(self._folder.parent.parent, self._folder.parent.name, self._folder.name) as held:
                names, lines = set(held.names()), list[bytes]()
                with contextlib.suppress(OSError):
                    lines = held.read("decisions.jsonl", _DECISIONS).splitlines()
        except OSError:
            return set()
        steps = {repr(line) for line in lines if line.startswith(b'{"session"') and b'{"step": 0}' not in line}
        return steps | {name for name in names if name.startswith("generation-")}
