"""The federation: what a program holds. Everything else in Atoll is written against it.

A program is ``async def program(fed) -> result``. It begins with ``state = await fed.restore(initial)`` and is run again from the top after a
crash; frames are never saved. The same program text runs in simulation and between organisations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from . import nesting, survival
from .errors import ConfigError
from .flight import Arrivals, Flight, Handle, by_flight
from .meter import Meter
from .outcomes import combined, exchanged, require_quorum
from .party import Parties, Party
from .reducer import Plain, Reducer
from .request import Mail, Request
from .results import Combined, Exchanged, Late, Replies, Terms
from .rng import Rng
from .session import Switch
from .stage import Chain, Stage
from .task import Task
from .traffic import Traffic
from .tree import Tree

if TYPE_CHECKING:
    from .world import World

__all__ = ["Federation", "Program", "run_program"]

Program = Callable[["Federation"], Awaitable[Any]]


class Federation:
    """A program's view on its parties.

    Args:
        world: what it runs in.
        parties: whom it may ask; by default the population.
        slot: path of this scope: the root of its random path and its checkpoint slot.
        hub: name of the party at which the program runs.
        family: every federation of the same program, by slot.

    Attributes:
        home: where the parties keep their private state for this scope.
        homes: further such places, of nested programs that are over.
        meter: bytes of this scope alone.
        records: what it recorded.
        counts: requests made so far, by task.
        nested: it is run by a party of another federation.
        kept: it writes checkpoints of its own.
        written: how many records the last checkpoint holds, and in which segments.
    """

    def __init__(
        self,
        world: World,
        parties: Parties | None = None,
        slot: str = "main",
        hub: str = "server",
        *,
        family: dict[str, Federation] | None = None,
    ) -> None:
        self.world = world
        self.parties = world.roster.all() if parties is None else parties
        self.slot = slot
        self.hub = hub
        self.meter = Meter()
        self.records: list[dict[str, Any]] = []
        self.traffic = Traffic(world, hub, self.meter)
        self.counts: Counter[str] = Counter()
        self.family = {} if family is None else family
        self.home = slot
        self.homes: set[str] = set()
        self.nested = self.kept = False
        self.written: tuple[int, list[str]] = (0, [])
        self._labels: set[str] = set()

    # ------------------------------------------------------------------ surroundings

    @property
    def clock(self) -> Any:
        """Seconds since the job began: ``now()``, ``sleep_until(moment)``."""
        return self.world.clock

    @property
    def rng(self) -> Rng:
        """The program's own reproducible stream."""
        return Rng.of(self.world.seed).child(self.slot, "program")

    def where(self, role: str) -> Parties:
        """The parties of a role."""
        return self.world.roster.where(role)

    def party(self, name: str) -> Party:
        """The party of a name."""
        return self.world.roster.party(self.world.roster.position(name))

    def bytes(self) -> dict[str, int]:
        """Bytes and messages of this scope and everything below it."""
        total: Counter[str] = Counter(self.meter.totals())
        for member in self.below():
            total.update(member.meter.totals())
        return dict(total)

    def record(self, metrics: dict[str, Any]) -> None:
        """Write a record of metrics, stamped with the clock."""
        entry = {"slot": self.slot, "clock": self.clock.now(), **metrics}
        self.records.append(entry)
        if self.world.on_record is not None:
            self.world.on_record(entry)

    # ------------------------------------------------------------------ requests

    def _request(
        self,
        task: Task,
        message: Tree,
        at: Any = None,
        *,
        uplink: Chain | None = None,
        mail: Mail | None = None,
    ) -> Request:
        """Name a request by its path: scope, task and label. The label is given, or counts the task's requests in this scope."""
        if not isinstance(task, Task):
            raise ConfigError(f"{task!r} is not a task", remedy="decorate the function with @atoll.task")
        self.world.require_known(task)
        if at is None:
            label = str(self.counts[task.name])
            self.counts[task.name] += 1
        else:
            label = "@" + "/".join(str(part) for part in (at if isinstance(at, tuple | list) else (at,)))
            self._fresh(f"{task.name}/{label}")
        rng = Rng.of(self.world.seed).child(self.slot, task.name, label)
        chain = uplink or Chain()
        public = tuple(chain.public(rng.child("public"))) if chain else ()
        return Request(f"{self.slot}/{task.name}/{label}", task, message, self.home, rng.key, chain, public, mail)

    def _fresh(self, label: str) -> None:
        """Refuse a label that was used: its request would be answered from the journal, with the same random numbers."""
        if label in self._labels:
            raise ConfigError(
                f"a second request is labelled {label!r}",
                where=self.slot,
                remedy="put the round into at=, or leave it out",
            )
        self._labels.add(label)

    async def ask_all(
        self,
        parties: Parties,
        task: Task,
        message: Tree = None,
        *,
        deadline: float | None = None,
        quorum: int = 1,
        accept: int | None = None,
        late: Late = "cancel",
        at: Any = None,
    ) -> Replies:
        """Ask each party and wait for the replies; see ``Terms`` for deadline, quorum, accept and late.

        Raises:
            QuorumError: fewer replies than the quorum came in time.
            TaskError: a party's task raised (unless the world drops errors).
        """
        return await self._ask(parties, self._request(task, message, at), Terms(deadline, quorum, accept, late))

    async def ask(self, party: Party | str, task: Task, message: Tree = None, **terms: Any) -> Any:
        """Ask one party; return its reply."""
        return (await self.ask_all(self._one(party), task, message, **terms)).values[0]

    def _one(self, party: Party | str) -> Parties:
        name = party if isinstance(party, str) else party.name
        return Parties(self.world.roster, np.array([self.world.roster.position(name)], dtype=np.int64))

    async def _ask(self, parties: Parties, request: Request, terms: Terms) -> Exchanged:
        flight = self.traffic.send(request, parties)
        accepted = await self.traffic.close(flight, terms)
        if terms.late == "drop" and len(flight.cancelled):
            await self.traffic.run(flight, flight.cancelled)
        replies = await self.traffic.run(flight, accepted)
        return exchanged(self.world, flight, accepted, replies, terms.quorum)

    # ------------------------------------------------------------------ work in flight

    async def send(
        self, parties: Parties, task: Task, message: Tree = None, *, version: int = 0, at: Any = None
    ) -> Flight:
        """Send without waiting; the replies come through ``arrivals``."""
        flight = self.traffic.send(self._request(task, message, at), parties, version)
        self.traffic.flights.append(flight)
        return flight

    async def arrivals(self, count: int = 1, until: float | None = None) -> Arrivals:
        """Wait for ``count`` arrivals or until a moment on the clock; return all that arrived since, as columns.

        Returns at once, possibly with fewer, when nothing more is under way.
        """
        if count < 1:
            raise ConfigError(f"count={count} arrivals", remedy="use a whole number of at least 1")
        return await self.traffic.arrivals(count, until)

    @property
    def under_way(self) -> int:
        """Replies that are still to arrive."""
        return sum(int(f.open.sum()) for f in self.traffic.flights)

    async def combine(self, arrived: Arrivals | Sequence[Handle], *, uplink: Sequence[Stage] = ()) -> Combined:
        """Add up arrivals instead of looking at each; within each request the order is that of its parties.

        Args:
            arrived: all of them as columns, or some handles.
            uplink: stages for the replies.

        Raises:
            ConfigError: an arrival was touched, combined or cancelled before.
        """
        chain = Chain(uplink)
        count = self.counts["combine"]
        self.counts["combine"] += 1
        public = tuple(chain.public(Rng.of(self.world.seed).child(self.slot, "combine", count)))
        rows = arrived.by_flight() if isinstance(arrived, Arrivals) else by_flight(arrived)
        for flight, which in rows:
            flight.use(which)
        parts = [
            await self.traffic.fold(
                replace(flight.request, uplink=chain, public=public), flight.parties.positions[which]
            )
            for flight, which in rows
        ]
        asked = np.concatenate(
            [flight.parties.positions[which] for flight, which in rows] or [self.parties.positions[:0]]
        )
        return combined(self.world, parts, chain, public, Parties(self.world.roster, asked))

    # ------------------------------------------------------------------ sums

    async def sum(
        self,
        parties: Parties,
        task: Task,
        message: Tree = None,
        *,
        uplink: Sequence[Stage] | Chain = (),
        reducer: Reducer | None = None,
        deadline: float | None = None,
        quorum: int = 1,
        accept: int | None = None,
        late: Late = "cancel",
        at: Any = None,
    ) -> Combined:
        """Ask the parties and get the combination of their replies, never the parts.

        Args:
            parties: the cohort; sums are defined in its order.
            task: replies with a dict of aggregates.
            message: the same for everyone.
            uplink: stages, applied in order at the party, undone in reverse at the sum.
            reducer: how replies become one; by default plain addition.
            deadline: seconds after sending.
            quorum: replies without which the round has failed.
            accept: replies after which the round closes.
            late: what becomes of the others.
            at: label of the request in its random path; by default a count.

        Raises:
            CompositionError: stages and reducer cannot be combined; nobody was contacted.
            QuorumError: fewer usable replies than the quorum.
        """
        chain = uplink if isinstance(uplink, Chain) else Chain(uplink)
        chosen = reducer or Plain()
        chosen.check(chain)
        return await chosen.reduce(self, parties, task, message, chain, Terms(deadline, quorum, accept, late), at)

    async def fold(
        self,
        parties: Parties,
        task: Task,
        message: Tree,
        uplink: Chain,
        terms: Terms,
        at: Any = None,
        *,
        fan_in: int | None = None,
    ) -> Combined:
        """The plain sum that reducers build on: the engine adds up replies, in cohort order or by groups of ``fan_in``."""
        request = self._request(task, message, at, uplink=uplink)
        flight = self.traffic.send(request, parties)
        accepted = await self.traffic.close(flight, terms)
        if terms.late == "drop" and len(flight.cancelled):
            await self.traffic.run(flight, flight.cancelled)
        positions = parties.positions[accepted]
        groups = (
            [positions] if fan_in is None else [positions[i : i + fan_in] for i in range(0, len(positions), fan_in)]
        )
        parts = [await self.traffic.fold(request, group) for group in groups if len(group)]
        seconds = self.clock.now() - flight.sent
        result = combined(self.world, parts, uplink, request.public, parties, seconds, flight.down)
        return require_quorum(result, len(parties), terms.quorum, request.id)

    # ------------------------------------------------------------------ supersteps, passes, conversations

    async def exchange(
        self,
        parties: Parties,
        task: Task,
        message: Tree = None,
        *,
        mail: Mail | None = None,
        uplink: Sequence[Stage] | Chain = (),
        deadline: float | None = None,
        quorum: int = 1,
        accept: int | None = None,
        at: Any = None,
    ) -> Exchanged:
        """One superstep: parties get their mail, reply, and post sealed envelopes that the relay holds.

        The envelopes go out with the next superstep, once the program has fixed the senders: ``mail=last.mail.only_from(names)``.

        Args:
            parties: whom to ask.
            task: what to do; ``half.wrapping(task)`` is the party half of a reducer, see ``Island.totals``.
            message: the same for everyone.
            mail: what the relay hands over.
            uplink: stages for a wrapped task; the result's ``public`` undoes them.
            deadline: seconds after sending.
            quorum: replies without which the superstep has failed.
            accept: replies after which it closes.
            at: label of the request in its random path; by default a count.
        """
        chain = uplink if isinstance(uplink, Chain) else Chain(uplink)
        request = self._request(task, message, at, uplink=chain, mail=mail)
        return await self._ask(parties, request, Terms(deadline, quorum, accept))

    async def relay(self, parties: Parties, task: Task, message: Tree = None, *, at: Any = None, **terms: Any) -> Any:
        """A sequential pass: each party's reply is the next party's message; return the last reply."""
        for i in range(len(parties)):
            label = None if at is None else (*(at if isinstance(at, tuple | list) else (at,)), i)
            message = (await self.ask_all(parties[i : i + 1], task, message, at=label, **terms)).values[0]
        return message

    async def session(self, roles: Mapping[str, tuple[Party | str, Task]], *, at: Any = None) -> dict[str, Any]:
        """A long conversation: each role runs at its party and talks to the others; return each role's result."""
        if len(roles) < 2:
            raise ConfigError(f"a session of {len(roles)} role(s)", remedy="give at least two roles")
        requests: dict[str, tuple[Request, int]] = {}
        parties: dict[str, str] = {}
        for role, (party, task) in roles.items():
            name = party if isinstance(party, str) else party.name
            request = self._request(task, None, None if at is None else (role, at))
            requests[role] = (request, self.world.roster.position(name))
            parties[role] = name
        switch = Switch(parties, self.world.cost.transfer, self.meter.between)
        outcome = await self.world.engine.converse(requests, switch, self.clock.now())
        await self.clock.sleep_until(max(time for _, time in outcome.values()))
        return {role: value for role, (value, _) in outcome.items()}

    # ------------------------------------------------------------------ programs inside programs

    def scope(self, name: str, parties: Parties | None = None) -> Federation:
        """A view with its own random path, private state and checkpoint slot, for concurrent sub-programs.

        The same name gives the same scope. A scope that writes checkpoints survives by itself; one that does not is covered by this one's.
        """
        return nesting.scope(self, name, parties)

    async def nest(
        self, party: Party | str, program: Callable[..., Awaitable[Any]], parties: Parties, message: Tree = None
    ) -> Any:
        """Let a party run a program over its own federation: hierarchy is the waist, applied twice.

        Args:
            party: the one that is a server to its members and a client to this program.
            program: ``async (federation, message) -> reply``.
            parties: its members; what they keep in private outlives one visit.
            message: what this program sends it.
        """
        name = party if isinstance(party, str) else party.name
        return await nesting.nest(self, name, program, parties, message)

    def member(self, slot: str) -> Federation:
        """The scope of a slot in this program's family, made if it is not there."""
        if slot not in self.family:
            self.family[slot] = Federation(self.world, self.parties, slot, self.hub, family=self.family)
        return self.family[slot]

    def settle_at(self, parties: Parties, hub: str, home: str) -> None:
        """Say whom this scope asks, from where, and where their private state is kept."""
        self.parties, self.home = parties, home
        self.hub = self.traffic.hub = hub

    def below(self) -> list[Federation]:
        """Every scope and nested program inside this one, by slot."""
        return [self.family[slot] for slot in sorted(self.family) if slot.startswith(self.slot + "/")]

    def apart(self, top: Federation) -> bool:
        """Whether this scope, or one between it and ``top``, is nested or keeps a checkpoint of its own."""
        between = [m for m in top.below() if m is self or self.slot.startswith(m.slot + "/")]
        return any(m.nested or m.kept for m in between)

    # ------------------------------------------------------------------ surviving

    async def restore(self, initial: Tree) -> Any:
        """The state of this scope's last checkpoint, or ``initial`` at the very beginning."""
        return await survival.restore(self, initial)

    @property
    def durable(self) -> bool:
        """Whether checkpoints go to a folder, so that another process can resume from them."""
        return self.world.folder is not None

    async def checkpoint(self, state: Tree) -> None:
        """Make everything up to here durable, as one atomic generation: this scope, and those below that keep no checkpoint of their own.

        Raises:
            CheckpointError: it cannot be written; the previous generation is untouched.
        """
        await survival.checkpoint(self, state)


async def run_program(world: World, program: Program) -> tuple[Any, Federation]:
    """Open the world, run a program to its end and close the engine.

    Returns:
        The program's result and its federation (records, meters).
    """
    world.checkpoints.open(resume=world.resume)
    if not world.resume:
        world.ledger.begin_run()
    world.engine.choices.update(world.checkpoints.choices)
    world.note_secret_seed()
    fed = Federation(world)
    await world.engine.open(world)
    try:
        return await program(fed), fed
    finally:
        await world.engine.close()
