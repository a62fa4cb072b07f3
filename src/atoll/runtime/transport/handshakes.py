"""Connections that never became a call: gRPC refuses a wrong certificate by itself, and tells nobody who came.

gRPC asks for the server's certificate whenever somebody connects, which is where this listens; the system's table of connections (proc(5),
``net/tcp``) says from where. What then ends without a call is said in the log. Where there is no such table, or a connection was over before
anybody looked, the line has no address: all are counted, so that none is left out.
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

_EVERY = 0.25  # seconds between two looks at those that have not called yet
_LONG = 20.0  # seconds, where there is nothing to look at
_WHY = (
    "it ended before its handshake was done or anything was asked; it showed no certificate, one that has expired or is of another authority, "
    "or spoke no TLS 1.3"
)
_SHARE = 0.05  # of the time may go into reading the table as connections come
_BURST = 0.1  # seconds of it at once
_ESTABLISHED = 1  # net/tcp_states.h
_TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))

Remote = tuple[str, int]


class Handshakes:
    """Watches who connects to a port and who of them calls.

    Args:
        refused: where it says who did not.
    """

    def __init__(self, refused: RefusalLog) -> None:
        self._port = 0
        self._refused = refused
        self._loop = asyncio.get_running_loop()
        self._table = _TABLES[0].exists()
        self._uncalled = 0  # who connected, less who called and of whom it was said that they did not
        self._pending: set[Remote] = set()
        self._called: set[Remote] = set()
        self._last: set[Remote] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._unseen = False  # somebody came for whom the table was not read
        self._allowed, self._since = _BURST, time.monotonic()  # seconds of reading, and when that was

    def at(self, port: int) -> None:
        """Watch this port; what has ended there before was no business of this listener."""
        self._port = port
        self._called = {remote for remote, state in connections_to(port).items() if state != _ESTABLISHED}
        self._last = set(self._called)

    def begun(self) -> None:
        """Somebody has connected; called in a thread of gRPC's."""
        rows = self._rows()  # now: the connection may be over in a moment
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._came, rows)

    def _rows(self) -> dict[Remote, int] | None:
        """The table; None where so many come at once that reading it for each would keep them all waiting: the next look is for them."""
        began = time.monotonic()
        self._allowed = min(_BURST, self._allowed + _SHARE * (began - self._since))
        self._since = began
        if self._allowed <= 0:
            return None
        rows = connections_to(self._port)
        self._allowed -= time.monotonic() - began
        return rows

    def called(self, peer: str) -> None:
        """Somebody's handshake is done; the server says more about them.

        Args:
            peer: as gRPC writes an address: ``ipv4:127.0.0.1:4711``.
        """
        remote = remote_of(peer) if self._table else None
        self._uncalled -= remote not in self._called
        if remote is not None:
            self._called.add(remote)
            self._pending.discard(remote)

    def close(self) -> None:
        """Watch no more."""
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
        self._called &= rows.keys() | self._last  # what was read in another thread may be older than this
        self._last = set(rows)
        if self._unseen:
            self._unseen = False
            self._pending |= rows.keys() - self._called
        over = sorted(remote for remote in self._pending if rows.get(remote) != _ESTABLISHED)
        for host, port in over:
            self._refused.connection(host, port, _WHY)
        self._pending.difference_update(over)
        self._called.update(over)  # they linger in the table, and are not said twice
        self._uncalled -= len(over)


def connections_to(port: int) -> dict[Remote, int]:
    """The far ends of the connections to a port of this machine, with the state of each as Linux numbers them; empty elsewhere."""
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
    """An address as the table has it: 32-bit words, each in the machine's own order."""
    raw = b"".join(int(words[i : i + 8], 16).to_bytes(4, sys.byteorder) for i in range(0, len(words), 8))
    return _plain(ipaddress.ip_address(raw))


def _plain(found: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)


def remote_of(peer: str) -> Remote | None:
    """Host and port in an address as gRPC writes it: ``ipv4:127.0.0.1:4711``; None if there are none."""
    kind, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    try:
        return (_plain(ipaddress.ip_address(host.strip("[]").partition("%")[0])), int(port)) if kind else None
    except ValueError:
        return None
