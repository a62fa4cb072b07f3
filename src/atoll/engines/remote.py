"""Remote engines: executors behind links, with the memory in the engine's process.

Everything that crosses a link is a Message, so worker processes, a loopback socket and a network differ only in how the link is made. Workers
keep nothing: each request carries the private state that it needs, and the reply carries it back.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.errors import TaskError
from atoll.core.event import unpack_event
from atoll.core.execution.session import Step
from atoll.core.requests.request import PartialSum, Reply, Request, TaskResult, cut_off
from atoll.core.requests.wire import pack_request, unpack_error, unpack_folded, unpack_ran

from .inline import Memory
from .link import Conduit, LinkClosed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.engine import RunContext
    from atoll.core.execution.executor import Executor
    from atoll.core.execution.host import Host
    from atoll.core.execution.session import Switch

__all__ = ["Remote", "WorkerChannel", "carried_states", "cut", "dealt", "knows", "shares"]


# ---------------------------------------------------------------------- shares of a cohort


_WORTH = 0.98
"""Clients are dealt out if the busiest part then has at most this share of the work that it has in order."""


def shares(executor: Executor, request: Request, positions: NDArray[np.int64], parts: int) -> list[NDArray[np.int64]]:
    """Split a cohort into contiguous parts of nearly equal work, so that merging them in order keeps the cohort's order.

    Work is what the task declares (`Task.work`): mini-batches, or examples if it declares none. Nothing is measured, so the split is the same on
    every machine. If all clients have equal size, their work is not computed.
    """
    return cut(positions, _work(executor, request, positions, parts), parts)


def dealt(executor: Executor, request: Request, positions: NDArray[np.int64], parts: int) -> list[NDArray[np.int64]]:
    """Split a cohort as `shares` does, or deal it out if that is better balanced: the longest client first, each to the part with the least work.

    Each part is in cohort order. A few clients of unequal size differ by several per cent.
    """
    work = _work(executor, request, positions, parts)
    in_order = cut(positions, work, parts)
    hands: list[list[int]] = [[] for _ in range(parts)]
    loads = np.zeros(parts)
    for at in np.argsort(-work, kind="stable").tolist():
        least = int(np.argmin(loads))
        hands[least].append(at)
        loads[least] += work[at]
    ends = np.cumsum([0, *map(len, in_order)])
    busiest = max(float(work[a:b].sum()) for a, b in pairwise(ends))
    if loads.max() > _WORTH * busiest:
        return in_order
    return [positions[np.sort(np.array(hand, dtype=np.int64))] for hand in hands]


def _work(executor: Executor, request: Request, positions: NDArray[np.int64], parts: int) -> NDArray[np.float64]:
    if parts < 2 or len(positions) < 2:
        return np.ones(len(positions))
    sizes: Any = getattr(executor.population, "sizes", None)
    if sizes is not None and positions.max() < len(sizes) and (sizes[positions] == sizes[positions[0]]).all():
        return np.ones(len(positions))
    work = request.workload(executor.population, positions, executor.data)
    made: NDArray[np.float64] = np.where(work.batches > 0, work.batches, work.examples)
    return made


def cut(positions: NDArray[np.int64], work: NDArray[np.float64], parts: int) -> list[NDArray[np.int64]]:
    """Split where the preceding work is nearest to an equal share; by number of clients if no work is known.

    Args:
        positions: positions of the clients.
        work: work of each client in any unit, ``(clients,)``.
        parts: number of parts, some of which may be empty.
    """
    if not work.any() or (work == work[0]).all():
        return [np.asarray(part, dtype=np.int64) for part in np.array_split(positions, parts)]
    before = np.concatenate([[0.0], np.cumsum(work)])
    wanted = before[-1] * np.arange(1, parts) / parts
    above = np.searchsorted(before, wanted)
    nearer = wanted - before[above - 1] <= before[above] - wanted
    return [np.asarray(part, dtype=np.int64) for part in np.split(positions, above - nearer)]


# ---------------------------------------------------------------------- the engine


class WorkerChannel:
    """The engine's end of one link: it matches answers to requests, and passes on session messages."""

    def __init__(self, link: Conduit, describe: Callable[[], str]) -> None:
        self.link = link
        self._describe = describe
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._error: TaskError | None = None
        self.on_pass: Callable[[Any], None] | None = None
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            while True:
                frame = await self.link.recv()
                if frame.get("op") in ("pass", "waits", "reached"):
                    if self.on_pass is not None:
                        self.on_pass(frame)
                else:
                    self._take_answer(frame)
        except (LinkClosed, OSError):
            error = TaskError(
                f"a worker ended during its work ({self._describe()})",
                where="engine",
                remedy="check for lack of memory or a crash in native code; engine='inline' runs the task in this process",
            )
            self._error = error
            self._fail(error)

    def _take_answer(self, frame: Any) -> None:
        future = self._answers.pop(frame["id"])
        if not future.done():  # it is done if the caller was cancelled
            future.set_result(frame)

    async def post(self, number: int, frame: dict[str, Any]) -> asyncio.Future[Any]:
        """Send a request; the future receives its answer."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._answers[number] = future
        with contextlib.suppress(LinkClosed):
            await self.link.send({**frame, "id": number})
            return future
        await asyncio.wait([self._reader])
        if self._error is not None:
            self._fail(self._error)
        return future

    async def call(self, number: int, frame: dict[str, Any]) -> Any:
        """Send a request and wait for its answer."""
        return await (await self.post(number, frame))

    async def close(self) -> None:
        """Close the link; the worker then ends by itself."""
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        self._fail(TaskError("the engine was closed while a worker was working", where="engine"))
        self.link.close()

    @property
    def alive(self) -> bool:
        """Whether the other end is still there."""
        return not self._reader.done()

    def _fail(self, error: TaskError) -> None:
        for future in self._answers.values():
            if not future.done():
                future.set_exception(error)
                future.exception()  # the caller may be gone already
        self._answers.clear()


class Remote(Memory):
    """Base class of engines whose executors are behind links.

    Args:
        workers: number of workers; ``None`` lets the engine choose.
    """

    name: ClassVar[str] = "remote"
    vectorised: ClassVar[bool] = False

    def __init__(self, workers: int | None = None) -> None:
        self.choices: dict[str, Any] = {}
        self._wanted = workers
        self._world: RunContext | None = None
        self._channels: list[WorkerChannel] = []
        self._numbers = itertools.count()
        self._sessions: dict[int, tuple[Switch, dict[str, tuple[Request, int]]]] = {}
        self._connecting = asyncio.Lock()
        self._taught: frozenset[str] = frozenset()
        self._calls = 0
        self._free = asyncio.Event()

    # ------------------------------------------------------------------ to be implemented by a transport

    async def connect(self, world: RunContext, workers: int) -> list[WorkerChannel]:
        """Start the workers and return a channel to each."""
        raise NotImplementedError

    def default_workers(self) -> int:
        """The number of workers if the user gives none."""
        raise NotImplementedError

    # ------------------------------------------------------------------ the engine

    async def open(self, world: RunContext) -> None:
        """Create the memory; workers start with the first request."""
        self._world = world
        self._host = world.host(vectorised=self.vectorised)
        recorded = self.choices.get("workers")
        self.choices["workers"] = int(self._wanted or recorded or self.default_workers())

    async def channels(self, request: Request) -> list[WorkerChannel]:
        """The channels, connected at first use and again after a worker ended; earlier tasks are known there by name.

        Workers inherit the tasks of the jobs that run when they start. For a job that began later, others replace them once no call is under way.
        """
        async with self._connecting:
            if not all(channel.alive for channel in self._channels):
                await self._abandon()
            elif self._channels and not knows(self._taught, request):
                while self._calls:
                    self._free = asyncio.Event()
                    await self._free.wait()
                await self._abandon()
            if not self._channels:
                if self._world is None:
                    raise RuntimeError("the engine is not open")
                self._world.registry.setdefault(request.task.address, request.task)
                self._taught = frozenset(self._world.registry)
                self._channels = await self.connect(self._world, self.choices["workers"])
                for channel in self._channels:
                    channel.on_pass = self._pass
        return self._channels

    @contextlib.contextmanager
    def _calling(self) -> Iterator[None]:
        """Keep the workers while a call is under way. Enter it right after ``channels``, before anything else is awaited."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            if not self._calls:
                self._free.set()

    async def run(self, request: Request, positions: NDArray[np.int64]) -> list[Reply]:
        """Run the task at each party, spread over the workers."""
        request = self.host.add_seeds(request, positions)
        known = {int(p): self.host.replay(request, int(p)) for p in positions} if self.host.journal else {}
        open_positions = np.array([p for p in positions.tolist() if known.get(p) is None], dtype=np.int64)
        ran: dict[int, TaskResult] = {p: r for p, r in known.items() if r is not None}
        channels = await self.channels(request)
        with self._calling():
            parts = self._shares(request, open_positions, channels)
            frames = await self._ask(channels, "run", request, parts)
        for frame in frames:
            for item in frame["ran"]:
                one = unpack_ran(item)
                ran[one.reply.party] = one
        return [self.host.absorb(request, ran[p]) for p in positions.tolist()]

    async def fold(self, request: Request, positions: NDArray[np.int64]) -> PartialSum:
        """Let each worker add up its part of the cohort; merge the parts in order."""
        request = self.host.add_seeds(request, positions)
        if self.host.journal and any(self.host.replay(request, int(p)) for p in positions):
            return await self._fold_with_journal(request, positions)
        channels = await self.channels(request)
        with self._calling():
            parts = self._shares(request, positions, channels)
            frames = await self._ask(channels, "fold", request, parts)
        folded = PartialSum.zero().merge(*(unpack_folded(frame["folded"]) for frame in frames))
        return self.host.absorb_fold(request, folded)

    async def _fold_with_journal(self, request: Request, positions: NDArray[np.int64]) -> PartialSum:
        """Some replies are in the journal: request the others, and add up here exactly as the workers would."""
        ran = {int(p): self.host.replay(request, int(p)) for p in positions}
        missing = np.array([p for p, known in ran.items() if known is None], dtype=np.int64)
        channels = await self.channels(request)
        with self._calling():
            frames = await self._ask(channels, "run", request, self._shares(request, missing, channels))
        for frame in frames:
            for item in frame["ran"]:
                one = unpack_ran(item)
                ran[one.reply.party] = one
                self.host.absorb(request, one)
        folds = [
            await self.host.executor.fold(request, part, self.host.tables(request), ran.get, self.host.spend)
            for part in self._shares(request, positions, channels)
            if len(part)
        ]
        return self.host.absorb_fold(request, PartialSum.zero().merge(*folds))

    def _shares(
        self, request: Request, positions: NDArray[np.int64], channels: list[WorkerChannel]
    ) -> list[NDArray[np.int64]]:
        return shares(self.host.executor, request, positions, len(channels))

    async def _ask(
        self, channels: list[WorkerChannel], op: str, request: Request, parts: list[NDArray[np.int64]]
    ) -> list[Any]:
        with self._busy():
            return await self._collect(request, await self._post(channels, op, request, parts))

    async def _post(
        self, channels: list[WorkerChannel], op: str, request: Request, parts: list[NDArray[np.int64]]
    ) -> list[asyncio.Future[Any]]:
        """Send each worker its whole part, so that it can begin."""
        return [
            await channel.post(next(self._numbers), self._frame(op, request, part))
            for channel, part in zip(channels, parts, strict=True)
            if len(part)
        ]

    async def _collect(self, request: Request, answers: Sequence[asyncio.Future[Any]]) -> list[Any]:
        frames = await asyncio.gather(*answers)
        findings = (request.wraps or request).task.findings
        for frame in frames:
            self._note_events(frame)
            if findings is not None and frame.get("findings"):
                findings.add(frame["findings"])
            if frame.get("error") is not None:
                raise unpack_error(frame["error"]) or TaskError("unknown")
        return frames

    def _frame(self, op: str, request: Request, positions: NDArray[np.int64]) -> dict[str, Any]:
        names = [self.host.executor.roster.name(p) for p in positions.tolist()] if request.mail else []
        return {
            "op": op,
            "request": pack_request(request, names),
            "positions": positions,
            **carried_states(self.host, request, positions),
        }

    def _note_events(self, frame: Any) -> None:
        for item in frame["events"]:
            self.host.spend(unpack_event(item["event"]), item["party"], item["request"])

    def _busy(self) -> Any:
        if self._world is None:
            raise RuntimeError("the engine is not open")
        return self._world.clock.busy()

    # ------------------------------------------------------------------ sessions

    def _pass(self, frame: Any) -> None:
        switch, roles = self._sessions.get(frame["session"], (None, {}))
        if switch is None:
            return
        try:
            if frame["op"] == "reached":  # what the role has spent and kept is durable before the step can be agreed
                self._note_events(frame)
                self.host.keep_step(*roles[frame["role"]], Step(**frame["step"]))
            switch.process_frame(frame)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # such as a full disk: the roles wait for an answer
            switch.fail(error)

    async def converse(
        self, roles: dict[str, tuple[Request, int]], switch: Switch, start: float
    ) -> dict[str, TaskResult]:
        """Run each role at a worker; their messages pass through here."""
        known = self.host.replay_session(roles, switch)
        if known is not None:
            return known
        channels = await self.channels(max((one for one, _ in roles.values()), key=lambda one: bool(one.task.owner)))
        with self._calling():
            return await self._converse(channels, roles, switch, start)

    async def _converse(
        self, channels: list[WorkerChannel], roles: dict[str, tuple[Request, int]], switch: Switch, start: float
    ) -> dict[str, TaskResult]:
        session = next(self._numbers)
        start, steps = self.host.resume_session(roles, switch, start)
        self._sessions[session] = switch, roles
        at = {role: channels[position % len(channels)] for role, (_, position) in roles.items()}
        forwarding = [asyncio.create_task(self._hand(session, role, channel, switch)) for role, channel in at.items()]
        forwarding.append(asyncio.create_task(self._expire(session, [*dict.fromkeys(at.values())], switch)))
        calls = [asyncio.create_task(self._role(at[role], session, role, roles, start, steps[role])) for role in roles]
        try:
            with self._busy():
                rans, _ = await asyncio.gather(asyncio.gather(*calls), switch.verdict())
        except BaseException:
            await self._stop(session, at, calls)
            raise
        finally:
            for each in forwarding:
                each.cancel()
            del self._sessions[session]
        return self.host.absorb_session(roles, dict(zip(roles, rans, strict=True)), switch)

    async def _hand(self, session: int, role: str, channel: WorkerChannel, switch: Switch) -> None:
        """Send a role's messages from the switch to its worker, in order."""
        queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        base = {"session": session, "role": role}

        def put(source: str, message: Any, arrival: float, channel: str) -> None:
            said = {**base, "op": "hand", "source": source, "message": message, "time": arrival}
            queue.put_nowait({**said, "channel": channel} if channel else said)

        def send_end(source: str, ending: str, time: float) -> None:
            queue.put_nowait({**base, "op": "gone", "source": source, "ending": ending, "time": time})

        def send_step(number: int, known: float, lost: tuple[str, str] | None) -> None:
            queue.put_nowait({**base, "op": "step", "number": number, "time": known, "lost": lost})

        switch.attach(role, put, send_end, send_step)
        with contextlib.suppress(LinkClosed):
            while True:
                await channel.link.send(await queue.get())

    async def _stop(self, session: int, at: dict[str, WorkerChannel], calls: list[asyncio.Task[TaskResult]]) -> None:
        """End the other roles after one failed. A lost worker closes all links; they are opened again when needed."""
        with contextlib.suppress(LinkClosed):
            for channel in dict.fromkeys(at.values()):
                await channel.link.send({"op": "stop", "session": session})
        if all(channel.alive for channel in at.values()):
            await asyncio.gather(*calls, return_exceptions=True)
        else:
            await self._abandon()

    async def _role(
        self,
        channel: WorkerChannel,
        session: int,
        role: str,
        roles: dict[str, tuple[Request, int]],
        start: float,
        step: Step | None,
    ) -> TaskResult:
        switch, _ = self._sessions[session]
        request, position = roles[role]
        states = self.host.table(request).pick(np.array([position], dtype=np.int64))
        frame = await channel.call(
            next(self._numbers),
            {
                "op": "role", "session": session, "role": role, "others": [r for r in roles if r != role],
                "request": pack_request(request, []), "position": position, "start": start,
                "prospect": switch.prospects[role].pack(), "states": states.pack(),
                "step": None if step is None else step.pack(),
            },
        )  # fmt: skip
        self._note_events(frame)
        if frame.get("error") is not None and not switch.expired:
            raise unpack_error(frame["error"]) or TaskError("unknown")
        ran = cut_off(position, "late", start) if frame.get("error") is not None else unpack_ran(frame["ran"][0])
        switch.ended(role, ran.ending, ran.time)
        return ran

    async def _expire(self, session: int, channels: list[WorkerChannel], switch: Switch) -> None:
        """Stop all roles once a deadline on a real clock has passed."""
        await switch.expiry.wait()
        with contextlib.suppress(LinkClosed):
            for channel in channels:
                await channel.link.send({"op": "stop", "session": session})

    # ------------------------------------------------------------------ memory and end

    async def close(self) -> None:
        """Close the links; workers then end by themselves."""
        await self._abandon()

    async def _abandon(self) -> None:
        for channel in self._channels:
            await channel.close()
        self._channels = []
        await self.disconnect()

    async def disconnect(self) -> None:
        """Wait for the workers to end."""


def knows(taught: Collection[str], request: Request) -> bool:
    """Whether workers that started with these addresses of tasks find those of a request."""
    inner = request.wraps is None or knows(taught, request.wraps)
    return inner and (not request.task.owner or request.task.address in taught)


def carried_states(host: Host, request: Request, positions: NDArray[np.int64]) -> dict[str, Any]:
    """The private states in the slots that a request may read, which the request carries."""
    return {"tables": {slot: table.pick(positions).pack() for slot, table in host.tables(request).items()}}
