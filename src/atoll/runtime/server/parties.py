"""The sites of one attempt: what they report, and whether that ends it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from atoll.runtime.store.changes import visible

from .outcomes import AttemptOutcome, failed_at, make_crashed
from .site_session import SiteSession

__all__ = ["AttemptSites"]

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
