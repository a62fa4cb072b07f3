"""The Ray engine: a cohort over the workers of a Ray cluster.

Ray places the workers and carries the frames; the frames are those of `Remote`, as over any link. The islands' data and the content of each
large request go to each node once, through Ray's object store, and all workers of the node read the same memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import queue
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core import message as M
from atoll.core.errors import ConfigError, MissingExtraError, TaskError
from atoll.core.execution.executor import Executor
from atoll.core.persistence.checkpoint import within
from atoll.core.persistence.records import Allowance
from atoll.core.persistence.state_table import States, StateTable
from atoll.core.requests.cohort import Cohort
from atoll.core.requests.party import Parties
from atoll.core.requests.request import PartialSum, Reply, Request, TaskResult
from atoll.core.requests.stage import Stage
from atoll.core.requests.wire import pack_folded, pack_request, unpack_folded
from atoll.core.time.clock import IdleSelector, WatchedLoop

from .link import LinkClosed
from .processes import check_workers, cores
from .remote import Remote, WorkerChannel
from .worker import Worker, collector

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.engine import RunContext
    from atoll.core.execution.session import Switch

__all__ = ["ActorBody", "Copies", "KeepingWorker", "Loan", "Ray"]


# ---------------------------------------------------------------------- copies of private states at workers


_NOBODY = -1


class _Book:
    """The workers that have the copies of one slot, by client position; -1 for none."""

    def __init__(self) -> None:
        self.holders = np.full(0, _NOBODY, dtype=np.int64)
        self.running = 0
        self.latest = -1

    def take(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the workers that have the copies of some clients, and remove the entries."""
        missing = int(positions.max(initial=-1)) + 1 - len(self.holders)
        if missing > 0:
            more = np.full(max(missing, len(self.holders)), _NOBODY, dtype=np.int64)
            self.holders = np.concatenate([self.holders, more])
        found = self.holders[positions]
        self.holders[positions] = _NOBODY
        return found


