"""Blocks over a stream of bytes: each behind its length, read straight into its place."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from typing import Any, cast

from atoll.runtime.identity import Peer

from .base import LARGEST, Buffer, PipeClosed

__all__ = ["FramedPipe"]

_LENGTH = struct.Struct("<I")
_WAITING = 4  # blocks held before reading pauses
_SLICE = 1 << 16  # written at a time: what TLS makes of it stays in the processor's cache
_SMALL = 1 << 14  # parts shorter than this are joined before they are written


class FramedPipe(asyncio.BufferedProtocol):
    """A pipe over asyncio's own transports: TCP with TLS, or a socket of this machine.

    Args:
        peer: who is at the other end; may be set once the handshake has told.
        largest: bytes of one block, at most.

    Attributes:
        heard: when the last byte came, in seconds of the event loop's clock.
        fault: what broke the connection, if something did.
    """

    def __init__(self, peer: Peer | None = None, largest: int = LARGEST) -> None:
        self._peer = peer
        self._largest = largest
        self.heard = asyncio.get_running_loop().time()
        self._transport: asyncio.Transport | None = None
        self._blocks: deque[bytearray] = deque()
        self._changed = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._ended: str | None = None
        self.fault: Exception | None = None
        self._gone = asyncio.Event()
        self._expect_length()

    @property
    def peer(self) -> Peer:
        """Who is at the other end."""
        if self._peer is None:
            raise PipeClosed("nobody is known to be at the other end yet")
        return self._peer

    @peer.setter
    def peer(self, peer: Peer) -> None:
        self._peer = peer

    @property
    def ended(self) -> str | None:
        """Why the pipe is closed; None while it is open."""
        return self._ended

    def info(self, name: str) -> Any:
        """What asyncio knows of the connection, by its name for it."""
        return None if self._transport is None else self._transport.get_extra_info(name)

    # The pipe

    async def send(self, *parts: Buffer) -> None:
        """Send one block; returns when the connection has room for more."""
        if self._ended is not None or self._transport is None:
            raise PipeClosed(self._ended or "the pipe is not connected")
        size = sum(len(part) for part in parts)
        if size > self._largest:
            raise PipeClosed(f"a block of {size} bytes, {self._largest} are allowed")
        if size < _SMALL:
            self._transport.write(b"".join((_LENGTH.pack(size), *parts)))
        else:
            self._transport.write(b"".join((_LENGTH.pack(size), *parts[:-1])))
            last = memoryview(parts[-1])
            for start in range(0, len(last), _SLICE):
                self._transport.write(last[start : start + _SLICE])
        if not self._writable.is_set():
            await self._writable.wait()
        if self._ended is not None:
            raise PipeClosed(self._ended)

    async def recv(self) -> bytearray:
        """Wait for the next block."""
        while not self._blocks:
            if self._ended is not None:
                raise PipeClosed(self._ended)
            self._changed.clear()
            await self._changed.wait()
        block = self._blocks.popleft()
        if len(self._blocks) == _WAITING - 1 and self._transport is not None:
            self._transport.resume_reading()
        return block

    async def close(self) -> None:
        """End the connection; what is still to be written gets a moment to leave."""
        transport = self._transport
        if transport is None or self._gone.is_set():
            return
        self._end("this end closed the pipe")
        transport.close()
        try:
            async with asyncio.timeout(1.0):
                await self._gone.wait()
        except TimeoutError:
            transport.abort()

    def abort(self, why: str) -> None:
        """End the connection at once."""
        self._end(why)
        if self._transport is not None:
            self._transport.abort()

    def _end(self, why: str) -> None:
        if self._ended is None:
            self._ended = why
        self._changed.set()
        self._writable.set()

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is there."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=2 * BUFFERED, low=BUFFERED)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self.fault = exc
        if exc is None and self._done:
            self._end("the connection ended in the middle of a block")
        self._end(f"the connection was lost: {exc}" if exc else "the other end closed the connection")
        self._gone.set()

    def pause_writing(self) -> None:
        """The connection is full."""
        if self._ended is None:
            self._writable.clear()

    def resume_writing(self) -> None:
        """The connection has room again."""
        self._writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes belong."""
        del sizehint
        return self._view[self._done :]

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes came."""
        self.heard = asyncio.get_running_loop().time()
        self._done += nbytes
        if self._done < len(self._view):
            return
        if self._in_length:
            self._expect_block()
        else:
            self._blocks.append(self._buffer)
            self._changed.set()
            self._expect_length()
            if len(self._blocks) >= _WAITING and self._transport is not None:
                self._transport.pause_reading()

    def eof_received(self) -> bool:
        """The other end has nothing more to say: close."""
        return False

    def _expect_length(self) -> None:
        self._in_length = True
        self._buffer = bytearray(_LENGTH.size)
        self._view, self._done = memoryview(self._buffer), 0

    def _expect_block(self) -> None:
        (size,) = _LENGTH.unpack(self._buffer)
        if not 0 < size <= self._largest:
            self.abort(f"a block of {size} bytes was announced, 1 to {self._largest} are allowed")
            size = 1
        self._in_length = False
        self._buffer = bytearray(size)
        self._view, self._done = memoryview(self._buffer), 0


BUFFERED = 1 << 20
"""Bytes that may wait in a connection before its sender does."""
