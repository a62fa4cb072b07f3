"""The federation: what a program holds. Everything else in Atoll is written against it.

A program is ``async def program(fed) -> result``. It begins with ``state = await fed.restore(initial)`` and is run again from the top after a
crash; frames are never saved. The same program text runs in simulation and between organisations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from . import message as M
from .aggregate import Totals, in_order, merge_totals, sign_parts
from .errors import ConfigError, QuorumError
from .files import read_message, write_message
from .flight import Arrivals, Flight, Handle
from .meter import Meter
from .party import Parties, Party
from .reducer import Plain, Reducer
from .request import Folded, Mail, Reply, Request
from .results import Combined, Exchanged, Late, Replies, Terms
from .rng import Rng
from .session import Switch
from .stage import Chain, Stage
from .task import Task, resolve
from .traffic import Traffic
from .tree import Tree

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .world import World

__all__ = ["Federation", "Program", "run_program"]

MOST_SEGMENTS = 64

Program = Callable[["Federation"], Awaitable[Any]]


class Federation:
    """A program's view on its parties.

    Args:
        world: what it runs in.
        parties: whom it may ask; by default the population.
        slot: path of this scope: the root of its random path and its checkpoint slot.
        hub: name of the party at which the program runs.
    """

    def __init__(self, world: World, parties: Parties | None = None, slot: str = "main", hub: str = "server") -> None:
        self.world = world
        self.parties = world.roster.all() if parties is None else parties
        self.slot = slot
        self.hub = hub
        self.meter = Meter()
        self.records: list[dict[str, Any]] = []
        self._recorded = 0
        self._traffic = Traffic(world, hub, self.meter)
        self._counts: Counter[str] = Counter()
        self._children: list[Federation] = []

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
        for child in self._children:
            total.update(child.bytes())
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
        if at is None:
            label = str(self._counts[task.name])
            self._counts[task.name] += 1
        else:
            label = "@" + "/".join(str(part) for part in (at if isinstance(at, tuple | list) else (at,)))
        rng = Rng.of(self.world.seed).child(self.slot, task.name, label)
        chain = uplink or Chain()
        public = tuple(chain.public(rng.child("public"))) if chain else ()
        return Request(f"{self.slot}/{task.name}/{label}", task, message, self.slot, rng.key, chain, public, mail)

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
        flight = self._traffic.send(request, parties)
        accepted = await self._traffic.close(flight, terms)
        if terms.late == "drop" and len(flight.cancelled):
            await self._traffic.run(flight, flight.cancelled)
        replies = await self._traffic.run(flight, accepted)
        return self._sort_replies(flight, accepted, replies, terms)

    def _sort_replies(
        self, flight: Flight, accepted: NDArray[np.int64], replies: list[Reply], terms: Terms
    ) -> Exchanged:
        good = [(i, r) for i, r in zip(accepted.tolist(), replies, strict=True) if r.error is None]
        errors = {self.world.roster.name(r.party): r.error for r in replies if r.error is not None}
        if errors and self.world.errors == "raise":
            raise next(iter(errors.values()))
        if len(good) < terms.quorum:
            raise QuorumError(
                f"{len(good)} of {len(flight.parties)} parties answered without an error, fewer than the quorum of {terms.quorum}",
                where=flight.request.id,
                remedy=f"look at the errors: {'; '.join(f'{k}: {v}' for k, v in errors.items())}",
            )
        senders = flight.parties[np.array([i for i, _ in good], dtype=np.int64)]
        mail = Mail()
        for _, reply in good:
            mail.put(self.world.roster.name(reply.party), reply.mail)
        notes = {self.world.roster.name(r.party): r.notes for _, r in good if r.notes}
        return Exchanged(senders, [r.value for _, r in good], flight.parties.without(senders), errors, notes, mail)

    # ------------------------------------------------------------------ work in flight

    async def send(
        self, parties: Parties, task: Task, message: Tree = None, *, version: int = 0, at: Any = None
    ) -> Flight:
        """Send without waiting; the replies come through ``arrivals``."""
        flight = self._traffic.send(self._request(task, message, at), parties, version)
        self._traffic.flights.append(flight)
        return flight

    async def arrivals(self, count: int = 1, until: float | None = None) -> Arrivals:
        """Wait for ``count`` arrivals or until a moment on the clock; return all that arrived since, as columns.

        Returns at once, possibly with fewer, when nothing more is under way.
        """
        if count < 1:
            raise ConfigError(f"count={count} arrivals", remedy="use a whole number of at least 1")
        return await self._traffic.arrivals(count, until)

    @property
    def under_way(self) -> int:
        """Replies that are still to arrive."""
        return sum(int(f.open.sum()) for f in self._traffic.flights)

    async def combine(self, handles: Sequence[Handle], *, uplink: Sequence[Stage] = ()) -> Combined:
        """Add up arrivals instead of looking at each; the order is that of the handles' positions within each request."""
        chain = Chain(uplink)
        parts: list[Folded] = []
        asked = np.array([h.party.position for h in handles], dtype=np.int64)
        count = self._counts["combine"]
        self._counts["combine"] += 1
        public = tuple(chain.public(Rng.of(self.world.seed).child(self.slot, "combine", count)))
        for flight in dict.fromkeys(h.flight for h in handles):
            which = np.array(sorted(h.index for h in handles if h.flight is flight), dtype=np.int64)
            flight.waiting.difference_update(which.tolist())
            staged = replace(flight.request, uplink=chain, public=public)
            parts.append(await self._traffic.fold(staged, flight.parties.positions[which]))
        return self._combined(parts, chain, public, Parties(self.world.roster, asked))

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
        flight = self._traffic.send(request, parties)
        accepted = await self._traffic.close(flight, terms)
        if terms.late == "drop" and len(flight.cancelled):
            await self._traffic.run(flight, flight.cancelled)
        positions = parties.positions[accepted]
        groups = (
            [positions] if fan_in is None else [positions[i : i + fan_in] for i in range(0, len(positions), fan_in)]
        )
        parts = [await self._traffic.fold(request, group) for group in groups if len(group)]
        seconds = self.clock.now() - flight.sent
        combined = self._combined(parts, uplink, request.public, parties, seconds, M.nbytes(message) * len(parties))
        if combined.n < terms.quorum:
            raise QuorumError(
                f"{combined.n} of {len(parties)} replies can be used, fewer than the quorum of {terms.quorum}",
                where=request.id,
                remedy=_why(combined),
            )
        return combined

    def _combined(
        self,
        parts: list[Folded],
        chain: Chain,
        public: tuple[Tree, ...],
        asked: Parties,
        seconds: float = 0.0,
        down: int = 0,
    ) -> Combined:
        name = self.world.roster.name
        totals: Totals = merge_totals(sign_parts(part.totals, part.senders.tolist()) for part in parts)
        empty = np.zeros(0, dtype=np.int64)
        totals = {k: in_order(chain.decode(t, public), asked.positions.tolist()) for k, t in totals.items()}
        senders = Parties(self.world.roster, np.concatenate([empty, *[p.senders for p in parts]]))
        rejected = {name(k): why for p in parts for k, why in p.rejected.items()}
        errors = {name(k): error for p in parts for k, error in p.errors.items()}
        return Combined(
            {k: t.result() for k, t in totals.items()},
            len(senders),
            {k: t.weight for k, t in totals.items()},
            senders,
            asked.without(senders).without(asked.named(*rejected)) if rejected else asked.without(senders),
            rejected,
            errors,
            seconds,
            int(sum(p.nbytes.sum() for p in parts)),
            down,
            {k: t.kind for k, t in totals.items()},
        )

    # ------------------------------------------------------------------ supersteps, passes, conversations

    async def exchange(
        self,
        parties: Parties,
        task: Task,
        message: Tree = None,
        *,
        mail: Mail | None = None,
        deadline: float | None = None,
        quorum: int = 1,
        accept: int | None = None,
        at: Any = None,
    ) -> Exchanged:
        """One superstep: parties get their mail, reply, and post sealed envelopes that the relay holds.

        The envelopes go out with the next superstep, once the program has fixed the senders: ``mail=last.mail.only_from(names)``.
        """
        request = self._request(task, message, at, mail=mail)
        result = await self._ask(parties, request, Terms(deadline, quorum, accept))
        self.meter.between(sum(M.nbytes(p) for _, box in sorted(result.mail.sealed().items()) for p in box.values()))
        return result

    async def relay(self, parties: Parties, task: Task, message: Tree = None, *, at: Any = None, **terms: Any) -> Any:
        """A sequential pass: each party's reply is the next party's message; return the last reply."""
        for i in range(len(parties)):
            label = None if at is None else (at, i)
            message = (await self.ask_all(parties[i : i + 1], task, message, at=label, **terms)).values[0]
        return message

    async def session(self, roles: dict[str, tuple[Party | str, Task]], *, at: Any = None) -> dict[str, Any]:
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
        """A view with its own random path, private state and checkpoint slot, for concurrent sub-programs."""
        child = Federation(self.world, self.parties if parties is None else parties, f"{self.slot}/{name}", self.hub)
        self._children.append(child)
        return child

    async def nest(
        self, party: Party | str, program: Callable[..., Awaitable[Any]], parties: Parties, message: Tree = None
    ) -> Any:
        """Let a party run a program over its own federation: hierarchy is the waist, applied twice.

        Args:
            party: the one that is a server to its members and a client to this program.
            program: ``async (federation, message) -> reply``.
            parties: its members.
            message: what this program sends it.
        """
        name = party if isinstance(party, str) else party.name
        position = np.array([self.world.roster.position(name)], dtype=np.int64)
        count = self._counts[f"nest:{name}"]
        self._counts[f"nest:{name}"] += 1
        child = Federation(self.world, parties, f"{self.slot}/nest:{name}/{count}", name)
        self._children.append(child)
        down = M.nbytes(message)
        self.meter.down(self.hub, position, down)
        transfer = self.world.cost.transfer
        await self.clock.sleep_until(self.clock.now() + transfer(self.hub, name, down))
        reply = await program(child, message)
        up = M.nbytes(reply)
        self.meter.up(self.hub, position, np.array([up], dtype=np.int64))
        await self.clock.sleep_until(self.clock.now() + transfer(name, self.hub, up))
        await self._end(child)
        return reply

    async def _end(self, child: Federation) -> None:
        """A nested program is over: keep its meters, forget its slot."""
        self._children.remove(child)
        for name, value in child.bytes().items():
            setattr(self.meter, name, getattr(self.meter, name) + value)
        self.world.checkpoints.drop(child.slot)
        await self.world.engine.drop(child.slot)

    # ------------------------------------------------------------------ surviving

    async def restore(self, initial: Tree) -> Any:
        """The state of this scope's last checkpoint, or ``initial`` at the very beginning."""
        saved = self.world.checkpoints.slots.get(self.slot)
        segments = self.world.checkpoints.segments.get(self.slot, [])
        await self.world.engine.load(self.slot, [name for name in segments if name.startswith("state-")])
        if saved is None:
            return initial
        self.meter = self._traffic.meter = Meter.load(saved["meter"])
        self._counts = Counter(saved["counts"])
        self.records = self._read_records(saved["records"], segments)
        self._recorded = len(self.records)
        if self.world.on_restore is not None:
            self.world.on_restore(self.records)
        self._traffic.load(saved["flights"], self.slot, lambda name: resolve(name, self.world.registry))
        if self.slot == "main":
            self.clock.set(saved["clock"])
        else:
            await self.clock.sleep_until(saved["clock"])
        return saved["state"]

    async def checkpoint(self, state: Tree) -> None:
        """Make everything up to here durable, as one atomic generation.

        Raises:
            CheckpointError: it cannot be written; the previous generation is untouched.
        """
        checkpoints = self.world.checkpoints
        number = checkpoints.generation + 1
        old = checkpoints.segments.get(self.slot, [])
        # Many small segments are now and then written anew as one, so that their number stays bounded.
        full = len(old) >= MOST_SEGMENTS
        kept = [] if full else old
        states = await self.world.engine.commit(self.slot, number, full=full)
        rows = self._write_records(number, full=full)
        segments = [*kept, *states, *rows]
        content = {
            "state": state,
            "clock": float(self.clock.now()),
            "meter": self.meter.save(),
            "counts": dict(self._counts),
            "records": None if self.world.folder is not None else list(self.records),
            "flights": self._traffic.save(),
        }
        checkpoints.write(self.slot, content, segments, dict(self.world.engine.choices))
        await self.world.engine.settle(self.slot)
        self._recorded = len(self.records)

    def _write_records(self, number: int, *, full: bool) -> list[str]:
        folder = self.world.folder
        fresh = self.records if full else self.records[self._recorded :]
        if folder is None or not fresh:
            return []
        name = f"records-{number:08d}.msg"
        write_message(folder / name, {"records": fresh})
        return [name]

    def _read_records(self, kept: Any, segments: list[str]) -> list[dict[str, Any]]:
        folder = self.world.folder
        if folder is None:
            return list(kept)
        names = [name for name in segments if name.startswith("records-")]
        return [row for name in names for row in read_message(folder / name)["records"]]


def _why(combined: Combined) -> str:
    if combined.rejected:
        name, reason = next(iter(combined.rejected.items()))
        return f"{len(combined.rejected)} replies were rejected, first {name}: {reason}; lower the learning rate or look at that party's data"
    if combined.errors:
        name, error = next(iter(combined.errors.items()))
        return f"{len(combined.errors)} tasks raised, first {name}: {error}"
    return "lengthen the deadline, invite more parties (over_select) or lower the quorum"


async def run_program(world: World, program: Program) -> tuple[Any, Federation]:
    """Open the world, run a program to its end and close the engine.

    Returns:
        The program's result and its federation (records, meters).
    """
    world.checkpoints.open(resume=world.resume)
    world.engine.choices.update(world.checkpoints.choices)
    world.note_secret_seed()
    fed = Federation(world)
    await world.engine.open(world)
    try:
        return await program(fed), fed
    finally:
        await world.engine.close()
