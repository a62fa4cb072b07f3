"""Pipes over sockets."""

from __future__ import annotations

import asyncio
import socket

from atoll.runtime.identity import Peer

from .base import LARGEST, Buffer, PipeClosed
from .ends import NOT_NOW, End, PlainEnd
from .framing import after, frame_block
from .reading import TURN, Reader, resolve

__all__ = ["FramedPipe", "local_pipe"]

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
