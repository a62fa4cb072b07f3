"""The processes engine: any Python task on all cores, in worker processes on this machine."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, ClassVar

from .forking import Workers, check_workers, cores
from .link import SocketLink
from .remote import Remote, WorkerChannel
from .worker import serve

if TYPE_CHECKING:
    from atoll.core.execution.engine import RunContext

__all__ = ["LoopbackSocket", "Processes"]


class Processes(Remote):
    """Workers on this machine: they share the islands' data, and messages cross a socket pair in binary form."""

    name: ClassVar[str] = "processes"

    def __init__(self, workers: int | None = None) -> None:
        super().__init__(check_workers(workers, self.name))
        self._workers = Workers(self._pair)

    def default_workers(self) -> int:
        """One per core."""
        return cores()

    async def connect(self, world: RunContext, workers: int) -> list[WorkerChannel]:
        """Start the workers."""
        sockets = self._workers.start(workers, serve, world.executor(vectorised=self.vectorised), world.registry)
        return [WorkerChannel(SocketLink(sock), self._workers.describe(i)) for i, sock in enumerate(sockets)]

    @staticmethod
    def _pair() -> tuple[socket.socket, socket.socket]:
        return socket.socketpair()

    async def disconnect(self) -> None:
        """Wait for the workers to end."""
        self._workers.stop()


class LoopbackSocket(Processes):
    """The same workers behind TCP on 127.0.0.1, which shows that a network is only another transport."""

    name: ClassVar[str] = "socket"

    @staticmethod
    def _pair() -> tuple[socket.socket, socket.socket]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            theirs = socket.create_connection(server.getsockname())
            ours, _ = server.accept()
        for sock in (ours, theirs):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return ours, theirs
