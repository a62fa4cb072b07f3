"""Blocks over a stream of bytes: each behind its length, read straight into its place and written from where it lies."""

from __future__ import annotations

import asyncio
import struct
from collections import deque

import numpy as np

from atoll.runtime.identity import Peer

from .base import LARGEST, Buffer, PipeClosed
from .ends import NOT_NOW, End

__all__ = ["FramedPipe"]

_LENGTH = struct.Struct("<I")
_WAITING = 4  # blocks held before reading pauses
_TURN = 1 << 20  # bytes read or written before others get their turn
_SMALL = 1 << 14  # blocks shorter than this are joined before they are written
_PARTING = 1.0  # seconds that the other end has to read what is on its way


class FramedPipe:
    """A pipe over a socket: of this machine, or TCP with TLS. Nothing waits here to be written: ``send`` does.

    Args:
        end: the socket.
        peer: who is at the other end.
        largest: bytes of one block, at most.

    Attributes:
        peer: who is at the other end.
        heard: when the last byte came, in seconds of the event loop's clock.
        ended: why the pipe is closed; None while it is open.
    """

    def __init__(self, end: End, peer: Peer, largest: int = LARGEST) -> None:
        self.peer = peer
        self.ended: str | None = None
        self._loop = asyncio.get_running_loop()
        self.heard = self._loop.time()
        self._end = end
        self._fd = end.fileno()
        self._largest = largest
        self._blocks: deque[memoryview] = deque()
        self._came: asyncio.Future[None] | None = None  # somebody waits for a block
        self._room: asyncio.Future[None] | None = None  # somebody waits to write
        self._gone = asyncio.Event()  # the socket is closed
        self._reading = False
        self._written = 0  # since others had their turn
        self._length = memoryview(bytearray(_LENGTH.size))
        self._block = self._length[:0]
        self._rest, self._in_length = self._length, True
        self._read_on()

    # The pipe

    async def send(self, *parts: Buffer) -> None:
        """Send one block; returns when the system has taken it. Cancelled in the middle, it ends the connection."""
        if self.ended is not None:
            raise PipeClosed(self.ended)
        size = sum(len(part) for part in parts)
        if size > self._largest:
            raise PipeClosed(f"a block of {size} bytes, {self._largest} are allowed")
        start = (_LENGTH.pack(size), *parts)
        left: list[Buffer] = [b"".join(start)] if size < _SMALL else [b"".join(start[:-1]), start[-1]]
        try:
            while left:
                try:
                    left = _after(left, self._end.write(left))
                except NOT_NOW:
                    await self._until_room()
        except asyncio.CancelledError:
            self.abort("a block was cut off: its sender was stopped")
            raise
        except OSError as error:
            self._over(error)
            raise PipeClosed(self.ended or str(error)) from error
        self._written += size
        if self._written >= _TURN:
            self._written = 0
            await asyncio.sleep(0)

    async def recv(self) -> memoryview:
        """Wait for the next block."""
        while not self._blocks:
            if self.ended is not None:
                raise PipeClosed(self.ended)
            self._came = self._loop.create_future()
            try:
                await self._came
            finally:
                self._came = None
        block = self._blocks.popleft()
        if not self._reading and self.ended is None:
            self._read_on()
        return block

    async def close(self) -> None:
        """End the connection; what is on its way gets a moment to arrive."""
        if self._gone.is_set():
            return
        self._finish("this end closed the pipe")
        try:
            if self._end.lingers:
                self._end.part()
                self._reading = False
                self._loop.add_reader(self._fd, self._forget)  # to close with bytes unread takes back what was sent
                async with asyncio.timeout(_PARTING):
                    await self._gone.wait()
        except TimeoutError:
            pass  # the other end does not listen
        finally:
            self._let_go()

    def abort(self, why: str) -> None:
        """End the connection at once."""
        self._finish(why)
        self._let_go()

    # Ends

    def _over(self, error: Exception | None) -> None:
        """The connection is gone."""
        if error is None and not (self._in_length and len(self._rest) == _LENGTH.size):
            self._finish("the connection ended in the middle of a block")
        self._finish(f"the connection was lost: {error}" if error else "the other end closed the connection")
        self._let_go()

    def _finish(self, why: str) -> None:
        if self.ended is None:
            self.ended = why
        for future in (self._came, self._room):
            if future is not None and not future.done():
                future.set_result(None)

    def _let_go(self) -> None:
        if not self._gone.is_set():
            self._gone.set()
            self._reading = False
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
            self._end.close()

    def _forget(self) -> None:
        try:
            while self._end.forget():
                pass
        except NOT_NOW:
            return
        except OSError:
            pass  # the end, then
        self._let_go()

    # Writing

    async def _until_room(self) -> None:
        self._room = self._loop.create_future()
        self._loop.add_writer(self._fd, self._has_room)
        try:
            await self._room
        finally:
            self._room = None
            if not self._gone.is_set():
                self._loop.remove_writer(self._fd)
        if self.ended is not None:
            raise PipeClosed(self.ended)

    def _has_room(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    # Reading

    def _read_on(self) -> None:
        self._reading = True
        self._loop.add_reader(self._fd, self._read)
        if self._end.hides:
            self._loop.call_soon(self._read)

    def _read(self) -> None:
        """Read what is here, within one turn and as long as blocks are wanted."""
        taken = 0
        try:
            while self._reading and taken < _TURN:
                count = self._end.read((self._rest,) if self._in_length else (self._rest, self._length))
                if count == 0:
                    self._over(None)
                    return
                taken += count
                self._took(count)
        except NOT_NOW:
            pass
        except OSError as error:
            self._over(error)
            return
        if taken:
            self.heard = self._loop.time()
        if taken >= _TURN and self._reading and self._end.hides:
            self._loop.call_soon(self._read)

    def _took(self, count: int) -> None:
        """So many bytes are in their place: of a length, or of a block and the length behind it."""
        more = count - len(self._rest)
        if more < 0:
            self._rest = self._rest[count:]
        elif self._in_length:
            self._expect_block()
        else:
            self._has_come()
            self._rest, self._in_length = self._length[more:], True
            if not self._rest:
                self._expect_block()

    def _has_come(self) -> None:
        self._blocks.append(self._block)
        if self._came is not None and not self._came.done():
            self._came.set_result(None)
        if len(self._blocks) >= _WAITING:
            self._reading = False
            self._loop.remove_reader(self._fd)

    def _expect_block(self) -> None:
        (size,) = _LENGTH.unpack(self._length)
        if not 0 < size <= self._largest:
            self.abort(f"a block of {size} bytes was announced, 1 to {self._largest} are allowed")
            return
        self._block = np.empty(size, np.uint8).data  # nothing is written before what comes
        self._rest, self._in_length = self._block, False


def _after(parts: list[Buffer], count: int) -> list[Buffer]:
    """What is left of parts once so many bytes of them are written."""
    for index, part in enumerate(parts):
        if count < len(part):
            return [memoryview(part)[count:], *parts[index + 1 :]]
        count -= len(part)
    return []
