"""Pipes over sockets: blocks in a stream of bytes, each after its length."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from ..identity import Peer
from .base import LARGEST, Buffer, PipeClosed

__all__ = [
    "NOT_NOW",
    "TURN",
    "End",
    "FramedPipe",
    "IncomingFrames",
    "PlainEnd",
    "Reader",
    "SecuredEnd",
    "after",
    "frame_block",
    "local_pipe",
    "resolve",
]


# ------------------------------------------------------------------ sockets as pipes use them
#
# Sockets as pipes use them: they never wait, and use several pieces of memory in one call if the system can.


NOT_NOW = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""Raised when nothing can be read or written at the moment."""


_AT_ONCE = 1 << 16  # bytes


class End(Protocol):
    """This machine's end of a connection.

    Attributes:
        lingers: whether what was sent may be lost when this end closes before the other has read it.
        hides: whether received bytes may wait here although the system has no more.
    """

    lingers: bool
    hides: bool

    def fileno(self) -> int:
        """Return the file descriptor that the event loop watches."""

    def read(self, into: Sequence[memoryview]) -> int:
        """Fill memory in order with the bytes that are here; return how many were read, 0 at the end of the connection.

        Raises:
            OSError: one of ``NOT_NOW``, or the connection is broken.
        """

    def drained(self) -> bool:
        """Tell whether the system reports more data, after a block that came with less behind it than there was room for."""

    def write(self, parts: Sequence[Buffer]) -> int:
        """Write as much as there is room for; return how many bytes. After ``NOT_NOW``, pass the same parts again.

        Raises:
            OSError: one of ``NOT_NOW``, or the connection is broken.
        """

    def part(self) -> None:
        """Tell the other end that nothing more will be written."""

    def forget(self) -> int:
        """Read and discard, after ``part``; return how many bytes, 0 at the end of the connection.

        Raises:
            OSError: one of ``NOT_NOW``, or the connection is broken.
        """

    def close(self) -> None:
        """Let the connection go."""


class PlainEnd:
    """A socket within this machine.

    Args:
        sock: a connected socket.
    """

    lingers = False
    hides = False

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self.fileno = sock.fileno
        self.close = sock.close

    def read(self, into: Sequence[memoryview]) -> int:
        """Fill memory in order."""
        return self._sock.recvmsg_into(into)[0]

    def drained(self) -> bool:
        """Return true."""
        return True

    def write(self, parts: Sequence[Buffer]) -> int:
        """Write as much as there is room for."""
        return self._sock.sendmsg(parts)

    def part(self) -> None:
        """Shut down the writing side; the system tells the other end."""

    def forget(self) -> int:
        """Read and discard."""
        return len(self._sock.recv(_AT_ONCE))


class SecuredEnd:
    """A socket with TLS, after its handshake.

    Bytes go between the socket and their place in one step of OpenSSL each, without buffers in between.

    Args:
        sock: a connected socket.
    """

    lingers = True
    hides = True

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock
        self.fileno = sock.fileno
        self.close = sock.close

    def read(self, into: Sequence[memoryview]) -> int:
        """Fill the first piece of memory, with one record at most."""
        return self._sock.recv_into(into[0])

    def drained(self) -> bool:
        """Return false: decrypted bytes may remain here."""
        return not self._sock.pending()

    def write(self, parts: Sequence[Buffer]) -> int:
        """Write the first part."""
        return self._sock.send(parts[0])

    def part(self) -> None:
        """Announce the end within TLS, so that nobody else can, and then by TCP."""
        with contextlib.suppress(OSError, ValueError):
            self._sock.unwrap()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def forget(self) -> int:
        """Read and discard bytes as they arrive, still encrypted."""
        return len(socket.socket.recv(self._sock, _AT_ONCE))


# ------------------------------------------------------------------ blocks in a stream of bytes, each after its length; bytes are read straight into place and written from where they lie


_LENGTH = struct.Struct("<I")
_SMALL = 1 << 14  # blocks shorter than this are joined before they are written


