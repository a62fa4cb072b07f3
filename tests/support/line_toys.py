"""Lines inside one process for tests: a server's switchboard, sites that dial, and connections that are cut on purpose."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from atoll.runtime.identity import Credentials, Peer
from atoll.runtime.line import Backoff, Channel, Line, Settings, Switchboard, dial_line
from atoll.runtime.transport import Listener, MemoryTransport, Pipe, PipeClosed, Transport
from atoll.runtime.transport.base import Buffer
from tests.support.certificates import authority

SERVER = authority().issue("server", "hub")
SITE = authority().issue("site", "north")
QUICK = Settings(block=256, window=2048, heartbeat=None, patience=20.0)


def run(play: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test's coroutine; what hangs fails."""

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await play()

    asyncio.run(bounded())


@dataclass(frozen=True)
class Life:
    """How long a connection lasts: so many blocks out, so many in; then a block is lost, or not, and all is over."""

    sends: int
    receives: int
    loses: bool


class Mortal:
    """A pipe with such a life."""

    def __init__(self, pipe: Pipe, life: Life) -> None:
        self.pipe = pipe
        self.peer: Peer = pipe.peer
        self._sends, self._receives = life.sends, life.receives
        self._loses = life.loses

    @property
    def heard(self) -> float:
        return self.pipe.heard

    async def send(self, *parts: Buffer) -> None:
        self._sends -= 1
        if self._sends < 0:
            if not self._loses:
                await self.pipe.send(*parts)
            await self._die()
        await self.pipe.send(*parts)

    async def recv(self) -> Buffer:
        block = await self.pipe.recv()
        self._receives -= 1
        if self._receives < 0:
            await self._die()
        return block

    async def _die(self) -> None:
        await self.pipe.close()
        raise PipeClosed("cut on purpose")

    async def close(self) -> None:
        await self.pipe.close()


def mortal(dial: Callable[[], Coroutine[Any, Any, Pipe]], lives: Iterable[Life]) -> Callable[[], Any]:
    """Dials connections that have these lives, one after another; those after them last."""
    left: Iterator[Life] = iter(lives)

    async def make() -> Pipe:
        pipe = await dial()
        life = next(left, None)
        return pipe if life is None else Mortal(pipe, life)

    return make


class Hub:
    """A server: its switchboard, the lines that came, and the channels that were opened to it."""

    def __init__(self, settings: Settings, way: Transport, takeover: bool = False) -> None:
        self.seconds: list[tuple[str, str, bool]] = []
        self.lines: asyncio.Queue[Line] = asyncio.Queue()
        self.channels: asyncio.Queue[Channel] = asyncio.Queue()
        self.board = Switchboard(
            self._on_line, settings, takeover=takeover, on_second=lambda peer, *told: self.seconds.append(told)
        )
        self.way = way
        self.listener: Listener | None = None

    def _on_line(self, line: Line) -> None:
        self.lines.put_nowait(line)
        line.on_open = self.channels.put_nowait

    async def listen(self, address: str = "127.0.0.1:0") -> Hub:
        self.listener = await self.way.listen(address, SERVER, self.board.accept)
        return self

    @property
    def address(self) -> str:
        assert self.listener is not None
        return self.listener.address

    def dial(self, credentials: Credentials = SITE) -> Callable[[], Coroutine[Any, Any, Pipe]]:
        return partial(self.way.dial, self.address, credentials)  # type: ignore[return-value]

    async def line(
        self,
        settings: Settings = QUICK,
        lives: Iterable[Life] = (),
        credentials: Credentials = SITE,
        on_open: Callable[[Channel], None] | None = None,
    ) -> Line:
        """A site's line to here."""
        quick = Backoff(first=1e-4, longest=1e-3)
        return await dial_line(mortal(self.dial(credentials), lives), settings=settings, backoff=quick, on_open=on_open)

    async def stop(self) -> None:
        await self.board.close(within=0.05)
        if self.listener is not None:
            await self.listener.close()


@contextlib.asynccontextmanager
async def hub(settings: Settings = QUICK, way: Transport | None = None, takeover: bool = False) -> AsyncIterator[Hub]:
    """A server that listens."""
    made = await Hub(settings, way or MemoryTransport(), takeover).listen()
    try:
        yield made
    finally:
        await made.stop()
