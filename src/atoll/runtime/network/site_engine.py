"""A site's half of the engine: an executor with its state, journal and ledger, behind a link.

The link is read by an event loop that is never blocked. Tasks, and everything that touches private state, run one after
another in a thread of their own, in the order in which the server sent them; roles of sessions run in another
thread, because they wait for each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from atoll.core import message as M
from atoll.core.event import unpack_event
from atoll.core.requests.chain import Chain
from atoll.core.requests.request import PartialSum, Request
from atoll.core.requests.stage import Stage
from atoll.core.requests.task import resolve
from atoll.core.requests.wire import pack_error, pack_folded, pack_ran, unpack_request
from atoll.core.time.meter import Effort
from atoll.engines.link import LinkClosed, feed

from .session_site import DirectLinks, Roles
from .shared import restore_words
from .site_state import PendingReplies, RowsRecord, SiteState, without_state

if TYPE_CHECKING:
    from atoll.core.execution.host import Host

__all__ = ["Signs", "SiteEngine", "SpendLog", "TaskThread"]


# ------------------------------------------------------------------ the thread in which a site runs tasks, and everything that touches private state
#
# The thread in which a site runs tasks, and everything that touches private state: one thing after another.


Step = Callable[[], Awaitable[Any]]
R = TypeVar("R")


class TaskThread:
    """A thread with an event loop of its own, for work that would block the loop that reads the link.

    Attributes:
        busy: whether something runs in it.
    """

    def __init__(self) -> None:
        self.busy = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="atoll-tasks")
        self._runner: asyncio.Runner | None = None

    async def run(self, step: Step) -> Any:
        """Run a step after everything that came before it."""
        self.busy = True
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._drive, step)
        finally:
            self.busy = False

    async def call(self, function: Callable[..., R], *given: Any) -> R:
        """Call a function there, outside its event loop."""
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, functools.partial(contextvars.copy_context().run, function, *given)
        )

    def _drive(self, step: Step) -> Any:
        if self._runner is None:
            self._runner = asyncio.Runner()

        async def main() -> Any:
            return await step()

        return self._runner.run(main())

    def close(self) -> None:
        """End the thread once its current step has ended; do not wait for that."""
        self._thread.submit(self._close)
        self._thread.shutdown(wait=False)

    def _close(self) -> None:
        if self._runner is not None:
            self._runner.close()


# ------------------------------------------------------------------ when a site says that its work goes on


class Signs:
    """Decides now and then whether to send a sign of life.

    While a task works, it sends a sign if the process has used the processor since the last look. Otherwise it sends
    one if something is due: a message is in transit to or from here, or roles wait for others; and once more after
    that. A site that owes nothing stays silent, so that a program that asks for nothing any more is noticed.

    Args:
        heard: returns what has arrived so far; the value changes once there is more.
        busy: tells whether a task or a role is at work.
        waits: tells whether roles wait for others.
        effort: of this process.

    Attributes:
        taking: whether an order is partly here.
        giving: whether an answer is in transit.
    """

    def __init__(
        self,
        heard: Callable[[], object],
        busy: Callable[[], bool],
        waits: Callable[[], bool],
        effort: Effort | None = None,
    ) -> None:
        self._heard = heard
        self._busy = busy
        self._waits = waits
        self._effort = effort or Effort()
        self._last: object = None
        self._owed = False
        self.taking = False
        self.giving = False

    def due(self) -> bool:
        """Tell whether to send a sign now."""
        heard = self._heard()
        owed, self._owed = self._owed or heard != self._last, self.taking or self.giving or self._waits()
        self._last = heard
        if self._busy():
            self._owed = True
            return self._effort.moved()
        return owed or self._owed


# ------------------------------------------------------------------ what the parties of a site have spent on each request, before and after a crash; every reply reports it to the server


class SpendLog:
    """Privacy events by request.

    Args:
        host: the owner of the ledger.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._events: dict[str, list[dict[str, Any]]] = {}
        for entry in host.ledger:
            self._note(entry)

    def spend(self, event: Any, party: str | Sequence[str], request: str) -> None:
        """Write an event to the site's own ledger; the reply reports it to the server."""
        self._host.spend(event, party, request)
        for name in [party] if isinstance(party, str) else party:
            self._note({"party": name, "request": request, **event.pack()})

    def _note(self, entry: Mapping[str, Any]) -> None:
        fields = {k: v for k, v in entry.items() if k not in ("party", "request", "job")}
        unpack_event(dict(fields))
        told = {"event": fields, "party": entry["party"], "request": entry["request"]}
        known = self._events.setdefault(str(entry["request"]).partition("#")[0], [])
        if told not in known:
            known.append(told)

    def on(self, request: str, position: int) -> list[dict[str, Any]]:
        """Return what a party has spent on a request."""
        name = self._host.executor.roster.name(position)
        return [told for told in self._events.get(request, ()) if told["party"] == name]


