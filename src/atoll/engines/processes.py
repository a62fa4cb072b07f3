"""The processes engine: any Python task on all cores, in worker processes on this machine."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from atoll.core.errors import ConfigError

from .link import SocketLink
from .remote import Remote, WorkerChannel
from .worker import serve

if TYPE_CHECKING:
    from atoll.core.execution.engine import RunContext

__all__ = ["LoopbackSocket", "Processes", "Workers", "check_workers", "cores"]


# ------------------------------------------------------------------ worker processes on this machine, and the sockets to them


Pair = Callable[[], tuple[socket.socket, socket.socket]]


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_workers(workers: int | None, engine: str) -> int | None:
    """Refuse fewer than one worker."""
    if workers is not None and workers < 1:
        raise ConfigError(f"workers={workers}", where=f"engine {engine!r}", remedy="use at least 1, or None")
    return workers


class Workers:
    """Processes that run ``body(socket, *args)``, each with its own socket to this process.

    They are forked if that is safe, so that they share the memory of the islands' data and of compiled code;
    otherwise their parent sends them a copy.
    """

    def __init__(self, pair: Pair = socket.socketpair) -> None:
        self._pair = pair
        self.processes: list[Any] = []
        self.sockets: list[socket.socket] = []

    def start(self, count: int, body: Callable[..., None], *args: Any) -> list[socket.socket]:
        """Start workers; return this end of their sockets."""
        context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        collecting = gc.isenabled()
        gc.disable()  # a worker must freeze what it inherits before its first garbage collection
        try:
            for _ in range(count):
                ours, theirs = self._pair()
                self.sockets.append(ours)
                # A forked worker has copies of this process's ends. It must close them, or no end would notice a closed connection.
                inherited = list(self.sockets) if sys.platform == "linux" else []
                process = context.Process(target=_main, args=(theirs, inherited, collecting, body, args), daemon=True)
                process.start()
                theirs.close()
                self.processes.append(process)
        finally:
            if collecting:
                gc.enable()
        return self.sockets

    def describe(self, i: int) -> Callable[[], str]:
        """Return a function that describes how a worker ended."""

        def describe() -> str:
            process = self.processes[i]
            process.join(1)
            return f"exit code {process.exitcode}"

        return describe

    def stop(self, seconds: float = 5.0) -> None:
        """Wait for the workers to notice the closed sockets and end; kill those still running after some seconds."""
        for sock in self.sockets:
            sock.close()
        for process in self.processes:
            process.join(seconds)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        self.processes, self.sockets = [], []


def _main(
    sock: socket.socket,
    inherited: list[socket.socket],
    collecting: bool,
    body: Callable[..., None],
    args: tuple[Any, ...],
) -> None:
    # The parent's garbage may wait, when finalised, for threads that a fork leaves behind (gRPC's queues wait forever), so freeze it.
    gc.freeze()
    if collecting:
        gc.enable()
    for other in inherited:
        other.close()
    # Ctrl-C goes to the whole process group: the engine decides, and workers end when their socket closes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    body(sock, *args)


# ------------------------------------------------------------------ the processes engine: any Python task on all cores, in worker processes on this machine


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
