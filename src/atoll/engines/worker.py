"""The worker's side of a remote engine: an executor behind a link."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from atoll.core.errors import TaskError
from atoll.core.event import Event
from atoll.core.executor import Executor
from atoll.core.idle import IdleSelector, WatchedLoop, watching
from atoll.core.request import Request
from atoll.core.session import LocalPeers
from atoll.core.shelf import Shelf
from atoll.core.states import States
from atoll.core.wire import pack_error, pack_folded, pack_ran, unpack_request

from .link import Link, LinkClosed

__all__ = ["Worker", "carried_shelves", "collector", "serve"]


class Worker:
    """Answers frames until the link closes.

    Args:
        link: to the engine.
        executor: runs the tasks.
        registry: tasks and stages that the program registered by name.
    """

    def __init__(self, link: Link, executor: Executor, registry: Mapping[str, Any]) -> None:
        self.link = link
        self.executor = executor
        self.registry = registry
        self._peers: dict[tuple[int, str], LocalPeers] = {}
        self._running: dict[int, set[asyncio.Task[None]]] = {}
        self._told: dict[tuple[int, str], dict[str, int]] = {}
        self._telling: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Answer until the other end goes away."""
        with contextlib.suppress(LinkClosed), watching(self._idle):
            while True:
                frame = await self.link.recv()
                if frame["op"] in ("hand", "gone"):
                    self._hand(frame)
                elif frame["op"] == "stop":
                    for role in self._running.get(frame["session"], ()):
                        role.cancel()
                elif frame["op"] == "role":
                    self._start_role(frame)
                    await asyncio.sleep(0)  # let it begin: a task that is cancelled before never answers
                else:
                    await self._answer(frame)

    def _idle(self) -> bool:
        """Nothing goes on here: say which roles wait for whom, if that is news."""
        waits = {key: peers.waits() for key, peers in self._peers.items()}
        news = {key: found for key, found in waits.items() if found and found != self._told.get(key)}
        self._told = waits
        if news:
            self._telling = asyncio.create_task(self._tell(news))
        return bool(news)

    async def _tell(self, news: Mapping[tuple[int, str], dict[str, int]]) -> None:
        with contextlib.suppress(LinkClosed):
            for (session, role), waits in news.items():
                frame = {"op": "waits", "session": session, "role": role, "for": [[r, had] for r, had in waits.items()]}
                await self.link.send(frame)

    async def _answer(self, frame: Any) -> None:
        events: list[Any] = []
        try:
            request = unpack_request(frame["request"], self.registry)
            answer = await self._work(frame, request, events)
        except Exception as error:
            answer = {"error": pack_error(error)}
        await self.link.send({"id": frame["id"], "events": events, **answer})

    async def _work(self, frame: Any, request: Request, events: list[Any]) -> dict[str, Any]:
        positions = np.asarray(frame["positions"])
        shelf, memory = carried_shelves(frame)
        spend = collector(events)
        if frame["op"] == "fold":
            folded = await self.executor.fold(request, positions, shelf, None, spend, memory)
            return {"folded": pack_folded(folded)}
        keys = self.executor.keys(request, positions).tolist()
        ran = [
            pack_ran(await self.executor.one(request, p, k, shelf.get, spend, memory))
            for p, k in zip(positions.tolist(), keys, strict=True)
        ]
        return {"ran": ran}

    def _hand(self, frame: Any) -> None:
        peers = self._peers.get((frame["session"], frame["role"]))
        if peers is None:
            return
        if frame["op"] == "gone":
            peers.gone(frame["source"])
        else:
            peers.put(frame["source"], frame["message"], frame["time"])

    def _start_role(self, frame: Any) -> None:
        session, role = frame["session"], frame["role"]

        async def carry(target: str, message: Any, sent: float) -> None:
            await self.link.send(
                {"op": "pass", "session": session, "source": role, "target": target, "message": message, "time": sent}
            )

        peers = LocalPeers(role, list(frame["others"]), carry, frame["start"])
        self._peers[session, role] = peers
        task = asyncio.create_task(self._role(frame, peers))
        self._running.setdefault(session, set()).add(task)

    async def _role(self, frame: Any, peers: LocalPeers) -> None:
        events: list[Any] = []
        states = dict(frame["states"])
        try:
            request = unpack_request(frame["request"], self.registry)
            ran = await self.executor.role(request, frame["position"], peers, states.get, collector(events))
            answer: dict[str, Any] = {"ran": [pack_ran(ran)]}
        except asyncio.CancelledError:
            answer = {"error": pack_error(TaskError("stopped because another role of the session failed"))}
        except Exception as error:
            answer = {"error": pack_error(error)}
        self._peers.pop((frame["session"], frame["role"]), None)
        if not any(session == frame["session"] for session, _ in self._peers):
            self._running.pop(frame["session"], None)
        await self.link.send({"id": frame["id"], "events": events, **answer})


def carried_shelves(frame: Any) -> tuple[Shelf, Shelf | None]:
    """The private states that came with a request, and what uplink stages remember."""
    memories = frame["memories"]
    return (
        Shelf.holding(States.unpack(frame["states"])),
        None if memories is None else Shelf.holding(States.unpack(memories)),
    )


def collector(events: list[Any]) -> Callable[[Event, str, str], None]:
    """Carries privacy events home with the reply: they are in the ledger before the program sees it."""

    def spend(event: Event, party: str, request: str) -> None:
        events.append({"event": event.packed(), "party": party, "request": request})

    return spend


def serve(sock: socket.socket, executor: Executor, registry: Mapping[str, Any]) -> None:
    """Serve one link to its end; the body of a worker process."""

    async def main() -> None:
        link = Link(sock)
        try:
            await Worker(link, executor, registry).serve()
        finally:
            link.close()

    with asyncio.Runner(loop_factory=lambda: WatchedLoop(IdleSelector(links=1))) as runner:
        runner.run(main())
