"""Connections that never became a call: gRPC does the handshakes itself, and reports neither who connects nor who fails.

gRPC asks for the server's certificate before each handshake, and this module hooks in there. It looks at the process's own sockets
(`atoll.runtime.transport.accepted`) for who has connected. A connection that ends without a call is logged, and counts as a failed handshake of
its host. A host that fails again and again has its further connections ended before their handshake, all but some in a second; so have the
oldest of a crowd that never calls. Where the system shows no sockets, every such connection is counted, and the log line has no address.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from typing import NamedTuple

from .accepted import Accepted, AcceptedConnections, Remote, end, has_files, remote_of
from .doorway import CROWDED, FAIR, MOST, QUIET
from .refused import RefusalLog
from .throttle import THROTTLED, FailedHandshakes

__all__ = ["Handshakes"]

_EVERY, _SOON = 0.25, 0.05  # seconds between two looks at connections that have not called yet; if there are too many
_LONG = 20.0  # seconds, if there is nothing to look at
_WHY = (
    "it ended before its handshake was done or anything was asked; it showed no certificate, one that has expired or is of another authority, "
    "or spoke no TLS 1.3"
)
_SHARE = 0.05  # the share of time that may go into a look at each connection
_BURST = 0.1  # seconds of it at once
_TURN = 256  # connections ended at once, before others have their turn of the event loop


class _Waiting(NamedTuple):
    """A connection that has not called, and since when."""

    found: Accepted
    since: float


class Handshakes:
    """Watches who connects to a port and which of them calls.

    Args:
        refused: the log for those that did not call.
        most: connections that have not called.
        quiet: seconds after which the oldest must leave if there are more.
    """

    def __init__(self, refused: RefusalLog, most: int = MOST, quiet: float = QUIET) -> None:
        self._refused = refused
        self._most, self._quiet = most, quiet
        self._loop = asyncio.get_running_loop()
        self._accepted: AcceptedConnections | None = None
        self._one = threading.Lock()  # gRPC's threads look, and so does the loop
        self._met: set[int] = set()  # sockets that a look has found
        self._found: list[
            Accepted
        ] = []  # of these, those that the loop has not taken; whoever runs next on it takes all
        self._ended: set[int] = set()  # of these, those that were ended at once
        self._failed = FailedHandshakes(time.monotonic)
        self._uncalled = 0  # connections, less those that called and those logged as not having called
        self._pending: dict[Remote, _Waiting] = {}  # oldest first
        self._called: set[Remote] = set()
        self._taken: set[int] = set()  # sockets that have waited, called or been ended
        self._over: set[int] = set()  # those that had been ended at the last look
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._unseen = False  # a connection came at which there was no time to look
        self._allowed, self._since = _BURST, time.monotonic()  # seconds of looking left, and since when

    def at(self, port: int, host: str = "") -> None:
        """Watch this port of this address."""
        self._accepted = AcceptedConnections(port, host) if has_files() else None

    def note_connection(self) -> None:
        """Note a connection, and end it if its host may not begin a handshake; gRPC calls this in one of its threads."""
        seen = self._in_time()
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._came, seen)

    def note_call(self, peer: str) -> None:
        """Note that a handshake is done; from here the server logs the party.

        Args:
            peer: an address as gRPC writes it: ``ipv4:127.0.0.1:4711``.
        """
        remote = remote_of(peer) if self._accepted is not None else None
        self._uncalled -= remote not in self._called
        if remote is not None:
            self._called.add(remote)
            self._pending.pop(remote, None)

    def count_failure(self, peer: str) -> None:
        """Count a handshake that is done, by a party that may not come in.

        Args:
            peer: an address as gRPC writes it.
        """
        remote = remote_of(peer)
        if remote is not None:
            self._failed.note(remote[0])

    def close(self) -> None:
        """Stop watching."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _in_time(self) -> bool:
        """Look at who has come; return false if connections come too fast to look at each. Then the next look of the loop finds them."""
        began = time.monotonic()
        self._allowed = min(_BURST, self._allowed + _SHARE * (began - self._since))
        self._since = began
        if self._allowed <= 0 or self._accepted is None:
            return False
        with self._one:
            self._update_seen(self._accepted)
        self._allowed -= time.monotonic() - began
        return True

    def _update_seen(self, accepted: AcceptedConnections) -> list[Accepted]:
        """Return what is open, and keep what of that no look has found before; end those whose host may not begin a handshake. Hold the lock."""
        there = accepted.look()
        new = [found for found in there if found.number not in self._met]
        self._met = {found.number for found in there}
        self._ended |= {found.number for found in new if not self._failed.admits(found.remote[0]) and end(found)}
        self._found += new
        return there

    def _came(self, seen: bool) -> None:
        self._uncalled += 1
        self._unseen |= not seen
        # All that was found, not what this thread found: the thread that found a connection may come here after that connection has called and left.
        with self._one:
            found, self._found = self._found, []
        self._take(found)
        self._again(_LONG if self._accepted is None else _EVERY)

    def _take(self, those: list[Accepted]) -> None:
        now = time.monotonic()
        for found in those:
            if found.number in self._taken:
                continue
            self._taken.add(found.number)
            if found.number in self._ended:
                self._refuse(found.remote, THROTTLED)
            elif found.remote not in self._called:
                self._pending[found.remote] = _Waiting(found, now)

    def _refuse(self, remote: Remote, why: str) -> None:
        self._uncalled -= 1
        self._refused.connection(*remote, why)

    def _again(self, after: float) -> None:
        if self._timer is None and not self._closed and (self._pending or self._uncalled > 0 or self._unseen):
            self._timer = self._loop.call_later(after, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._accepted is not None:
            self._look_at(self._accepted)
        gone = self._uncalled - len(self._pending)
        for _ in range(gone):
            self._refused.say("somewhere", _WHY, f"a connection is refused: {_WHY}")
        self._uncalled -= max(0, gone)
        self._again(_SOON if len(self._pending) > self._most else _EVERY)

    def _look_at(self, accepted: AcceptedConnections) -> None:
        self._unseen = False
        with self._one:
            there = self._update_seen(accepted)
            found, self._found = self._found, []
        self._take([*found, *there])
        with self._one:
            self._ended -= self._over
            self._over = set(self._ended)
        still = {found.number for found in there}
        self._called &= {found.remote for found in there}
        self._taken &= still
        for remote, waiting in list(self._pending.items()):
            if waiting.found.number not in still:
                del self._pending[remote]
                self._failed.note(remote[0])
                self._refuse(remote, _WHY)
        self._make_room()

    def _make_room(self) -> None:
        """End the oldest of those that have not called, if there are too many: of a host with more than its fair share at once, of others once they have been here for long."""
        hosts, now, left = Counter(host for host, _ in self._pending), time.monotonic(), _TURN
        for remote, waiting in list(self._pending.items()):
            if len(self._pending) <= self._most or left == 0:
                return
            if hosts[remote[0]] > self._most // FAIR or now - waiting.since > self._quiet:
                hosts[remote[0]] -= 1
                left -= 1
                del self._pending[remote]
                end(waiting.found)
                self._refuse(remote, CROWDED)
