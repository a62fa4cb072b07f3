"""One TLS handshake, and what its failures mean."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from atoll.runtime.provision.kit import Kit

from .visit import take_leave

__all__ = ["Greeting", "advice", "client_context", "greet", "plain_words"]

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
