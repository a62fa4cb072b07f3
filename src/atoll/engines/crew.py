"""A crew: worker processes in lock step, for cohorts that take milliseconds.

An event loop costs more than such a cohort's message, so both ends read and write sockets directly: send each worker its part, do this process's
part, collect. The system often wakes a sleeping process on the core of the process that woke it, where it waits longer than its work takes.
So each end first polls for its message for a few milliseconds, yielding the core to others, before it sleeps.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import message as M
from atoll.core.errors import TaskError
from atoll.core.execution.executor import Executor
from atoll.core.requests.wire import pack_error, pack_folded, unpack_request

from .forking import Workers
from .worker import carried_tables, collector

if TYPE_CHECKING:
    from atoll.core.requests.request import Request

__all__ = ["Crew", "drive"]

_LENGTH = struct.Struct("<Q")
_SMALL = 1 << 18
_PATIENCE = 4e-3  # seconds of polling before sleeping


class Crew:
    """Workers that fold parts of cohorts."""

    def __init__(self, count: int, executor: Executor, registry: Mapping[str, Any]) -> None:
        self._workers = Workers()
        self._sockets = self._workers.start(count, _work, executor, registry)

    def __len__(self) -> int:
        return len(self._sockets)

    def post(self, i: int, frame: Any) -> None:
        """Send worker ``i`` its part."""
        try:
            _send(self._sockets[i], frame)
        except OSError as error:
            raise self._gone(i) from error

    def collect(self, i: int) -> Any:
        """Wait for worker ``i``."""
        try:
            frame = _recv(self._sockets[i])
        except OSError as error:
            raise self._gone(i) from error
        if frame is None:
            raise self._gone(i)
        return frame

    def _gone(self, i: int) -> TaskError:
        return TaskError(
            f"a worker ended during its work ({self._workers.describe(i)()})",
            where="engine",
            remedy="check for lack of memory or a crash in native code; engine='inline' runs the task in this process",
        )

    def stop(self) -> None:
        """End the workers."""
        self._workers.stop()


def drive(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    coroutine.close()
    raise TaskError("a task's fast path awaited something", remedy="make `many` and `sums` plain functions")


def _drive(request: Request, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a fold. A half without ``many`` is a coroutine that may wait; an event loop would cost more than the rest of a small cohort."""
    waits = request.wraps is not None and request.task.many is None
    return asyncio.run(coroutine) if waits else drive(coroutine)


def _work(sock: socket.socket, executor: Executor, registry: Mapping[str, Any]) -> None:
    """The body of a worker."""
    while True:
        try:
            frame = _recv(sock)
        except OSError:
            return
        if frame is None:
            return
        events: list[Any] = []
        try:
            request = unpack_request(frame["request"], registry)
            positions = np.asarray(frame["positions"])
            fold = executor.fold(request, positions, carried_tables(frame), None, collector(events))
            answer = {"folded": pack_folded(_drive(request, fold)), "events": events}
        except Exception as error:
            answer = {"error": pack_error(error), "events": events}
        try:
            _send(sock, answer)
        except OSError:
            return


def _send(sock: socket.socket, tree: Any) -> None:
    size = M.nbytes(tree)
    if size < _SMALL:
        sock.sendall(_LENGTH.pack(size) + M.encode(tree))
        return
    sock.sendall(_LENGTH.pack(size))
    for chunk in M.encode_chunks(tree, 1 << 20):
        sock.sendall(chunk)


def _recv(sock: socket.socket) -> Any:
    _look_out(sock)
    header = _exactly(sock, _LENGTH.size)
    if header is None:
        return None
    content = _exactly(sock, _LENGTH.unpack(header)[0])
    return None if content is None else M.decode(content)


def _look_out(sock: socket.socket) -> None:
    """Return when a message has arrived, or after a while."""
    if not hasattr(os, "sched_yield"):
        return
    until = time.perf_counter() + _PATIENCE
    while time.perf_counter() < until:
        try:
            sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            os.sched_yield()
        else:
            return


def _exactly(sock: socket.socket, size: int) -> bytearray | None:
    """Read ``size`` bytes; ``None`` if the other end has closed."""
    buffer = bytearray(size)
    view = memoryview(buffer)
    done = 0
    while done < size:
        count = sock.recv_into(view[done:], size - done, socket.MSG_WAITALL)
        if count == 0:
            return None
        done += count
    return buffer
