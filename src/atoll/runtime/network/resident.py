"""A site's half of the engine: an executor with its state, journal and ledger, behind a link.

The link is read by an event loop that is never blocked. Tasks, and everything that touches private state, run one after another in a thread of
their own, in the order in which the server sent them; roles of conversations run in another, because they wait for each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.chain import Chain
from atoll.core.event import unpack_event
from atoll.core.request import Folded, Ran, Request
from atoll.core.stage import Stage
from atoll.core.task import resolve
from atoll.core.wire import pack_error, pack_folded, pack_ran, unpack_request
from atoll.engines.link import LinkClosed

from .direct import Neighbours
from .parked import Parking
from .roles import Roles
from .segments import Segments

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from atoll.core.host import Host

__all__ = ["Resident"]


class Resident:
    """Answers the server until the link closes.

    Args:
        link: to the server's engine: ``send(tree)``, ``recv() -> tree``, which raises ``LinkClosed``.
        host: runs tasks, keeps states, journal and ledger.
        registry: tasks and stages that the program registered by name.
        pulse: seconds between two looks at whether the work goes on; a small part of the server's patience.
        neighbours: links to the job processes of other sites, over which roles of conversations may speak.
    """

    def __init__(
        self,
        link: Any,
        host: Host,
        registry: Mapping[str, Any],
        *,
        pulse: float = 1.0,
        neighbours: Mapping[str, Any] | None = None,
    ) -> None:
        self.link = link
        self.neighbours = Neighbours(neighbours or {})
        self._broken: asyncio.Future[None] | None = None
        self._every = pulse
        self.host = host
        self.registry = registry
        self.parking = Parking(host)
        self._segments = Segments(host.store)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="atoll-tasks")
        self._runner: asyncio.Runner | None = None
        self._unwanted: set[tuple[str, int]] = set()
        self._events: dict[str, list[dict[str, Any]]] = {}
        self._roles = Roles(self)
        self._working = False
        for entry in host.ledger:
            self._note_event(entry)

    # ------------------------------------------------------------------ the link

    async def serve(self) -> None:
        """Answer until the server goes away.

        Raises:
            NeighbourLost: another site's process went away in the middle of a session.
            TaskError: another site spoke for a role that is not there.
        """
        self._broken = asyncio.get_running_loop().create_future()
        orders: asyncio.Queue[tuple[Any, Any]] = asyncio.Queue()
        works = (self._work(orders), self._pulse(), self.neighbours.listen(self._roles.heard, self._roles.lost))
        helpers = [asyncio.create_task(work) for work in works]
        reader = asyncio.create_task(self._read(orders))
        try:
            tasks: list[asyncio.Future[None]] = [reader, *helpers, self._broken]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if self._broken in done:
                self._broken.result()
            for task in done:
                with contextlib.suppress(LinkClosed):
                    task.result()
        finally:
            for task in (reader, *helpers):
                task.cancel()
            await asyncio.gather(reader, *helpers, return_exceptions=True)
            self._roles.close()
            self._thread.submit(self._close_runner)  # once the task that runs now has ended
            self._thread.shutdown(wait=False)

    def broken(self, error: Exception) -> None:
        """Something that other sites did ends this site's part."""
        if self._broken is not None and not self._broken.done():
            self._broken.set_exception(error)
            self._broken.exception()  # the link to the server may have ended first

    async def _read(self, orders: asyncio.Queue[tuple[Any, Any]]) -> None:
        while True:
            frame = await self.link.recv()
            op = frame["op"]
            if op in ("hand", "gone", "stop"):
                self._roles.handle(frame)
                continue
            if op == "meet":
                self._roles.meet(frame)
                continue
            if op == "role":
                self._roles.expect(frame)
            if op == "discard":
                self._unwanted.update((frame["id"], int(p)) for p in frame["positions"])
            body = await self.link.recv() if frame.get("body") else None
            orders.put_nowait((frame, body))

    async def _work(self, orders: asyncio.Queue[tuple[Any, Any]]) -> None:
        while True:
            frame, body = await orders.get()
            if frame["op"] == "role":
                self._roles.start(frame)
                continue
            for step in self._steps(frame, body):
                answer = await self.in_thread(step)
                if answer is not None:
                    await self.link.send(answer)

    async def in_thread(self, step: Callable[[], Awaitable[Any]]) -> Any:
        """Run something that touches private state, after everything that came before it."""
        self._working = True
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._drive, step)
        finally:
            self._working = False

    def _drive(self, step: Callable[[], Awaitable[Any]]) -> Any:
        if self._runner is None:
            self._runner = asyncio.Runner()

        async def main() -> Any:
            return await step()

        return self._runner.run(main())

    def _close_runner(self) -> None:
        if self._runner is not None:
            self._runner.close()

    async def _pulse(self) -> None:
        """Say that the work goes on: while nothing is to be done, and when this process has used its processor since."""
        before = time.process_time()
        while True:
            await asyncio.sleep(self._every)
            now = time.process_time()
            if not self._working or now - before > 1e-3:
                await self.link.send({"op": "pulse"})
            before = now

    # ------------------------------------------------------------------ orders

    def _steps(self, frame: Any, body: Any) -> list[Callable[[], Awaitable[Any]]]:
        """The pieces of work in an order, each with an answer of its own."""
        if frame["op"] == "launch":
            request = unpack_request(
                {**frame["request"], "message": None if body is None else body["message"]}, self.registry
            )
            positions = [int(p) for p in frame["positions"]]
            return [lambda p=p: self._launch(request, p, frame["push"]) for p in positions]  # type: ignore[misc]
        if frame["op"] == "collect":
            return [lambda p=int(p): self._collect(frame, p) for p in frame["positions"]]  # type: ignore[misc]
        return [lambda: self._remember(frame)]

    async def _launch(self, request: Request, position: int, push: str) -> Any:
        if (request.id, position) in self._unwanted:
            self._unwanted.discard((request.id, position))
            return None
        host = self.host
        ran = host.replay(request, position)
        if ran is None:
            key = int(host.executor.keys(request, np.array([position], dtype=np.int64))[0])
            states, memory = host.states(request), host.memory(request)
            ran = await host.executor.one(request, position, key, states, self.spend, memory)
        self.parking.put(request, ran)
        if not push:
            return self._frame("done", request.id, position)
        return await self._reply(request, position, push)

    async def _collect(self, frame: Any, position: int) -> Any:
        try:
            parked = self.parking.get(frame["id"], position)
            stages = [Stage.of(spec, lambda name: resolve(name, self.registry, Stage)) for spec in frame["uplink"]]
            chain = Chain(stages, frame["place"])
            parked.request = replace(parked.request, uplink=chain, public=tuple(frame["public"]), apart=frame["apart"])
            return await self._reply(parked.request, position, frame["as"])
        except Exception as error:
            return self._frame("failed", frame["id"], position, error=pack_error(error))

    async def _reply(self, request: Request, position: int, push: str) -> Any:
        parked = self.parking.get(request.id, position)
        if push == "run":
            return self._frame("ran", request.id, position, ran=pack_ran(_without_state(parked.ran)))
        host = self.host
        parked.folded = await host.executor.fold(
            request, np.array([position], dtype=np.int64), host.store.shelf(request.slot), lambda _: parked.ran,
            self.spend, host.memory(request),
        )  # fmt: skip
        bare = replace_states(parked.folded)
        return self._frame("folded", request.id, position, folded=pack_folded(bare))

    def _frame(self, op: str, request: str, position: int, **more: Any) -> dict[str, Any]:
        return {"op": op, "id": request, "party": position, "events": self.events(request, position), **more}

    async def _remember(self, frame: Any) -> Any:
        """What the server says about states and generations."""
        op, host = frame["op"], self.host
        positions = [int(p) for p in frame.get("positions", ())]
        if op == "keep":
            self.parking.keep(frame["id"], positions)
        elif op == "discard":
            self.parking.discard(frame["id"], positions)
            self._unwanted -= {(frame["id"], p) for p in positions}
        elif op == "drop":
            host.store.drop(frame["slot"])
        if "number" not in frame:
            return None
        if op == "known":
            return self._known(frame)
        try:
            return {"op": "answer", "number": frame["number"], "names": self._generation(frame)}
        except Exception as error:
            return {"op": "answer", "number": frame["number"], "error": pack_error(error)}

    def _known(self, frame: Any) -> Any:
        """What the journal knows of a role, for a session that is not held again."""
        request = unpack_request({**frame["request"], "message": None}, self.registry)
        ran = self.host.replay(request, int(frame["position"]))
        if ran is not None:
            self.parking.park(request, ran)
        shown = None if ran is None else pack_ran(_without_state(ran))
        return {"op": "answer", "number": frame["number"], "ran": shown}

    def _generation(self, frame: Any) -> list[str]:
        host, op = self.host, frame["op"]
        if op == "commit":
            return host.store.commit(frame["slot"], frame["generation"], full=frame["full"])
        if op == "settle":
            host.store.settle(frame["slot"])
            host.journal.forget(frame["slot"])
            self._segments.settle(frame["slot"], list(frame["names"]))
        elif op == "load":
            host.store.load(frame["slot"], list(frame["names"]))
        elif op == "kept":
            self._roles.keep(frame)
        return []

    # ------------------------------------------------------------------ privacy events

    def spend(self, event: Any, party: str, request: str) -> None:
        """Write an event into the site's own ledger; the server is told with the reply."""
        self.host.spend(event, party, request)
        self._note_event({"party": party, "request": request, **event.packed()})

    def _note_event(self, entry: Mapping[str, Any]) -> None:
        fields = {k: v for k, v in entry.items() if k not in ("party", "request")}
        unpack_event(dict(fields))
        told = {"event": fields, "party": entry["party"], "request": entry["request"]}
        known = self._events.setdefault(str(entry["request"]).partition("#")[0], [])
        if told not in known:
            known.append(told)

    def events(self, request: str, position: int) -> list[dict[str, Any]]:
        """What a party has spent on a request, now or before a crash."""
        name = self.host.executor.roster.name(position)
        return [told for told in self._events.get(request, ()) if told["party"] == name]


def _without_state(ran: Ran) -> Ran:
    """What may leave the site: the reply, never the private state behind it."""
    return replace(ran, state=None, changed=False, memory=None)


def replace_states(folded: Folded) -> Folded:
    """The sums alone: states and the stages' memories stay where they are."""
    return Folded(folded.totals, folded.senders, folded.nbytes, folded.rejected, folded.errors)
