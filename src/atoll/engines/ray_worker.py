"""The worker's side of the Ray engine, which runs in an actor. It imports no Ray."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from atoll.core import message as M
from atoll.core.execution.executor import Executor
from atoll.core.persistence.checkpoint import within
from atoll.core.persistence.records import Allowance
from atoll.core.persistence.state_table import States, StateTable
from atoll.core.requests.request import Request
from atoll.core.requests.wire import pack_folded
from atoll.core.time.clock import IdleSelector, WatchedLoop

from .link import LinkClosed
from .worker import Worker, collector

__all__ = ["ActorBody", "KeepingWorker"]


class ActorBody:
    """An actor: a worker in its own thread, and the two calls that carry the engine's frames.

    Args:
        kit: the executor, and the tasks and stages that the program registered by name.
        memory: bytes of private state to keep in memory; the rest goes to memory-mapped files.
    """

    def __init__(self, kit: tuple[Executor, Mapping[str, Any]], memory: int | None = None) -> None:
        executor, self._registry = kit[0], dict(kit[1])
        self._link = _ThreadLink()
        self._lock = threading.Lock()
        self._early: dict[int, Any] = {}
        self._next = 0
        self._thread = threading.Thread(target=self._serve, args=(executor, self._registry, memory), daemon=True)
        self._thread.start()
        self._link.ready.wait()

    def _serve(self, executor: Executor, registry: Mapping[str, Any], memory: int | None) -> None:
        async def main() -> None:
            self._link.open()
            await KeepingWorker(self._link, executor, registry, Allowance(memory)).serve()

        with asyncio.Runner(loop_factory=lambda: WatchedLoop(IdleSelector())) as runner:
            runner.run(main())

    def put(self, number: int, frame: Any, broadcast: Any = None, named: Mapping[str, Any] | None = None) -> None:
        """Receive a frame.

        Args:
            number: the frame's number, since Ray starts calls in any order.
            frame: the message.
            broadcast: the content of its request as a separate message, which all actors of a node share.
            named: instead of a frame: tasks and stages to register by name.
        """
        with self._lock:
            self._early[number] = (frame, broadcast, named or {})
            while self._next in self._early:
                frame, broadcast, named = self._early.pop(self._next)
                self._next += 1
                self._registry.update(named)
                if frame is not None:
                    self._link.push(frame, broadcast)

    def take(self) -> list[bytes]:
        """Wait for frames from the worker, and return all of them."""
        found = [self._link.outbox.get()]
        while not self._link.outbox.empty():
            found.append(self._link.outbox.get())
        return found


class _ThreadLink:
    """Frames between Ray's threads and the worker's event loop."""

    def __init__(self) -> None:
        self.outbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.ready = threading.Event()

    def open(self) -> None:
        """Start, in the worker's loop."""
        self._loop = asyncio.get_running_loop()
        self._inbox: asyncio.Queue[Any] = asyncio.Queue()
        self.ready.set()

    def push(self, frame: Any, broadcast: Any) -> None:
        """Pass a frame to the worker, from any thread."""
        self._loop.call_soon_threadsafe(self._inbox.put_nowait, (frame, broadcast))

    async def recv(self) -> Any:
        """Wait for the next frame."""
        encoded, broadcast = await self._inbox.get()
        frame = M.decode(encoded)
        if broadcast is not None:
            (frame["request"]["wraps"] or frame["request"])["message"] = M.decode(broadcast)
        return frame

    async def send(self, tree: Any) -> None:
        """Send a frame to the engine."""
        self.outbox.put(M.encode(tree))

    def close(self) -> None:
        """Do nothing: the actor ends with its process."""
        raise LinkClosed


class KeepingWorker(Worker):
    """A worker that keeps the private states of the clients whose sums it made.

    The engine has the states too, and each request says which copies are up to date, so a lost worker loses no state.

    Args:
        link: the link to the engine.
        executor: runs the tasks.
        registry: tasks and stages that the program registered by name.
        allowance: memory for the states.
    """

    def __init__(self, link: Any, executor: Executor, registry: Mapping[str, Any], allowance: Allowance) -> None:
        super().__init__(link, executor, registry)
        self._allowance = allowance
        self._tables: dict[str, StateTable] = {}

    async def _answer(self, frame: Any) -> None:
        if frame["op"] == "forget":
            for name in [name for name in self._tables if within(name, frame["slot"])]:
                del self._tables[name]
            return
        await super()._answer(frame)

    async def _work(self, frame: Any, request: Request, events: list[Any]) -> dict[str, Any]:
        tuning = (request.wraps or request).task.tuning
        if frame.get("tuning") and tuning is not None and tuning.choices != frame["tuning"]:
            tuning.recall(frame["tuning"])
        if "kept" not in frame:
            return await super()._work(frame, request, events)
        positions, kept = np.asarray(frame["positions"]), frame["kept"]
        fresh = positions[~np.asarray(kept["held"])]
        tables = {slot: self._filled(slot, fresh, states) for slot, states in frame["tables"].items()}
        folded = await self.executor.fold(request, positions, tables, None, collector(events))
        for slot, left in folded.left.items():
            if slot in tables:  # only the engine keeps named results
                tables[slot].put_all(left)
        return {"folded": pack_folded(folded)}

    def _filled(self, slot: str, fresh: Any, states: Any) -> StateTable:
        """A slot's table with the states received for some clients; clients without one have no state."""
        table = self._tables.setdefault(slot, StateTable(self._allowance))
        table.discard(fresh)
        table.put_all(States.unpack(states))
        return table
