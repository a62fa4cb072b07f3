"""Connections that never became a call: gRPC refuses a wrong certificate itself, and does not report who connected.

gRPC asks for the server's certificate at each connection, and this module hooks in there. The system's table of
connections (proc(5), ``net/tcp``) has the address. A connection that ends without a call is logged. Without such a
table, or if the connection ended before it was read, the log line has no address; every such connection is counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import sys
import time
from pathlib import Path
from urllib.parse import unquote

from .refused import RefusalLog

__all__ = ["Handshakes", "connections_to", "remote_of"]

_EVERY = 0.25  # seconds between two looks at connections that have not called yet
_LONG = 20.0  # seconds, if there is nothing to look at
_WHY = (
    "it ended before its handshake was done or anything was asked; it showed no certificate, one that has expired or is of another authority, "
    "or spoke no TLS 1.3"
)
_SHARE = 0.05  # the share of time that may go into reading the table at each connection
_BURST = 0.1  # seconds of it at once
_ESTABLISHED = 1  # net/tcp_states.h
_TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))

Remote = tuple[str, int]


class Handshakes:
    """Watches who connects to a port and which of them calls.

    Args:
        refused: the log for those that did not call.
    """

    def __init__(self, refused: RefusalLog) -> None:
        self._port = 0
        self._refused = refused
        self._loop = asyncio.get_running_loop()
        self._table = _TABLES[0].exists()
        self._uncalled = 0  # connections, less those that called and those logged as not having called
        self._pending: set[Remote] = set()
        self._called: set[Remote] = set()
        self._last: set[Remote] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._unseen = False  # a connection came for which the table was not read
        self._allowed, self._since = _BURST, time.monotonic()  # seconds of reading left, and since when

    def at(self, port: int) -> None:
        """Watch this port; ignore connections that ended there before."""
        self._port = port
        self._called = {remote for remote, state in connections_to(port).items() if state != _ESTABLISHED}
        self._last = set(self._called)

    def begun(self) -> None:
        """Note a connection; gRPC calls this in one of its threads."""
        rows = self._rows()  # now: the connection may be over in a moment
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._came, rows)

    def _rows(self) -> dict[Remote, int] | None:
        """Return the table; None if connections come too fast to read it for each. Then the next look handles them."""
        began = time.monotonic()
        self._allowed = min(_BURST, self._allowed + _SHARE * (began - self._since))
        self._since = began
        if self._allowed <= 0:
            return None
        rows = connections_to(self._port)
        self._allowed -= time.monotonic() - began
        return rows

    def called(self, peer: str) -> None:
        """Note that a handshake is done; from here the server logs the party.

        Args:
            peer: an address as gRPC writes it: ``ipv4:127.0.0.1:4711``.
        """
        remote = remote_of(peer) if self._table else None
        self._uncalled -= remote not in self._called
        if remote is not None:
            self._called.add(remote)
            self._pending.discard(remote)

    def close(self) -> None:
        """Stop watching."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _came(self, rows: dict[Remote, int] | None) -> None:
        self._uncalled += 1
        self._unseen |= rows is None
        if rows is not None:
            self._pending |= rows.keys() - self._called
        self._again(_EVERY if self._table else _LONG)

    def _again(self, after: float) -> None:
        if self._timer is None and not self._closed and (self._pending or self._uncalled > 0 or self._unseen):
            self._timer = self._loop.call_later(after, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._table:
            self._look_into(connections_to(self._port))
        gone = self._uncalled - len(self._pending)
        for _ in range(gone):
            self._refused.say("somewhere", _WHY, f"a connection is refused: {_WHY}")
        self._uncalled -= max(0, gone)
        self._again(_EVERY)

    def _look_into(self, rows: dict[Remote, int]) -> None:
        self._called &= rows.keys() | self._last  # rows read in another thread may be older than this
        self._last = set(rows)
        if self._unseen:
            self._unseen = False
            self._pending |= rows.keys() - self._called
        over = sorted(remote for remote in self._pending if rows.get(remote) != _ESTABLISHED)
        for host, port in over:
            self._refused.connection(host, port, _WHY)
        self._pending.difference_update(over)
        self._called.update(over)  # they linger in the table, and must not be logged twice
        self._uncalled -= len(over)


def connections_to(port: int) -> dict[Remote, int]:
    """Return the far ends of the connections to a port of this machine with Linux's state number of each; empty elsewhere."""
    found: dict[Remote, int] = {}
    for table in _TABLES:
        with contextlib.suppress(OSError, ValueError, IndexError):
            for row in table.read_text(encoding="ascii").splitlines()[1:]:
                fields = row.split(maxsplit=4)
                if fields[3] != "0A" and int(fields[1].rpartition(":")[2], 16) == port:  # 0A: it listens
                    host, _, far = fields[2].rpartition(":")
                    found[_address(host), int(far, 16)] = int(fields[3], 16)
    return found


def _address(words: str) -> str:
    """Return an address from the table, which has 32-bit words in the machine's byte order."""
    raw = b"".join(int(words[i : i + 8], 16).to_bytes(4, sys.byteorder) for i in range(0, len(words), 8))
    return _plain(ipaddress.ip_address(raw))


def _plain(found: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)


def remote_of(peer: str) -> Remote | None:
    """Return host and port of an address as gRPC writes it, such as ``ipv4:127.0.0.1:4711``; None if it has none."""
    kind, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    try:
        return (_plain(ipaddress.ip_address(host.strip("[]").partition("%")[0])), int(port)) if kind else None
    except ValueError:
        return None
