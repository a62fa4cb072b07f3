"""Connections between processes of one machine: a connected socket, without TLS, from a front to its job processes."""

from __future__ import annotations

import socket

from atoll.runtime.identity import Peer

from .ends import PlainEnd
from .framed import FramedPipe

__all__ = ["local_pipe"]

_BUFFER = 1 << 20  # bytes that the system holds in each direction


async def local_pipe(sock: socket.socket, peer: Peer) -> FramedPipe:
    """A pipe over a connected socket of this machine, such as one of ``socket.socketpair()``.

    Args:
        sock: a connected socket; the pipe owns it from now on.
        peer: who is at the other end; a front knows, because it started the process.
    """
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER)
    return FramedPipe(PlainEnd(sock), peer)
