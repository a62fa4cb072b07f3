"""Connections over TCP with TLS 1.3: the default transport, and the shortest way."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Coroutine
from typing import Any

from atoll.core.errors import IdentityError

from ..identity import peer_of
from .base import (
    Accept,
    Admission,
    Listener,
    Pipe,
    PipeClosed,
    RefusalLog,
    Transport,
    join_address,
    reason,
    refusal,
    split,
)
from .framed import FramedPipe, SecuredEnd
from .sockets import (
    HANDSHAKE,
    UNWELCOME,
    PendingConnection,
    PendingConnections,
    client_context,
    connect_socket,
    listening,
    own,
    secure_socket,
    server_context,
)

__all__ = ["TcpTransport"]

_LOG = logging.getLogger("atoll.runtime")
_PAUSE = 0.1  # seconds until the next try to accept connections when the system has no room for more
_WELCOME = b"welcome"


class _Listening:
    def __init__(self, sockets: list[socket.socket], admission: Admission, accept: Accept) -> None:
        self.address = join_address(*sockets[0].getsockname()[:2])
        self._context = server_context(admission.credentials)
        self._me = peer_of(admission.credentials.certificate)
        self._admission = admission
        self._accept = accept
        self._doorway = PendingConnections()
        self._refused = RefusalLog(admission.on_refused)
        self._sockets = sockets
        self._pipes: set[FramedPipe] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        for sock in sockets:
            self._start(self._listen(sock))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _listen(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._doorway.room()
            try:
                plain, where = await loop.sock_accept(sock)
            except OSError as error:  # such as too many open files
                _LOG.warning("connections cannot be accepted: %s", error)
                await asyncio.sleep(_PAUSE)
                continue
            visitor = PendingConnection(plain, *where[:2])
            self._doorway.enter(visitor)
            self._start(self._admit_visitor(visitor)).add_done_callback(lambda _, gone=visitor: self._end_visit(gone))  # type: ignore[misc]

    def _end_visit(self, visitor: PendingConnection) -> None:
        """Clean up after a visitor; as a callback, because a task may end before its first step."""
        self._doorway.leave(visitor)
        visitor.sock.close()  # TLS has made it a socket of its own

    async def _admit_visitor(self, visitor: PendingConnection) -> None:
        sock: socket.socket = visitor.sock
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._doorway.pause(visitor)
            sock = tls = self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            end, certificate = await secure_socket(tls, visitor)
            pipe = await self._welcome_peer(end, certificate, visitor)
        except OSError as error:
            sock.close()
            self._doorway.note_failure(visitor)
            self._refuse(visitor, str(error) or "it ended during the handshake")
        except BaseException:
            sock.close()
            raise
        else:
            if pipe is not None:
                self._doorway.leave(visitor)
                self._pipes = {pipe} | {other for other in self._pipes if other.ended is None}
                await self._accept(pipe)

    def _refuse(self, visitor: PendingConnection, why: str) -> None:
        self._refused.connection(visitor.host, visitor.port, why)

    async def _welcome_peer(self, end: SecuredEnd, certificate: bytes, visitor: PendingConnection) -> FramedPipe | None:
        try:
            peer = self._admission.judge_certificate(certificate, self._me)
        except IdentityError as error:
            self._doorway.note_failure(visitor)
            self._refuse(visitor, str(error))
            pipe = FramedPipe(end, self._me)  # only to say why
            try:
                await pipe.send(reason(error).encode())
            finally:
                await pipe.close()
            return None
        pipe = FramedPipe(end, peer)
        pipe.address = join_address(visitor.host, visitor.port)
        await pipe.send(_WELCOME)
        return pipe

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for sock in self._sockets:
            sock.close()
        await asyncio.gather(*self._tasks, *(pipe.close() for pipe in self._pipes), return_exceptions=True)
        self._refused.close()


class TcpTransport(Transport):
    """TCP with TLS 1.3 and certificates at both ends."""

    name = "tcp"

    async def _listen(self, address: str, admission: Admission, accept: Accept) -> Listener:
        return _Listening(await listening(*split(address)), admission, accept)

    async def _dial(self, address: str, admission: Admission, server_name: str | None) -> Pipe:
        host, port = split(address)
        me = own(admission.credentials)
        context = client_context(admission.credentials)
        plain = await connect_socket(host, port)
        sock: ssl.SSLSocket | None = None
        try:
            # A short frame would otherwise wait until the other end has acknowledged the one before it.
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock = context.wrap_socket(plain, server_hostname=server_name or host, do_handshake_on_connect=False)
            end, certificate = await secure_socket(sock)
            peer = admission.judge_certificate(certificate, me)
        except ssl.SSLError as error:
            (sock or plain).close()
            raise _make_refusal(address, f"the handshake failed: {error}") from error
        except BaseException:
            (sock or plain).close()
            raise
        pipe = FramedPipe(end, peer)
        try:
            # In TLS 1.3 the dialler's handshake ends before the server has judged its certificate: only the server's first word says that it may stay.
            async with asyncio.timeout(HANDSHAKE):
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


def _make_refusal(address: str, why: str) -> IdentityError:
    return IdentityError(
        f"no connection to {address}: {why}",
        where="connecting",
        remedy="check that both ends use kits of the same project that have not expired, and the server's name",
    )
