"""Connections that have not proved who they are: bounded in number and time, so that a silent crowd holds nobody up."""

from __future__ import annotations

import asyncio
import socket
import ssl

from .base import PipeClosed
from .connecting import shake_hands
from .ends import SecuredEnd

__all__ = ["HANDSHAKE", "Doorway", "Visitor", "secured"]

HANDSHAKE = 15.0
"""Seconds that a handshake may take."""


async def secured(sock: ssl.SSLSocket, visitor: Visitor | None = None) -> tuple[SecuredEnd, bytes]:
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
        why = (
            "it sent nothing, and too many such connections wait"
            if crowded
            else f"the handshake took more than {HANDSHAKE:g} s"
        )
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
        turned_out: whether the visitor had to make room for others.
    """

    def __init__(self, sock: socket.socket, host: str, port: int) -> None:
        self.sock = sock
        self.host = host
        self.port = port
        self.moved = asyncio.get_running_loop().time()
        self.limit: asyncio.Timeout | None = None
        self.turned_out = False

    def moves(self) -> None:
        """Note that the visitor did something."""
        self.moved = asyncio.get_running_loop().time()

    def turn_out(self) -> None:
        """End the visitor's handshake now."""
        if self.limit is not None and not self.turned_out:
            self.turned_out = True
            self.limit.reschedule(asyncio.get_running_loop().time())


class Doorway:
    """Room for a number of visitors who have not proved who they are; others wait outside, where the system queues them.

    When it is full, the visitor that has been idle for longest must leave once that is longer than ``quiet``. A silent
    crowd thus passes ``most`` at a time, every ``quiet`` seconds, and a visitor among them who presents a certificate
    is in at once.

    Args:
        most: how many visitors.
        quiet: seconds.
    """

    def __init__(self, most: int = 256, quiet: float = 5.0) -> None:
        self._most = most
        self._quiet = quiet
        self._inside: set[Visitor] = set()
        self._left = asyncio.Event()

    def enter(self, visitor: Visitor) -> None:
        """Register a visitor; call it only if there is room."""
        self._inside.add(visitor)

    def leave(self, visitor: Visitor) -> None:
        """Remove a visitor who has proved who they are, or is gone. A second call does nothing."""
        self._inside.discard(visitor)
        self._left.set()

    async def room(self) -> None:
        """Wait until there is room for one more."""
        while len(self._inside) >= self._most:
            self._left.clear()
            waiting = [visitor for visitor in self._inside if not visitor.turned_out]
            oldest = min(waiting, key=lambda visitor: visitor.moved, default=None)
            left = self._quiet
            if oldest is not None:
                left -= asyncio.get_running_loop().time() - oldest.moved
                if left <= 0:
                    oldest.turn_out()
                    left = self._quiet
            try:
                async with asyncio.timeout(left):
                    await self._left.wait()
            except TimeoutError:
                continue
