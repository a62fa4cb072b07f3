"""The batched engine: a cohort in large array operations, on all cores.

A crew: worker processes in lock step, for cohorts that take milliseconds.

An event loop costs more than such a cohort's message, so both ends read and write sockets directly: send each worker its part, do this process's
part, collect. The system often wakes a sleeping process on the core of the process that woke it, where it waits longer than its work takes.
So each end first polls for its message for a few milliseconds, yielding the core to others, before it sleeps.
"""

from __future__ import annotations

import asyncio
import functools
import os
import socket
import struct
import time
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core import message as M
from atoll.core.errors import TaskError
from atoll.core.event import unpack_event
from atoll.core.execution.executor import Executor
from atoll.core.requests.cohort import Cohort
from atoll.core.requests.party import Parties
from atoll.core.requests.request import PartialSum, Reply, Request
from atoll.core.requests.wire import pack_error, pack_folded, pack_request, unpack_error, unpack_folded, unpack_request

from .inline import Inline
from .processes import Workers, check_workers, cores
from .remote import carried_states, dealt, knows, shares
from .worker import carried_tables, collector

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.engine import RunContext

__all__ = ["Batched", "Crew", "drive"]


# ---------------------------------------------------------------------- forked workers


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
            raise self._make_end_error(i) from error

    def collect(self, i: int) -> Any:
        """Wait for worker ``i``."""
        try:
            frame = _recv(self._sockets[i])
        except OSError as error:
            raise self._make_end_error(i) from error
        if frame is None:
            raise self._make_end_error(i)
        return frame

    def _make_end_error(self, i: int) -> TaskError:
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


# ---------------------------------------------------------------------- the engine


WORTH_A_PROCESS = 1e-3  # seconds of work of a cohort; below this, a message to a worker costs more than it saves


