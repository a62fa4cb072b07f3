"""Sockets as pipes use them: they never wait, and use several pieces of memory in one call if the system can."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Sequence
from typing import Protocol

from .base import Buffer

__all__ = ["NOT_NOW", "End", "PlainEnd", "SecuredEnd"]

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
