"""The worker's side of a remote engine: an executor behind a link."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

import numpy as np

from atoll.core import message as M
from atoll.core.errors import TaskError
from atoll.core.event import Event
from atoll.core.execution.executor import Executor
from atoll.core.execution.session import LocalPeers, Step
from atoll.core.execution.sum_builder import Spend
from atoll.core.persistence.state_table import States, StateTable
from atoll.core.requests.request import Request
from atoll.core.requests.wire import pack_error, pack_folded, pack_ran, unpack_request
from atoll.core.time.clock import IdleSelector, WatchedLoop, watching
from atoll.core.time.deadline import Prospect

from .link import Conduit, LinkClosed, SocketLink

__all__ = ["Actors", "Key", "Worker", "answer_of", "carried_tables", "collector", "sendable", "serve"]


# ------------------------------------------------------------------ the session roles that a process plays: the messages for them, whom they wait for, and how they end


Key = tuple[int, str]
"""The number of a session, and a role in it."""


class Actors:
    """The session roles that run in this process, wherever the other roles run."""

    def __init__(self) -> None:
        self._peers: dict[Key, LocalPeers] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._held: set[asyncio.Task[None]] = set()
        self._told: dict[Key, dict[str, int]] = {}

    def begin(self, key: Key, peers: LocalPeers, work: Coroutine[Any, Any, None]) -> None:
        """Start a role.

        Args:
            key: the session and the role.
            peers: through which the role hears the others.
            work: runs the role, and calls ``end`` before it answers.
        """
        self._peers[key] = peers
        task = self._tasks[key] = asyncio.get_running_loop().create_task(work)
        self._held.add(task)
        task.add_done_callback(self._held.discard)

    def hand(self, frame: Any) -> None:
        """Deliver to a role a message of another role, the news that one has ended, or that a checkpoint is decided. A role that no longer runs gets nothing."""
        peers = self._peers.get((frame["session"], frame["role"]))
        if peers is None:
            return
        if frame["op"] == "gone":
            peers.note_end(frame["source"], frame["ending"], frame["time"])
        elif frame["op"] == "step":
            lost = frame["lost"]
            peers.note_decision(frame["number"], frame["time"], None if lost is None else (lost[0], lost[1]))
        else:
            peers.put(frame["source"], frame["message"], frame["time"], frame.get("channel", ""))

    def stop(self, session: int) -> None:
        """Cancel the roles of a session that have started. It waits for their first steps: a task cancelled before these never answers."""
        for key, task in self._tasks.items():
            if key[0] == session:
                asyncio.get_running_loop().call_soon(self._cancel, key, task)

    def _cancel(self, key: Key, task: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is task:
            task.cancel()

    def end(self, key: Key) -> None:
        """Mark a role as ended: it gets no more messages, and its answer is not cancelled."""
        del self._peers[key], self._tasks[key]

    def playing(self, session: int) -> bool:
        """Whether any role of a session runs here."""
        return any(key[0] == session for key in self._peers)

    @property
    def some(self) -> bool:
        """Whether any role runs here."""
        return bool(self._peers)

    @property
    def busy(self) -> bool:
        """Whether a role does anything but wait for another role. You can call this from any thread."""
        return not all(peers.hears for peers in list(self._peers.values()))

    def waiting(self) -> list[dict[str, Any]]:
        """Which roles wait for whom, as frames; what was reported before is left out. Call it while nothing runs here."""
        waits = {key: peers.waits() for key, peers in self._peers.items()}
        news = {key: found for key, found in waits.items() if found and found != self._told.get(key)}
        self._told = waits
        return [
            {"op": "waits", "session": session, "role": role, "for": [[other, had] for other, had in found.items()]}
            for (session, role), found in news.items()
        ]


async def answer_of(
    work: Awaitable[dict[str, Any]], told: Callable[[Exception], BaseException] = lambda error: error
) -> dict[str, Any]:
    """A role's result, or the error that ended it, as ``told`` gives it."""
    try:
        return await work
    except asyncio.CancelledError:
        return {"error": pack_error(TaskError("stopped because another role of the session failed"))}
    except Exception as error:
        return {"error": pack_error(told(error))}


