"""Connects sockets, waiting only in the event loop."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

from .ends import SecuredEnd

__all__ = ["connect_socket", "listening", "shake_hands"]

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
