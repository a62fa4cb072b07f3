"""A gRPC call as a pipe."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from typing import Any

from atoll.core.extras import need
from atoll.runtime.identity import Peer

from .base import LARGEST, Buffer, PipeClosed

__all__ = ["DialledPipe", "GrpcPipe", "aio", "grpc", "stay"]

# TLS 1.3 only. gRPC has no setting for it in Python. The suites named here are TLS 1.2 suites that need an RSA key, which
# no certificate of a project has; TLS 1.3 has suites of its own, which this leaves alone. gRPC reads it at its first
# connection.
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-RSA-AES256-GCM-SHA384"
# A fork would wait for gRPC's threads to pause while it holds Python's lock. One of them may wait for that lock to look
# up who listens, so both would wait for ever. Processes that engines fork use no gRPC, so nothing needs to pause.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# gRPC would write a line to stderr for each handshake that fails: strangers could fill a disk.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

grpc: Any = need("grpc", "grpc", "a connection over gRPC")
aio: Any = need("grpc.aio", "grpc", "a connection over gRPC")

_LOG = logging.getLogger("atoll.runtime")
_PARTING = 0.5  # seconds
_FAILURES = (grpc.RpcError, aio.UsageError, aio.InternalError, asyncio.InvalidStateError)


@functools.cache
def stay() -> None:
    """Keep gRPC's event queue, which all loops share, for the life of this process; call it in a running loop.

    With its last channel or server, gRPC would end the queue and wait for the thread that fills it. That thread may
    wait for a loop that no longer reads (grpc/grpc#40989), and a forked process does not have it at all: the garbage
    collection would wait for ever.
    """
    aio.init_grpc_aio()


class GrpcPipe:
    """A pipe over one call.

    Attributes:
        joins: it joins the parts of a block.

    Args:
        peer: who is at the other end; ``address`` is where it connects from, at the end that listens.
        call: what reads and writes: a call at the end that dialled, the call's context at the other.
    """

    joins = True

    def __init__(self, peer: Peer, call: Any) -> None:
        self.peer = peer
        self.address = ""
        self.heard = asyncio.get_running_loop().time()
        self.gone = asyncio.Event()
        self._call = call
        self._loop = asyncio.get_running_loop()

    async def send(self, *parts: Buffer) -> None:
        """Send one block."""
        block = parts[0] if len(parts) == 1 and isinstance(parts[0], bytes) else b"".join(parts)
        if len(block) > LARGEST:
            raise PipeClosed(f"a block has {len(block)} bytes; {LARGEST} are allowed")
        if self.gone.is_set():
            raise PipeClosed("the pipe is closed")
        try:
            await self._call.write(block)
        except _FAILURES as error:
            raise PipeClosed(_why(error)) from error

    async def recv(self) -> bytes:
        """Wait for the next block."""
        if self.gone.is_set():
            raise PipeClosed("the pipe is closed")
        try:
            block = await self._call.read()
        except asyncio.CancelledError:  # of the call or of the caller?
            if self.gone.is_set() and not getattr(asyncio.current_task(), "cancelling", int)():
                raise PipeClosed("the pipe was closed") from None
            raise
        except _FAILURES as error:
            raise PipeClosed(_why(error)) from error
        if block is aio.EOF:
            raise PipeClosed("the other end closed the connection")
        self.heard = self._loop.time()
        found: bytes = block
        return found

    async def close(self) -> None:
        """End the call."""
        self.gone.set()


class DialledPipe(GrpcPipe):
    """The pipe at the end that dialled; it ends the channel with the call.

    Args:
        peer: who is at the other end.
        call: what reads and writes.
        channel: the channel of the call.
    """

    def __init__(self, peer: Peer, call: Any, channel: Any) -> None:
        super().__init__(peer, call)
        self._channel = channel

    async def close(self) -> None:
        """End the call, and let blocks in transit arrive."""
        if self.gone.is_set():
            return
        self.gone.set()
        try:
            async with asyncio.timeout(_PARTING):  # cancelling a call loses blocks in transit
                await self._call.done_writing()
                await self._call.code()
        except (TimeoutError, *_FAILURES):
            _LOG.debug("%s did not end the call in time", self.peer)
        finally:
            self._call.cancel()
            await self._channel.close()


def _why(error: BaseException) -> str:
    details = getattr(error, "details", None)
    return str(details()) if callable(details) else str(error)