class Loan:
    """The copies of client states during one request.

    Args:
        positions: positions of the clients.
        holders: maps a slot to the worker that has each client's copy when the request begins, -1 for none; shape ``(clients,)``.
        number: the request's number.
    """

    def __init__(self, positions: NDArray[np.int64], holders: dict[str, NDArray[np.int64]], number: int = 0) -> None:
        self.number = number
        self._row = {position: i for i, position in enumerate(positions.tolist())}
        self._holders = holders
        self.alone: dict[str, bool] = {}
        self.placed: list[tuple[NDArray[np.int64], int]] | None = None

    def find_held(self, worker: int, positions: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether a worker has the copies of these clients in every slot; they are some of the request's clients."""
        rows = [self._row[position] for position in positions.tolist()]
        found = np.ones(len(positions), dtype=bool)
        for holders in self._holders.values():
            found &= holders[rows] == worker
        return found

    @property
    def slots(self) -> list[str]:
        """The slots that the request may change."""
        return list(self._holders)

    def place(self, parts: list[tuple[NDArray[np.int64], int]]) -> None:
        """Record that the request's results are kept, so each of these workers has up-to-date copies of these clients' states."""
        self.placed = parts


class Copies:
    """The workers that have up-to-date copies, for all slots.

    While a request may change a state, no worker counts as having its copy. When two requests share a slot at any time, their clients' copies count
    as lost, since a worker may finish the requests in another order than the one in which their results are kept.
    """

    def __init__(self) -> None:
        self._books: dict[str, _Book] = {}
        self._numbers = itertools.count()

    @contextlib.contextmanager
    def lend(self, slots: list[str], positions: NDArray[np.int64]) -> Iterator[Loan]:
        """Remove the entries of some clients while a request may change their states."""
        number = next(self._numbers)
        books = {slot: self._books.setdefault(slot, _Book()) for slot in slots}
        loan = Loan(positions, {slot: book.take(positions) for slot, book in books.items()}, number)
        alone = loan.alone = {slot: book.running == 0 for slot, book in books.items()}
        for book in books.values():
            book.running += 1
            book.latest = number
        try:
            yield loan
        finally:
            for slot, book in books.items():
                book.running -= 1
                if alone[slot] and book.latest == number:
                    for part, worker in loan.placed or []:
                        book.holders[part] = worker

    def place(self, loan: Loan, parts: list[tuple[NDArray[np.int64], int]]) -> None:
        """Record the copies of a finished request whose results are kept, unless another request has shared its slots since."""
        for slot in loan.slots:
            book = self._books.get(slot)
            if book is not None and loan.alone[slot] and book.latest == loan.number and not book.running:
                for part, worker in parts:
                    book.holders[part] = worker

    def forget(self, slot: str) -> bool:
        """Remove a slot that ended or returned to an earlier state, with every slot inside it; return whether it had entries."""
        gone = [name for name in self._books if within(name, slot)]
        for name in gone:
            del self._books[name]
        return bool(gone)


# ---------------------------------------------------------------------- in an actor


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
        tables = {slot: self._fill_table(slot, fresh, states) for slot, states in frame["tables"].items()}
        folded = await self.executor.fold(request, positions, tables, None, collector(events))
        for slot, left in folded.left.items():
            if slot in tables:  # only the engine keeps named results
                tables[slot].put_all(left)
        return {"folded": pack_folded(folded)}

    def _fill_table(self, slot: str, fresh: Any, states: Any) -> StateTable:
        """A slot's table with the states received for some clients; clients without one have no state."""
        table = self._tables.setdefault(slot, StateTable(self._allowance))
        table.discard(fresh)
        table.put_all(States.unpack(states))
        return table


# ---------------------------------------------------------------------- the engine


SHARED = (
    64 << 10
)  # bytes from which a broadcast uses the object store; Ray sends less than 100 KB inside the call anyway


class Ray(Remote):
    """Workers that are Ray actors, on this machine or on a cluster.

    Args:
        workers: number of actors; by default one per CPU of the cluster.
        address: address of the cluster, such as ``"head:6379"``, ``"auto"`` for one that runs on this machine, or ``"local"`` to start one for this
            process. By default the environment variable ``RAY_ADDRESS``, else ``"local"``. A process that has called ``ray.init`` stays with that cluster.
        actor: options of each actor, with Ray's names: ``num_cpus`` (1 by default), ``num_gpus``, ``resources``, ``runtime_env``, ...
        retries: how often a new actor repeats the work of a lost actor before the run fails.

    Raises:
        ConfigError: there are fewer than 1 workers, or fewer than 0 retries.
    """

    name: ClassVar[str] = "ray"
    vectorised: ClassVar[bool] = True

    def __init__(
        self,
        workers: int | None = None,
        address: str | None = None,
        actor: Mapping[str, Any] | None = None,
        retries: int = 3,
    ) -> None:
        super().__init__(check_workers(workers, self.name))
        if retries < 0:
            raise ConfigError(f"retries={retries}", where="engine 'ray'", remedy="use 0 or more")
        self._address = address
        self._actor = {"num_cpus": 1, "scheduling_strategy": "SPREAD", **(actor or {})}
        self._retries = retries
        self._ray: Any = None
        self._kit: Any = None
        self._ids: list[int] = []
        self._born = itertools.count()
        self._copies = Copies()
        self._drafted: dict[str, list[tuple[Loan, list[tuple[NDArray[np.int64], int]]]]] = {}
        self._tuned: set[str] = set()

    # ------------------------------------------------------------------ the cluster

    async def open(self, world: RunContext) -> None:
        """Join the cluster; actors start with the first request."""
        self._ray = _import_ray()
        if not self._ray.is_initialized():
            self._join()
        await super().open(world)
        self._check_room(self.choices["workers"])

    def _join(self) -> None:
        address = self._address or os.environ.get("RAY_ADDRESS") or "local"
        own: dict[str, Any] = {}
        if address == "local":
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            # Actors on this machine must be able to import what this process can; Ray alone adds only the script's folder and the current one.
            path = self._ray.job_config.JobConfig(_py_driver_sys_path=[entry for entry in sys.path if entry])
            own = {"include_dashboard": False, "num_cpus": max(cores(), self._wanted or 1), "job_config": path}
        try:
            self._ray.init(address=address, log_to_driver=False, logging_level="error", **own)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"no Ray cluster at {address!r}: {error}",
                where="engine 'ray'",
                remedy="start one with `ray start --head`, or use address='local'",
            ) from error

    def default_workers(self) -> int:
        """One per CPU of the cluster, divided by the CPUs that an actor requests."""
        return max(1, int(self._cpus() / max(float(self._actor["num_cpus"]), 1e-3)))

    def _cpus(self) -> float:
        return float(self._ray.cluster_resources().get("CPU", 0.0))

    def _check_room(self, workers: int) -> None:
        asked = workers * float(self._actor["num_cpus"])
        if asked > self._cpus():
            raise ConfigError(
                f"{workers} workers need {asked:g} CPUs but the Ray cluster has {self._cpus():g}",
                where="engine 'ray'",
                remedy='use fewer workers, add nodes, or give each less: Ray(actor={"num_cpus": 0.5})',
            )

    async def connect(self, world: RunContext, workers: int) -> list[WorkerChannel]:
        """Put the islands' data and the tasks into the object store, and start the actors."""
        if self._kit is None:
            try:
                self._taught = frozenset(world.registry)
                self._kit = self._ray.put((world.executor(vectorised=self.vectorised), dict(world.registry)))
            except (TypeError, AttributeError) as error:
                raise ConfigError(
                    f"the data or the tasks cannot be sent to another process: {error.__cause__ or error}",
                    where="engine 'ray'",
                    remedy="remove open files, locks and connections from them; with engine='batched' you can keep them",
                ) from error
        self._memory = world.state_memory
        self._ids = [next(self._born) for _ in range(workers)]
        return [self._start() for _ in range(workers)]

    def _start(self) -> WorkerChannel:
        actor = self._ray.remote(max_concurrency=4, **self._actor)(ActorBody).remote(self._kit, self._memory)
        link = _ActorLink(self._ray, actor)
        return WorkerChannel(link, link.describe)

    async def channels(self, request: Request) -> list[WorkerChannel]:
        """Return the channels; a lost actor is replaced."""
        known = await super().channels(request) if not self._channels else self._channels
        for i, channel in enumerate(known):
            if not channel.alive:
                await self._replace(i, channel)
        return self._channels

    async def _replace(self, i: int, lost: WorkerChannel) -> None:
        async with self._connecting:
            if i < len(self._channels) and self._channels[i] is lost:
                await lost.close()
                self._channels[i] = self._start()
                self._channels[i].on_pass = self._pass
                self._ids[i] = next(self._born)

    # ------------------------------------------------------------------ requests

    async def run(self, request: Request, positions: NDArray[np.int64]) -> list[Reply]:
        """Run the task at each party, spread over the actors."""
        with self._copies.lend(request.slots, positions):
            if request.wraps is not None:
                await self.channels(request)
                self._tune(request, positions)
            return await super().run(request, positions)

    async def fold(self, request: Request, positions: NDArray[np.int64]) -> PartialSum:
        """Let each actor add up its part of the cohort; merge the parts in order."""
        request = self.host.add_seeds(request, positions)
        with self._copies.lend(request.slots, positions) as loan:
            if self.host.journal and any(self.host.replay(request, int(p)) for p in positions):
                return await self._fold_with_journal(request, positions)
            channels = await self.channels(request)  # it sends the tasks as they are before tuning
            self._tune(request, positions)
            parts = self._shares(request, positions, channels)
            frames = await self._ask(channels, "fold", request, parts, loan)
            folded = PartialSum.zero().merge(*(unpack_folded(frame["folded"]) for frame in frames))
            absorbed = self.host.absorb_fold(request, folded)
            placed = list(zip(parts, self._ids, strict=True))
            if request.sum:
                self._drafted.setdefault(request.sum, []).append((loan, placed))
            else:
                loan.place(placed)
            return absorbed

    async def conclude(self, path: str, asked: NDArray[np.int64], kept: NDArray[np.int64]) -> None:
        """End a sum: the copies of the parties that are kept are up to date, and no others."""
        await super().conclude(path, asked, kept)
        for loan, placed in self._drafted.pop(path, []):
            self._copies.place(loan, [(part[np.isin(part, kept)], worker) for part, worker in placed])

    def _tune(self, request: Request, positions: NDArray[np.int64]) -> None:
        """Decide once per task how actors run it, or repeat what the run recorded: all actors must add up in the same way."""
        asked = request.wraps or request
        tuning, name = asked.task.tuning, asked.task.address
        if tuning is None or not len(positions) or name in self._tuned:
            return
        self._tuned.add(name)
        recorded = self.choices.get("tasks", {}).get(name)
        if recorded is not None:
            tuning.recall(recorded["tuning"])
            return
        executor = self.host.executor
        part = positions[: -(-len(positions) // self.choices["workers"])]
        keys, table = executor.keys(asked, part), self.host.table(asked)
        cohort = Cohort(Parties(executor.roster, part), keys, executor.population, table)
        with contextlib.suppress(Exception, SystemExit):  # raised by a party: the actor that runs into it reports which
            tuning.prepare(cohort, asked.message, 1)
        made = {"tuning": tuning.choices, "seconds": dict(tuning.seconds)}
        self.choices["tasks"] = {**self.choices.get("tasks", {}), name: made}
        if self._world is not None:
            self._world.checkpoints.remember(self.choices)

    async def _ask(
        self,
        channels: list[WorkerChannel],
        op: str,
        request: Request,
        parts: list[NDArray[np.int64]],
        loan: Loan | None = None,
    ) -> list[Any]:
        shared = None
        message = (request.wraps or request).message
        if M.nbytes(message) >= SHARED:
            shared = self._ray.put(np.frombuffer(M.encode(message), dtype=np.uint8))
        with self._busy():
            asked = [self._ask_one(i, op, request, part, loan, shared) for i, part in enumerate(parts) if len(part)]
            work = [asyncio.ensure_future(one) for one in asked]
            try:
                return await self._collect(request, work)
            finally:  # after an error: calls that still wait must not ask the next request's actors again
                for one in work:
                    one.cancel()
                await asyncio.gather(*work, return_exceptions=True)

    async def _ask_one(
        self, i: int, op: str, request: Request, part: NDArray[np.int64], loan: Loan | None, shared: Any
    ) -> Any:
        """Ask an actor; if it is lost, ask its successor the same, since a reply is a function of the request."""
        left = self._retries
        while True:
            channel = self._channels[i]
            frame = self._frame(op, request, part) if loan is None else self._frame_of_fold(i, request, part, loan)
            tuning = (request.wraps or request).task.tuning
            frame["tuning"] = None if tuning is None else tuning.choices
            if shared is not None:
                (frame["request"]["wraps"] or frame["request"])["message"] = None
                frame["broadcast"] = shared
            self._teach(channel, request)
            try:
                return await channel.call(next(self._numbers), frame)
            except TaskError:
                if channel.alive or not left or not self._channels:
                    raise
            left -= 1
            await self._replace(i, channel)

    def _teach(self, channel: WorkerChannel, request: Request) -> None:
        """Send an actor the tasks and stages of a request that no installed package has, such as those of a script or a notebook."""
        link = channel.link
        if isinstance(link, _ActorLink):
            known = self._taught
            link.teach(
                {
                    at: one
                    for at, one in _list_named(request)
                    if not at.startswith("atoll.") or ("@" in at and at not in known)
                }
            )

    def _frame_of_fold(self, i: int, request: Request, part: NDArray[np.int64], loan: Loan) -> dict[str, Any]:
        """A request for sums, with the states that the actor lacks."""
        held = loan.find_held(self._ids[i], part)
        frame = self._frame("fold", request, part[~held])
        names = [self.host.executor.roster.name(p) for p in part.tolist()] if request.mail else []
        frame["request"] = pack_request(request, names)
        frame["positions"] = part
        frame["kept"] = {"held": held}
        return frame

    async def converse(
        self, roles: dict[str, tuple[Request, int]], switch: Switch, start: float
    ) -> dict[str, TaskResult]:
        """Run each role at an actor; their messages pass through here."""
        with contextlib.ExitStack() as lent:
            channels = await self.channels(next(iter(roles.values()))[0])
            for request, position in roles.values():
                for channel in channels:
                    self._teach(channel, request)
                lent.enter_context(self._copies.lend(request.slots, np.array([position], dtype=np.int64)))
            return await super().converse(roles, switch, start)

    # ------------------------------------------------------------------ memory and end

    async def load(self, slot: str, segments: list[str]) -> None:
        """Restore the private state of a generation; the actors' copies are out of date."""
        await super().load(slot, segments)
        await self._forget(slot)

    async def drop(self, slot: str) -> None:
        """Remove a slot that ended, at the actors too."""
        await super().drop(slot)
        await self._forget(slot)

    async def _forget(self, slot: str) -> None:
        if self._copies.forget(slot):
            for channel in self._channels:
                with contextlib.suppress(LinkClosed):
                    await channel.link.send({"op": "forget", "slot": slot})

    async def close(self) -> None:
        """End the actors. The process stays connected to its cluster, so that the next run does not have to join again."""
        await super().close()
        self._kit = None


class _ActorLink:
    """The engine's end of the link to an actor: one call per frame to it, and one call that waits for frames from it."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray = ray
        self._actor = actor
        self._numbers = itertools.count()
        self._came: deque[bytes] = deque()
        self._known: set[str] = set()
        self._end = "it ended"

    def teach(self, named: dict[str, Any]) -> None:
        """Make these objects known to the actor by name, before the next frames."""
        news = {name: found for name, found in named.items() if name not in self._known}
        if news:
            self._known.update(news)
            self._actor.put.remote(next(self._numbers), None, None, news)

    async def send(self, tree: dict[str, Any]) -> None:
        """Send one frame; a broadcast is sent as a reference into the object store."""
        broadcast = tree.pop("broadcast", None)
        self._actor.put.remote(next(self._numbers), np.frombuffer(M.encode(tree), dtype=np.uint8), broadcast)

    async def recv(self) -> Any:
        """Wait for the next frame.

        Raises:
            LinkClosed: the actor is gone.
        """
        if not self._came:
            try:
                self._came.extend(await _value_of(self._actor.take.remote()))
            except self._ray.exceptions.RayError as error:
                self._end = _cause(error)
                raise LinkClosed(self._end) from error
        return M.decode(self._came.popleft())

    def describe(self) -> str:
        """Describe how the actor ended, in Ray's words."""
        return self._end

    def close(self) -> None:
        """End the actor."""
        self._ray.kill(self._actor)


def _cause(error: BaseException) -> str:
    """Return Ray's first line, and the last line of the trace below it, which has the actor's own error."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return lines[0] if len(lines) == 1 else f"{lines[0]} {lines[-1]}"


async def _value_of(reference: Any) -> Any:
    """Return the value behind a reference, in any event loop; the waiter may be gone when it arrives."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[Any] = loop.create_future()

    def hand(future: Any) -> None:
        if waiting.done():
            return
        error = future.exception()
        if error is None:
            waiting.set_result(future.result())
        else:
            waiting.set_exception(error)

    def hand_value(future: Any) -> None:  # runs in a thread of Ray
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(hand, future)

    idle = loop.idle if isinstance(loop, WatchedLoop) else None
    reference.future().add_done_callback(hand_value)
    if idle is not None:
        idle.helpers += 1  # as for an open socket: the loop waits for an event from outside
    try:
        return await waiting
    finally:
        if idle is not None:
            idle.helpers -= 1


def _list_named(request: Request) -> list[tuple[str, Any]]:
    """The tasks and stage classes that a request names."""
    found: list[tuple[str, Any]] = [] if request.wraps is None else _list_named(request.wraps)
    found.append((request.task.address, request.task))
    stages: list[Any] = list(request.uplink.stages)
    while stages:
        stage = stages.pop()
        found.append((stage.name, type(stage)))
        stages += [inner for inner in vars(stage).values() if isinstance(inner, Stage)]
    return found


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("the engine 'ray' needs ray", remedy='pip install "atoll[ray]"') from error
    return ray
