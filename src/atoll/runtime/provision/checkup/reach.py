"""The connection to the server: its name, its port, the handshake, and who answers."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from datetime import UTC, datetime
from typing import Any

from atoll.core.errors import AtollError
from atoll.runtime.identity import admit
from atoll.runtime.line.frames import Violation
from atoll.runtime.line.hello import read_hello, write_hello
from atoll.runtime.provision.kit import Kit, Way
from atoll.runtime.transport import Pipe, PipeClosed, transport

from .finding import Finding, Step
from .handshake import advice, greet, plain_words
from .paper import authorities_of, find_fault
from .talk import check_talk, compare_answers
from .visit import visit

__all__ = ["check_reach"]


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
    yield _clock(made.certificate, node)
    told: dict[str, Any] = {}
    admission = _admission(kit, way.address, node, patience, told)
    yield admission
    if admission.state == "ok" and kit.role in ("admin", "auditor"):
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


def _clock(certificate: bytes, node: str) -> Finding:
    from cryptography import x509

    found = x509.load_der_x509_certificate(certificate)
    now = datetime.now(UTC)
    left = (found.not_valid_after_utc - now).days
    return Finding.ok(
        "clock",
        f"{node}: this machine's time ({now:%Y-%m-%d %H:%M} UTC) lies within its certificate's, {left} days left",
    )
