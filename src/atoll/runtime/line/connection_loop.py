"""Moves the frames of a line over one connection, until it ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from atoll.runtime.identity import Peer
from atoll.runtime.transport.base import Buffer, Pipe, PipeClosed

from .channel import Channel
from .frames import Frame, Kind, Violation, parse, text_of
from .settings import Settings, Stats
from .table import ChannelTable
from .turns import Turns

__all__ = ["ConnectionLoop"]

_LOG = logging.getLogger("atoll.runtime")


class ConnectionLoop:
    """Reads and writes the frames of a line over a pipe.

    Args:
        pipe: over which; the loop closes it.
        table: the line's channels.
        peer: who is at the other end.
        settings: of the line.
        statistics: of the line; what is read and written counts there.
        ended: called with the loop and the other end's farewell, if it said one, once the connection is over.
    """

    def __init__(
        self,
        pipe: Pipe,
        table: ChannelTable,
        peer: Peer,
        settings: Settings,
        statistics: Stats,
        ended: Callable[[ConnectionLoop, str | None], None],
    ) -> None:
        self.pipe = pipe
        self.turns = Turns(settings, statistics, table.tidy)
        self._table = table
        self._peer = peer
        self._settings = settings
        self._statistics = statistics
        self._ended = ended
        self._task: asyncio.Task[str] | None = None
        self._stopped = asyncio.get_running_loop().create_future()
        self._wake = asyncio.Event()
        self._idle = False  # nothing is left to write, and the writing task waits
        self._begun = False  # a frame is partly written
        # A socket pipe of this process saves some passes of the event loop.
        self._post: Callable[..., bool] | None = getattr(pipe, "post", None)
        self._feed: Callable[..., Awaitable[None]] | None = getattr(pipe, "feed", None)
        self._joins: bool = getattr(pipe, "joins", False)  # a pipe that joins parts sends what others have joined
        self._farewell: str | None = None  # the last thing that the other end said

    def start(self) -> asyncio.Task[str]:
        """Start; the task ends with the connection and says why."""
        self._task = asyncio.create_task(self._run())
        return self._task

    async def stop(self) -> None:
        """End the connection."""
        self.cancel()
        if self._task is not None:
            await asyncio.wait({self._task})

    def cancel(self) -> None:
        """End the connection soon."""
        if not self._stopped.done():  # a task cancelled before its first step would leave the pipe open
            self._stopped.set_result(None)

    def ready(self, channel: Channel) -> None:
        """Note that a channel has something to write."""
        self.turns.ready(channel)
        if not (self._idle and self._posted()):
            self._wake.set()

    def _posted(self) -> bool:
        """Write short frames at once, without waking the writing task; return whether nothing is left for it."""
        if self._post is None:
            return False
        while self.turns.short() and (frame := self.turns.next()) is not None:
            parts = frame.parts
            self._count(parts)
            if not self._post(*parts):
                self._begun, self._idle = True, False
                return False
        return not self.turns.waiting

    def acknowledge(self, channel: Channel) -> None:
        """Acknowledge to the other end what was consumed of a channel."""
        self.turns.untold(channel)
        self._wake.set()

    def ask(self, channel: Channel) -> None:
        """Ask the other end what was consumed: a channel waits for room."""
        self.turns.ask(channel)
        self._wake.set()

    def knock(self) -> None:
        """Ask the other end for a heartbeat now."""
        self.turns.pulse.ask()
        self._wake.set()

    def leave(self, reason: str) -> None:
        """Say that the line ends, once everything is written."""
        self.turns.leaving = reason
        self._wake.set()

    async def _run(self) -> str:
        talk = {asyncio.create_task(self._read()), asyncio.create_task(self._write())}
        tasks: set[asyncio.Future[None]] = set(talk)
        if self._settings.heartbeat is not None:
            tasks.add(asyncio.create_task(self._beat(self._settings.heartbeat)))
        why = "the connection was ended here"
        try:
            pending = {*tasks, self._stopped}
            while (
                pending & talk
                and self._stopped in pending
                and all(t in pending or t.exception() is None for t in tasks)
            ):
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            await self.pipe.close()
        for end in ends:
            if isinstance(end, Exception):
                why = self._explain_error(end)
        self._ended(self, self._farewell)
        return why

    def _explain_error(self, error: Exception) -> str:
        if isinstance(error, Violation):
            _LOG.warning("%s: the connection is ended, as the other end broke the rules: %s", self._peer, error)
        elif not isinstance(error, PipeClosed):
            _LOG.error("%s: the connection is ended by a fault", self._peer, exc_info=error)
        return str(error)

    async def _read(self) -> None:
        if self._feed is not None:
            await self._feed(self._came)
            return
        while self._came(await self.pipe.recv()):
            pass

    def _came(self, block: Buffer) -> bool:
        """Take a block; return whether another may follow."""
        if self._stopped.done():
            return False
        statistics = self._statistics
        statistics.received_blocks += 1
        statistics.received_bytes += len(block)
        self._take(parse(block))
        return self._farewell is None

    def _take(self, frame: Frame) -> None:
        if frame.kind is Kind.PING:
            self.turns.pulse.take_question(frame)
            self._wake.set()
        elif frame.kind is Kind.PONG:
            self.turns.pulse.take_answer(frame)
        elif frame.kind is Kind.HELLO:
            raise Violation("HELLO in the middle of a connection")
        elif frame.kind is Kind.CLOSE and frame.channel == 0:
            self._farewell = text_of(frame)
            self.leave("")
        else:
            self.turns.pace.proven |= frame.kind is Kind.ACK
            self._table.take(frame)

    async def _write(self) -> None:
        clock = asyncio.get_running_loop().time
        while not (self.turns.left and self._farewell is not None):
            frame = self.turns.next()
            if frame is None:
                self._wake.clear()
                self._idle = self.turns.leaving is None
                await self._wake.wait()
                self._idle = False
                if self._begun:
                    self._begun = False
                    await self.pipe.send()
                continue
            parts = frame.joined if self._joins else frame.parts
            size, began = self._count(parts), clock()
            await self.pipe.send(*parts)
            self.turns.pace.took(size, clock() - began)
            del frame, parts  # an idle line holds no memory

    def _count(self, parts: tuple[Buffer, ...]) -> int:
        statistics, size = self._statistics, sum(map(len, parts))
        statistics.sent_blocks += 1
        statistics.sent_bytes += size
        return size

    async def _beat(self, interval: float) -> None:
        silence = self._settings.silence
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(interval, silence / 2))
            quiet = loop.time() - self.pipe.heard
            if quiet > silence:
                raise PipeClosed(f"nothing was heard for {quiet:.0f} s")
            self.turns.pulse.ask()
            for channel in self._table:
                if channel.inbox.told < channel.inbox.consumed:
                    self.turns.untold(channel)
            self._wake.set()
