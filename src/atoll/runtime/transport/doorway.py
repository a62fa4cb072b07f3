"""Connections that have not proved who they are: bounded in number and time, so that a silent crowd holds nobody up."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter

from .base import PipeClosed
from .connecting import shake_hands
from .ends import SecuredEnd
from .throttle import AT_ONCE, PENALTY, THROTTLED, FailedHandshakes

__all__ = ["CROWDED", "FAIR", "HANDSHAKE", "MOST", "QUIET", "Doorway", "Visitor", "secure_socket"]

HANDSHAKE = 15.0
"""Seconds that a handshake may take."""
MOST, QUIET = 256, 5.0
"""Visitors who have not proved who they are, and the seconds after which an idle one must leave if there are more."""
FAIR = 4
"""A host's fair share is the whole, divided by this."""
CROWDED = "it sent nothing, and too many such connections wait"
_SOON = 0.05


async def secure_socket(sock: ssl.SSLSocket, visitor: Visitor | None = None) -> tuple[SecuredEnd, bytes]:
    """Do the TLS handshake; return this end and the certificate that the other end presented.

    Args:
        sock: a connected socket.
        visitor: the visitor who shakes hands, at the end that listens.

    Raises:
        ssl.SSLError: one end refuses the other.
        OSError: the connection is broken, or it took too long.
    """
    try:
        async with asyncio.timeout(HANDSHAKE) as limit:
            if visitor is not None:
                visitor.limit = limit
            end = await shake_hands(sock, (lambda: None) if visitor is None else visitor.moves)
    except TimeoutError:
        crowded = visitor is not None and visitor.turned_out
        why = CROWDED if crowded else f"the handshake took more than {HANDSHAKE:g} s"
        raise PipeClosed(why) from None
    finally:
        if visitor is not None:
            visitor.limit = None
    certificate = sock.getpeercert(binary_form=True)
    if certificate is None:
        raise PipeClosed("the other end presented no certificate")
    return end, certificate


class Visitor:
    """Someone who has connected.

    Attributes:
        sock: the accepted socket.
        host: the visitor's host.
        port: the visitor's port.
        moved: when the visitor last did something, in seconds of the event loop's clock.
        limit: how long the handshake may take; None before and after it.
        spoke: whether anything came from the visitor.
        turned_out: whether the visitor had to make room for others.
    """

    def __init__(self, sock: socket.socket, host: str, port: int) -> None:
        self.sock = sock
        self.host = host
        self.port = port
        self.moved = asyncio.get_running_loop().time()
        self.limit: asyncio.Timeout | None = None
        self.spoke = False
        self.turned_out = False

    def moves(self) -> None:
        """Note that the visitor did something."""
        self.spoke = True
        self.moved = asyncio.get_running_loop().time()

    def turn_out(self) -> None:
        """End the visitor's handshake now."""
        if self.limit is not None and not self.turned_out:
            self.turned_out = True
            self.limit.reschedule(asyncio.get_running_loop().time())


class Doorway:
    """Room for a number of visitors who have not proved who they are; others wait outside, where the system queues them.

    When it is full, one must leave: of the host with the most visitors, if these are more than its fair share, the one
    that has said nothing for longest, at once. So a silent crowd of one host passes as fast as it connects, and delays
    nobody. Of other visitors, the one that has been idle for longest must leave once that is longer than ``quiet``.

    A host from which handshakes fail is throttled: its visitors wait ``PENALTY`` seconds before theirs begin, and few of
    them at once.

    Args:
        most: how many visitors.
        quiet: seconds.
    """

    def __init__(self, most: int = MOST, quiet: float = QUIET) -> None:
        self._most = most
        self._quiet = quiet
        self._inside: set[Visitor] = set()
        self._left = asyncio.Event()
        self._failed = FailedHandshakes(asyncio.get_running_loop().time)

    def enter(self, visitor: Visitor) -> None:
        """Register a visitor; call it only if there is room."""
        self._inside.add(visitor)

    def leave(self, visitor: Visitor) -> None:
        """Remove a visitor who has proved who they are, or is gone. A second call does nothing."""
        self._inside.discard(visitor)
        self._left.set()

    def note_failure(self, visitor: Visitor) -> None:
        """Note that a visitor who spoke has shown no certificate that counts."""
        if visitor.spoke:
            self._failed.note(visitor.host)

    async def pause(self, visitor: Visitor) -> None:
        """Let a visitor from a throttled host wait; when more of them wait than may, the oldest must leave.

        Raises:
            PipeClosed: this one had to leave.
        """
        if not self._failed.throttled(visitor.host):
            return
        waiting = [one for one in self._inside if one.host == visitor.host and one.limit is not None]
        if len(waiting) >= AT_ONCE:
            min(waiting, key=lambda one: one.moved).turn_out()
        try:
            async with asyncio.timeout(2 * PENALTY) as visitor.limit:
                await asyncio.sleep(PENALTY)
        except TimeoutError:
            raise PipeClosed(THROTTLED) from None
        finally:
            visitor.limit = None

    async def room(self) -> None:
        """Wait until there is room for one more."""
        while len(self._inside) >= self._most:
            self._left.clear()
            left = self._made_room()
            try:
                async with asyncio.timeout(left):
                    await self._left.wait()
            except TimeoutError:
                continue

    def _made_room(self) -> float:
        """Turn out one visitor, if one must leave now; return the seconds until the next look."""
        waiting = [visitor for visitor in self._inside if not visitor.turned_out and visitor.limit is not None]
        hosts = Counter(visitor.host for visitor in waiting)
        crowd, count = hosts.most_common(1)[0] if hosts else ("", 0)
        if count > self._most // FAIR:
            silent = [visitor for visitor in waiting if visitor.host == crowd and not visitor.spoke]
            if silent:
                min(silent, key=lambda visitor: visitor.moved).turn_out()
                return self._quiet
        oldest = min(waiting, key=lambda visitor: visitor.moved, default=None)
        if oldest is None:
            return _SOON
        left = self._quiet - (asyncio.get_running_loop().time() - oldest.moved)
        if left > 0:
            return min(left, _SOON)
        oldest.turn_out()
        return self._quiet
