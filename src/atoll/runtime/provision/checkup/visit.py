"""What the doctor sends when it only checks, so that no server takes its visit for a party that failed."""

from __future__ import annotations

import base64
import secrets
import ssl
import struct
from collections.abc import Iterator

from atoll.runtime.line.hello import LineHello, parts_of
from atoll.runtime.transport.proof import draw_question

__all__ = ["take_leave", "visit"]

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