def sendable(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the answer if a message can carry it.

    Raises:
        MessageError: it cannot. If sending found this out, nobody would get an answer.
    """
    M.nbytes(answer)
    return answer


# ------------------------------------------------------------------ the worker's side of a remote engine: an executor behind a link


class Worker:
    """Answers frames until the link closes.

    Args:
        link: the link to the engine.
        executor: runs the tasks.
        registry: tasks and stages that the program registered by name.
    """

    def __init__(self, link: Conduit, executor: Executor, registry: Mapping[str, Any]) -> None:
        self.link = link
        self.executor = executor
        self.registry = registry
        self._actors = Actors()
        self._telling: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Answer until the other end closes."""
        with contextlib.suppress(LinkClosed), watching(self._idle):
            while True:
                frame = await self.link.recv()
                if frame["op"] in ("hand", "gone", "step"):
                    self._actors.hand(frame)
                elif frame["op"] == "stop":
                    self._actors.stop(frame["session"])
                elif frame["op"] == "role":
                    self._start_role(frame)
                else:
                    await self._answer(frame)

    def _idle(self) -> bool:
        """Nothing runs here: report which roles wait for whom, unless that was reported before."""
        news = self._actors.waiting()
        if news:
            self._telling = asyncio.create_task(self._tell(news))
        return bool(news)

    async def _tell(self, frames: list[dict[str, Any]]) -> None:
        with contextlib.suppress(LinkClosed):
            for frame in frames:
                await self.link.send(frame)

    async def _answer(self, frame: Any) -> None:
        events: list[Any] = []
        try:
            request = unpack_request(frame["request"], self.registry)
            answer = await self._work(frame, request, events)
            findings = (request.wraps or request).task.findings
            found = {} if findings is None else findings.pack()
            answer |= {"findings": found} if found else {}
        except Exception as error:
            answer = {"error": pack_error(error)}
        await self.link.send({"id": frame["id"], "events": events, **answer})

    async def _work(self, frame: Any, request: Request, events: list[Any]) -> dict[str, Any]:
        positions = np.asarray(frame["positions"])
        tables = carried_tables(frame)
        spend = collector(events)
        if frame["op"] == "fold":
            folded = await self.executor.fold(request, positions, tables, None, spend)
            return {"folded": pack_folded(folded)}
        ran = [pack_ran(one) for one in await self.executor.run(request, positions, tables, spend)]
        return {"ran": ran}

    def _start_role(self, frame: Any) -> None:
        session, role = frame["session"], frame["role"]

        async def carry(target: str, message: Any, sent: float, channel: str) -> None:
            said = {"session": session, "source": role, "target": target, "message": message, "time": sent}
            await self.link.send({"op": "pass", **said, **({"channel": channel} if channel else {})})

        async def reach(step: Step, time: float, received: dict[str, int]) -> None:
            told = {"number": step.number, "time": time, "received": received, "events": [*events]}
            events.clear()
            await self.link.send({"op": "reached", "session": session, "role": role, "step": step.pack(), **told})

        events: list[Any] = []
        prospect = Prospect.unpack(frame["prospect"])
        resumed = None if frame["step"] is None else Step(**frame["step"])
        peers = LocalPeers(
            role, list(frame["others"]), carry, frame["start"], prospect=prospect, resumed=resumed, reach=reach
        )
        self._actors.begin((session, role), peers, self._role(frame, peers, events))

    async def _role(self, frame: Any, peers: LocalPeers, events: list[Any]) -> None:
        answer = await answer_of(self._play(frame, peers, events))
        self._actors.end((frame["session"], frame["role"]))
        await self.link.send({"id": frame["id"], "events": events, **answer})

    async def _play(self, frame: Any, peers: LocalPeers, events: list[Any]) -> dict[str, Any]:
        request, table = (
            unpack_request(frame["request"], self.registry),
            StateTable.holding(States.unpack(frame["states"])),
        )
        ran = await self.executor.role(request, frame["position"], peers, table, collector(events))
        return sendable({"ran": [pack_ran(ran)]})


def carried_tables(frame: Any) -> dict[str, StateTable]:
    """The states of parties that a request carries, by slot."""
    return {slot: StateTable.holding(States.unpack(states)) for slot, states in frame["tables"].items()}


def collector(events: list[Any]) -> Spend:
    """Return a function that adds privacy events to the reply, so that they are in the ledger before the program sees it."""

    def spend(event: Event, party: str | Sequence[str], request: str) -> None:
        events.append({"event": event.pack(), "party": party, "request": request})

    return spend


def serve(sock: socket.socket, executor: Executor, registry: Mapping[str, Any]) -> None:
    """Serve one link until it closes; the body of a worker process."""

    async def main() -> None:
        link = SocketLink(sock)
        try:
            await Worker(link, executor, registry).serve()
        finally:
            link.close()

    with asyncio.Runner(loop_factory=lambda: WatchedLoop(IdleSelector(links=1))) as runner:
        runner.run(main())
