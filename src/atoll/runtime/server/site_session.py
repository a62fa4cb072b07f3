"""A site as the server's daemon sees it: one line, one channel about jobs, one name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from atoll.core.errors import MessageError
from atoll.engines.link import LinkClosed
from atoll.runtime.line import Channel, Line, PackedMessage

from ..daemon.control import Control, job_channel, text, whole

__all__ = ["Gone", "SiteSession"]

Frame = Mapping[str, Any]
_BURST = 10_000
"""Log lines that a site may send in a second, and in one go."""


class Gone(Exception):  # noqa: N818 - an event, not a fault
    """A site's daemon restarted, closed its line, or was away for too long."""


class SiteSession:
    """One connected site.

    Args:
        line: its line.
        control: its channel about jobs.
        holding: the jobs for which it says that it holds resources.
        on_offered: called with each answer to an offer.
        on_log: called with a job and its log lines.
        kept: the jobs whose files it says that it keeps.
        direct: where it listens for other sites, or nothing.

    Attributes:
        name: the site's, from its certificate.
        plays: what it plays in jobs, from its certificate, if it is a helper.
        holding: see above.
        kept: the jobs whose files it keeps now.
        direct: see above.
        on_token: called with each token that the site says it has kept, see `atoll.runtime.daemon.incarnation`.
        on_deploy: called when an attempt is deployed there.
    """

    def __init__(
        self,
        line: Line,
        control: Channel,
        holding: list[str],
        on_offered: Callable[[SiteSession, Frame], None],
        on_log: Callable[[str, str, list[str]], None],
        kept: Iterable[str] = (),
        direct: str = "",
    ) -> None:
        self.name = line.peer.name
        self.plays = line.peer.plays
        self.line = line
        self.holding = holding
        self.kept = set(kept)
        self.direct = direct
        self._on_offered = on_offered
        self._on_log = on_log
        self._control = Control(control, self._frame)
        self._allowed, self._since, self._left_out = float(_BURST), time.monotonic(), 0
        self._waiting: dict[tuple[str, int], asyncio.Queue[Frame]] = {}
        self.tell = self._control.tell
        self.on_token: Callable[[str], None] = lambda token: None
        self.on_deploy: Callable[[], None] = lambda: None

    async def run(self) -> str:
        """Carry frames until the site has gone; return why it went."""
        why = await self._control.run()
        # A daemon without its control channel can neither be asked nor stopped, so its line ends too.
        await self.line.close(why or "the channel about jobs was closed", within=2.0)
        return why

    @property
    def connected(self) -> bool:
        """Tell whether it can be reached now."""
        return self.line.connected and not self.line.lost.is_set()

    def deploy(self, job: str, frame: PackedMessage) -> None:
        """Start an attempt of a job there.

        Args:
            job: its id.
            frame: the order, serialised once for all sites.
        """
        self.kept.add(job)
        self._control.send(frame)
        self.on_deploy()

    def stop(self, job: str, attempt: int, *, end: bool) -> None:
        """Stop an attempt; with ``end``, make the site forget everything of the job except its privacy ledger."""
        if end:
            self.kept.discard(job)
        self.tell("stop", job=job, attempt=attempt, end=end)

    def listen(self, job: str, attempt: int) -> asyncio.Queue[Frame]:
        """Return a queue of what the site says about an attempt from now on."""
        return self._waiting.setdefault((job, attempt), asyncio.Queue())

    def forget(self, job: str, attempt: int) -> None:
        """Stop listening."""
        self._waiting.pop((job, attempt), None)

    def open(self, job: str, attempt: int) -> Channel:
        """Open the channel of an attempt.

        Raises:
            Gone: the line is lost.
        """
        try:
            return self.line.open(job_channel(job, attempt))
        except LinkClosed as error:
            raise Gone(str(error)) from error

    def _frame(self, frame: Frame) -> None:
        op = frame["op"]
        if op == "offered":
            self._on_offered(self, frame)
        elif op == "incarnation":
            self.on_token(text(frame, "now", 100))
        elif op == "log":
            self._on_log(text(frame, "job"), self.name, self._readable(frame.get("lines")))
        elif op in ("starting", "deployed", "exited"):
            # Reports about an attempt that is no longer awaited are dropped.
            waiting = self._waiting.get((text(frame, "job"), whole(frame, "attempt")))
            if waiting is not None:
                waiting.put_nowait(frame)

    def _readable(self, lines: Any) -> list[str]:
        """Return log lines, no more than a site of ours would send; a site drops lines beyond that."""
        if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
            raise MessageError("malformed log lines", where="control", remedy="check what runs at that site")
        now = time.monotonic()
        self._allowed = min(_BURST, self._allowed + _BURST * (now - self._since))
        self._since = now
        kept = lines[: int(self._allowed)]
        self._allowed -= len(kept)
        self._left_out += len(lines) - len(kept)
        if kept and self._left_out:
            kept, self._left_out = [*kept, f"[{self._left_out} more lines, left out]"], 0
        return kept
