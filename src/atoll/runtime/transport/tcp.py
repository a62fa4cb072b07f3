"""Connections over TCP with TLS 1.3: the shortest way, for where nothing stands between the parties."""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Any, cast

from atoll.core.errors import IdentityError
from atoll.runtime.identity import ROLES, Credentials, admit, peer_of

from .addresses import joined, split
from .base import Accept, Listener, Pipe, PipeClosed, Revoked, nobody
from .framed import FramedPipe
from .own import UNWELCOME, own
from .tls import client_context, server_context

__all__ = ["TcpTransport"]

_LOG = logging.getLogger("atoll.runtime")
_HANDSHAKE = 15.0  # seconds
_WELCOME = b"welcome"
_CLIENTS = tuple(role for role in ROLES if role != "server")


def _certificate(pipe: FramedPipe) -> bytes:
    found = pipe.info("ssl_object")
    certificate: bytes | None = None if found is None else found.getpeercert(binary_form=True)
    if certificate is None:
        raise PipeClosed("the connection ended before the other end showed a certificate")
    return certificate


class _Knocking(asyncio.Protocol):
    """A connection that came in, before its handshake."""

    def __init__(self, listener: _Listening) -> None:
        self._listener = listener

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        plain = cast(asyncio.Transport, transport)
        plain.pause_reading()
        self._listener.start(plain, self)


class _Listening:
    def __init__(self, credentials: Credentials, accept: Accept, revoked: Revoked) -> None:
        self.address = ""
        self.server: asyncio.Server | None = None
        self._context = server_context(credentials)
        self._me = peer_of(credentials.certificate)
        self._accept = accept
        self._revoked = revoked
        self._pipes: set[FramedPipe] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, transport: asyncio.Transport, protocol: asyncio.Protocol) -> None:
        task = asyncio.ensure_future(self._admitted(transport, protocol))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _admitted(self, transport: asyncio.Transport, protocol: asyncio.Protocol) -> None:
        where = transport.get_extra_info("peername")
        pipe = FramedPipe()
        try:
            await self._shake_hands(transport, pipe)
            certificate = _certificate(pipe)
            pipe.peer = admit(certificate, project=self._me.project, roles=_CLIENTS, revoked=self._revoked)
            await pipe.send(_WELCOME)
        except IdentityError as error:
            _LOG.warning("a connection from %s is refused: %s", where, error)
            await _tell(pipe, error.what)
        except OSError as error:
            _LOG.warning("a connection from %s is refused: %s", where, error or "it ended during the handshake")
            transport.abort()
        else:
            self._pipes = {pipe} | {other for other in self._pipes if other.ended is None}
            await self._accept(pipe)

    async def _shake_hands(self, transport: asyncio.Transport, pipe: FramedPipe) -> None:
        loop = asyncio.get_running_loop()
        secured = await loop.start_tls(
            transport, pipe, self._context, server_side=True, ssl_handshake_timeout=_HANDSHAKE
        )
        if secured is None:
            raise PipeClosed("it ended during the handshake")
        pipe.connection_made(secured)

    async def close(self) -> None:
        if self.server is not None:
            self.server.close()
        await asyncio.gather(*(pipe.close() for pipe in self._pipes))
        for task in self._tasks:
            task.cancel()


async def _tell(pipe: FramedPipe, why: str) -> None:
    try:
        await pipe.send(why.encode()[:1000])
    except PipeClosed:
        return
    finally:
        await pipe.close()


class TcpTransport:
    """TCP with TLS 1.3 and certificates at both ends."""

    name = "tcp"

    async def listen(
        self, address: str, credentials: Credentials, accept: Accept, revoked: Revoked = nobody
    ) -> Listener:
        """Accept connections of the project's parties at an address."""
        host, port = split(address)
        listening = _Listening(credentials, accept, revoked)
        loop = asyncio.get_running_loop()
        listening.server = await loop.create_server(lambda: _Knocking(listening), host, port, backlog=1024)
        listening.address = joined(host, listening.server.sockets[0].getsockname()[1])
        return listening

    async def dial(
        self, address: str, credentials: Credentials, server_name: str | None = None, revoked: Revoked = nobody
    ) -> Pipe:
        """Connect to a server of the project."""
        host, port = split(address)
        me = own(credentials)
        try:
            _, pipe = await asyncio.get_running_loop().create_connection(
                FramedPipe,
                host,
                port,
                ssl=client_context(credentials),
                server_hostname=server_name or host,
                ssl_handshake_timeout=_HANDSHAKE,
            )
        except ssl.SSLError as error:
            raise _refused(address, f"the handshake failed: {error}") from error
        try:
            pipe.peer = admit(_certificate(pipe), project=me.project, roles=("server",), revoked=revoked)
            async with asyncio.timeout(_HANDSHAKE):
                said = bytes(await pipe.recv())
        except PipeClosed as error:
            await pipe.close()
            raise PipeClosed(f"no connection to {address}: {error}; {UNWELCOME}") from error
        except BaseException:
            await pipe.close()
            raise
        if said != _WELCOME:
            await pipe.close()
            raise _refused(address, said.decode(errors="replace"))
        return pipe


def _refused(address: str, why: str) -> IdentityError:
    return IdentityError(
        f"no connection to {address}: {why}",
        where="connecting",
        remedy="check that both ends use kits of the same project that have not expired, and the server's name",
    )
