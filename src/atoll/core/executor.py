"""Running tasks on islands: the part of a host that keeps nothing.

An executor turns (request, party, state) into (reply, new state). It can live in a worker process or at the other end of a network, while the
state, the journal and the ledger stay with their owner.
"""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from . import message as M
from .aggregate import Aggregate, Totals, kept_apart, merge_totals
from .blocks import fold_batches
from .cohort import Cohort, Population
from .errors import AtollError, CompositionError, DataError, MessageError, TaskError
from .event import Event
from .island import AllowAll, Island, Policy
from .memory import Memory
from .party import Parties, Roster
from .request import Folded, Ran, Reply, Request, not_finite, not_finite_total, sketch, wire_form
from .rng import Rng
from .session import GuardedPeers
from .shelf import Shelf
from .tree import Tree

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Executor"]

States = Callable[[int], Tree]
Replay = Callable[[int], "Ran | None"]
Spend = Callable[[Event, str, str], None]


@dataclass
class Executor:
    """Runs tasks for the parties of one place.

    Attributes:
        roster: everyone, for names.
        population: the islands' data.
        policy: the islands' rule for what may leave them.
        vectorised: whether to use a task's ``many``.
        secret_seed: seeds the islands' secrets in a reproducible simulation; ``None`` is the system's entropy.
    """

    roster: Roster
    population: Population
    policy: Policy = field(default_factory=AllowAll)
    vectorised: bool = False
    secret_seed: int | None = None

    def data(self, position: int) -> Any:
        """The data of a party."""
        if position < len(self.population):
            return self.population.shard(position)
        return getattr(self.population, "others", {}).get(self.roster.name(position))

    def keys(self, request: Request, positions: NDArray[np.int64]) -> NDArray[np.uint64]:
        """The random key of each party for this request."""
        return Rng(request.key).children(self.roster.keys(positions))

    def island(
        self,
        request: Request,
        position: int,
        key: int,
        states: States,
        spend: Spend | None,
        memory: Memory | None = None,
    ) -> Island:
        """The view that a task gets."""
        return Island(
            self.roster.party(position),
            lambda: self.data(position),
            key,
            request=request.id,
            state=lambda: states(position),
            ledger=spend,
            inbox=request.mail.box(self.roster.name(position)) if request.mail else None,
            secret_seed=self.secret_seed,
            totals=None if request.task.wraps is None else self._wrapped(request, key, memory or Memory()),
        )

    def _wrapped(self, request: Request, key: int, memory: Memory) -> Callable[[Island, Tree], Awaitable[Totals]]:
        """Runs the task that the request's task wraps, and puts its reply through the uplink."""
        inner = request.task.wraps

        async def totals(island: Island, message: Tree) -> Totals:
            if inner is None:
                return {}
            value = inner(island, message)
            if inspect.isawaitable(value):
                value = await value
            aggregates = _aggregates(value, inner.name, island.name)
            found: Totals = {}
            memory.begin(request, aggregates)
            for name, aggregate in aggregates.items():
                if not aggregate.summable:
                    raise CompositionError(
                        f"{name!r} is a single reply, and {request.task.name} lets nobody see one",
                        remedy="use a plain reducer, or an algorithm whose replies are sums",
                    )
                bad = not_finite(aggregate.value, aggregate.weight)
                if bad:
                    raise DataError(f"{_path(name, bad)} is not finite", remedy="lower the learning rate")
                sent = request.uplink.send(aggregate, request.public, Rng(key).child(name), memory.of(name))
                memory.keep(name, sent.memory)
                found[name] = sent.total
            return found

        return totals

    async def one(
        self,
        request: Request,
        position: int,
        key: int,
        states: States,
        spend: Spend | None = None,
        remembered: Shelf | None = None,
    ) -> Ran:
        """Run the task at one party."""
        memory = Memory(remembered, position)
        island = self.island(request, position, key, states, spend, memory)
        try:
            value = request.task(island, request.message)
            if inspect.isawaitable(value):
                value = await value
            for leaving in (value, *island.outbox.values(), *island.notes):
                self.policy.release(island.party, request.task.name, leaving)
            nbytes = M.nbytes(wire_form(value)) + sum(M.nbytes(p) for p in island.outbox.values())
        except (Exception, SystemExit) as error:
            return Ran(Reply(position, error=self.explain(error, request, position)), None, False, island.sealed)
        reply = Reply(position, value, island.outbox, island.notes, nbytes)
        return Ran(reply, island.new_state, island.state_changed, island.sealed, memory=memory.now or None)

    async def fold(
        self,
        request: Request,
        positions: NDArray[np.int64],
        shelf: Shelf,
        replay: Replay | None = None,
        spend: Spend | None = None,
        remembered: Shelf | None = None,
    ) -> Folded:
        """Run the task at each party and add up the replies, in cohort order or in the blocks of the task's ``many``.

        Args:
            request: what to do.
            positions: the cohort.
            shelf: the parties' private states.
            replay: knows replies that must not be made twice.
            spend: takes privacy events.
            remembered: what the parties' uplink stages remember.
        """
        keys = self.keys(request, positions)
        # A policy looks at single replies, which a block never has.
        fast = self.vectorised and request.task.many is not None and isinstance(self.policy, AllowAll)
        if fast and request.mail is None:
            cohort = Cohort(Parties(self.roster, positions), keys, self.population, shelf)
            try:
                made = fold_batches(request, cohort, remembered)
                made.errors = {p: self.explain(error, request, p) for p, error in made.errors.items()}
                return made
            except (Exception, SystemExit) as error:
                explained = self.explain(error, request, None)
                return Folded({}, positions[:0], positions[:0], {}, dict.fromkeys(positions.tolist(), explained))
        folded = Folded({}, positions[:0], positions[:0])
        senders: list[int] = []
        sizes: list[int] = []
        for position, key in zip(positions.tolist(), keys.tolist(), strict=True):
            ran = replay(position) if replay is not None else None
            if ran is None:
                ran = await self.one(request, position, key, shelf.get, spend)
                folded.keep(ran)
            memory = Memory(remembered, position)
            nbytes = self._add(request, ran.reply, key, folded, memory)
            if nbytes is None:  # a reply that is kept out leaves no state behind
                continue
            if memory.now:
                folded.memories.singles[position] = memory.now
            if ran.changed:
                folded.states.singles[position] = ran.state
            senders.append(position)
            sizes.append(nbytes)
        folded.senders = np.array(senders, dtype=np.int64)
        folded.nbytes = np.array(sizes, dtype=np.int64)
        return folded

    def _add(self, request: Request, reply: Reply, key: int, folded: Folded, memory: Memory) -> int | None:
        """Put one reply through the uplink and into the sums; return its size, or ``None`` when it is kept out."""
        if reply.error is not None:
            folded.errors[reply.party] = reply.error
            return None
        try:
            aggregates = _aggregates(reply.value, request.task.name, self.roster.name(reply.party))
        except MessageError as error:
            folded.errors[reply.party] = error
            return None
        part, wires = {}, {}
        memory.begin(request, aggregates)
        for name, aggregate in aggregates.items():
            bad = not_finite(aggregate.value, aggregate.weight)
            if bad:
                folded.rejected[reply.party] = f"{_path(name, bad)} is not finite"
                return None
            stream = Rng(key).child(name) if request.uplink else Rng(key)  # which nothing draws from
            sent = request.uplink.send(aggregate, request.public, stream, memory.of(name))
            bad = not_finite_total(sent.total) if request.uplink else ""
            if bad:
                folded.rejected[reply.party] = f"{_path(name, bad)} is not finite once encoded"
                return None
            part[name] = kept_apart(sent.total, reply.party) if request.apart else sent.total
            memory.keep(name, sent.memory)
            wires[name] = {"kind": aggregate.kind, "value": sent.wire, "weight": float(aggregate.weight)}
        folded.totals = merge_totals([folded.totals, part])
        # What nothing encodes is as large as the party has found.
        plain = not request.uplink and not reply.mail and all(type(a.weight) is float for a in aggregates.values())
        return reply.nbytes if plain and reply.nbytes else M.nbytes(wires)

    async def role(
        self, request: Request, position: int, peers: Any, states: States, spend: Spend | None = None
    ) -> Ran:
        """Run one role of a session: ``async (island, peers) -> result``."""
        key = int(self.keys(request, np.array([position], dtype=np.int64))[0])
        # A session that a crash cut off has already spoken: running it again is another release, with fresh secrets.
        attempt = "" if self.secret_seed is not None else "~" + secrets.token_hex(8)
        island = self.island(replace(request, id=request.id + attempt), position, key, states, spend)
        guarded = GuardedPeers(peers, lambda message: self.policy.release(island.party, request.task.name, message))
        try:
            value = await request.task.run(island, guarded, **request.task.args)
            self.policy.release(island.party, request.task.name, value)
        except (Exception, SystemExit) as error:
            raise self.explain(error, request, position) from error
        return Ran(Reply(position, value), island.new_state, island.state_changed, island.sealed, peers.time)

    def explain(self, error: Exception | SystemExit, request: Request, position: int | None) -> Exception:
        """Say which request, party, task and arguments an error belongs to; Atoll's own errors keep their kind."""
        at = "the cohort" if position is None else self.roster.name(position)
        where = f"{request.id} at {at}"
        if isinstance(error, AtollError):
            inner = where if error.where is None else f"{error.where}; {where}"
            return type(error)(error.what, where=inner, remedy=error.remedy)
        shown = ", ".join(f"{k}={v!r}" for k, v in request.task.args.items())
        what, remedy = _reason(error, at)
        wrapped = TaskError(
            what,
            where=f"task {request.task.name}({shown}), request {where}, message {sketch(request.message)}",
            remedy=remedy,
        )
        wrapped.__cause__ = error
        return wrapped


