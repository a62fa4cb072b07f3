"""Connections between processes of one machine: a connected socket, without TLS, from a front to its job processes."""

from __future__ import annotations

import asyncio
import socket

from atoll.runtime.identity import Peer

from .framed import FramedPipe

__all__ = ["local_pipe"]


async def local_pipe(sock: socket.socket, peer: Peer) -> FramedPipe:
    """A pipe over a connected socket of this machine, such as one of ``socket.socketpair()``.

    Args:
        sock: connected, and owned by the pipe from now on.
        peer: who is at the other end; a front knows it, as it started the process.
    """
    loop = asyncio.get_running_loop()
    sock.setblocking(False)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, 1 << 20)
    _, pipe = await loop.create_unix_connection(lambda: FramedPipe(peer), sock=sock)
    return pipe
