"""Connections over gRPC: one call for each connection, whose two streams are the pipe. For networks whose proxies and load balancers need HTTP/2."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import logging
import os
import secrets
import socket
import stat
import struct
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from atoll.core.errors import IdentityError
from atoll.core.extras import need

from ..identity import Credentials, Peer, fits, peer_of, require_issued, sign
from .base import (
    LARGEST,
    THROTTLED,
    Accept,
    Admission,
    Buffer,
    FailedHandshakes,
    Listener,
    Pipe,
    PipeClosed,
    RefusalLog,
    Transport,
    join_address,
    reason,
    refusal,
    split,
)
from .sockets import CROWDED, FAIR, MOST, QUIET, UNWELCOME, listening, own

__all__ = [
    "CERTIFICATE",
    "OPTIONS",
    "Accepted",
    "AcceptedConnections",
    "DialledPipe",
    "GrpcPipe",
    "GrpcTransport",
    "Handshakes",
    "Remote",
    "aio",
    "draw_question",
    "end",
    "grpc",
    "has_files",
    "proof_of",
    "proven",
    "remote_of",
    "stay",
]


# ------------------------------------------------------------------ how the dialled end proves its name over gRPC
#
# In Python, a gRPC dialler cannot see the certificate that TLS has verified. It only knows that the project's authority
# issued it for the dialled name. Several parties may share that name (a gateway, one machine), or a thief may hold a key
# whose certificate was revoked. So the dialler sends a fresh random number, and the other end answers with its
# certificate and a signature over that number and the dialler's fingerprint. Nobody can sign in another's name, and a
# signature for one dialler is useless to another: a party in the middle cannot pass it on.


_ASKED, CERTIFICATE, _SIGNATURE = "atoll-challenge-bin", "atoll-certificate-bin", "atoll-signature-bin"
_PURPOSE = b"atoll listener 1\n"
_LENGTH = 32

Metadata = tuple[tuple[str, bytes], ...]


def draw_question() -> tuple[bytes, Metadata]:
    """Draw 32 random bytes; return them and the metadata that the dialler sends with its call."""
    number = secrets.token_bytes(_LENGTH)
    return number, ((_ASKED, number),)


def proof_of(credentials: Credentials, guest: Peer, metadata: Mapping[str, Any]) -> Metadata:
    """Return the answer of the dialled end.

    Args:
        credentials: of this end.
        guest: the party that dials, as TLS has verified it.
        metadata: of its call.

    Raises:
        IdentityError: the call has no number of 32 bytes.
    """
    number = metadata.get(_ASKED)
    if not isinstance(number, bytes) or len(number) != _LENGTH:
        raise IdentityError(
            f"{guest} asks for no proof of this end's name",
            where="call",
            remedy="run one version of Atoll at both ends",
        )
    signature = sign(_PURPOSE, _text(number, guest), credentials)
    return (CERTIFICATE, credentials.certificate), (_SIGNATURE, signature)


def proven(admission: Admission, me: Peer, number: bytes, metadata: Mapping[str, Any]) -> Peer:
    """Return the party that a proof belongs to, if this end accepts it.

    Args:
        admission: whom this end accepts.
        me: this end.
        number: the number that `draw_question` drew for this call.
        metadata: the answer.

    Raises:
        IdentityError: the other end presents no certificate, or one of a foreign authority, of another project or role,
            revoked, or not its own.
    """
    certificate, signature = metadata.get(CERTIFICATE), metadata.get(_SIGNATURE)
    if not isinstance(certificate, bytes) or not isinstance(signature, bytes):
        raise _unproven("the other end does not prove its name", "run one version of Atoll at both ends")
    peer = admission.judge_certificate(certificate, me)
    require_issued(certificate, admission.credentials.ca)
    if not fits(_PURPOSE, _text(number, me), signature, certificate):
        raise _unproven(
            f"the other end presents the certificate of {peer} without its key",
            "somebody else answers at this address: tell the project's provisioner",
        )
    return peer


def _text(number: bytes, dialler: Peer) -> bytes:
    return number + dialler.fingerprint.encode("ascii")


def _unproven(what: str, remedy: str) -> IdentityError:
    return IdentityError(what, where="connecting", remedy=remedy)


# ------------------------------------------------------------------ the connections that a library has accepted in this process
#
# The connections that a library has accepted in this process: who is at their far end, and how to end one before its handshake.
# A socket of this process is among its open files whoever opened it, so it can be found there by the port that it belongs to (proc(5),
# ``/proc/self/fd``), and shut down over a duplicate of its descriptor (dup(2), shutdown(2)). To the library it looks as if the far end had left.


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


# ------------------------------------------------------------------ connections that never became a call
#
# Connections that never became a call: gRPC does the handshakes itself, and reports neither who connects nor who fails.
# gRPC asks for the server's certificate before each handshake, and this module hooks in there. It looks at the process's own sockets
# (`atoll.runtime.transport.rpc`) for who has connected. A connection that ends without a call is logged, and counts as a failed handshake of
# its host. A host that fails again and again has its further connections ended before their handshake, all but some in a second; so have the
# oldest of a crowd that never calls. Where the system shows no sockets, every such connection is counted, and the log line has no address.


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


# ------------------------------------------------------------------ a gRPC call as a pipe


# TLS 1.3 only. gRPC has no setting for it in Python. The suites named here are TLS 1.2 suites that need an RSA key, which
# no certificate of a project has; TLS 1.3 has suites of its own, which this leaves alone. gRPC reads it at its first
# connection.
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-RSA-AES256-GCM-SHA384"
# A fork would wait for gRPC's threads to pause while it holds Python's lock. One of them may wait for that lock to look
# up who listens, so both would wait for ever. Processes that engines fork use no gRPC, so nothing needs to pause.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# gRPC would write a line to stderr for each handshake that fails: strangers could fill a disk.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

grpc: Any = need("grpc", "grpc", "a connection over gRPC")
aio: Any = need("grpc.aio", "grpc", "a connection over gRPC")

_LOG = logging.getLogger("atoll.runtime")
_PARTING = 0.5  # seconds
_FAILURES = (grpc.RpcError, aio.UsageError, aio.InternalError, asyncio.InvalidStateError)


@functools.cache
def stay() -> None:
    """Keep gRPC's event queue, which all loops share, for the life of this process; call it in a running loop.

    With its last channel or server, gRPC would end the queue and wait for the thread that fills it. That thread may
    wait for a loop that no longer reads (grpc/grpc#40989), and a forked process does not have it at all: the garbage
    collection would wait for ever.
    """
    aio.init_grpc_aio()


class GrpcPipe:
    """A pipe over one call.

    Attributes:
        joins: it joins the parts of a block.

    Args:
        peer: who is at the other end; ``address`` is where it connects from, at the end that listens.
        call: what reads and writes: a call at the end that dialled, the call's context at the other.
    """

    joins = True

    def __init__(self, peer: Peer, call: Any) -> None:
        self.peer = peer
        self.address = ""
        self.heard = asyncio.get_running_loop().time()
        self.gone = asyncio.Event()
        self._call = call
        self._loop = asyncio.get_running_loop()

    async def send(self, *parts: Buffer) -> None:
        """Send one block."""
        block = parts[0] if len(parts) == 1 and isinstance(parts[0], bytes) else b"".join(parts)
        if len(block) > LARGEST:
            raise PipeClosed(f"a block has {len(block)} bytes; {LARGEST} are allowed")
        if self.gone.is_set():
            raise PipeClosed("the pipe is closed")
        try:
            await self._call.write(block)
        except _FAILURES as error:
            raise PipeClosed(_why(error)) from error

    async def recv(self) -> bytes:
        """Wait for the next block."""
        if self.gone.is_set():
            raise PipeClosed("the pipe is closed")
        try:
            block = await self._call.read()
        except asyncio.CancelledError:  # of the call or of the caller?
            if self.gone.is_set() and not getattr(asyncio.current_task(), "cancelling", int)():
                raise PipeClosed("the pipe was closed") from None
            raise
        except _FAILURES as error:
            raise PipeClosed(_why(error)) from error
        if block is aio.EOF:
            raise PipeClosed("the other end closed the connection")
        self.heard = self._loop.time()
        found: bytes = block
        return found

    async def close(self) -> None:
        """End the call."""
        self.gone.set()


class DialledPipe(GrpcPipe):
    """The pipe at the end that dialled; it ends the channel with the call.

    Args:
        peer: who is at the other end.
        call: what reads and writes.
        channel: the channel of the call.
    """

    def __init__(self, peer: Peer, call: Any, channel: Any) -> None:
        super().__init__(peer, call)
        self._channel = channel

    async def close(self) -> None:
        """End the call, and let blocks in transit arrive."""
        if self.gone.is_set():
            return
        self.gone.set()
        try:
            async with asyncio.timeout(_PARTING):  # cancelling a call loses blocks in transit
                await self._call.done_writing()
                await self._call.code()
        except (TimeoutError, *_FAILURES):
            _LOG.debug("%s did not end the call in time", self.peer)
        finally:
            self._call.cancel()
            await self._channel.close()


def _why(error: BaseException) -> str:
    details = getattr(error, "details", None)
    return str(details()) if callable(details) else str(error)


# ------------------------------------------------------------------ connections over gRPC
#
# Connections over gRPC: one call for each connection, whose two streams are the pipe. For networks whose proxies and load balancers need HTTP/2.


_METHOD = "/atoll.Pipe/Run"
_WAIT = 15.0  # seconds

OPTIONS: list[tuple[str, int | str]] = [
    ("grpc.max_receive_message_length", LARGEST),
    ("grpc.max_send_message_length", LARGEST),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.optimization_target", "throughput"),
]
"""gRPC options of both ends."""
PATIENCE: list[tuple[str, int]] = [
    ("grpc.server_handshake_timeout_ms", 15_000),
    ("grpc.max_connection_idle_ms", 60_000),
]
"""gRPC options of the end that listens: how long a visitor may take to present a certificate, and then to call."""


class _Listening(grpc.GenericRpcHandler):  # type: ignore[misc]  # gRPC has no types
    def __init__(self, admission: Admission, accept: Accept) -> None:
        self.address = ""
        self.server: Any = None
        self._me = peer_of(admission.credentials.certificate)
        self._admission = admission
        self._accept = accept
        self._pipes: set[GrpcPipe] = set()
        self._refused = RefusalLog(admission.on_refused)
        self.handshakes = Handshakes(self._refused)

    def service(self, details: Any) -> Any:
        """Return the handler of a method; gRPC calls this."""
        return grpc.stream_stream_rpc_method_handler(self._run) if details.method == _METHOD else None

    async def _run(self, requests: Any, context: Any) -> None:
        del requests  # read from the context
        self.handshakes.note_call(context.peer())
        certificate = context.auth_context().get("x509_pem_cert", [b""])[0]
        try:
            peer = self._admission.judge_certificate(certificate, self._me)
            proof = proof_of(self._admission.credentials, peer, dict(context.invocation_metadata() or ()))
        except IdentityError as error:
            self.handshakes.count_failure(context.peer())
            host, port = remote_of(context.peer()) or (context.peer(), 0)
            self._refused.connection(host, port, str(error))
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason(error))
        await context.send_initial_metadata(proof)
        pipe = GrpcPipe(peer, context)
        pipe.address = join_address(*(remote_of(context.peer()) or (context.peer(), 0)))
        self._pipes.add(pipe)
        try:
            await self._accept(pipe)
            await pipe.gone.wait()
        finally:
            pipe.gone.set()
            self._pipes.discard(pipe)

    async def close(self) -> None:
        self.handshakes.close()
        self._refused.close()
        for pipe in list(self._pipes):
            await pipe.close()
        await self.server.stop(0.5)


class GrpcTransport(Transport):
    """gRPC over TLS 1.3 with certificates at both ends."""

    name = "grpc"

    async def _listen(self, address: str, admission: Admission, accept: Accept) -> Listener:
        stay()
        host, asked_for = split(address)
        mine = admission.credentials
        made = _Listening(admission, accept)
        server = aio.server(handlers=(made,), options=[*OPTIONS, *PATIENCE, ("grpc.so_reuseport", 0)])
        made.server = server
        config = grpc.ssl_server_certificate_configuration([(mine.key, mine.certificate)], root_certificates=mine.ca)
        # gRPC calls this at each connection and is told that nothing has changed; the call itself is what matters.
        proof = grpc.dynamic_ssl_server_credentials(
            config, made.handshakes.note_connection, require_client_authentication=True
        )
        try:
            port = server.add_secure_port(address, proof)
        except RuntimeError as error:
            await server.stop(None)
            raise await _why_not(host, asked_for) from error
        made.handshakes.at(port, host)
        await server.start()
        made.address = join_address(host, port)
        return made

    async def _dial(self, address: str, admission: Admission, server_name: str | None) -> Pipe:
        stay()
        mine = admission.credentials
        me = own(mine)
        name = server_name or split(address)[0]
        secured = grpc.ssl_channel_credentials(mine.ca, mine.key, mine.certificate)
        named = [("grpc.ssl_target_name_override", name), ("grpc.use_local_subchannel_pool", 1)]
        channel = aio.secure_channel(address, secured, options=[*OPTIONS, *named])
        number, question = draw_question()
        call = channel.stream_stream(_METHOD)(metadata=question)
        try:
            async with asyncio.timeout(_WAIT):
                answer = dict(await call.initial_metadata() or ())
                if CERTIFICATE not in answer:
                    raise await _failure(address, call)
            return DialledPipe(proven(admission, me, number, answer), call, channel)
        except BaseException:
            call.cancel()
            await channel.close()
            raise


async def _why_not(host: str, port: int) -> OSError:
    """Return why an address cannot be listened at: gRPC does not say, the system does."""
    try:
        sockets = await listening(host, port)
    except OSError as error:
        return error
    for sock in sockets:
        sock.close()
    return OSError("gRPC cannot, and the system does not say why")


async def _failure(address: str, call: Any) -> Exception:
    """Return why a call failed: a refusal, or nothing listens there."""
    code, details = await call.code(), await call.details()
    if code is grpc.StatusCode.PERMISSION_DENIED:
        return refusal(address, details)
    if "SSL_ERROR" not in details and "Verification" not in details:
        more = f"; {UNWELCOME}" if "ocket closed" in details or "reset" in details else ""
        return PipeClosed(f"no connection to {address}: {details}{more}")
    return IdentityError(
        f"no connection to {address}: {details}",
        where="connecting",
        remedy="check that both ends use kits of the same project that have not expired, and the server's name",
    )
