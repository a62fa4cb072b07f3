"""One attempt of a job as the server's front carries it out: deploy, relay, watch, stop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from atoll.core.errors import AtollError, JobError
from atoll.engines.link import LinkClosed
from atoll.runtime.jobs.terms import JobTerms
from atoll.runtime.line import Packed

from .desk import Desk, Gone
from .launch import JobProcess
from .outcomes import Outcome, aborted, crashed, failed, failed_at, finished
from .relay import carry

__all__ = ["Attempt"]

_GRACE = 5.0
"""Seconds that the server's process has to tell its own error once a site told one."""
_STOPPING = 20.0
"""Seconds that a connected site has to say that an attempt's process has ended."""
_WORKS = 0.01
"""Share of a core below which a process does not work, but waits."""


class Attempt:
    """Brings the processes of one attempt to life, joins them, and ends them all when one of them ends.

    Args:
        job: its id.
        number: the attempt's.
        terms: the job's terms.
        desks: its sites.
        folder: where the job's checkpoints lie; new ones are progress.
        deploy: the frame that sites are sent, with the bundle, serialised once.
        launch: starts the server's process.
        running: called once every site has deployed.
    """

    def __init__(
        self,
        job: str,
        number: int,
        terms: JobTerms,
        desks: Sequence[Desk],
        folder: Path,
        deploy: Packed,
        launch: Callable[[], Awaitable[JobProcess]],
        running: Callable[[], None],
    ) -> None:
        self.job = job
        self.number = number
        self._terms = terms
        self._desks = {desk.name: desk for desk in desks}
        self._folder = folder
        self._deploying = deploy
        self._launch = launch
        self._running = running
        self._aborted: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._deployed = {desk.name: asyncio.Event() for desk in desks}
        self._exited = {desk.name: asyncio.Event() for desk in desks}
        self._told: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._relays: list[asyncio.Task[None]] = []
        self._dismissed: set[str] = set()
        self._moved = 0
        self._process: JobProcess | None = None

    def abort(self, who: str) -> None:
        """A person stops it."""
        if not self._aborted.done():
            self._aborted.set_result(aborted(who))

    async def run(self) -> Outcome:
        """From deployment to the end of the last process."""
        before = self._generations()
        listening = [asyncio.create_task(self._listen(desk)) for desk in self._desks.values()]
        working = asyncio.create_task(self._work())
        watching = asyncio.create_task(self._watch())
        outcome = crashed("the server was stopped")
        try:
            await asyncio.wait({working, watching, self._aborted, self._told}, return_when=asyncio.FIRST_COMPLETED)
            outcome = await self._judged(working, watching)
        finally:
            for task in (working, watching, *self._relays):
                task.cancel()
            await asyncio.shield(self._end(listening, final=outcome.kind != "crashed"))
        return Outcome(outcome.kind, outcome.reason, outcome.error, bool(self._generations() - before))

    async def _judged(self, working: asyncio.Task[Outcome], watching: asyncio.Task[Outcome]) -> Outcome:
        """Which end counts: a person's word first, then what a site said, then what became of the server's own process."""
        if self._aborted.done():
            return self._aborted.result()
        if self._told.done():
            told = self._told.result()
            if told.kind == "failed" and self._process is not None:
                # The server's process heard of it as well, and can say more.
                await asyncio.wait({working}, timeout=_GRACE)
                if working.done() and working.result().kind == "failed":
                    return working.result()
            return told
        return working.result() if working.done() else watching.result()

    # ------------------------------------------------------------------ the sites

    async def _listen(self, desk: Desk) -> None:
        """What a site says of the attempt, until it has nothing more to say."""
        frames = desk.listen(self.job, self.number)
        lost = asyncio.create_task(desk.line.lost.wait())
        place = f"site {desk.name!r}"
        try:
            while True:
                getting = asyncio.create_task(frames.get())
                await asyncio.wait({getting, lost}, return_when=asyncio.FIRST_COMPLETED)
                if not getting.done():
                    getting.cancel()
                    self._tell(crashed(f"{place} is gone: {desk.line.error}"))
                    return
                frame = getting.result()
                if frame["op"] == "deployed":
                    self._deployed[desk.name].set()
                    continue
                self._exit(desk.name, frame)
                return
        finally:
            lost.cancel()
            self._exited[desk.name].set()
            desk.forget(self.job, self.number)

    def _exit(self, site: str, frame: Mapping[str, Any]) -> None:
        place, code = f"site {site!r}", frame.get("code")
        if frame.get("error") is not None:
            self._tell(failed_at(place, frame["error"]))
        elif code != 0:
            self._tell(crashed(f"the job's process at {place} ended with {_code(code)}"))
        elif site not in self._dismissed:
            self._tell(crashed(f"the job's process at {place} ended before the job"))

    def _tell(self, outcome: Outcome) -> None:
        if not self._told.done():
            self._told.set_result(outcome)

    # ------------------------------------------------------------------ the server's own process

    async def _work(self) -> Outcome:
        try:
            late = await self._deploy()
            if late:
                return failed(late)
            self._running()
            self._process = await self._launch()
            for desk in self._desks.values():
                local = self._process.channel(desk.name)
                self._relays.append(asyncio.create_task(self._join(desk, local)))
            code = await self._process.wait()
            error = self._process.error()
        except AtollError as found:
            return failed(found)
        except (Gone, LinkClosed, OSError) as found:
            return crashed(f"at the server: {found}")
        if error is not None:
            return failed_at("server", error)
        return finished() if code == 0 else crashed(f"the job's process at the server ended with {_code(code)}")

    async def _deploy(self) -> JobError | None:
        for desk in self._desks.values():
            desk.send(self._deploying)
        if await _all(self._deployed.values(), self._terms.patience):
            return None
        late = sorted(name for name, event in self._deployed.items() if not event.is_set())
        return JobError(
            f"for {self._terms.patience:g} s nothing was heard of the job's process at {', '.join(late)}",
            where=f"job {self.job}, deployment at site {late[0]!r}",
            remedy=f"see the log of `atoll site` at {late[0]}; raise `patience` if it needs longer to start",
        )

    async def _join(self, desk: Desk, local: Any) -> None:
        far = desk.open(self.job, self.number)
        try:
            ending = await carry(far, local, self._count)
            if ending.channel is local:
                self._dismissed.add(desk.name)
                far.close(str(ending.error))
            # Where the site ended, its own word counts, and the server's process need not guess.
        except asyncio.CancelledError:
            far.close("the attempt has ended")
            raise

    def _count(self, moved: int) -> None:
        self._moved += moved

    async def _watch(self) -> Outcome:
        """The one rule of liveness, for the job as a whole: no byte of a site and no work of its own process for too long.

        The engine applies the rule to each site that owes a reply, and says more; so this one waits longer.
        """
        limit = 1.5 * self._terms.patience + 5.0
        moved, spent, since = -1, 0.0, time.monotonic()
        while True:
            await asyncio.sleep(min(5.0, self._terms.patience / 4))
            now, cpu = time.monotonic(), 0.0 if self._process is None else self._process.cpu()
            if self._process is None or self._moved != moved or cpu - spent > _WORKS * (now - since):
                moved, spent, since = self._moved, cpu, now
            elif now - since > limit:
                return failed(
                    JobError(
                        f"for {now - since:.0f} s nothing came from any site, and the server's own process did not work",
                        where=f"job {self.job}, running",
                        remedy="see the job's log (atoll logs); raise `patience` if such pauses are meant",
                    )
                )

    # ------------------------------------------------------------------ the end

    async def _end(self, listening: list[asyncio.Task[None]], final: bool) -> None:
        """Stop every process, and wait until sites have said so; one that is away is told when it is back."""
        for name, desk in self._desks.items():
            # A site whose process has ended must still know whether the job has.
            desk.tell("stop", job=self.job, attempt=self.number, end=final)
            if not desk.connected:
                self._exited[name].set()
        if self._process is not None:
            await self._process.stop()
        await _all(self._exited.values(), _STOPPING)
        for task in (*listening, *self._relays):
            task.cancel()
        await asyncio.gather(*listening, *self._relays, return_exceptions=True)

    def _generations(self) -> set[str]:
        return {path.name for path in self._folder.glob("generation-*")}


async def _all(events: Iterable[asyncio.Event], within: float) -> bool:
    """Wait for all of them; whether they came in time."""
    try:
        async with asyncio.timeout(within):
            for event in events:
                await event.wait()
    except TimeoutError:
        return False
    return True


def _code(code: Any) -> str:
    if isinstance(code, int) and code < 0:
        return f"signal {-code}"
    return "no exit code" if code is None else f"exit code {code}"
