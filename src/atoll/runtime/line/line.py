"""A line: many channels over one connection after another."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable

from atoll.runtime.identity import Peer
from atoll.runtime.transport.base import Pipe, address_of

from .channel import Channel, plain
from .connection_loop import ConnectionLoop
from .hello import LineHello
from .settings import LineLost, Settings, Stats
from .table import ChannelTable

__all__ = ["Line"]

_LOG = logging.getLogger("atoll.runtime")
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