class IncomingFrames:
    """Decides where incoming bytes go.

    Args:
        largest: bytes of one block, at most.

    Attributes:
        places: memory to fill, in order: the rest of a length, or the rest of a block and the length after it.
    """

    def __init__(self, largest: int) -> None:
        self._largest = largest
        self._length = memoryview(bytearray(_LENGTH.size))
        self._block = self._length[:0]
        self._in_length = True
        self.places: tuple[memoryview, ...] = (self._length,)

    @property
    def between(self) -> bool:
        """Tell whether no block has begun."""
        return self._in_length and len(self.places[0]) == _LENGTH.size

    def took(self, count: int) -> memoryview | None:
        """Count bytes that are in place; return the block if it is complete now. Then call ``go_on``.

        Raises:
            PipeClosed: as in ``go_on``.
        """
        rest = self.places[0]
        more = count - len(rest)
        if more < 0:
            self.places = (rest[count:], *self.places[1:])
        elif self._in_length:
            self._expect_block()
        else:
            block, self._block = self._block, self._length[:0]
            self._in_length = True
            self.places = (self._length[more:],)
            return block
        return None

    def go_on(self) -> None:
        """Expect the next block, if its length arrived with the one before.

        Raises:
            PipeClosed: the length is out of bounds; read nothing more.
        """
        if self._in_length and not self.places[0]:
            self._expect_block()

    def _expect_block(self) -> None:
        (size,) = _LENGTH.unpack(self._length)
        if not 0 < size <= self._largest:
            raise PipeClosed(f"a block of {size} bytes was announced, 1 to {self._largest} are allowed")
        self._block = np.empty(size, np.uint8).data  # nothing is written before the bytes arrive
        self._in_length = False
        self.places = (self._block, self._length)


def frame_block(parts: tuple[Buffer, ...], size: int) -> list[Buffer]:
    """Return what to write for a block of ``size`` bytes: a short block in one piece."""
    start = (_LENGTH.pack(size), *parts)
    return [b"".join(start)] if size < _SMALL else [b"".join(start[:-1]), start[-1]]


def after(parts: list[Buffer], count: int) -> list[Buffer]:
    """Return the rest of the parts after ``count`` bytes of them are written."""
    for index, part in enumerate(parts):
        if count < len(part):
            return [memoryview(part)[count:], *parts[index + 1 :]]
        count -= len(part)
    return []


# ------------------------------------------------------------------ a connection whose blocks are read: one at a time on request, or handed on as they arrive


TURN = 1 << 20
"""Bytes read or written before other tasks get a turn."""
_WAITING = 4  # blocks held before reading pauses


class Reader:
    """The half of a pipe over a socket that reads, and the end of both.

    Args:
        end: the socket.
        largest: bytes of one block, at most.

    Attributes:
        heard: when the last byte arrived, in seconds of the event loop's clock.
        ended: why the pipe is closed; None while it is open.
    """

    def __init__(self, end: End, largest: int) -> None:
        self.ended: str | None = None
        self._loop = asyncio.get_running_loop()
        self.heard = self._loop.time()
        self._end = end
        self._fd = end.fileno()
        self._blocks: deque[memoryview] = deque()
        self._taker: Callable[[memoryview], bool] | None = None
        self._came: asyncio.Future[bool] | None = None  # a task that waits for a block
        self._gone = asyncio.Event()  # set once the socket is closed
        self._reading = False
        self._incoming = IncomingFrames(largest)
        self._read_on()

    async def recv(self) -> memoryview:
        """Wait for the next block."""
        while not self._blocks:
            if self.ended is not None:
                raise PipeClosed(self.ended)
            self._read_on()
            self._came = self._loop.create_future()
            try:
                await self._came
            finally:
                self._came = None
        block = self._blocks.popleft()
        self._read_on()
        return block

    async def feed(self, taker: Callable[[memoryview], bool]) -> None:
        """Hand each block on as it arrives, with no task in between; return when the taker wants no more.

        Args:
            taker: called with each block; returns whether it wants more. Its exceptions are raised here.

        Raises:
            PipeClosed: as in ``recv``.
        """
        while self._blocks:
            if not taker(self._blocks.popleft()):
                return
        self._taker, self._came = taker, self._loop.create_future()
        try:
            self._read_on()
            if self.ended is None and await self._came:
                return
            raise PipeClosed(self.ended or "the pipe is closed")
        finally:
            self._taker = self._came = None

    def abort(self, why: str) -> None:
        """End the connection at once."""
        self._finish(why)
        self._let_go()

    def _finish(self, why: str) -> None:
        if self.ended is None:
            self.ended = why
        resolve(self._came, False)

    def _over(self, error: Exception | None) -> None:
        """Note that the connection is gone."""
        if error is None and not self._incoming.between:
            self._finish("the connection ended in the middle of a block")
        self._finish(f"the connection was lost: {error}" if error else "the other end closed the connection")
        self._let_go()

    def _let_go(self) -> None:
        if not self._gone.is_set():
            self._gone.set()
            self._reading = False
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
            self._end.close()

    def _read_on(self) -> None:
        if self._reading or self.ended is not None:
            return
        self._reading = True
        self._loop.add_reader(self._fd, self._read)
        if self._end.hides:
            self._loop.call_soon(self._read)

    def _read(self) -> None:
        """Read what is here, within one turn and as long as blocks are wanted."""
        taken = 0
        try:
            while self._reading and taken < TURN:
                count = self._end.read(self._incoming.places)
                if count == 0:
                    self._over(None)
                    return
                taken += count
                self._took(count)
                if self._incoming.between and self._end.drained():
                    break  # spares a read that would find nothing
        except NOT_NOW:
            pass
        except PipeClosed as error:
            self.abort(str(error))
            return
        except OSError as error:
            self._over(error)
            return
        if taken:
            self.heard = self._loop.time()
        if taken >= TURN and self._reading and self._end.hides:
            self._loop.call_soon(self._read)

    def _took(self, count: int) -> None:
        block = self._incoming.took(count)
        if block is None:
            return
        if self._taker is None:
            self._blocks.append(block)
            resolve(self._came, True)
            if len(self._blocks) >= _WAITING:
                self._pause()
        else:
            self._hand_on(block, self._taker)
        self._incoming.go_on()

    def _hand_on(self, block: memoryview, taker: Callable[[memoryview], bool]) -> None:
        try:
            if taker(block):
                return
            resolve(self._came, True)
        except Exception as error:  # the caller of `feed` must know
            if self._came is not None and not self._came.done():
                self._came.set_exception(error)
        self._taker = None
        self._pause()

    def _pause(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._fd)


