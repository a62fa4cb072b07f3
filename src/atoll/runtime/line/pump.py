"""What moves the frames of a line over one connection, until it ends."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from atoll.runtime.transport.base import Buffer, Pipe, PipeClosed

from .frames import Frame, Kind, Violation, parse, text_of
from .pace import Pace
from .pulse import Pulse

if TYPE_CHECKING:
    from .channel import Channel
    from .line import Line

__all__ = ["Pump"]

_LOG = logging.getLogger("atoll.runtime")


class Pump:
    """Reads and writes the frames of a line over a pipe, the channels in turn, one block each.

    Args:
        line: whose.
        pipe: over which; the pump closes it.
    """

    def __init__(self, line: Line, pipe: Pipe) -> None:
        self.line = line
        self.pipe = pipe
        self.pulse = Pulse(line.statistics)
        settings = line.settings
        self._pace = Pace(None if settings.heartbeat is None else settings.silence)
        self._task: asyncio.Task[str] | None = None
        self._stopped = asyncio.get_running_loop().create_future()
        self._wake = asyncio.Event()
        self._ready: dict[int, Channel] = {}  # in turn
        self._untold: dict[int, Channel] = {}
        self._leave: str | None = None  # to be said last
        self._left = False  # whether it was said
        self._farewell: str | None = None  # what the other end said last

    def start(self) -> asyncio.Task[str]:
        """Begin; the task ends with the connection and says why."""
        self._task = asyncio.create_task(self._run())
        return self._task

    async def stop(self) -> None:
        """End the connection."""
        self.cancel()
        if self._task is not None:
            await asyncio.wait({self._task})

    def cancel(self) -> None:
        """End the connection soon."""
        if not self._stopped.done():  # a task that is cancelled before its first step would leave the pipe open
            self._stopped.set_result(None)

    def ready(self, channel: Channel) -> None:
        """A channel has something to write."""
        self._ready[channel.number] = channel
        self._wake.set()

    def acknowledge(self, channel: Channel) -> None:
        """The other end should know what was consumed of a channel."""
        self._untold[channel.number] = channel
        self._wake.set()

    def leave(self, reason: str) -> None:
        """Once everything is written, say that the line ends."""
        self._leave = reason
        self._wake.set()

    async def _run(self) -> str:
        talk = {asyncio.create_task(self._read()), asyncio.create_task(self._write())}
        tasks: set[asyncio.Future[None]] = set(talk)
        if self.line.settings.heartbeat is not None:
            tasks.add(asyncio.create_task(self._beat(self.line.settings.heartbeat)))
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
                why = self._explained(end)
        self.line.cut(self, self._farewell)
        return why

    def _explained(self, error: Exception) -> str:
        if isinstance(error, Violation):
            _LOG.warning("%s: the connection is ended, as the other end broke the rules: %s", self.line.peer, error)
        elif not isinstance(error, PipeClosed):
            _LOG.error("%s: the connection is ended by a fault", self.line.peer, exc_info=error)
        return str(error)

    async def _read(self) -> None:
        statistics = self.line.statistics
        while self._farewell is None:
            block = await self.pipe.recv()
            statistics.received_blocks += 1
            statistics.received_bytes += len(block)
            self._take(parse(block))

    def _take(self, frame: Frame) -> None:
        if frame.kind is Kind.PING:
            self.pulse.asked(frame)
            self._wake.set()
        elif frame.kind is Kind.PONG:
            self.pulse.answered(frame)
        elif frame.kind is Kind.HELLO:
            raise Violation("HELLO in the middle of a connection")
        elif frame.kind is Kind.CLOSE and frame.channel == 0:
            self._farewell = text_of(frame)
            self.leave("")
        else:
            self._pace.proven |= frame.kind is Kind.ACK
            self.line.table.take(frame)

    async def _write(self) -> None:
        statistics, clock = self.line.statistics, asyncio.get_running_loop().time
        while not (self._left and self._farewell is not None):
            parts = self._next()
            if parts is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            size, began = sum(len(part) for part in parts), clock()
            statistics.sent_blocks += 1
            statistics.sent_bytes += size
            await self.pipe.send(*parts)
            self._pace.took(size, clock() - began)

    def _next(self) -> tuple[Buffer, ...] | None:
        if self._left:  # nothing follows the farewell: the other end may be gone once it has heard it
            return None
        frame = self.pulse.due() or self._acknowledgement() or self._data() or self._parting()
        return None if frame is None else frame.parts

    def _acknowledgement(self) -> Frame | None:
        if not self._untold:
            return None
        channel = self._untold.pop(next(iter(self._untold)))
        frame = Frame(Kind.ACK, 0, channel.number, channel.inbox.tell(), b"")
        self.line.table.tidy(channel)
        return frame

    def _data(self) -> Frame | None:
        if not self._ready:
            return None
        channel = self._ready.pop(next(iter(self._ready)))
        outbox = channel.outbox
        if outbox.cursor == outbox.next:
            return None if not self._ready else self._data()
        frame = outbox.take(self._pace.most)
        if outbox.cursor < outbox.next:
            self._ready[channel.number] = channel
        return frame

    def _parting(self) -> Frame | None:
        if self._leave is None:
            return None
        self._left = True
        return Frame(Kind.CLOSE, 0, 0, 0, self._leave.encode())

    async def _beat(self, interval: float) -> None:
        silence = self.line.settings.silence
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(interval, silence / 2))
            quiet = loop.time() - self.pipe.heard
            if quiet > silence:
                raise PipeClosed(f"nothing was heard for {quiet:.0f} s")
            self.pulse.ask()
            for channel in self.line.table:
                if channel.inbox.told < channel.inbox.consumed:
                    self._untold[channel.number] = channel
            self._wake.set()
