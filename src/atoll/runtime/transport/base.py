"""Pipes, which carry blocks of bytes and live as long as one connection, and the transports that make them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from atoll.runtime.identity import ROLES, Credentials, Peer, admit

from .refused import OnRefused, nowhere

__all__ = [
    "BLOCK", "CLIENTS", "LARGEST", "SERVERS", "Accept", "Admission", "Buffer", "Listener", "Pipe", "PipeClosed", "Revoked", "Transport",
    "address_of", "nobody",
]  # fmt: skip

BLOCK = 1 << 20
"""Bytes of content in one block, at most."""
LARGEST = BLOCK + (1 << 12)
"""Bytes of one block with its header, at most: a pipe refuses more before it asks for memory."""

SERVERS = ("server",)
"""Roles that you dial, by default."""
CLIENTS = tuple(role for role in ROLES if role not in SERVERS)
"""Roles that dial, by default."""

Buffer: TypeAlias = bytes | bytearray | memoryview


class PipeClosed(ConnectionError):  # noqa: N818 - an event, not a fault
    """The connection under a pipe is gone: cut, closed, or refused."""


@runtime_checkable
class Pipe(Protocol):
    """Blocks of bytes in both directions, in order, with back-pressure; a pipe ends with its connection.

    One task sends at a time, and one receives. A pipe may also have ``post`` and ``feed``, which save passes of the
    event loop: see ``FramedPipe``; and ``joins``, if it copies the parts of a block.

    Attributes:
        peer: who is at the other end, according to TLS and the certificate.
        heard: when the last byte arrived, in seconds of the event loop's clock.
    """

    peer: Peer
    heard: float

    async def send(self, *parts: Buffer) -> None:
        """Send one block: the parts joined. Waits while the other end or the network is slow.

        Raises:
            PipeClosed: the connection is gone; whether the block arrived is not known.
        """

    async def recv(self) -> Buffer:
        """Wait for the next block.

        Raises:
            PipeClosed: the connection is gone, or what arrived is not a block (longer than ``LARGEST``, or cut off).
        """

    async def close(self) -> None:
        """End the connection; a second call does nothing. Blocks still waiting here may be lost."""


def address_of(pipe: Pipe) -> str:
    """Return the address of a pipe's other end, ``host:port``; nothing if its transport does not know it."""
    return str(getattr(pipe, "address", ""))


class Listener(Protocol):
    """A place where connections are accepted.

    Attributes:
        address: ``host:port`` with the port that the system chose if you asked for 0.
    """

    address: str

    async def close(self) -> None:
        """Stop listening and end every connection accepted here."""


Accept: TypeAlias = Callable[[Pipe], Awaitable[None]]
"""Called with each new pipe; the pipe lives on after the call returns, until it is closed."""

Revoked: TypeAlias = Callable[[int], bool]
"""Tells whether the certificate with a serial number is revoked; called at each connection."""


def nobody(serial: int) -> bool:
    """Say of every certificate that it is not revoked."""
    del serial
    return False


@dataclass(frozen=True)
class Admission:
    """What an end presents, and whom it accepts.

    Attributes:
        credentials: of this end; the other must be of the same project.
        revoked: called with the other's certificate, at each connection.
        roles: the roles whose certificates are accepted.
        on_refused: called about connections that are refused, see `atoll.runtime.transport.refused.RefusalLog`.
    """

    credentials: Credentials
    revoked: Revoked
    roles: tuple[str, ...]
    on_refused: OnRefused = nowhere

    def judge_certificate(self, certificate: bytes, me: Peer) -> Peer:
        """Return the owner of a certificate if this end accepts it.

        Args:
            certificate: PEM or DER, as TLS has verified it.
            me: this end.

        Raises:
            IdentityError: this end does not accept it.
        """
        return admit(certificate, project=me.project, roles=self.roles, revoked=self.revoked)


class Transport(ABC):
    """A way to connect parties that prove to each other who they are. To write one, implement ``_listen`` and ``_dial``.

    Attributes:
        name: its name in kits and settings.
    """

    name: str

    async def listen(
        self,
        address: str,
        credentials: Credentials,
        accept: Accept,
        revoked: Revoked = nobody,
        roles: Sequence[str] = CLIENTS,
        on_refused: OnRefused = nowhere,
    ) -> Listener:
        """Accept connections of the project's parties at an address.

        Args:
            address: ``host:port``; port 0 lets the system choose.
            credentials: of this end.
            accept: called with each new pipe.
            revoked: called at each connection.
            roles: the roles that are admitted.
            on_refused: called with (origin, reason, number) about connections that are refused.

        Raises:
            OSError: it cannot listen at the address.
        """
        return await self._listen(address, Admission(credentials, revoked, tuple(roles), on_refused), accept)

    async def dial(
        self,
        address: str,
        credentials: Credentials,
        server_name: str | None = None,
        revoked: Revoked = nobody,
        roles: Sequence[str] = SERVERS,
    ) -> Pipe:
        """Connect to a server of the project, or to another party that listens.

        Args:
            address: ``host:port``.
            credentials: of this end; the other must be of the same project.
            server_name: a DNS name or IP address that the other's certificate must hold; the address's host if None.
            revoked: called with the other's certificate.
            roles: the roles whose certificates are accepted.

        Raises:
            IdentityError: one end refuses the other; dialling again does not help.
            OSError: nothing could be reached (``PipeClosed`` is one).
        """
        return await self._dial(address, Admission(credentials, revoked, tuple(roles)), server_name)

    @abstractmethod
    async def _listen(self, address: str, admission: Admission, accept: Accept) -> Listener: ...

    @abstractmethod
    async def _dial(self, address: str, admission: Admission, server_name: str | None) -> Pipe: ...
