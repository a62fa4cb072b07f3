"""Connections over TCP with TLS 1.3: the shortest way, for where nothing stands between the parties."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Coroutine, Sequence
from typing import Any

from atoll.core.errors import IdentityError
from atoll.runtime.identity import Credentials, admit, peer_of

from .addresses import joined, split
from .base import CLIENTS, SERVERS, Accept, Listener, Pipe, PipeClosed, Revoked, nobody
from .connecting import connected, listening, shake_hands
from .ends import SecuredEnd
from .framed import FramedPipe
from .own import UNWELCOME, own
from .refusals import reason, refusal
from .tls import client_context, server_context

__all__ = ["TcpTransport"]

_LOG = logging.getLogger("atoll.runtime")
_HANDSHAKE = 15.0  # seconds
_PAUSE = 0.1  # seconds until the next try to accept connections, where the system has no room for more
_WELCOME = b"welcome"


async def _secured(sock: ssl.SSLSocket) -> tuple[SecuredEnd, bytes]:
    """Shake hands; the end, and the certificate that the other one showed."""
    try:
        async with asyncio.timeout(_HANDSHAKE):
            end = await shake_hands(sock)
    except TimeoutError:
        raise PipeClosed(f"the handshake took more than {_HANDSHAKE:g} s") from None
    certificate = sock.getpeercert(binary_form=True)
    if certificate is None:
        raise PipeClosed("the other end showed no certificate")
    return end, certificate


class _Listening:
    def __init__(
        self,
        sockets: list[socket.socket],
        credentials: Credentials,
        accept: Accept,
        revoked: Revoked,
        roles: Sequence[str],
    ) -> None:
        self.address = joined(*sockets[0].getsockname()[:2])
        self._context = server_context(credentials)
        self._me = peer_of(credentials.certificate)
        self._accept = accept
        self._revoked = revoked
        self._roles = tuple(roles)
        self._sockets = sockets
        self._pipes: set[FramedPipe] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        for sock in sockets:
            self._start(self._listen(sock))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _listen(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                plain, where = await loop.sock_accept(sock)
            except OSError as error:  # such as too many open files
                _LOG.warning("connections cannot be accepted: %s", error)
                await asyncio.sleep(_PAUSE)
                continue
            self._start(self._admitted(plain, where))

    async def _admitted(self, plain: socket.socket, where: Any) -> None:
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock = self._context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
        except OSError as error:
            plain.close()
            _LOG.warning("a connection from %s is refused: %s", where, error)
            return
        try:
            end, certificate = await _secured(sock)
            pipe = await self._welcomed(end, certificate, where)
        except OSError as error:
            sock.close()
            _LOG.warning("a connection from %s is refused: %s", where, error or "it ended during the handshake")
        except BaseException:
            sock.close()
            raise
        else:
            if pipe is not None:
                self._pipes = {pipe} | {other for other in self._pipes if other.ended is None}
                await self._accept(pipe)

    async def _welcomed(self, end: SecuredEnd, certificate: bytes, where: Any) -> FramedPipe | None:
        try:
            peer = admit(certificate, project=self._me.project, roles=self._roles, revoked=self._revoked)
        except IdentityError as error:
            _LOG.warning("a connection from %s is refused: %s", where, error)
            pipe = FramedPipe(end, self._me)  # to say why, and nothing else
            try:
                await pipe.send(reason(error).encode())
            finally:
                await pipe.close()
            return None
        pipe = FramedPipe(end, peer)
        await pipe.send(_WELCOME)
        return pipe

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for sock in self._sockets:
            sock.close()
        await asyncio.gather(*self._tasks, *(pipe.close() for pipe in self._pipes), return_exceptions=True)


class TcpTransport:
    """TCP with TLS 1.3 and certificates at both ends."""

    name = "tcp"

    async def listen(
        self,
        address: str,
        credentials: Credentials,
        accept: Accept,
        revoked: Revoked = nobody,
        roles: Sequence[str] = CLIENTS,
    ) -> Listener:
        """Accept connections of the project's parties at an address."""
        return _Listening(await listening(*split(address)), credentials, accept, revoked, roles)

    async def dial(
        self,
        address: str,
        credentials: Credentials,
        server_name: str | None = None,
        revoked: Revoked = nobody,
        roles: Sequence[str] = SERVERS,
    ) -> Pipe:
        """Connect to a server of the project."""
        host, port = split(address)
        me = own(credentials)
        context = client_context(credentials)
        plain = await connected(host, port)
        sock: ssl.SSLSocket | None = None
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock = context.wrap_socket(plain, server_hostname=server_name or host, do_handshake_on_connect=False)
            end, certificate = await _secured(sock)
            peer = admit(certificate, project=me.project, roles=roles, revoked=revoked)
        except ssl.SSLError as error:
            (sock or plain).close()
            raise _refused(address, f"the handshake failed: {error}") from error
        except BaseException:
            (sock or plain).close()
            raise
        pipe = FramedPipe(end, peer)
        try:
            async with asyncio.timeout(_HANDSHAKE):
                said = bytes(await pipe.recv())
        except PipeClosed as error:
            raise PipeClosed(f"no connection to {address}: {error}; {UNWELCOME}") from error
        except BaseException:
            pipe.abort("the other end did not let this one in")
            raise
        if said != _WELCOME:
            await pipe.close()
            raise refusal(address, said.decode(errors="replace"))
        return pipe


def _refused(address: str, why: str) -> IdentityError:
    return IdentityError(
        f"no connection to {address}: {why}",
        where="connecting",
        remedy="check that both ends use kits of the same project that have not expired, and the server's name",
    )
