"""One attempt of a job as the server's daemon runs it: deploy, relay, watch, stop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from atoll.core.errors import AtollError, JobError
from atoll.engines.link import LinkClosed
from atoll.runtime.confinement.folders import HeldFolder
from atoll.runtime.jobs.terms import JobTerms
from atoll.runtime.line import Channel, PackedMessage

from ..daemon.launch import JobProcess
from ..daemon.relay import carry
from .liveness import watch_progress
from .outcomes import AttemptOutcome, failed_at, make_aborted, make_crashed, make_failed, make_finished
from .parties import AttemptSites, code_in_words
from .site_session import Gone, SiteSession

__all__ = ["Attempt"]

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
