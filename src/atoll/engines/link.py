"""A link: whole messages over a connected socket, in both directions."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterator
from typing import Any, Protocol

from atoll.core import message as M
from atoll.core.errors import MessageError

__all__ = ["Conduit", "SocketLink", "LinkClosed"]

_LENGTH = struct.Struct("<Q")
_CHUNK = 1 << 20


class LinkClosed(ConnectionError):  # noqa: N818 - an event, not a fault
    """The other end closed the connection."""


class Conduit(Protocol):
    """Any connection that carries whole messages in both directions, in order."""

    async def send(self, tree: Any) -> None:
        """Send one message."""
        ...

    async def recv(self) -> Any:
        """Wait for the next message."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class SocketLink:
    """Messages over a stream socket, each after its length.

    Args:
        sock: a connected socket; the link owns it.
        limits: bounds on incoming messages.
    """

    def __init__(self, sock: socket.socket, limits: M.Limits | None = None) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._limits = limits or M.Limits()
        self._writing = asyncio.Lock()
        self._written: asyncio.Task[None] | None = None  # the message being sent

    async def send(self, tree: Any) -> None:
        """Send one message without copying large arrays. If cancelled midway, the rest is still sent, since other messages follow."""
        pieces = self._pieces(M.nbytes(tree), tree)
        await self._writing.acquire()
        left = None
        try:
            left = self._at_once(pieces)
        finally:
            if left is None:
                self._writing.release()
        if left is not None:
            self._written = asyncio.create_task(self._write(left, pieces))
            self._written.add_done_callback(self._went)
            await asyncio.shield(self._written)

    def _at_once(self, pieces: Iterator[Any]) -> memoryview | None:
        """Write what the system accepts now; return the rest of the piece."""
        for piece in pieces:
            left = memoryview(piece).cast("B")
            while left:
                try:
                    left = left[self._sock.send(left) :]
                except (BlockingIOError, InterruptedError):
                    return left
                except OSError as error:
                    raise LinkClosed(str(error)) from error
        return None

    async def _write(self, left: memoryview, pieces: Iterator[Any]) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(self._sock, left)
            for piece in pieces:
                await loop.sock_sendall(self._sock, piece)
        except OSError as error:
            raise LinkClosed(str(error)) from error

    def _went(self, task: asyncio.Task[None]) -> None:
        self._writing.release()
        if not task.cancelled():
            task.exception()  # the sender may be gone already

    @staticmethod
    def _pieces(size: int, tree: Any) -> Iterator[Any]:
        if size < _CHUNK:
            yield _LENGTH.pack(size) + M.encode(tree)
            return
        yield _LENGTH.pack(size)
        yield from M.encode_chunks(tree, _CHUNK)

    async def recv(self) -> Any:
        """Wait for the next message.

        Raises:
            LinkClosed: the other end closed the connection.
            MessageError: the bytes are not a message, or exceed the limits.
        """
        header = await self._exactly(_LENGTH.size)
        (size,) = _LENGTH.unpack(header)
        if size > self._limits.max_bytes:
            raise MessageError(
                f"a message of {size} bytes is larger than the limit of {self._limits.max_bytes} bytes",
                where="link",
                remedy="raise the limit on both sides, or send less",
            )
        return M.decode(await self._exactly(size))

    async def _exactly(self, size: int) -> bytearray:
        loop = asyncio.get_running_loop()
        buffer = bytearray(size)
        view = memoryview(buffer)
        done = 0
        while done < size:
            try:
                count = await loop.sock_recv_into(self._sock, view[done:])
            except OSError as error:
                raise LinkClosed(str(error)) from error
            if count == 0:
                raise LinkClosed("the other end closed the connection")
            done += count
        return buffer

    def close(self) -> None:
        """Close the socket."""
        if self._written is not None:
            self._written.cancel()
        self._sock.close()
