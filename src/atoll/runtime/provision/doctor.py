"""``atoll doctor KIT``: checks everything between a kit and its work, one line per step."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import math
import secrets
import socket
import ssl
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from atoll.core.errors import AtollError
from atoll.core.requests.wire import unpack_error
from atoll.runs.versions import versions

from ..identity import SITES, admit
from ..line import Line, Settings, dial_line
from ..line.frames import LineHello, Violation, parts_of, read_hello, write_hello
from ..transport import Pipe, PipeClosed, transport
from .kit import Kit, Way
from .kit_checks import (
    Finding,
    Step,
    authorities_of,
    check_authority,
    check_confinement,
    check_disk,
    check_handles,
    check_own_port,
    check_paper,
    find_fault,
)

__all__ = [
    "SKEW",
    "Finding",
    "Greeting",
    "advice",
    "check_reach",
    "check_talk",
    "client_context",
    "compare_answers",
    "examine",
    "greet",
    "plain_words",
    "take_leave",
    "visit",
]


# ------------------------------------------------------------------ what the doctor sends when it only checks, so that no server takes its visit for a party that failed


_METHOD = b"/atoll.Pipe/Run"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # RFC 9113, section 3.4
_DATA, _HEADERS, _RESET, _SETTINGS, _AWAY = 0, 1, 3, 4, 7  # RFC 9113, section 6
_END_STREAM, _END_HEADERS = 1, 4
_MOST = 1 << 16  # bytes of an answer that are read


def visit() -> LineHello:
    """Return the first frame of an end that wants no line."""
    return LineHello(secrets.token_bytes(16), refused="a visit of atoll doctor")


def take_leave(wrapped: ssl.SSLSocket, transport: str, host: str, heard: bytes = b"") -> None:
    """Say after a handshake what it was for, and wait for the server to close: data in transit would be lost otherwise.

    Args:
        wrapped: the socket after its handshake, with a timeout.
        transport: ``tcp`` or ``grpc``.
        host: the name that was dialled.
        heard: what the server has said so far.

    Raises:
        OSError: the connection is gone, or nothing arrived in time.
    """
    hello = b"".join(parts_of(visit()))
    if transport == "tcp":
        wrapped.sendall(struct.pack("<I", len(hello)) + hello)
        while wrapped.recv(1 << 12):  # its welcome, then its end
            pass
        return
    wrapped.sendall(_call(host, hello))
    for kind, flags in _read_frames(wrapped, heard):
        if kind in (_RESET, _AWAY) or (kind == _HEADERS and flags & _END_STREAM):
            return


def _call(host: str, message: bytes) -> bytes:
    """Return one gRPC call with one message, as bytes of HTTP/2: there is no other way to make it over a given connection."""
    from ..transport.rpc import draw_question  # it loads gRPC, which only a kit of that transport needs

    headers = {
        b":method": b"POST", b":scheme": b"https", b":path": _METHOD, b":authority": host.encode(),
        b"content-type": b"application/grpc", b"te": b"trailers",
        **{name.encode(): base64.b64encode(value) for name, value in draw_question()[1]},  # as gRPC writes names that end in -bin
    }  # fmt: skip
    # Literal fields without indexing, new names (RFC 7541, section 6.2.2); lengths below 127 take one byte.
    block = b"".join(b"\0%c%b%c%b" % (len(name), name, len(value), value) for name, value in headers.items())
    data = b"\0" + struct.pack(">I", len(message)) + message  # gRPC's own length
    return (
        _PREFACE
        + _frame(_SETTINGS, 0, 0, b"")
        + _frame(_HEADERS, _END_HEADERS, 1, block)
        + _frame(_DATA, _END_STREAM, 1, data)
    )


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return struct.pack(">I", len(content))[1:] + struct.pack(">BBI", kind, flags, stream) + content


def _read_frames(wrapped: ssl.SSLSocket, seen: bytes) -> Iterator[tuple[int, int]]:
    """Yield type and flags of the frames that arrive."""
    while len(seen) < _MOST and (more := wrapped.recv(1 << 12)):
        seen += more
        while len(seen) >= 9 and len(seen) >= 9 + (size := int.from_bytes(seen[:3], "big")):
            yield seen[3], seen[4]
            seen = seen[9 + size :]


# ------------------------------------------------------------------ one TLS handshake, and what its failures mean


_ALPN = {"grpc": ["h2"]}


@dataclass(frozen=True)
class Greeting:
    """The result of a handshake.

    Attributes:
        version: of TLS.
        certificate: the server's, DER.
    """

    version: str
    certificate: bytes


def client_context(kit: Kit) -> ssl.SSLContext:
    """Return a TLS 1.3 context with the kit's certificate that trusts only the kit's authority; ``admit`` compares names."""
    kit.credentials()  # its own errors are clearer than OpenSSL's
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=kit.bytes_of("ca.pem").decode())
    secret = kit.passphrase
    context.load_cert_chain(kit.folder / "certificate.pem", kit.folder / "key.pem", password=secret or (lambda: b""))
    if kit.transport in _ALPN:
        context.set_alpn_protocols(_ALPN[kit.transport])
    return context


def greet(kit: Kit, host: str, plain: socket.socket, patience: float) -> Greeting:
    """Do one handshake; on return the server has accepted the certificate, unless it is silent.

    In TLS 1.3 a client is done before the server has checked its certificate: a refusal arrives as an alert afterwards.

    Args:
        kit: the kit whose certificate is presented.
        host: the name that was dialled.
        plain: a connected socket, closed afterwards.
        patience: seconds for each step.

    Raises:
        OSError: it failed; ``ssl.SSLError`` says why.
    """
    with plain, client_context(kit).wrap_socket(plain, server_hostname=host) as wrapped:
        made = Greeting(wrapped.version() or "?", wrapped.getpeercert(binary_form=True) or b"")
        wrapped.settimeout(min(patience, 1.0))
        heard = b""
        with _silent():
            heard = wrapped.recv(1)
            if not heard:
                raise ConnectionResetError("the server ended the connection after the handshake")
        with suppress(OSError):
            take_leave(wrapped, kit.transport, host, heard)
        return made


@contextmanager
def _silent() -> Iterator[None]:
    """Treat silence as success: neither alert nor data means that the server waits for us."""
    try:
        yield
    except TimeoutError:
        return


_ADVICE = (
    ("certificate has expired", "renew the certificate that expired (atoll provision PROJECT --renew NAME), and compare the clocks"),
    ("not yet valid", "set this machine's clock: it is behind the server certificate's first day"),
    ("hostname mismatch", "use an address that the server's certificate names, or renew the server's kit with this one in project.yaml"),
    ("ip address mismatch", "use an address that the server's certificate names, or renew the server's kit with this one in project.yaml"),
    ("unable to get local issuer", "the server is of another project or authority: compare ca.pem here and there"),
    ("self-signed", "the server is of another project or authority: compare ca.pem here and there"),
    ("unknown ca", "the server does not know this kit's authority: compare ca.pem here and there"),
    ("wrong_version_number", "what answers speaks no TLS: check host and port, and proxies on the way"),
    ("version", "something on the way speaks an older TLS: let TLS 1.3 pass end to end, without inspection"),
    ("unsuitable certificate purpose", "what answers uses the kit of a client: start the server with its own kit"),
)  # fmt: skip


def plain_words(error: OSError) -> str:
    """Describe a failure without numbers of source lines."""
    said = getattr(error, "verify_message", "") or getattr(error, "reason", "") or error.strerror or str(error)
    return f"the handshake failed: {said}"


def advice(error: OSError, kit: Kit) -> str:
    """Return what to do about a failure."""
    said = f"{plain_words(error)} {error}".lower().replace("tlsv1_alert_", "").replace("unknown_ca", "unknown ca")
    for word, advice in _ADVICE:
        if word in said or word in said.replace("_", " "):
            return advice
    return f"read the server's log: it says why it refused {kit.role} {kit.name!r}"


# ------------------------------------------------------------------ what the server says
#
# What the server says: its clock and its version. Admins and auditors ask over a line; a site's second line would end its first.


SKEW = 60.0
"""Seconds between two clocks; beyond that, certificates and logs begin to mislead."""


def check_talk(kit: Kit, address: str, node: str, patience: float) -> list[Finding]:
    """Open a line and ask.

    Args:
        kit: of an admin or auditor.
        address: ``host:port``.
        node: the server, in words.
        patience: seconds for everything.
    """
    try:
        skew, told = asyncio.run(_ask(kit, address, patience))
    except (AtollError, OSError) as error:
        said = getattr(error, "what", None) or str(error) or f"no answer within {patience:g} s"
        return [Finding.problem("line", f"{node}: {said}", getattr(error, "remedy", None) or "read the server's log")]
    return [_check_clock(skew, node), _version(told, node)]


def compare_answers(told: Mapping[str, Any], node: str) -> list[Finding]:
    """Return what a server says about itself on a visit without a line.

    Args:
        told: its ``"atoll"`` and ``"clock"``, and this machine's time ``"here"`` at that moment.
        node: the server, in words.
    """
    clock = told.get("clock")
    if not isinstance(clock, float) or not math.isfinite(clock):
        return [Finding.skip_step("clock skew", f"{node} does not say its time")]
    return [_check_clock(clock - told["here"], node), _version({"atoll": told.get("atoll", "?")}, node)]


async def _ask(kit: Kit, address: str, patience: float) -> tuple[float, dict[str, Any]]:
    settings = Settings(heartbeat=0.05, patience=patience, greeting=patience)
    async with asyncio.timeout(patience):
        line = await dial_line(partial(transport(kit.transport).dial, address, kit.credentials()), settings=settings)
        try:
            told = await _about(line)
            while (skew := line.stats().skew) is None:
                await asyncio.sleep(0.01)
            return skew, told
        finally:
            await line.close("the doctor has seen enough", within=1.0)


async def _about(line: Line) -> dict[str, Any]:
    channel = line.open("request")
    await channel.send({"op": "about"})
    found = await channel.recv()
    channel.close()
    return found if isinstance(found, dict) else {}


def _check_clock(skew: float, node: str) -> Finding:
    if abs(skew) > SKEW:
        ahead = "ahead of" if skew > 0 else "behind"
        said = f"{node}: its clock is {abs(skew):.0f} s {ahead} this machine's"
        return Finding.problem("clock skew", said, "set both clocks by a time server; certificates hold by the clock")
    return Finding.ok("clock skew", f"{node}: {skew:+.1f} s")


def _version(told: dict[str, Any], node: str) -> Finding:
    own = versions()["atoll"]
    if "error" in told:
        error = unpack_error(told["error"])
        return Finding.skip_step("version", f"{node} does not say its version: {getattr(error, 'what', error)}")
    theirs = str(told.get("atoll", "?"))
    if theirs.split(".")[:2] != own.split(".")[:2]:
        remedy = f'install the same version at both ends: pip install "atoll[net]=={theirs}"'
        return Finding.problem("version", f"{node} has Atoll {theirs}, and here is {own}", remedy)
    return Finding.ok("version", f"{node} has Atoll {theirs}, and here is {own}")


# ------------------------------------------------------------------ the connection to the server: its name, its port, the handshake, and who answers


def check_reach(kit: Kit, patience: float = 5.0) -> Step:
    """Look for every server of the kit at each of its addresses; one that works is enough.

    Args:
        kit: of a site, admin or auditor.
        patience: seconds for each try.
    """
    ways = [list(_way(kit, way, patience)) for way in kit.ways]
    open_ways = [all(finding.state == "ok" for finding in way) for way in ways]
    for way, works in zip(ways, open_ways, strict=True):
        yield from way if works or not any(open_ways) else map(_not_needed, way)


def _not_needed(finding: Finding) -> Finding:
    if finding.state != "problem":
        return finding
    return Finding.skip_step(finding.step, f"{finding.said}; not needed, another address works")


def _way(kit: Kit, way: Way, patience: float) -> Step:
    node = f"server {way.server!r} at {way.address}"
    resolved = _resolve(way.host, way.port, node)
    yield resolved
    if resolved.state != "ok":
        return
    reached = _connect(way, node, patience)
    if isinstance(reached, Finding):
        yield reached
        return
    yield Finding.ok("port", f"{node}: answers")
    yield from _handshake(kit, way, node, reached, patience)


def _resolve(host: str, port: int, node: str) -> Finding:
    try:
        ipaddress.ip_address(host)
        return Finding.ok("name", f"{node}: an address, nothing to resolve")
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        said = f"{node}: the name {host!r} cannot be resolved ({error.strerror or error})"
        return Finding.problem("name", said, f"ask your network's DNS for {host!r}, or add it to the hosts file")
    return Finding.ok("name", f"{node}: {', '.join(sorted({str(row[4][0]) for row in found}))}")


def _connect(way: Way, node: str, patience: float) -> socket.socket | Finding:
    try:
        return socket.create_connection((way.host, way.port), timeout=patience)
    except ConnectionRefusedError:
        remedy = f"start it there with `atoll server {way.server}`, or correct the port in project.yaml"
        return Finding.problem("port", f"{node}: nobody listens (connection refused)", remedy)
    except TimeoutError:
        remedy = f"let the firewalls pass TCP port {way.port} from here to {way.host}"
        return Finding.problem("port", f"{node}: no answer within {patience:g} s", remedy)
    except OSError as error:
        return Finding.problem("port", f"{node}: {error.strerror or error}", f"repair this machine's way to {way.host}")


def _handshake(kit: Kit, way: Way, node: str, plain: socket.socket, patience: float) -> Step:
    try:
        made = greet(kit, way.host, plain, patience)
    except AtollError as error:
        yield Finding.problem("TLS", error.what, error.remedy or "repair the kit")
        return
    except OSError as error:
        yield Finding.problem("TLS", f"{node}: {plain_words(error)}", advice(error, kit))
        return
    yield Finding.ok("TLS", f"{node}: {made.version}, both ends verified")
    try:
        peer = admit(made.certificate, project=kit.project, roles=("server",), name=way.server)
    except AtollError as error:
        yield Finding.problem("server", f"{node}: {error.what}", error.remedy or "correct the address")
        return
    yield Finding.ok("server", f"{node}: {peer}, project {peer.project!r}")
    yield _apart(kit, made.certificate, node)
    yield _check_dates(made.certificate, node)
    told: dict[str, Any] = {}
    admission = _admission(kit, way.address, node, patience, told)
    yield admission
    if admission.state == "ok" and kit.role in ("admin", "auditor", "analyst"):
        yield from check_talk(kit, way.address, node, patience)
    elif admission.state == "ok":
        yield from compare_answers(told, node)


def _admission(kit: Kit, address: str, node: str, patience: float, told: dict[str, Any]) -> Finding:
    """Check that the server admits this party, which TLS alone does not show: a revoked certificate is technically valid. What the server says about itself goes to ``told``."""

    async def knock() -> None:
        async with asyncio.timeout(patience):
            pipe = await transport(kit.transport).dial(address, kit.credentials())
            begun = time.time()
            await write_hello(pipe, visit())
            told.update(await _answer(pipe))
            told["here"] = (begun + time.time()) / 2
            await pipe.close()

    try:
        asyncio.run(knock())
    except AtollError as error:
        return Finding.problem("admission", f"{node}: {error.what}", error.remedy or "read the server's log")
    except (OSError, TimeoutError) as error:
        said = str(error) or f"no answer within {patience:g} s"
        remedy = f"read the server's log; is it `atoll server` with transport {kit.transport}?"
        return Finding.problem("admission", f"{node}: {said}", remedy)
    return Finding.ok("admission", f"{node}: {kit.role} {kit.name!r} is let in over {kit.transport}")


async def _answer(pipe: Pipe) -> dict[str, Any]:
    try:
        return (await read_hello(pipe)).about
    except (PipeClosed, Violation):  # it says nothing about itself
        return {}


def _apart(kit: Kit, certificate: bytes, node: str) -> Finding:
    """Check that the authority, which certifies the keys of letters, has another key than the server."""
    from cryptography import x509

    fault = find_fault(x509.load_der_x509_certificate(certificate), authorities_of(kit))
    if not fault:
        return Finding.ok("authority's key", f"{node}: the server's key is another, which certifies nobody")
    remedy = (
        "run no job there: this server can read sealed letters. Ask who provisions the project for another authority"
    )
    return Finding.problem("authority's key", f"{node}: {fault}, so that it certifies keys", remedy)


def _check_dates(certificate: bytes, node: str) -> Finding:
    from cryptography import x509

    found = x509.load_der_x509_certificate(certificate)
    now = datetime.now(UTC)
    left = (found.not_valid_after_utc - now).days
    return Finding.ok(
        "clock",
        f"{node}: this machine's time ({now:%Y-%m-%d %H:%M} UTC) lies within its certificate's, {left} days left",
    )


# ------------------------------------------------------------------ ``atoll doctor KIT``: checks everything between a kit and its work, one line per step


def examine(kit: Kit, work: Path, patience: float = 5.0) -> Iterator[Finding]:
    """Check everything, in the order in which it is needed.

    Args:
        kit: the kit to check.
        work: the folder that the party will work in.
        patience: seconds for each try on the network.
    """
    paper = list(check_paper(kit))
    yield from paper
    yield check_disk(work)
    if kit.role in ("server", *SITES):
        yield check_confinement(kit)
    if kit.role == "server":
        yield check_authority(kit, work)
        yield check_own_port(kit)
        yield check_handles(kit)
    elif any(finding.state == "problem" and finding.step in ("files", "key") for finding in paper):
        yield Finding.skip_step("server", "not tried: this kit cannot prove who it is")
    else:
        yield from check_reach(kit, patience)
