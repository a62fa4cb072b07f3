"""Pipes, which carry blocks of bytes and live as long as one connection, the transports that make them, and connections that are refused."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from atoll.core.errors import ConfigError, IdentityError

from ..identity import ROLES, Credentials, Peer, admit

__all__ = [
    "AT_ONCE",
    "BLOCK",
    "CLIENTS",
    "LARGEST",
    "OWN",
    "PENALTY",
    "SERVERS",
    "THROTTLED",
    "Accept",
    "Admission",
    "Buffer",
    "FailedHandshakes",
    "Listener",
    "OnRefused",
    "Pipe",
    "PipeClosed",
    "RefusalLog",
    "Revoked",
    "Transport",
    "address_of",
    "join_address",
    "nobody",
    "nowhere",
    "reason",
    "refusal",
    "split",
]


# ------------------------------------------------------------------ addresses of the form ``host:port``


def split(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``; an IPv6 address has brackets.

    Raises:
        ConfigError: the port or the host is missing.
    """
    host, _, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(
            f"{address!r} is not an address", where="address", remedy="give host:port, such as server.example.org:8443"
        )
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """Return the inverse of ``split``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# ------------------------------------------------------------------ what a refused end is told, and how it understands it: the same words over every transport


OWN = "this end's certificate"
"""``where`` of a dialler's ``IdentityError`` if the other end refuses this one; otherwise this end refuses the other."""

_LONGEST = 1000
_REMEDY = ". Remedy: "
_GENERAL = "check that both ends use kits of the same project that have not expired, and the server's name"


def reason(error: IdentityError) -> str:
    """Return a refusal as the other end is told: what is wrong and what to do, without places on this machine."""
    return (f"{error.what}{_REMEDY}{error.remedy}" if error.remedy else error.what)[:_LONGEST]


def refusal(address: str, told: str) -> IdentityError:
    """Return the error of the end that is refused.

    Args:
        address: the address that it dialled.
        told: what it was told; cut at 1,000 characters, without unprintable ones.
    """
    plain = "".join(character for character in told[:_LONGEST] if character.isprintable())
    what, _, remedy = plain.partition(_REMEDY)
    return IdentityError(f"no connection to {address}: {what}", where=OWN, remedy=remedy or _GENERAL)


# ------------------------------------------------------------------ the log of refused connections: repeated attempts do not fill the disk


_LOG = logging.getLogger("atoll.runtime")
_LOG_WINDOW = 10.0  # seconds
_LINES = 10  # of one origin and one reason in a window
_ORIGINS = 64  # pairs of origin and reason in a window
_OTHERS = ("other places", "for whatever reason")
_KINDS = 8  # pairs of origin and reason in a window that are told one by one

OnRefused: TypeAlias = Callable[[str, str, int], None]
"""Called with an origin, a reason, and how many connections from there were refused for it."""


def nowhere(origin: str, why: str, count: int) -> None:
    """Tell nobody about refused connections."""
    del origin, why, count


class RefusalLog:
    """Writes a line for each refusal. Of equal ones it writes the first ten in ten seconds, and then how many more there were.

    Args:
        on_refused: called with (origin, reason, number) for the first of equal ones, for eight kinds in ten seconds, and
            then once with the number of all others.
    """

    def __init__(self, on_refused: OnRefused = nowhere) -> None:
        self._on_refused = on_refused
        self._told = 0
        self._counts: dict[tuple[str, str], int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def say(self, origin: str, why: str, line: str) -> None:
        """Note a refusal.

        Args:
            origin: where the visitor comes from, or who it is: a host without its port, a party.
            why: the reason.
            line: the full log line.
        """
        key = (origin, why)
        if key not in self._counts and len(self._counts) >= _ORIGINS:
            key = _OTHERS
        count = self._counts[key] = self._counts.get(key, 0) + 1
        if count <= _LINES:
            _LOG.warning("%s", line)
        if count == 1 and self._told < _KINDS:
            self._told += 1
            self._on_refused(origin, why, 1)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LOG_WINDOW, self.close)

    def connection(self, host: str, port: int, why: str) -> None:
        """Note a refused connection."""
        self.say(host, why, f"a connection from {host}:{port} is refused: {why}")

    def close(self) -> None:
        """Write what was left out; later refusals are written again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for (origin, why), count in self._counts.items():
            if count > _LINES:
                _LOG.warning("%d more connections from %s were refused: %s", count - _LINES, origin, why)
        more = sum(self._counts.values()) - self._told
        if more > 0:
            self._on_refused(*_OTHERS, more)
        self._counts.clear()
        self._told = 0


# ------------------------------------------------------------------ hosts from which handshakes fail
#
# Hosts from which handshakes fail: a host that fails again and again has few handshakes at once, and others have theirs.


PENALTY = 1.0
"""Seconds that a visitor from a throttled host waits for its handshake, where it can be made to wait."""
AT_ONCE = 32
"""Visitors of a throttled host in that time."""
THROTTLED = "too many handshakes from its host have failed"
_FAILURES, _FAILURE_WINDOW, _HOSTS = 20, 10.0, 1024


class FailedHandshakes:
    """Counts the failed handshakes of each host. From 20 in 10 seconds on, a host is throttled until these are over.

    Args:
        clock: tells seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures: dict[str, tuple[int, float]] = {}
        self._allowed: dict[str, tuple[float, float]] = {}  # handshakes left to a throttled host, and since when

    def note(self, host: str) -> None:
        """Count a failed handshake."""
        now = self._clock()
        if len(self._failures) >= _HOSTS:
            self._failures = {host: found for host, found in self._failures.items() if now - found[1] < _FAILURE_WINDOW}
            self._allowed = {host: found for host, found in self._allowed.items() if host in self._failures}
        count, since = self._failures.get(host, (0, now))
        self._failures[host] = (count + 1, since) if now - since < _FAILURE_WINDOW else (1, now)

    def throttled(self, host: str) -> bool:
        """Tell whether many handshakes of a host have failed lately."""
        count, since = self._failures.get(host, (0, 0.0))
        return count >= _FAILURES and self._clock() - since < _FAILURE_WINDOW

    def admits(self, host: str) -> bool:
        """Tell whether a host may begin one more handshake now: a throttled one begins `AT_ONCE` in `PENALTY` seconds."""
        if not self.throttled(host):
            return True
        now = self._clock()
        left, since = self._allowed.get(host, (float(AT_ONCE), now))
        left = min(float(AT_ONCE), left + (now - since) * AT_ONCE / PENALTY)
        self._allowed[host] = (max(0.0, left - 1.0), now)
        return left >= 1.0


# ------------------------------------------------------------------ pipes, which carry blocks of bytes and live as long as one connection, and the transports that make them


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
        on_refused: called about connections that are refused, see `atoll.runtime.transport.base.RefusalLog`.
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
