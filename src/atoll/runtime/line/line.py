"""A line: many channels over one connection after another."""

from __future__ import annotations

import asyncio
import logging
import secrets
import struct
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator

from ..identity import Peer
from ..transport.base import Buffer, Pipe, PipeClosed, address_of
from .channel import Bearer, Channel, plain
from .frames import Frame, FramePace, Kind, LineHello, Violation, parse, room_in, room_of, text_of
from .settings import LineLost, Settings, Stats

__all__ = ["ChannelTable", "ConnectionLoop", "Line", "Pulse", "Turns"]


# ------------------------------------------------------------------ the channels of a line: opened at either end, fed, resumed and forgotten


class ChannelTable:
    """Every channel of a line that at least one end still needs.

    Args:
        line: carries them.
        dialled: whether this end numbers its channels 1, 3, ... (else 2, 4, ...).

    Attributes:
        on_open: called with each channel that the other end opens.
    """

    def __init__(self, line: Bearer, dialled: bool) -> None:
        self._line = line
        self._channels: dict[int, Channel] = {}
        self._next = 1 if dialled else 2  # the number of the next channel opened here
        self._due = 2 if dialled else 1  # the number of the next one opened there
        self._theirs = 0  # open channels that the other end opened
        self._unclaimed: deque[Channel] = deque()
        self._on_open: Callable[[Channel], None] | None = None

    def __iter__(self) -> Iterator[Channel]:
        return iter([self._channels[number] for number in sorted(self._channels)])

    def __len__(self) -> int:
        return len(self._channels)

    @property
    def on_open(self) -> Callable[[Channel], None] | None:
        """Called with each channel that the other end opens; until it is set, channels are kept."""
        return self._on_open

    @on_open.setter
    def on_open(self, handler: Callable[[Channel], None] | None) -> None:
        self._on_open = handler
        while handler is not None and self._unclaimed:
            handler(self._unclaimed.popleft())

    def open(self, name: str) -> Channel:
        """Open a channel at this end."""
        channel = Channel(self._line, self._next, name)
        self._next += 2
        self._channels[channel.number] = channel
        channel.outbox.put(Kind.OPEN, 0, plain(name).encode())
        return channel

    def take(self, frame: Frame) -> None:
        """Take a frame about a channel.

        Raises:
            Violation: it breaks the rules.
        """
        if frame.kind is Kind.OPEN:
            self._open_channel(frame)
            return
        channel = self._channels.get(frame.channel)
        if channel is None:
            self._about_the_past(frame)
        elif frame.kind is Kind.DATA:
            channel.take_frame(frame)
        elif frame.kind is Kind.ACK:
            channel.note_consumed(frame.seq, room_in(frame))
            self.tidy(channel)
        elif frame.kind is Kind.ASK:
            channel.note_question()
        else:
            channel.take_close(frame, text_of(frame))

    def _open_channel(self, frame: Frame) -> None:
        if frame.channel != self._due:
            raise Violation(f"channel {frame.channel} is opened, but {self._due} is due")
        if self._theirs >= self._line.settings.channels:
            raise Violation(f"more than {self._line.settings.channels} channels are open")
        channel = Channel(self._line, frame.channel, text_of(frame))
        channel.inbox.take_frame(frame)
        self._due += 2
        self._theirs += 1
        self._channels[channel.number] = channel
        if self._on_open is None:
            self._unclaimed.append(channel)
        else:
            self._on_open(channel)

    def _about_the_past(self, frame: Frame) -> None:
        """Check a frame about a closed channel: an acknowledgement or a question may cross its end, nothing else may."""
        ours = frame.channel % 2 == self._next % 2
        known = 0 < frame.channel < (self._next if ours else self._due)
        if frame.kind not in (Kind.ACK, Kind.ASK) or not known:
            raise Violation(f"{frame.kind.name} for channel {frame.channel}, which is not open")

    def tidy(self, channel: Channel) -> None:
        """Forget a channel that both ends have closed, once both know it."""
        if channel.finished and channel.inbox.told == channel.inbox.consumed:
            self._forget(channel)

    def _forget(self, channel: Channel) -> None:
        if self._channels.pop(channel.number, None) is not None and channel.number % 2 == self._due % 2:
            self._theirs -= 1

    def positions(self) -> tuple[int, dict[int, tuple[int, int]]]:
        """Return their state for ``LineHello``: the highest number seen, and what was received and consumed of each."""
        table = {}
        for channel in self:
            consumed = channel.inbox.tell()
            table[channel.number] = (channel.inbox.received, consumed)
            self.tidy(channel)
        return max(self._due - 2, 0), table

    def resume(self, theirs: LineHello) -> None:
        """Resume where the other end says that it is.

        Raises:
            Violation: that position is impossible.
        """
        if theirs.seen >= self._next:
            raise Violation(f"the other end has seen channel {theirs.seen}, which was never opened")
        for channel in self:
            known = theirs.channels.get(channel.number)
            if known is not None:
                channel.resume_line(*known)
                self.tidy(channel)
            elif channel.number % 2 == self._next % 2 and channel.number > theirs.seen:
                channel.resume_line(0, 0)  # the news that it was opened has not arrived
            else:  # the other end is done with it, and knew that this end was
                self._forget(channel)
                channel.lose(LineLost(f"the other end closed channel {channel.name!r}"))

    def lose(self, error: Exception) -> None:
        """Note that the line is lost: every task that waits learns so."""
        for channel in self:
            channel.lose(error)
        self._channels.clear()


