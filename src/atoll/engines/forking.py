"""Worker processes on this machine, and the sockets to them."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from atoll.core.errors import ConfigError

__all__ = ["Workers", "check_workers", "cores"]

Pair = Callable[[], tuple[socket.socket, socket.socket]]


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_workers(workers: int | None, engine: str) -> int | None:
    """Refuse a number of workers that makes no sense."""
    if workers is not None and workers < 1:
        raise ConfigError(f"workers={workers}", where=f"engine {engine!r}", remedy="use at least 1, or None")
    return workers


class Workers:
    """Processes that run ``body(socket, *args)``, each with a socket of its own to this process.

    They are forked where that is safe, so that they share the memory of the islands' data and of compiled code;
    elsewhere they get a copy from their parent.
    """

    def __init__(self, pair: Pair = socket.socketpair) -> None:
        self._pair = pair
        self.processes: list[Any] = []
        self.sockets: list[socket.socket] = []

    def start(self, count: int, body: Callable[..., None], *args: Any) -> list[socket.socket]:
        """Start workers; return this end of their sockets."""
        context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        collecting = gc.isenabled()
        gc.disable()  # a worker must not collect before it has set aside what it inherits
        try:
            for _ in range(count):
                ours, theirs = self._pair()
                self.sockets.append(ours)
                # A forked worker holds copies of this process's ends: it must close them, or nobody would see an end.
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
        """Says how a worker ended."""

        def describe() -> str:
            process = self.processes[i]
            process.join(1)
            return f"exit code {process.exitcode}"

        return describe

    def stop(self, seconds: float = 5.0) -> None:
        """Wait for the workers to see the closed sockets and end; kill those that do not within some seconds."""
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
    # Garbage of the parent's may wait, as it ends, for threads that a fork leaves behind (gRPC's queues do, for ever): it is not this process's.
    gc.freeze()
    if collecting:
        gc.enable()
    for other in inherited:
        other.close()
    # Ctrl-C goes to the whole group: the engine decides, workers end when their socket closes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    body(sock, *args)