class Batched(Inline):
    """Uses a task's ``many`` or ``sums``: it computes blocks of clients that fit the cache, and spreads large cohorts over processes.

    Everything else (single replies, sessions, tasks without a fast path, work too small for a process) runs in this process.

    Args:
        workers: number of processes that share a cohort, including this one, or of threads if a task has its own; by default one per core.
    """

    name: ClassVar[str] = "batched"
    vectorised: ClassVar[bool] = True

    def __init__(self, workers: int | None = None) -> None:
        super().__init__()
        self._wanted = check_workers(workers, self.name)
        self._world: RunContext | None = None
        self._crew: Crew | None = None
        self._plans: dict[str, int] = {}
        self._taught: frozenset[str] = frozenset()

    async def open(self, world: RunContext) -> None:
        """Create the host; workers start once a cohort has enough work for them."""
        await super().open(world)
        self._world = world
        self._plans = {}
        self._alone = asyncio.Lock()  # workers answer in order: one cohort at a time, whichever job it is of
        self.choices["workers"] = int(self._wanted or self.choices.get("workers") or cores())

    async def run(self, request: Request, positions: NDArray[np.int64]) -> list[Reply]:
        """Run the task at each party, and a wrapped task in blocks."""
        if request.wraps is not None:
            self._plan_processes(request, positions)
        return await super().run(request, positions)

    def _plan_processes(self, request: Request, positions: NDArray[np.int64]) -> int:
        """How many processes share a cohort. The wrapped task decides, since a half costs little."""
        alone = self._world is None or self.host.executor.single
        asked = request.wraps or request
        if alone or asked.task.many is None or asked.task.islands or asked.mail is not None or len(positions) == 0:
            return 1
        if asked.task.address not in self._plans:
            try:
                self._plans[asked.task.address] = self._plan(asked, positions)
            except (Exception, SystemExit):  # raised by a party: plan nothing yet; the executor reports which party
                return 1
        return self._plans[asked.task.address]

    async def fold(self, request: Request, positions: NDArray[np.int64]) -> PartialSum:
        """Add up a cohort, here or with the workers."""
        workers = self._plan_processes(request, positions)
        if workers == 1 or len(positions) < 2 * workers:
            return await self.host.fold(request, positions)
        if request.wraps is not None and self.host.journal:
            return await self._fold_again(request, positions, workers)
        async with self._alone:
            return await self._fold_together(request, positions)

    async def _fold_again(self, request: Request, positions: NDArray[np.int64], workers: int) -> PartialSum:
        """Add up here, part by part as the workers would: some replies may be in the journal, which workers do not have."""
        request, host = self.host.add_seeds(request, positions), self.host
        replay, tables = functools.partial(host.replay, request), host.tables(request)
        parts = shares(host.executor, request, positions, workers)
        folds = [await host.executor.fold(request, part, tables, replay, host.spend) for part in parts if len(part)]
        return host.absorb_fold(request, PartialSum.zero().merge(*folds))

    async def _fold_together(self, request: Request, positions: NDArray[np.int64]) -> PartialSum:
        """Send the workers their parts, add up the first part here, and merge all parts; senders are in cohort order."""
        crew, request = self._open_crew(request), self.host.add_seeds(request, positions)
        split = shares if request.wraps is not None else dealt
        mine, *theirs = split(self.host.executor, request, positions, len(crew) + 1)
        try:
            for i, part in enumerate(theirs):
                crew.post(i, self._frame(request, part))
            first = await self.host.executor.fold(request, mine, self.host.tables(request), None, self.host.spend)
            frames = [crew.collect(i) for i in range(len(theirs))]
        except BaseException:  # an answer that is still unread would be taken for the next request's
            await self.close()
            raise
        rest = [self._unpack(frame) for frame in frames]
        return self.host.absorb_fold(request, first.merge(*rest).arrange(positions))

    def _frame(self, request: Request, positions: NDArray[np.int64]) -> dict[str, Any]:
        carried = carried_states(self.host, request, positions)
        names = [self.host.executor.roster.name(p) for p in positions.tolist()] if request.mail else []
        return {"request": pack_request(request, names), "positions": positions, **carried}

    def _unpack(self, frame: Any) -> PartialSum:
        for item in frame["events"]:
            self.host.spend(unpack_event(item["event"]), item["party"], item["request"])
        if frame.get("error") is not None:
            raise unpack_error(frame["error"]) or TaskError("unknown")
        return unpack_folded(frame["folded"])

    def _open_crew(self, request: Request) -> Crew:
        if self._crew is not None and not knows(
            self._taught, request
        ):  # a job that began later: new workers inherit it
            self._crew.stop()
            self._crew = None
        if self._crew is None:
            if self._world is None:
                raise RuntimeError("the engine is not open")
            for one in (request, request.wraps):
                if one is not None:
                    self._world.registry.setdefault(one.task.address, one.task)
            self._taught = frozenset(self._world.registry)
            self._crew = Crew(self.choices["workers"] - 1, self.host.executor, self._world.registry)
        return self._crew

    def _plan(self, request: Request, positions: NDArray[np.int64]) -> int:
        """Decide once per task how it runs: repeat what the run recorded, or tune and record it.

        Tuning happens before the workers start, so that they inherit the compiled code.
        """
        tuning = request.task.tuning
        recorded = self.choices.get("tasks", {}).get(request.task.address)
        if tuning is None:
            return 1
        if recorded is not None:
            tuning.recall(recorded["tuning"])
        executor = self.host.executor
        part = positions[: -(-len(positions) // self.choices["workers"])]
        table = self.host.table(request)
        cohort = Cohort(Parties(executor.roster, part), executor.keys(request, part), executor.population, table)
        cores = 1 if recorded is not None else self.choices["workers"]
        seconds = tuning.prepare(cohort, request.message, cores) * len(positions) / max(1, len(part))
        workers = self.choices["workers"] if seconds > WORTH_A_PROCESS else 1
        if recorded is not None:
            workers = int(recorded["workers"])
        tasks = self.choices.get("tasks", {})
        self.choices["tasks"] = {
            **tasks,
            request.task.address: {"workers": workers, "tuning": tuning.choices, "seconds": dict(tuning.seconds)},
        }
        if self._world is not None:
            self._world.checkpoints.remember(self.choices)
        return workers

    async def close(self) -> None:
        """End the workers."""
        if self._crew is not None:
            self._crew.stop()
            self._crew = None