def resolve(future: asyncio.Future[Any] | None, result: object) -> None:
    """Set a future's result if there is one that is not done."""
    if future is not None and not future.done():
        future.set_result(result)


# ------------------------------------------------------------------ pipes over sockets


_BUFFER = 1 << 20  # bytes that the system holds in each direction between processes of one machine
_PARTING = 1.0  # seconds for the other end to read what is in transit


class FramedPipe(Reader):
    """A pipe over a socket: local, or TCP with TLS. It has no write buffer: ``send`` waits instead.

    Args:
        end: the socket.
        peer: who is at the other end.
        largest: bytes of one block, at most.

    Attributes:
        peer: who is at the other end.
        address: where it connects from, at the end that listens.
    """

    def __init__(self, end: End, peer: Peer, largest: int = LARGEST) -> None:
        self.peer = peer
        self.address = ""
        self._largest = largest
        self._room: asyncio.Future[None] | None = None  # a task that waits to write
        self._written = 0  # since others had their turn
        self._left: list[Buffer] = []  # the rest of a posted block
        super().__init__(end, largest)

    async def send(self, *parts: Buffer) -> None:
        """Send one block; return when the system has taken it. If you cancel it midway, the connection ends.

        Without parts it sends the rest of a posted block.
        """
        if self.ended is not None:
            raise PipeClosed(self.ended)
        size = self._check_size(parts)
        left, self._left = [*self._left, *(frame_block(parts, size) if parts else ())], []
        try:
            while left:
                try:
                    left = after(left, self._end.write(left))
                except NOT_NOW:
                    await self._until_room()
        except asyncio.CancelledError:
            self.abort("a block was cut off: its sender was stopped")
            raise
        except OSError as error:
            self._over(error)
            raise PipeClosed(self.ended or str(error)) from error
        self._written += size
        if self._written >= TURN:
            self._written = 0
            await asyncio.sleep(0)

    def post(self, *parts: Buffer) -> bool:
        """Send one block without waiting, if no other task sends; return whether all of it is out. If not, call ``send()``.

        Raises:
            PipeClosed: the block is too long.
        """
        if self.ended is not None:
            return False
        self._left = frame_block(parts, self._check_size(parts))
        try:
            while self._left:
                self._left = after(self._left, self._end.write(self._left))
        except NOT_NOW:
            return False
        except OSError as error:
            self._over(error)
            return False
        return True

    def _check_size(self, parts: tuple[Buffer, ...]) -> int:
        size = sum(len(part) for part in parts)
        if size > self._largest:
            raise PipeClosed(f"a block has {size} bytes; {self._largest} are allowed")
        return size

    async def close(self) -> None:
        """End the connection; blocks in transit get a moment to arrive."""
        if self._gone.is_set():
            return
        self._finish("this end closed the pipe")
        try:
            if self._end.lingers:
                self._end.part()
                self._reading = False
                self._loop.add_reader(self._fd, self._forget)  # closing with unread bytes would take back what was sent
                async with asyncio.timeout(_PARTING):
                    await self._gone.wait()
        except TimeoutError:
            pass  # the other end does not listen
        finally:
            self._let_go()

    def _forget(self) -> None:
        try:
            while self._end.forget():
                pass
        except NOT_NOW:
            return
        except OSError:
            pass  # then it just ends
        self._let_go()

    def _finish(self, why: str) -> None:
        super()._finish(why)
        resolve(self._room, None)

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
        resolve(self._room, None)


async def local_pipe(sock: socket.socket, peer: Peer) -> FramedPipe:
    """Return a pipe over a connected socket of this machine, such as one of ``socket.socketpair()``: without TLS, from a daemon to its job processes.

    Args:
        sock: a connected socket; the pipe owns it from now on.
        peer: who is at the other end; a daemon knows, because it started the process.
    """
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER)
    return FramedPipe(PlainEnd(sock), peer)
