"""The connections that a library has accepted in this process: who is at their far end, and how to end one before its handshake.

A socket of this process is among its open files whoever opened it, so it can be found there by the port that it belongs to (proc(5),
``/proc/self/fd``), and shut down over a duplicate of its descriptor (dup(2), shutdown(2)). To the library it looks as if the far end had left.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import stat
import struct
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

__all__ = ["Accepted", "AcceptedConnections", "Remote", "end", "has_files", "remote_of"]

Remote = tuple[str, int]
"""Host and port of a far end."""
_FILES = Path("/proc/self/fd") if Path("/proc/self/fd").exists() else None  # Linux
_AT_ONCE = struct.pack(
    "ii", 1, 0
)  # SO_LINGER of socket(7): reset, so that no crowd of old connections stays in the system's table


class Accepted(NamedTuple):
    """A connection.

    Attributes:
        remote: its far end.
        file: its descriptor, which belongs to the library.
        number: of the socket itself; no other has it while this one is open.
    """

    remote: Remote
    file: int
    number: int


def has_files() -> bool:
    """Tell whether this system shows a process its open files."""
    return _FILES is not None


class AcceptedConnections:
    """This process's connections at one of its own ports; nothing where the system shows no files.

    Args:
        port: the port.
        host: the address that listens there; one that stands for all, a name, or none: any address of this machine.
    """

    def __init__(self, port: int, host: str = "") -> None:
        self._port, self._host = port, _one_address(host)
        self._known: dict[int, Accepted | None] = {}  # number of a socket -> what it is; None for others' sockets

    def look(self) -> list[Accepted]:
        """Return those that are open now. Each is asked for its far end once; a later look costs one fstat(2) a file."""
        there: dict[int, Accepted | None] = {}
        for name in () if _FILES is None else os.listdir(_FILES):  # noqa: PTH208 - names, not paths
            with contextlib.suppress(OSError, ValueError):  # closed meanwhile
                about = os.fstat(int(name))
                if stat.S_ISSOCK(about.st_mode):
                    number = about.st_ino
                    there[number] = (
                        self._known[number] if number in self._known else self._read_accepted(int(name), number)
                    )
        self._known = there
        return [found for found in there.values() if found is not None]

    def _read_accepted(self, file: int, number: int) -> Accepted | None:
        copy = socket.socket(fileno=os.dup(file))  # the library may close its own at any moment
        with copy:
            if copy.family not in (socket.AF_INET, socket.AF_INET6):
                return None
            here, port = copy.getsockname()[:2]
            # A connection that this process has made from another of its addresses may have the same port.
            if port != self._port or (self._host is not None and plain(here) != self._host):
                return None
            try:
                host, far = copy.getpeername()[:2]
            except OSError:  # it listens, or the far end has left
                return None
            still = os.fstat(copy.fileno()).st_ino == number
            return Accepted((plain(host), far), file, number) if still else None


def end(found: Accepted) -> bool:
    """End a connection, unless its socket is closed already; return whether it was there."""
    with contextlib.suppress(OSError):
        copy = socket.socket(fileno=os.dup(found.file))
        with copy:
            if os.fstat(copy.fileno()).st_ino != found.number:
                return False  # it was closed, and the descriptor is another's
            copy.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            with contextlib.suppress(BlockingIOError):
                copy.recv(1 << 16, getattr(socket, "MSG_DONTWAIT", 0))  # nobody need look at what it has said
            copy.shutdown(socket.SHUT_RDWR)
            return True
    return False


def _one_address(host: str) -> str | None:
    try:
        found = plain(host)
    except ValueError:  # a name
        return None
    return None if ipaddress.ip_address(found).is_unspecified else found


def plain(host: str) -> str:
    """Return an address without its zone, and an IPv4 address in place of one that is mapped into IPv6.

    Raises:
        ValueError: it is no address.
    """
    found = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)


def remote_of(peer: str) -> Remote | None:
    """Return host and port of an address as gRPC writes it, such as ``ipv4:127.0.0.1:4711``; None if it has none."""
    kind, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    try:
        return (plain(host), int(port)) if kind else None
    except ValueError:
        return None