def _reason(error: Exception | SystemExit, at: str) -> tuple[str, str]:
    """What an error of a task's own means, and what to do about it."""
    if isinstance(error, SystemExit):
        code = "" if error.code is None else repr(error.code)
        return (
            f"the task called sys.exit({code})",
            "return from the task, or raise an error: its process is not its own",
        )
    if isinstance(error, MemoryError):
        what = f"memory ran out: {error}" if str(error) else "memory ran out"
        return what, "use smaller batches or models; in a job ask for more (resources: {memory: ...})"
    if isinstance(error, ModuleNotFoundError) and error.name:
        module = error.name.partition(".")[0]
        mine = "modules of your own travel with a job in the folder that `source` names"
        return (
            f"the task imports {error.name}, which is not installed",
            f"install {module!r} where {at} computes; {mine}",
        )
    inline = "in a simulation engine='inline' runs it in your process, where a debugger can stop"
    return f"{type(error).__name__}: {error}", f"fix the task; {inline}"


def _path(name: str, leaf: str) -> str:
    return name if leaf == "." else f"{name}/{leaf}"


def _aggregates(value: Any, task: str, party: str) -> dict[str, Aggregate]:
    if isinstance(value, dict) and value and all(isinstance(v, Aggregate) for v in value.values()):
        return value
    shown = {k: type(v).__name__ for k, v in value.items()} if isinstance(value, dict) else type(value).__name__
    raise MessageError(
        f"the reply to a sum must be a dict of aggregates, not {shown}",
        where=f"task {task} at {party}",
        remedy='return for example {"update": Mean(value, examples=n)}',
    )
