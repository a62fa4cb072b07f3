"""A link: whole messages over a connected socket, in both directions."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from atoll.core import message as M
from atoll.core.errors import MessageError

__all__ = ["Conduit", "LinkClosed", "Poster", "SocketLink", "feed"]

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


async def feed(link: Any, take: Callable[[Any], bool]) -> None:
    """Hand each message of a link to ``take`` until it returns false: as it arrives, if the link can.

    Raises:
        LinkClosed: the other end closed the connection.
    """
    if hasattr(link, "feed"):
        await link.feed(take)
        return
    while take(await link.recv()):
        pass


class Poster:
    """Sends messages over a link in the order given, each at once if the link can; its methods belong to the link's loop.

    Args:
        link: the link.
    """

    def __init__(self, link: Any) -> None:
        self._link = link
        self._post: Callable[[Any], bool] | None = getattr(link, "post", None)
        self._waiting: deque[tuple[Any, Callable[[Exception | None], None]]] = deque()
        self._task: asyncio.Task[None] | None = None

    def send(self, tree: Any, done: Callable[[Exception | None], None] = lambda error: None) -> None:
        """Send a message after all earlier ones.

        Args:
            tree: the message.
            done: called once it is sent, or with the error that kept it back.
        """
        if self._task is None:
            try:
                if self._post is not None and self._post(tree):
                    done(None)
                    return
            except Exception as error:
                done(error)
                return
            self._task = asyncio.get_running_loop().create_task(self._run())
        self._waiting.append((tree, done))

    async def _run(self) -> None:
        try:
            while self._waiting:
                tree, done = self._waiting.popleft()
                try:
                    await self._link.send(tree)
                except Exception as error:
                    done(error)
                else:
                    done(None)
                del tree, done  # an idle link holds no memory
        finally:
            self._task = None


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