# ------------------------------------------------------------------ heartbeats: how long a frame takes there and back, and what the other end's clock shows


_CLOCKS = struct.Struct("<dd")
_MOST = 1000  # questions that may be unanswered


class Pulse:
    """Asks and answers; each question holds two clocks, each answer the question's first and the answerer's own.

    With ``t0`` and ``t1`` the times of question and answer by this end's clock, and ``s`` the other end's time in the answer, the round
    trip is ``t1 - t0`` and the skew ``s - (t0 + t1) / 2``, true to within half a round trip (as in NTP, RFC 5905).

    Args:
        statistics: where round trip and skew are kept.
        clock: seconds that never jump.
        wall: seconds since 1970.
    """

    def __init__(
        self,
        statistics: Stats,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._statistics = statistics
        self._clock = clock
        self._wall = wall
        self._wanted = False
        self._asked: dict[float, float] = {}  # unanswered questions: both clocks at each, oldest first
        self._owed: float | None = None

    def ask(self) -> None:
        """Make the next frame a question, even if others are unanswered: behind a long message an answer takes time."""
        self._wanted = True

    def due(self) -> Frame | None:
        """Return the answer that is due, or the question that is wanted."""
        if self._owed is not None:
            stamp, self._owed = self._owed, None
            return Frame(Kind.PONG, 0, 0, 0, _CLOCKS.pack(stamp, self._wall()))
        if self._wanted:
            self._wanted = False
            stamp, wall = self._clock(), self._wall()
            self._asked[stamp] = wall
            if len(self._asked) > _MOST:
                del self._asked[next(iter(self._asked))]
            return Frame(Kind.PING, 0, 0, 0, _CLOCKS.pack(stamp, wall))
        return None

    def take_question(self, frame: Frame) -> None:
        """Take a question from the other end.

        Raises:
            Violation: it does not have the form of a question.
        """
        self._owed = self._clocks(frame)[0]

    def take_answer(self, frame: Frame) -> None:
        """Take an answer from the other end; earlier questions need no answer any more.

        Raises:
            Violation: it does not have the form of an answer, or there was no question.
        """
        stamp, theirs = self._clocks(frame)
        if stamp not in self._asked:
            raise Violation("PONG without a PING")
        wall = self._asked[stamp]
        self._asked = {later: at for later, at in self._asked.items() if later > stamp}
        trip = self._clock() - stamp
        self._statistics.round_trip = trip
        # As in NTP: the answer is taken to have left half a round trip after the question.
        self._statistics.skew = theirs - (wall + trip / 2)

    @staticmethod
    def _clocks(frame: Frame) -> tuple[float, float]:
        if len(frame.content) != _CLOCKS.size:
            raise Violation(f"{frame.kind.name} with {len(frame.content)} bytes")
        first, second = _CLOCKS.unpack(frame.content)
        return first, second


# ------------------------------------------------------------------ what a connection carries next: channels take turns, one frame each


_SHORT = 1 << 14  # bytes of content


class Turns:
    """The frames to send over one connection of a line: heartbeats first, then acknowledgements, questions, frames, and a farewell.

    Args:
        settings: of the line.
        statistics: of the line.
        told: called with a channel once the other end is told what was consumed of it.

    Attributes:
        pulse: its heartbeats.
        pace: how long its frames are.
        leaving: the farewell to say last, if there is one.
        left: whether it was said.
    """

    def __init__(self, settings: Settings, statistics: Stats, told: Callable[[Channel], None]) -> None:
        self.pulse = Pulse(statistics)
        self.pace = FramePace(None if settings.heartbeat is None else settings.silence)
        self.leaving: str | None = None
        self.left = False
        self._told = told
        self._ready: dict[int, Channel] = {}  # in turn
        self._untold: dict[int, Channel] = {}
        self._asking: dict[int, Channel] = {}  # once everything that they have is written
        self._questions: dict[int, Channel] = {}

    def ready(self, channel: Channel) -> None:
        """Note that a channel has something to write."""
        self._ready[channel.number] = channel

    def untold(self, channel: Channel) -> None:
        """Note that the other end should learn what was consumed of a channel."""
        self._untold[channel.number] = channel

    def ask(self, channel: Channel) -> None:
        """Note that a channel asks to hear when all that it has put in is consumed."""
        written = channel.outbox.cursor == channel.outbox.next
        (self._questions if written else self._asking)[channel.number] = channel

    def short(self) -> bool:
        """Tell whether the next frame of a channel whose turn it is is short."""
        channel = next(iter(self._ready.values()), None)
        return channel is not None and channel.outbox.shorter(_SHORT)

    @property
    def waiting(self) -> bool:
        """Tell whether a channel waits for its turn."""
        return bool(self._ready)

    def next(self) -> Frame | None:
        """Return the next frame; None if there is none, or after a farewell: the other end may be gone once it has heard it."""
        if self.left:
            return None
        # In this order: a late heartbeat looks like a dead end, and an acknowledgement frees the other end's window. Data waits longest.
        if (beat := self.pulse.due()) is not None:
            return beat
        if self._untold:
            return self._acknowledgement()
        if self._questions:
            return self._question()
        while self._ready:
            if (frame := self._data()) is not None:
                return frame
        return self._parting()

    def _acknowledgement(self) -> Frame:
        channel = self._untold.pop(next(iter(self._untold)))
        inbox = channel.inbox
        frame = Frame(Kind.ACK, 0, channel.number, inbox.tell(), room_of(inbox.share))
        self._told(channel)
        return frame

    def _question(self) -> Frame:
        channel = self._questions.pop(next(iter(self._questions)))
        return Frame(Kind.ASK, 0, channel.number, 0, b"")

    def _data(self) -> Frame | None:
        channel = self._ready.pop(next(iter(self._ready)))
        outbox = channel.outbox
        if outbox.cursor == outbox.next:
            return None
        frame = outbox.take(self.pace.most)
        # Back to the end of the line: one frame a turn, so that a long message never holds up the orders of another job.
        if outbox.cursor < outbox.next:
            self._ready[channel.number] = channel
        elif self._asking.pop(channel.number, None) is not None:
            self._questions[channel.number] = channel
        return frame

    def _parting(self) -> Frame | None:
        if self.leaving is None:
            return None
        self.left = True
        return Frame(Kind.CLOSE, 0, 0, 0, self.leaving.encode())


# ------------------------------------------------------------------ moves the frames of a line over one connection, until it ends


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


# ------------------------------------------------------------------ a line: many channels over one connection after another


_HERE = "the line was closed at this end"
_LOOK = 0.02
"""Seconds between two looks at whether something has arrived."""


class Line:
    """Named channels between two processes, which survive their connections.

    Lines are made by ``dial_line``, ``Switchboard`` and ``local_line``.

    Args:
        peer: who is at the other end.
        dialled: whether this end makes the connections.
        settings: bounds and paces.
        asks: whether it carries requests of the party's people, beside the line of its daemon.

    Attributes:
        id: the random name of this end of the line.
        other: the name of the other end, once it is known.
        error: why the line is lost; None while it is not.
        lost: set once the line is lost or closed.
        on_lost: called with the error then.
        address: of the other end of its newest connection, ``host:port``, where the transport knows it.
        table: its channels.
        loop: moves frames over the current connection; None without one.
        statistics: see ``stats``.
    """

    def __init__(self, peer: Peer, *, dialled: bool, settings: Settings | None = None, asks: bool = False) -> None:
        self.peer = peer
        self.asks = asks
        self.settings = settings or Settings()
        self.id = secrets.token_bytes(16)
        self.other = b""
        self.address = ""
        self.error: Exception | None = None
        self.lost = asyncio.Event()
        self.on_lost: list[Callable[[Exception], None]] = []
        self.table = ChannelTable(self, dialled)
        self.loop: ConnectionLoop | None = None
        self.statistics = Stats()
        self._leaving: str | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        state = "lost" if self.lost.is_set() else "connected" if self.connected else "cut"
        return f"<Line to {self.peer}, {state}, {len(self.table)} channels>"

    @property
    def connected(self) -> bool:
        """Tell whether there is a connection now."""
        return self.loop is not None

    @property
    def on_open(self) -> Callable[[Channel], None] | None:
        """Called with each channel that the other end opens; until it is set, channels are kept."""
        return self.table.on_open

    @on_open.setter
    def on_open(self, handler: Callable[[Channel], None] | None) -> None:
        self.table.on_open = handler

    def open(self, name: str) -> Channel:
        """Open a channel; you can use it at once, with or without a connection.

        Args:
            name: up to 400 printable characters; names need not differ.

        Raises:
            LineLost: the line has ended.
        """
        if self.error is not None:
            raise LineLost(str(self.error))
        channel = self.table.open(name)
        self.ready(channel)
        return channel

    def stats(self) -> Stats:
        """Return what the line has done so far."""
        if self.loop is not None:
            self.statistics.heard = self.loop.pipe.heard
        return self.statistics

    async def close(self, reason: str = "", within: float = 5.0) -> None:
        """Close every channel, wait until everything sent has arrived, and end the line at both ends.

        Args:
            reason: the reason that the other end sees.
            within: seconds to wait for it.
        """
        if self.lost.is_set():
            return
        for channel in self.table:
            channel.close(reason)
        self._leaving = plain(reason)
        if self.loop is not None:
            self.loop.leave(self._leaving)
        try:
            async with asyncio.timeout(within):
                await self.lost.wait()
        except TimeoutError:
            _LOG.warning("%s did not confirm within %g s that the line is closed", self.peer, within)
        await self.detach()
        self.lose(LineLost(_HERE))

    # For code that connects lines

    def greeting(self) -> LineHello:
        """Return what this end says on a new connection; the last one must have ended."""
        seen, positions = self.table.positions()
        return LineHello(self.id, self.other, seen, positions, about={"asks": True} if self.asks else {})

    def attach(self, pipe: Pipe, theirs: LineHello) -> asyncio.Task[str]:
        """Resume over a new connection, from where the other end says it is.

        Returns:
            The task that moves frames; it ends with the connection, and says why.

        Raises:
            Violation: the other end names an impossible position.
        """
        self.table.resume(theirs)
        if self.other:
            self.statistics.resumes += 1
        self.other = theirs.line
        self.address = address_of(pipe)
        if self._deadline is not None:
            self._deadline.cancel()
        self.loop = ConnectionLoop(pipe, self.table, self.peer, self.settings, self.statistics, self.cut)
        for channel in self.table:
            self.ready(channel)
        if self._leaving is not None:
            self.loop.leave(self._leaving)
        return self.loop.start()

    async def answers(self, within: float) -> bool:
        """Tell whether the process at the other end lives: something arrives after it was asked for a heartbeat.

        Args:
            within: seconds to wait for it.
        """
        loop = self.loop
        if loop is None:
            return False
        clock = asyncio.get_running_loop().time
        came, end = self.statistics.received_blocks, clock() + within
        loop.knock()
        while self.loop is loop and clock() < end:
            if self.statistics.received_blocks > came:
                return True
            await asyncio.sleep(_LOOK)
        return False

    async def detach(self) -> None:
        """End the current connection, if there is one."""
        if self.loop is not None:
            await self.loop.stop()

    def cut(self, loop: ConnectionLoop, farewell: str | None) -> None:
        """Handle the end of a connection, perhaps with a farewell; without a new one in time, the line is lost."""
        if self.loop is not loop:
            return
        self.loop = None
        if farewell is not None:
            self.lose(LineLost(farewell or f"{self.peer} closed the line"))
        else:
            self.begin_waiting()

    def begin_waiting(self) -> None:
        """Start waiting for a connection; without one in time, the line is lost."""
        wait = self.settings.patience
        if wait is None or self.lost.is_set():
            return
        if self._deadline is not None:
            self._deadline.cancel()
        why = LineLost(f"{self.peer} was not connected for {wait:g} s")
        self._deadline = asyncio.get_running_loop().call_later(wait, self.lose, why)

    def lose(self, error: Exception) -> None:
        """End the line; every task that waits on one of its channels learns so."""
        if self.lost.is_set():
            return
        self.error = error = error if self._leaving is None else LineLost(_HERE)
        self.lost.set()
        if self._deadline is not None:
            self._deadline.cancel()
        if self.loop is not None:
            self.loop.cancel()
        self.table.lose(error)
        for told in self.on_lost:
            told(error)

    # For channels

    def ready(self, channel: Channel) -> None:
        """Note that a channel has something to write."""
        if self.loop is not None and channel.outbox.cursor < channel.outbox.next:
            self.loop.ready(channel)

    def ask(self, channel: Channel) -> None:
        """Ask the other end to report once all is consumed; without a connection, its next greeting does."""
        if self.loop is not None:
            self.loop.ask(channel)

    def tell(self, channel: Channel) -> None:
        """Report what was consumed; without a connection, the next greeting does."""
        if self.loop is not None:
            self.loop.acknowledge(channel)
