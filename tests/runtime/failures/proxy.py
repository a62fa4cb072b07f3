"""A network between two processes that a test can cut, stall, thin out and slow down: it passes bytes of TCP on and understands none of them."""

from __future__ import annotations

import asyncio
import contextlib

_CHUNK = 1 << 14


class Proxy:
    """Listens on a port of this machine and passes everything on to another one.

    Attributes:
        address: where it listens.
        carried: bytes that were passed on, in both directions.
        connections: how many there were.
        rate: bytes a second in each direction; None: as fast as it goes.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._open = asyncio.Event()
        self._open.set()
        self._refuses = False
        self._ways: set[asyncio.Task[None]] = set()
        self._pairs: set[asyncio.StreamWriter] = set()
        self._forgotten: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.address = ""
        self.carried = 0
        self.connections = 0
        self.rate: float | None = None

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self._pairs |= self._forgotten
        self.cut()
        for way in self._ways:
            way.cancel()
        await asyncio.gather(*self._ways, return_exceptions=True)

    # ------------------------------------------------------------------ what a test does

    def cut(self, refuse: bool = False) -> None:
        """End all connections now, with a reset; with ``refuse`` none is accepted until ``mend``."""
        self._refuses = refuse
        for writer in self._pairs:
            writer.transport.abort()

    def stall(self) -> None:
        """From now on nothing passes, and nobody is told: as where a cable was pulled or a firewall forgot a connection."""
        self._open.clear()

    def mend(self, forget: bool = False) -> None:
        """Let everything pass again; with ``forget`` the connections of before stay silent for ever, as half-open ones do."""
        self._refuses = False
        if forget:
            for way in self._ways:
                way.cancel()
            self._forgotten |= self._pairs
            self._pairs.clear()
        self._open.set()

    # ------------------------------------------------------------------ how it does it

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuses:
            writer.transport.abort()
            return
        await self._open.wait()
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self.connections += 1
        pair = {writer, far_writer}
        self._pairs |= pair
        ways = [
            asyncio.create_task(self._carry(reader, far_writer)), asyncio.create_task(self._carry(far_reader, writer))
        ]  # fmt: skip
        self._ways |= set(ways)
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        self._ways -= {way for way in ways if way.done()}
        if pair & self._pairs:  # of forgotten ones neither end hears that they are gone
            for way in ways:
                way.cancel()
            for end in pair:
                end.transport.abort()
            self._pairs -= pair

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(_CHUNK):
                await self._open.wait()
                if self.rate is not None:
                    await asyncio.sleep(len(chunk) / self.rate)  # that is the slow network itself
                writer.write(chunk)
                await writer.drain()
                self.carried += len(chunk)
