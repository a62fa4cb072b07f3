"""Connections inside one process, without a network, for tests and for parties that share a process."""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from typing import Any

from atoll.core.errors import IdentityError

from ..identity import Peer, peer_of
from .base import LARGEST, Accept, Admission, Buffer, Listener, Pipe, PipeClosed, Transport, reason, refusal

__all__ = ["MemoryPipe", "MemoryTransport", "pair"]

_WAITING = 4  # blocks a pipe holds before its sender waits


class MemoryPipe:
    """One end of a connection inside a process.

    Args:
        peer: the party at the other end, unverified.
    """

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.heard = 0.0
        self.closed = False
        self._other: MemoryPipe = self
        self._blocks: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._room = asyncio.Event()

    def join(self, other: MemoryPipe) -> None:
        """Connect two ends to one pipe."""
        self._other, other._other = other, self

    async def send(self, *parts: Buffer) -> None:
        """Hand one block to the other end."""
        block = b"".join(parts)
        if len(block) > LARGEST:
            self._end()
            raise PipeClosed(f"a block has {len(block)} bytes; {LARGEST} are allowed")
        other = self._other
        while len(other._blocks) >= _WAITING and not self.closed:
            other._room.clear()
            await other._room.wait()
        if self.closed:
            raise PipeClosed("the pipe is closed")
        other._blocks.append(block)
        other.heard = asyncio.get_running_loop().time()
        other._changed.set()

    async def recv(self) -> bytes:
        """Wait for the next block."""
        while not self._blocks:
            if self.closed:
                raise PipeClosed("the pipe is closed")
            self._changed.clear()
            await self._changed.wait()
        self._room.set()
        return self._blocks.popleft()

    async def close(self) -> None:
        """Close both ends; blocks not received yet are lost."""
        self._end()

    def _end(self) -> None:
        for end in (self, self._other):
            end.closed = True
            end._changed.set()
            end._room.set()


def pair(left: Peer, right: Peer) -> tuple[MemoryPipe, MemoryPipe]:
    """Return the two ends of a new connection: the pipe that ``left`` holds, and the one that ``right`` holds."""
    held, other = MemoryPipe(right), MemoryPipe(left)
    held.join(other)
    return held, other


class _Place:
    def __init__(self, transport: MemoryTransport, address: str, admission: Admission, accept: Accept) -> None:
        self.address = address
        self.peer = peer_of(admission.credentials.certificate)
        self.admission = admission
        self.tasks: set[asyncio.Task[Any]] = set()
        self.pipes: set[MemoryPipe] = set()
        self._accept = accept
        self._transport = transport

    def took(self, pipe: MemoryPipe) -> None:
        self.pipes = {other for other in self.pipes if not other.closed} | {pipe}
        task = asyncio.ensure_future(self._accept(pipe))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def close(self) -> None:
        self._transport.places.pop(self.address, None)
        for pipe in self.pipes:
            await pipe.close()
        for task in self.tasks:
            task.cancel()


class MemoryTransport(Transport):
    """A private set of addresses inside one process and one event loop.

    Certificates are read and admitted as usual, but parties need not prove that they hold the key, and server names are
    not checked.
    """

    name = "memory"

    def __init__(self) -> None:
        self.places: dict[str, _Place] = {}

    async def _listen(self, address: str, admission: Admission, accept: Accept) -> Listener:
        host, _, port = address.rpartition(":")
        if port == "0":
            address = f"{host}:{1 + len(self.places)}"
        if address in self.places:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        place = self.places[address] = _Place(self, address, admission, accept)
        return place

    async def _dial(self, address: str, admission: Admission, server_name: str | None) -> Pipe:
        place = self.places.get(address)
        if place is None:
            raise ConnectionRefusedError(f"nothing listens at {address}")
        certificate = admission.credentials.certificate
        try:
            place.admission.judge_certificate(certificate, place.peer)
        except IdentityError as error:
            raise refusal(address, reason(error)) from error
        if place.peer.role not in admission.roles:
            raise refusal(address, f"{place.peer} cannot act as {' or '.join(admission.roles)}")
        if admission.revoked(place.peer.serial):
            raise PipeClosed(f"the certificate of {place.peer} was revoked")
        held, other = pair(peer_of(certificate), place.peer)
        place.took(other)
        return held
