"""The processes engine: any Python task on all cores, in worker processes on this machine."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from atoll.core.errors import ConfigError

from .link import Link
from .remote import Channel, Remote
from .worker import serve

if TYPE_CHECKING:
    from atoll.core.world import World

__all__ = ["LoopbackSocket", "Processes", "cores"]


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _work(sock: socket.socket, other: socket.socket | None, world_part: tuple[Any, Any]) -> None:
    """The body of a worker process."""
    if other is not None:
        other.close()
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    executor, registry = world_part
    serve(sock, executor, registry)


class Processes(Remote):
    """Workers forked from this process: they inherit the islands' data, and messages cross a socket pair in the binary form."""

    name: ClassVar[str] = "processes"

    def __init__(self, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise ConfigError(f"workers={workers}", where=f"engine {self.name!r}", remedy="use at least 1, or None")
        super().__init__(workers)
        self._processes: list[Any] = []

    def default_workers(self) -> int:
        """One a core."""
        return cores()

    async def connect(self, world: World, workers: int) -> list[Channel]:
        """Start the workers."""
        part = (world.executor(vectorised=self.vectorised), world.registry)
        channels = []
        for _ in range(workers):
            ours, theirs = self._pair()
            process = _context().Process(target=_work, args=(theirs, ours, part), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            channels.append(Channel(Link(ours), _describe(process)))
        return channels

    def _pair(self) -> tuple[socket.socket, socket.socket]:
        return socket.socketpair()

    async def disconnect(self) -> None:
        """Wait for the workers to see the closed link and end."""
        for process in self._processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        self._processes = []


def _describe(process: Any) -> Callable[[], str]:
    def describe() -> str:
        process.join(1)
        return f"exit code {process.exitcode}"

    return describe


def _context() -> Any:
    """Fork where it is safe: workers then share the data's memory; elsewhere they get a copy from their parent."""
    return multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")


class LoopbackSocket(Processes):
    """The same workers behind TCP on 127.0.0.1: proof that a network is only one more transport."""

    name: ClassVar[str] = "socket"

    def _pair(self) -> tuple[socket.socket, socket.socket]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            theirs = socket.create_connection(server.getsockname())
            ours, _ = server.accept()
        for sock in (ours, theirs):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return ours, theirs
