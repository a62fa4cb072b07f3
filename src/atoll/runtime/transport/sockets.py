"""Sockets: connecting without waiting, credentials of TLS, and connections that have not proved who they are."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import tempfile
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from atoll.core.errors import IdentityError
from atoll.core.extras import need

from ..identity import Credentials, Peer, peer_of
from .base import AT_ONCE, OWN, PENALTY, THROTTLED, FailedHandshakes, PipeClosed
from .framed import SecuredEnd

__all__ = [
    "CROWDED",
    "FAIR",
    "HANDSHAKE",
    "MOST",
    "QUIET",
    "UNWELCOME",
    "PendingConnections",
    "PendingConnection",
    "client_context",
    "connect_socket",
    "listening",
    "own",
    "secure_socket",
    "server_context",
    "shake_hands",
]


# ------------------------------------------------------------------ connects sockets, waiting only in the event loop


_BACKLOG = 1024  # connections that wait to be accepted


async def listening(host: str, port: int) -> list[socket.socket]:
    """Return sockets that listen at every address of a host.

    Raises:
        OSError: it cannot listen at one of them; the caller names it.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, kind, proto, _, address in dict.fromkeys(found):
            sock = socket.socket(family, kind, proto)
            sockets.append(sock)
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
            sock.listen(_BACKLOG)
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    return sockets


async def connect_socket(host: str, port: int) -> socket.socket:
    """Return a socket connected to the first address of a host that answers.

    Raises:
        OSError: none answers.
    """
    loop = asyncio.get_running_loop()
    last = OSError(f"{host} has no address")
    for family, kind, proto, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, proto)
        try:
            sock.setblocking(False)
            await loop.sock_connect(sock, address)
            return sock
        except OSError as error:
            sock.close()
            last = error
        except BaseException:
            sock.close()
            raise
    raise last


async def shake_hands(sock: ssl.SSLSocket, moves: Callable[[], None] = lambda: None) -> SecuredEnd:
    """Do a TLS handshake, without a time limit.

    Args:
        sock: a connected socket.
        moves: called whenever the other end does something.

    Raises:
        ssl.SSLError: one end refuses the other.
        OSError: the connection is broken.
    """
    loop = asyncio.get_running_loop()
    while True:
        try:
            sock.do_handshake()
            return SecuredEnd(sock)
        except ssl.SSLWantReadError:
            await _ready(loop.add_reader, loop.remove_reader, sock)
        except ssl.SSLWantWriteError:
            await _ready(loop.add_writer, loop.remove_writer, sock)
        moves()


async def _ready(begin: Callable[..., None], end: Callable[..., object], sock: socket.socket) -> None:
    """Wait until a socket can be read or written."""
    future = asyncio.get_running_loop().create_future()
    begin(sock, _set, future)
    try:
        await future
    finally:
        end(sock)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


# ------------------------------------------------------------------ connections that have not proved who they are
#
# Connections that have not proved who they are: bounded in number and time, so that a silent crowd holds nobody up.


HANDSHAKE = 15.0
"""Seconds that a handshake may take."""
MOST, QUIET = 256, 5.0
"""Visitors who have not proved who they are, and the seconds after which an idle one must leave if there are more."""
FAIR = 4
"""A host's fair share is the whole, divided by this."""
CROWDED = "it sent nothing, and too many such connections wait"
_SOON = 0.05


async def secure_socket(sock: ssl.SSLSocket, visitor: PendingConnection | None = None) -> tuple[SecuredEnd, bytes]:
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


class PendingConnection:
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

    def reject(self) -> None:
        """End the visitor's handshake now."""
        if self.limit is not None and not self.turned_out:
            self.turned_out = True
            self.limit.reschedule(asyncio.get_running_loop().time())