# ------------------------------------------------------------------ a site's half of the engine: an executor with its state, journal and ledger, behind a link


_TOGETHER = 64 << 20
"""Bytes of replies that wait until what their parties promise is durable."""


class SiteEngine:
    """Answers the server until the link closes.

    Args:
        link: to the server's engine: ``send(tree)``, ``recv() -> tree``, which raises ``LinkClosed``.
        host: runs tasks, keeps states, journal and ledger.
        registry: tasks and stages that the program registered by name.
        pulse: seconds between two looks at whether the work goes on; a small part of the server's patience.
        neighbours: links to the job processes of other sites, over which roles of sessions may talk.
        work: the thread in which tasks run, if the site's data were loaded in it.
        rows: what rows the job's checkpoints belong to.
    """

    def __init__(
        self,
        link: Any,
        host: Host,
        registry: Mapping[str, Any],
        *,
        pulse: float = 1.0,
        neighbours: Mapping[str, Any] | None = None,
        work: TaskThread | None = None,
        rows: RowsRecord | None = None,
    ) -> None:
        self.link = link
        self.neighbours = DirectLinks(neighbours or {})
        self._broken: asyncio.Future[None] | None = None
        self._every = pulse
        self.host = host
        self.registry = registry
        self.pending = PendingReplies(host)
        self._spent = SpendLog(host)
        self._work_thread = TaskThread() if work is None else work
        self._orders = 0
        self._unwanted: set[tuple[str, int]] = set()
        self._roles = Roles(link, host, registry, self.pending, self.neighbours, self.break_off)
        self._signs = Signs(
            self._read_arrived, lambda: self._work_thread.busy or self._roles.busy, lambda: self._roles.playing
        )
        self._state = SiteState(host, registry, self.pending, rows)

    # ------------------------------------------------------------------ the link

    async def serve(self) -> None:
        """Answer until the server goes away.

        Raises:
            NeighbourLost: another site's process went away in the middle of a session.
            TaskError: another site sent a message in the name of a role that is not there.
        """
        self._broken = asyncio.get_running_loop().create_future()
        orders: asyncio.Queue[tuple[Any, Any]] = asyncio.Queue()
        works = (
            self._work(orders),
            self._pulse(),
            self.neighbours.listen(self._roles.take_message, self._roles.note_link_end),
        )
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
            self._work_thread.close()

    def break_off(self, error: Exception) -> None:
        """End this site's part because of what another site did."""
        if self._broken is not None and not self._broken.done():
            self._broken.set_exception(error)
            self._broken.exception()  # the link to the server may have ended first

    async def _read(self, orders: asyncio.Queue[tuple[Any, Any]]) -> None:
        headed: list[Any] = []  # an order whose body comes next

        def take(frame: Any) -> bool:
            if headed:
                self._signs.taking = False
                orders.put_nowait((headed.pop(), frame))
                return True
            self._orders += 1
            op = frame["op"]
            if op in ("hand", "gone", "step", "stop"):
                self._roles.handle(frame)
                return True
            if op == "meet":
                self._roles.meet(frame)
                return True
            if op == "role":
                self._roles.expect(frame)
            if op == "discard":
                self._unwanted.update((frame["id"], int(p)) for p in frame["positions"])
            if frame.get("body"):
                self._signs.taking = True
                headed.append(frame)
            else:
                orders.put_nowait((frame, None))
            return True

        await feed(self.link, take)

    async def _work(self, orders: asyncio.Queue[tuple[Any, Any]]) -> None:
        while True:
            frame, body = await orders.get()
            if frame["op"] == "role":
                self._roles.start(frame)
                continue
            for step in self._steps(frame, body):
                answer = await self._work_thread.run(step)
                for one in answer if isinstance(answer, list) else () if answer is None else (answer,):
                    self._signs.giving = True
                    await self.link.send(one)
                    self._signs.giving = False

    def _read_arrived(self) -> tuple[int, float]:
        """Return what has arrived so far: orders, and when the last piece of one came."""
        return self._orders, getattr(self.link, "heard", 0.0)

    async def _pulse(self) -> None:
        """Send signs of life while the server waits; see `Signs`."""
        while True:
            await asyncio.sleep(self._every)
            if self._signs.due():
                await self.link.send({"op": "pulse"})

    # ------------------------------------------------------------------ orders

    def _steps(self, frame: Any, body: Any) -> list[Callable[[], Awaitable[Any]]]:
        """Return the pieces of work in an order, each with an answer of its own."""
        if frame["op"] == "launch":
            request = unpack_request(restore_words(frame["request"], body), self.registry)
            positions = [int(p) for p in frame["positions"]]
            if request.recorded and len(positions) > 1:
                waiting = deque(positions)
                return [lambda: self._launch_together(request, waiting, frame["push"]) for _ in positions]
            return [lambda p=p: self._launch(request, p, frame["push"]) for p in positions]  # type: ignore[misc]
        if frame["op"] == "collect":
            return [lambda p=int(p): self._collect(frame, p) for p in frame["positions"]]  # type: ignore[misc]
        return [lambda: self._keep(frame)]

    async def _launch_together(self, request: Request, waiting: deque[int], push: str) -> list[Any]:
        """Run the task at the parties that wait, until their replies are long, and write what they promise once; their answers."""
        answers, nbytes = list[Any](), 0
        with self.host.record.write_together():
            while waiting and nbytes < _TOGETHER:
                answer = await self._launch(request, waiting.popleft(), push)
                if answer is not None:
                    answers.append(answer)
                    nbytes += M.nbytes(answer)
        return answers

    async def _launch(self, request: Request, position: int, push: str) -> Any:
        if (request.id, position) in self._unwanted:
            self._unwanted.discard((request.id, position))
            return None
        host = self.host
        request = host.add_seeds(request, np.array([position], dtype=np.int64))
        ran = host.replay(request, position)
        if ran is None:
            key = int(host.executor.keys(request, np.array([position], dtype=np.int64))[0])
            ran = await host.executor.one(request, position, key, host.tables(request), self._spent.spend)
        self.pending.put(request, ran)
        if not push:
            return self._frame("done", request, position)
        return await self._reply(request, position, push)

    async def _collect(self, frame: Any, position: int) -> Any:
        asked: Request | str = str(frame["id"])
        try:
            pending_reply = self.pending.get(frame["id"], position)
            asked = pending_reply.request
            stages = [Stage.of(spec, lambda name: resolve(name, self.registry, Stage)) for spec in frame["uplink"]]
            chain = Chain(stages, frame["place"])
            request = replace(pending_reply.request, uplink=chain, public=tuple(frame["public"]), apart=frame["apart"])
            if chain.secret:  # what is released once must not be made again from another reply
                request = self.host.add_seeds(request, np.array([position], dtype=np.int64))
                self.pending.put(request, replace(pending_reply.ran, sealed=True))
            else:
                pending_reply.request = request
            return await self._reply(request, position, frame["as"])
        except (Exception, SystemExit) as error:  # of a stage, or of what a task gave
            return self._frame("failed", asked, position, error=pack_error(self.host.executor.redact_error(error)))

    async def _reply(self, request: Request, position: int, push: str) -> Any:
        pending_reply = self.pending.get(request.id, position)
        if pending_reply.ran.reply.error is None and not pending_reply.ran.reply.rejected:
            self.host.declare(request, [position], self._spent.spend)
        host = self.host
        if push == "run":
            pending_reply.ran = host.release(request, pending_reply.ran)
            return self._frame("ran", request, position, ran=pack_ran(without_state(pending_reply.ran)))
        pending_reply.folded = await host.executor.fold(
            request,
            np.array([position], dtype=np.int64),
            host.tables(request),
            lambda _: pending_reply.ran,
            self._spent.spend,
        )
        pending_reply.folded = host.release_fold(request, pending_reply.folded)
        bare = replace_states(pending_reply.folded)
        return self._frame("folded", request, position, folded=pack_folded(bare))

    def _frame(self, op: str, request: Request | str, position: int, **more: Any) -> dict[str, Any]:
        """A reply, with what the party has spent on the request and on the one that it wraps."""
        name = request if isinstance(request, str) else request.id
        inner = None if isinstance(request, str) else request.wraps
        events = [
            told for one in (name, *([] if inner is None else [inner.id])) for told in self._spent.on(one, position)
        ]
        return {"op": op, "id": name, "party": position, "events": events, **more}

    async def _keep(self, frame: Any) -> Any:
        if frame["op"] == "discard":
            self._unwanted -= {(frame["id"], int(p)) for p in frame["positions"]}
        return self._state.obey(frame)


def replace_states(folded: PartialSum) -> PartialSum:
    """Return the sums alone: states and the stages' memories stay where they are."""
    return replace(folded, left={}, kept=[], promised={})
