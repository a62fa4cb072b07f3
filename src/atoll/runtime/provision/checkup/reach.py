"""The way to the server: its name, its port, the handshake, and who answers."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from atoll.core.errors import AtollError
from atoll.runtime.identity import admit
from atoll.runtime.provision.kit import Kit

from .finding import Finding, Step

__all__ = ["check_reach", "client_context", "greet"]

_ALPN = {"grpc": ["h2"]}


@dataclass(frozen=True)
class Greeting:
    """What a handshake brought.

    Attributes:
        version: of TLS.
        certificate: the server's, DER.
    """

    version: str
    certificate: bytes


def check_reach(kit: Kit, patience: float = 5.0) -> Step:
    """Look for the server at each of its addresses.

    Args:
        kit: of a site, admin or auditor.
        patience: seconds for each attempt.
    """
    for host, port in kit.addresses:
        node = f"server {kit.server.name!r} at {host}:{port}"
        resolved = _resolve(host, port, node)
        yield resolved
        reached = _connect(host, port, node, patience) if resolved.state == "ok" else None
        yield reached or Finding.skipped("port", f"{node}: there is no address to try")
        if reached is None or reached.state != "ok":
            yield Finding.skipped("TLS", f"{node}: nothing answers there")
            continue
        yield from _handshake(kit, host, port, node, patience)


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


def _connect(host: str, port: int, node: str, patience: float) -> Finding:
    try:
        with socket.create_connection((host, port), timeout=patience):
            return Finding.ok("port", f"{node}: answers")
    except ConnectionRefusedError:
        remedy = f"start it there with `atoll server {kit_name(node)}`, or correct the port in project.yaml"
        return Finding.problem("port", f"{node}: nobody listens (connection refused)", remedy)
    except TimeoutError:
        remedy = f"let the firewalls pass TCP port {port} from here to {host}"
        return Finding.problem("port", f"{node}: no answer within {patience:g} s", remedy)
    except OSError as error:
        return Finding.problem("port", f"{node}: {error.strerror or error}", f"repair this machine's way to {host}")


def kit_name(node: str) -> str:
    """The server's name in the description of a node."""
    return node.split("'")[1]


def client_context(kit: Kit) -> ssl.SSLContext:
    """TLS 1.3 with the kit's certificate, trusting the kit's authority alone; names are compared by ``admit``."""
    kit.credentials()  # its own errors are clearer than OpenSSL's
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=kit.bytes_of("ca.pem").decode())
    secret = kit.passphrase
    context.load_cert_chain(kit.folder / "certificate.pem", kit.folder / "key.pem", password=secret or (lambda: b""))
    if kit.transport in _ALPN:
        context.set_alpn_protocols(_ALPN[kit.transport])
    return context


def greet(kit: Kit, host: str, port: int, patience: float) -> Greeting:
    """One handshake; the server has seen and accepted the certificate, unless it is silent.

    In TLS 1.3 a client is done before the server has looked at its certificate: a refusal comes as an alert afterwards.

    Raises:
        OSError: it failed; ``ssl.SSLError`` says why.
    """
    with (
        socket.create_connection((host, port), timeout=patience) as plain,
        client_context(kit).wrap_socket(plain, server_hostname=host) as wrapped,
    ):
        made = Greeting(wrapped.version() or "?", wrapped.getpeercert(binary_form=True) or b"")
        wrapped.settimeout(min(patience, 1.0))
        with _silent():
            if not wrapped.recv(1):
                raise ConnectionResetError("the server ended the connection after the handshake")
        return made


@contextmanager
def _silent() -> Iterator[None]:
    """No alert and no word: the server waits for us to speak."""
    try:
        yield
    except TimeoutError:
        return


def _handshake(kit: Kit, host: str, port: int, node: str, patience: float) -> Step:
    try:
        made = greet(kit, host, port, patience)
    except AtollError as error:
        yield Finding.problem("TLS", error.what, error.remedy or "repair the kit")
        return
    except OSError as error:
        yield Finding.problem("TLS", f"{node}: {_plain(error)}", _advice(error, kit))
        return
    yield Finding.ok("TLS", f"{node}: {made.version}, both ends verified")
    try:
        peer = admit(made.certificate, project=kit.project, roles=("server",), name=kit.server.name)
    except AtollError as error:
        yield Finding.problem("server", f"{node}: {error.what}", error.remedy or "correct the address")
        return
    yield Finding.ok("server", f"{node}: {peer}, project {peer.project!r}")
    yield _clock(made.certificate, node)


def _clock(certificate: bytes, node: str) -> Finding:
    from cryptography import x509

    found = x509.load_der_x509_certificate(certificate)
    now = datetime.now(UTC)
    left = (found.not_valid_after_utc - now).days
    return Finding.ok(
        "clock",
        f"{node}: this machine's time ({now:%Y-%m-%d %H:%M} UTC) lies within its certificate's, {left} days left",
    )


_ADVICE = (
    ("certificate has expired", "renew the certificate that expired (atoll provision PROJECT --renew NAME), and compare the clocks"),
    ("not yet valid", "set this machine's clock: it is behind the server certificate's first day"),
    ("hostname mismatch", "use an address that the server's certificate names, or renew the server's kit with this one in project.yaml"),
    ("ip address mismatch", "use an address that the server's certificate names, or renew the server's kit with this one in project.yaml"),
    ("unable to get local issuer", "the server is of another project or authority: compare ca.pem here and there"),
    ("self-signed", "the server is of another project or authority: compare ca.pem here and there"),
    ("unknown ca", "the server does not know this kit's authority: compare ca.pem here and there"),
    ("version", "something on the way speaks an older TLS: let TLS 1.3 pass end to end, without inspection"),
    ("wrong_version_number", "what answers speaks no TLS: check host and port, and proxies on the way"),
    ("unsuitable certificate purpose", "what answers uses the kit of a client: start the server with its own kit"),
)  # fmt: skip


def _plain(error: OSError) -> str:
    said = getattr(error, "verify_message", "") or getattr(error, "reason", "") or error.strerror or str(error)
    return f"the handshake failed: {said}"


def _advice(error: OSError, kit: Kit) -> str:
    said = f"{_plain(error)} {error}".lower().replace("tlsv1_alert_", "").replace("unknown_ca", "unknown ca")
    for word, advice in _ADVICE:
        if word in said or word in said.replace("_", " "):
            return advice
    return f"read the server's log: it says why it refused {kit.role} {kit.name!r}"