class PendingConnections:
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
        self._inside: set[PendingConnection] = set()
        self._left = asyncio.Event()
        self._failed = FailedHandshakes(asyncio.get_running_loop().time)

    def enter(self, visitor: PendingConnection) -> None:
        """Register a visitor; call it only if there is room."""
        self._inside.add(visitor)

    def leave(self, visitor: PendingConnection) -> None:
        """Remove a visitor who has proved who they are, or is gone. A second call does nothing."""
        self._inside.discard(visitor)
        self._left.set()

    def note_failure(self, visitor: PendingConnection) -> None:
        """Note that a visitor who spoke has shown no certificate that counts."""
        if visitor.spoke:
            self._failed.note(visitor.host)

    async def pause(self, visitor: PendingConnection) -> None:
        """Let a visitor from a throttled host wait; when more of them wait than may, the oldest must leave.

        Raises:
            PipeClosed: this one had to leave.
        """
        if not self._failed.throttled(visitor.host):
            return
        waiting = [one for one in self._inside if one.host == visitor.host and one.limit is not None]
        if len(waiting) >= AT_ONCE:
            min(waiting, key=lambda one: one.moved).reject()
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
        # The crowd's own connections go first, and only silent ones: a host must not be able to push others out.
        if count > self._most // FAIR:
            silent = [visitor for visitor in waiting if visitor.host == crowd and not visitor.spoke]
            if silent:
                min(silent, key=lambda visitor: visitor.moved).reject()
                return self._quiet
        oldest = min(waiting, key=lambda visitor: visitor.moved, default=None)
        if oldest is None:
            return _SOON
        left = self._quiet - (asyncio.get_running_loop().time() - oldest.moved)
        if left > 0:
            return min(left, _SOON)
        oldest.reject()
        return self._quiet


# ------------------------------------------------------------------ python TLS 1.3 contexts from credentials in memory


def server_context(credentials: Credentials) -> ssl.SSLContext:
    """Return the context of the end that is dialled: it demands a certificate of the same authority.

    Raises:
        IdentityError: certificate, key and authority cannot be read, or do not belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0  # no session resumption: each connection proves who it is
    return _load_context(context, credentials)


def client_context(credentials: Credentials) -> ssl.SSLContext:
    """Return the context of the end that dials: it demands a certificate of the same authority, with the name that was dialled.

    Raises:
        IdentityError: certificate, key and authority cannot be read, or do not belong together.
    """
    return _load_context(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), credentials)


def _load_context(context: ssl.SSLContext, credentials: Credentials) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_verify_locations(cadata=credentials.ca.decode("ascii"))
        with tempfile.TemporaryFile() as holder:  # the ssl module reads keys from files only
            holder.write(credentials.certificate.strip() + b"\n" + credentials.key.strip() + b"\n")
            holder.flush()
            _load_chain(context, holder.fileno(), credentials)
    except (ssl.SSLError, ValueError) as error:
        raise IdentityError(
            f"certificate, key and authority do not work together: {error}",
            where="credentials",
            remedy="use the three files of one kit as `atoll provision` made them",
        ) from error
    return context


def _load_chain(context: ssl.SSLContext, number: int, credentials: Credentials) -> None:
    # The ssl module wants a path. A file without a name leaves no key on the disk, whenever the process is killed.
    nameless = Path(f"/proc/self/fd/{number}")
    if nameless.exists():
        context.load_cert_chain(nameless)
        return
    handle, name = tempfile.mkstemp()  # readable by the owner only
    try:
        os.write(handle, credentials.certificate.strip() + b"\n" + credentials.key.strip() + b"\n")
        os.close(handle)
        context.load_cert_chain(name)
    finally:
        Path(name).unlink()


# ------------------------------------------------------------------ checks that a party makes of its own certificate before it dials


UNWELCOME = "it may not take this end's certificate: see the log of the server"
"""Reported when a connection ends right after the handshake: in TLS 1.3 the dialler's certificate is checked after the dialler is done."""


def own(credentials: Credentials, now: datetime | None = None) -> Peer:
    """Return who this end is, if its certificate is valid today.

    Args:
        credentials: of this end.
        now: the time; None asks the clock.

    Raises:
        IdentityError: the certificate has expired, is not valid yet, or belongs to no party.
    """
    x509 = need("cryptography.x509", "net", "reading a certificate")
    me = peer_of(credentials.certificate)
    found = x509.load_pem_x509_certificate(credentials.certificate)
    begin, end = found.not_valid_before_utc, found.not_valid_after_utc
    now = now or datetime.now(UTC)
    if begin <= now <= end:
        return me
    words = f"expired on {end:%Y-%m-%d %H:%M}" if now > end else f"is valid from {begin:%Y-%m-%d %H:%M} only"
    raise IdentityError(
        f"the certificate of {me} {words} UTC; it is {now:%Y-%m-%d %H:%M} here",
        where=OWN,
        remedy=f"if the clock is right, ask for a new kit: atoll provision PROJECT --renew {me.name}",
    )
