"""The federation: a program's view of its parties. All other rooms of Atoll build on it.

A program is ``async def program(fed) -> result``. It begins with ``state = await fed.restore(initial)``, and after a crash it runs again from the
top; stack frames are never saved. The same program text runs in simulation and between organisations.

A checkpoint covers its scope and every scope below it without its own checkpoints. A scope with its own checkpoints is only counted (meters, records),
so that what the parent knows of it stays true when its program is over. A program that runs nested in a party keeps its own checkpoints.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from .. import message as M
from ..algebra.rng import Rng, hash64
from ..algebra.tree import Tree
from ..calls import checked_call
from ..errors import ConfigError, QuorumError
from ..job import Job, Prepared, as_job, members_of, prepared
from ..persistence.checkpoint import within
from ..persistence.files import read_message, write_message
from ..persistence.packed_rows import PackedRows
from ..requests.chain import Chain
from ..requests.party import Parties, Party, among
from ..requests.policy import admit_job
from ..requests.request import Expects, PartialSum, Request, expecting
from ..requests.results import Accept, Combined, Late, Terms
from ..requests.stage import Stage
from ..requests.task import Task, done_before, resolve
from ..time.deadline import Deadline
from ..time.meter import Draw, Meter
from ..world import RunningJob
from .flight import Arrivals, Flight, Handle, by_flight
from .reducer import Plain, Reducer, Reduction
from .replies import ReplyVerbs, combine_sum, count_words, decode_totals, require_quorum

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..world import World

__all__ = ["Federation", "Program", "run_program"]


Program = Callable[["Federation"], Awaitable[Any]]


class Federation(ReplyVerbs):
    """A program's view of its parties.

    ``ask``, ``ask_all``, ``exchange``, ``relay`` and ``session`` return single replies (``ReplyVerbs``); ``sum`` returns them combined; ``send``,
    ``arrivals`` and ``combine`` handle replies that arrive later; the surroundings (``clock``, ``rng``, ``record``, ``bytes``) come from
    ``Scope``.

    Args:
        world: the world that it runs in.
        parties: the parties that it may ask; by default the population.
        slot: path of this scope: the root of its random path, and its checkpoint slot.
        hub: name of the party at which the program runs.
        family: every federation of the same program, by slot.

    Attributes:
        home: where the parties keep their private state for this scope.
        homes: further such places, of nested programs that have ended.
        meter: bytes of this scope alone.
        records: its records.
        counts: number of requests so far, by task.
        nested: whether a party of another federation runs it.
        kept: whether it writes its own checkpoints.
        written: number of records in the last checkpoint, and their segments.
    """

    @checked_call
    async def sum(
        self,
        parties: Parties,
        task: Task,
        message: Tree = None,
        *,
        uplink: Sequence[Stage] | Chain = (),
        reducer: Reducer | None = None,
        deadline: float | Deadline | None = None,
        quorum: int = 1,
        accept: Accept | None = None,
        late: Late = "cancel",
        at: Any = None,
        down: NDArray[np.int64] | None = None,
        up: int | Callable[[], int] | None = None,
        expects: Expects | None = None,
    ) -> Combined:
        """Ask the parties and return the combination of their replies, never single replies.

        Args:
            parties: the cohort; sums are computed in its order.
            task: a task that replies with a dict of aggregates.
            message: the message, the same for all.
            uplink: stages, applied in order at the party, undone in reverse at the sum.
            reducer: how replies are combined; by default plain addition.
            deadline: seconds after sending, or a deadline that several requests share: ``fed.deadline(...)``. A reducer's supersteps
                share the latter; a number is the limit of each.
            quorum: minimum number of replies; with fewer, the round fails.
            accept: number of replies after which the round closes, a rule that chooses among them (see ``AcceptRule``), or a share of a ``Quota``.
            late: what to do with the others.
            at: label of the request in its random path; by default a count.
            down: bytes to each party, if they differ from the message's size; see ``Terms``.
            up: bytes of a reply, for the model of devices; see ``Terms``.
            expects: gives the form of the replies, where they follow from the request; see `ReplyForm`. Between organisations a reply of another form is
                rejected.

        Raises:
            CompositionError: stages and reducer cannot be combined; no party was contacted.
            QuorumError: fewer usable replies than the quorum. Then every party has the state from before the sum.
        """
        chain = uplink if isinstance(uplink, Chain) else Chain(uplink)
        chosen = reducer or Plain()
        terms = Terms(deadline, quorum, accept, late, down, up)
        chosen.check(chain, parties, terms, task)
        # Later arrivals are in other sums, of any size.
        chain = chain.within(1 if late == "arrive" else quorum, hidden=chosen.secure, indexing=chosen.indexes)
        request = expecting(self._request(task, message, at, uplink=chain), expects)
        return await self._reduce(chosen, request, parties, terms, f"{request.id}//{type(chosen).__name__}")

    async def _reduce(self, reducer: Reducer, request: Request, parties: Parties, terms: Terms, path: str) -> Combined:
        """Run one sum, from the request to the program's result. Nothing that its steps leave takes effect before it has succeeded.

        Args:
            reducer: how replies are combined.
            request: the program's request.
            parties: the cohort.
            terms: the conditions for closing it.
            path: path of the reducer's own requests.
        """
        home = type(reducer).__name__ if reducer.lasting else ""
        reduction = Reduction(self, request, parties, terms, path, home)
        found = kept = None
        try:
            found = await reducer.reduce(reduction)
            result = require_quorum(reduction.result(found), len(parties), terms.quorum, request.id)
            kept = found
            if found.counts.get("clamped"):  # a program may not look: the end of the run says it, unless a record does
                before = self.world.clamped.get(self.slot, (0, 0))
                self.world.clamped[self.slot] = (before[0] + found.counts["clamped"], before[1] + found.counts["coded"])
            return result
        except QuorumError as error:
            # A sum of fewer replies than the quorum reveals more of each party than it agreed to: count it, but reveal it to no one.
            error.combined = replace(reduction.result(found), value={}, weight={}, kinds={}, roles={})
            raise
        finally:
            await reduction.conclude(kept)

    # ------------------------------------------------------------------ requests in flight

    async def send(
        self,
        parties: Parties,
        task: Task,
        message: Tree = None,
        *,
        version: int = 0,
        at: Any = None,
        down: NDArray[np.int64] | None = None,
        up: int | Callable[[], int] | None = None,
        ahead: bool = False,
        expects: Expects | None = None,
    ) -> Flight:
        """Send without waiting; the replies come through ``arrivals``.

        Args:
            parties: the parties to ask.
            task: the task to run.
            message: the message, the same for all.
            version: a number that the program chooses, such as that of the model sent.
            at: label of the request in its random path; by default a count.
            down: see ``Terms``.
            up: see ``Terms``.
            ahead: whether every reply that will arrive is wanted. The first reply that is combined then runs the work of all in one block, which is
                faster if replies are used one by one. From then on none can be cancelled, and checkpoints include those that were not used.
            expects: gives the form of the replies; see `Federation.sum`.
        """
        request = expecting(self._request(task, message, at), expects)
        flight = self.traffic.send(request, parties, version, down=down, up=up)
        flight.ahead = ahead
        self.traffic.flights.append(flight)
        return flight

    async def arrivals(self, count: int = 1, until: float | None = None) -> Arrivals:
        """Wait for ``count`` arrivals or until a moment on the clock; return all arrivals since the last call, as columns.

        Returns at once, possibly with fewer, when no more replies are in flight.
        """
        if count < 1:
            raise ConfigError(f"count={count} arrivals", remedy="use a whole number of at least 1")
        return await self.traffic.arrivals(count, until)

    @property
    def under_way(self) -> int:
        """Number of replies in flight."""
        return sum(int(f.open.sum()) for f in self.traffic.flights)

    def foreseen(self, until: float | None = None) -> Arrivals:
        """Take what will arrive until a moment (or at any time) now, without moving the clock, for accountings that assume to know it.

        Raises:
            ConfigError: on a real clock this is not known.
        """
        if not self.clock.virtual:
            raise ConfigError(
                "what will arrive is not known on a real clock", where=self.slot, remedy="wait for `arrivals`"
            )
        return self.traffic.foreseen(until)

    def cancel(self, positions: NDArray[np.int64] | None = None) -> int:
        """Give up the replies in flight from these parties (or all), in every request; return how many. Their work is never done."""
        return self.traffic.give_up(positions)

    @property
    def busy(self) -> NDArray[np.int64]:
        """Positions of the parties with replies in flight, sorted."""
        rows = [f.parties.positions[f.open] for f in self.traffic.flights]
        return np.unique(np.concatenate(rows)) if rows else np.zeros(0, dtype=np.int64)

    async def combine(
        self,
        arrived: Arrivals | Sequence[Handle],
        *,
        uplink: Sequence[Stage] | Chain = (),
        reducer: Reducer | None = None,
    ) -> Combined:
        """Add up arrivals instead of reading each; within each request the order is that of its parties.

        Args:
            arrived: all arrivals as columns, or some handles.
            uplink: stages for the replies. For a flight that was sent ahead, they must be the same every time.
            reducer: how they are combined, by default by plain addition. Any other reducer contacts the parties again, as its protocol requires, but the
                work that they have done is not charged twice; it takes arrivals of one request.

        Raises:
            ConfigError: an arrival was read, combined or cancelled before; or a reducer gets arrivals of several requests or of one sent ahead.
        """
        chain = uplink if isinstance(uplink, Chain) else Chain(uplink)
        count = self.counts["combine"]
        self.counts["combine"] += 1
        rows = arrived.by_flight() if isinstance(arrived, Arrivals) else by_flight(arrived)
        plain = reducer is None or reducer.plain
        if not plain and (len(rows) != 1 or rows[0][0].ahead):
            raise ConfigError(
                f"{type(reducer).__name__} for arrivals of {len(rows)} requests{', sent ahead' if rows and rows[0][0].ahead else ''}",
                remedy="combine the arrivals of one request, which was sent without ahead=True",
            )
        for flight, which in rows:
            flight.use(which)
        asked = Parties(
            self.world.roster,
            np.concatenate([f.parties.positions[which] for f, which in rows] or [self.parties.positions[:0]]),
        )
        if not plain and reducer is not None:
            flight, which = rows[0]
            if flight.launch is not None:  # the protocol runs the work in its own way
                flight.launch.drop(which)
            return await self._combined_by(reducer, flight, flight.parties[which], chain, count)
        public = self._public(chain, count)
        parts = [await self._fold_arrivals(flight, which, chain, public) for flight, which in rows]
        whole = PartialSum.zero().merge(*(part.sign() for part in parts))
        return combine_sum(self.world, whole, Chain(), (), asked, bytes_up=int(whole.nbytes.sum()))

    def _public(self, chain: Chain, count: int) -> tuple[Tree, ...]:
        return tuple(chain.public(Rng.of(self.world.seed).child(self.slot, "combine", count)))

    async def _fold_arrivals(
        self, flight: Flight, which: NDArray[np.int64], chain: Chain, public: tuple[Tree, ...]
    ) -> PartialSum:
        """The sum of some arrivals of a flight, with the stages undone."""
        if flight.ahead:  # the replies of one block have the same parameters whenever they are used
            public = tuple(chain.public(Rng(flight.request.key).child("public")))
        request = replace(flight.request, uplink=chain, public=public)
        if flight.ahead:
            found = await self.traffic.fold_ahead(flight, request, which)
        else:
            found = await self.traffic.fold(request, flight.parties.positions[which])
        counts, told = count_words(found, chain, public, exact=True)
        inputs: dict[str, dict[str, Tree]] = {}
        totals = decode_totals(found.totals, chain, public, inputs)
        return replace(found, totals=totals, counts=counts, inputs=inputs, told=told)

    async def _combined_by(
        self, reducer: Reducer, flight: Flight, parties: Parties, chain: Chain, count: int
    ) -> Combined:
        """The sum of some arrivals of a flight, by a reducer's protocol."""
        terms = Terms(quorum=0, down=np.zeros(len(parties), dtype=np.int64), up=0)
        chain = chain.within(chain.replies, hidden=chain.hidden, indexing=reducer.indexes)
        request = replace(
            flight.request, task=done_before(flight.request.task), uplink=chain, public=self._public(chain, count)
        )
        reducer.check(chain, parties, terms, request.task)
        return await self._reduce(reducer, request, parties, terms, f"{request.id}//combine-{count}")

    # ------------------------------------------------------------------ predictions for devices

    def forecast(
        self, parties: Parties, task: Task, message: Tree = None, *, up: int | Callable[[], int] | None = None
    ) -> NDArray[np.float64] | None:
        """Seconds that each party is expected to take for a task without failures; ``None`` if there is no forecast."""
        ask = getattr(self.world.cost, "forecast", None)
        if ask is None:
            return None
        request = Request(f"{self.slot}/{task.name}/forecast", task, message, self.home, 0)
        plan = self.traffic.plan(request, parties, M.nbytes(message), self.clock.now(), up)
        return np.asarray(ask(parties, plan), dtype=np.float64)

    def available(self, parties: Parties) -> Parties:
        """The parties among these that are available now."""
        ask = getattr(self.world.cost, "available", None)
        if ask is None:
            return parties
        return Parties(self.world.roster, parties.positions[np.asarray(ask(parties, self.clock.now()), dtype=bool)])

    # ------------------------------------------------------------------ programs inside programs

    def scope(self, name: str, parties: Parties | None = None) -> Self:
        """A view with its own random path, private state and checkpoint slot, for concurrent sub-programs.

        The same name returns the same scope. A scope that writes checkpoints resumes from them; any other is part of this scope's checkpoints.
        """
        _require_scope_name(name)
        child = self.member(f"{self.slot}/{name}")
        child.settle_at(self.parties if parties is None else parties, self.hub, child.slot)
        child.opened = True
        return child

    async def run(self, job: Any, parties: Parties | Sequence[str] | None = None, *, scope: str) -> Any:
        """Run a job inside this program, with the answer that it has alone in this scope, whatever runs beside it.

        Several jobs may run at once, each in a scope of its own: ``asyncio.gather(fed.run(a, scope="a"), fed.run(b, scope="b"))``. The scope names the job's
        requests, random numbers, private states, records and checkpoints. A resumed program runs it again from its own last checkpoint.

        Args:
            job: a job of any kind, such as a `Training`, or an ``async def program(fed)``.
            parties: its parties, or their names; by default all of this federation's. They take part in the federation's order.
            scope: a name that no other job or scope of this program has.

        Returns:
            The outcome of the job; what a program returns.

        Raises:
            ConfigError: the scope is used twice, a party is not of this federation, a helper that the job needs is not there, or the job runs between
                organisations and the program has not declared it (``program.jobs = {"a": job}``).
            AtollError: the job does not fit its parties.
        """
        return await _run_job(self, job, parties, scope)

    async def nest(
        self, party: Party | str, program: Callable[..., Awaitable[Any]], parties: Parties, message: Tree = None
    ) -> Any:
        """Let a party run a program over its own federation: hierarchy is the waist, applied twice.

        Args:
            party: the party that is a server to its members and a client of this program.
            program: ``async (federation, message) -> reply``.
            parties: its members; they keep their private state between visits.
            message: this program's message to it.
        """
        name = party if isinstance(party, str) else party.name
        return await _nest(self, name, program, parties, message)

    # ------------------------------------------------------------------ checkpoints

    async def restore(self, initial: Tree) -> Any:
        """The state of this scope's last checkpoint, or ``initial`` at the first start."""
        return await _restore(self, initial)

    @property
    def durable(self) -> bool:
        """Whether checkpoints go to a folder, so that another process can resume from them."""
        return self.world.folder is not None

    async def checkpoint(self, state: Tree) -> None:
        """Make everything so far durable, as one atomic generation: this scope, and those below it without their own checkpoints.

        Raises:
            CheckpointError: the checkpoint cannot be written; the previous generation stays intact.
        """
        await _checkpoint(self, state)


async def run_program(world: World, program: Program) -> tuple[Any, Federation]:
    """Open the world, run a program to its end and close the engine.

    Returns:
        The program's result and its federation (records, meters).
    """
    world.checkpoints.open(resume=world.resume)
    if not world.resume:
        world.ledger.begin_run()
        world.renew_secret()
        world.renew_record()
    world.engine.choices.update(world.checkpoints.choices)
    world.note_secret_seed()
    fed = Federation(world)
    await world.engine.open(world)
    try:
        result = await program(fed)
        await world.engine.publish()
        return result, fed
    except Exception as error:
        world.decisions.reopen(error)
        raise
    finally:
        await world.engine.close()


# ---------------------------------------------------------------------- programs inside programs


def _require_scope_name(name: Any) -> None:
    if not isinstance(name, str) or not name or "/" in name or name.startswith("nest:"):
        raise ConfigError(f"scope name {name!r}", remedy="use a name without '/', which does not begin with 'nest:'")


async def _run_job(fed: Federation, given: Any, parties: Parties | Sequence[str] | None, name: str) -> Any:
    """See ``Federation.run``."""
    _require_scope_name(name)
    slot, world = f"{fed.slot}/{name}", fed.world
    if slot in world.running or (slot in fed.family and fed.family[slot].opened):
        raise ConfigError(
            f"the scope {name!r} is used by a second job",
            where=fed.slot,
            remedy="give each job a scope of its own: its requests, random numbers and checkpoints are named by it",
        )
    job = as_job(given)
    chosen = _members(fed, parties, job)
    _require_helpers(fed, job, len(chosen), name)
    admit_job(world.policy, job.names())
    ready = _prepare_job(fed, given, job, chosen, slot)
    world.running[slot] = RunningJob(slot)
    await _begin_afresh(fed, slot)
    child = fed.member(slot)
    child.settle_at(chosen, fed.hub, slot)
    child.kept = child.opened = True  # whatever it leaves is in its own checkpoints, or made again
    return ready.outcome(await ready.program(child))


def _members(fed: Federation, parties: Parties | Sequence[str] | None, job: Job) -> Parties:
    """The parties of a job, in the order of the federation.

    Raises:
        ConfigError: one is not of the federation, is named twice, or there are none.
    """
    if parties is None:
        return fed.parties
    where = f"fed.run({job.title})"
    if isinstance(parties, Parties):
        if parties.roster is not fed.world.roster:
            raise ConfigError("these parties are of another federation", where=where, remedy="choose among fed.parties")
        chosen = parties
    elif isinstance(parties, str) or not all(isinstance(one, str) for one in parties):
        raise ConfigError(f"parties={parties!r}", where=where, remedy="give fed.parties, some of them, or their names")
    else:
        chosen = fed.parties.named(*parties)
    there = among(chosen.positions, fed.parties.positions)
    if not there.all():
        raise ConfigError(
            f"{chosen[int(np.argmin(there))].name!r} is not one of this federation's parties",
            where=where,
            remedy="choose among fed.parties; a helper is not asked as a client",
        )
    unique = np.unique(chosen.positions)
    if len(unique) < len(chosen) or not len(chosen):
        what = f"{len(chosen) - len(unique)} parties are named twice" if len(chosen) else "it has no parties"
        raise ConfigError(what, where=where, remedy="name each party once, and at least one")
    return Parties(fed.world.roster, unique)


def _require_helpers(fed: Federation, job: Job, clients: int, name: str) -> None:
    there = fed.world.roster.others
    for helper, role in job.others(clients).items():
        if there.get(helper) != role:
            what = "nobody plays it here" if helper not in there else f"it is {there[helper]} here"
            raise ConfigError(
                f"{job.title} needs {helper!r} as {role}, and {what}",
                where=f"fed.run, scope {name!r}",
                remedy=f'declare the job, program.jobs = {{"{name}": job}}, or the helper: program.others = {{"{helper}": "{role}"}}',
            )


def _prepare_job(fed: Federation, given: Any, job: Job, chosen: Parties, slot: str) -> Prepared:
    """The job, prepared for its parties: as the program has declared it, or now.

    Raises:
        ConfigError: the program has declared another job for the scope, or other organisations have not been told of this one.
    """
    world = fed.world
    population = np.arange(len(world.roster.names))
    names = None if np.array_equal(chosen.positions, population) else tuple(chosen.names)
    declared = world.jobs.get(slot)
    if declared is not None:
        own = declared.job is job or getattr(declared.job, "program", None) is given
        if not own or sorted(declared.parties or world.roster.names) != sorted(names or world.roster.names):
            raise ConfigError(
                f"the program has declared {'another job' if not own else 'other parties'} for this scope",
                where=slot,
                remedy="run the very job of program.jobs, with the parties that stand there",
            )
        return declared.prepared
    if getattr(world.engine, "live", False):
        raise ConfigError(
            f"the sites do not know {job.title}, which the program has not declared for this scope",
            where=slot,
            remedy=f'declare it, so that sites can admit and prepare it: program.jobs = {{"{slot.partition("/")[2]}": job}}',
        )
    ready = prepared(job, members_of(world.population, names))
    world.install(ready, slot)
    return ready


async def _begin_afresh(fed: Federation, slot: str) -> None:
    """Forget what a surrounding checkpoint has of a job's scope: the job goes on from its own checkpoint, or begins anew."""
    known = [one for one in fed.family if within(one, slot)]
    for one in known:
        del fed.family[one]
        fed.world.traffics.pop(one, None)
    if known or fed.world.resume:
        await fed.world.engine.drop(slot)
        for home in [home for home in fed.world.checkpoints.chains if within(home, slot)]:
            del fed.world.checkpoints.chains[home]


async def _nest(
    fed: Federation, name: str, program: Callable[..., Awaitable[Any]], parties: Parties, message: Tree
) -> Any:
    """See ``Federation.nest``."""
    position = np.array([fed.world.roster.position(name)], dtype=np.int64)
    count = fed.counts[f"nest:{name}"]
    fed.counts[f"nest:{name}"] += 1
    home = f"{fed.home}/nest:{name}"  # the members' private state is kept between visits
    slot = f"{fed.slot}/nest:{name}/{count}"
    if slot not in fed.world.checkpoints.slots:
        fed.family.pop(slot, None)
    child = fed.member(slot)
    child.settle_at(parties, name, home)
    child.nested = True
    down = M.nbytes(message)
    fed.meter.down(fed.hub, position, down)
    transfer, clock = fed.world.cost.transfer, fed.world.clock
    await clock.sleep_until(clock.now() + transfer(fed.hub, name, down))
    try:
        reply = await program(child, message)
    except Exception:
        await _end(fed, child)
        raise
    up = M.nbytes(reply)
    fed.meter.up(fed.hub, position, np.array([up], dtype=np.int64))
    await clock.sleep_until(clock.now() + transfer(name, fed.hub, up))
    await _end(fed, child)
    return reply


async def _end(fed: Federation, child: Federation) -> None:
    """End a program inside this one: keep what it metered, and what its members keep between visits.

    The states of its own scopes are removed now: a later visit has new scopes, and after a crash this one runs again from the checkpoint. That
    checkpoint is removed with the next one of the surrounding program.
    """
    fed.homes |= {home for home in (child.home, *child.homes) if not within(home, child.slot)}
    await fed.world.engine.drop(child.slot)
    chains = fed.world.checkpoints.chains
    for home in [home for home in chains if within(home, child.slot)]:
        del chains[home]
    for member in [child, *child.below()]:
        fed.meter.absorb(member.meter)
        fed.traffic.draws.extend(member.traffic.draws)
        del fed.family[member.slot], fed.world.traffics[member.slot]
    fed.world.checkpoints.end(fed.slot, child.slot)


# ---------------------------------------------------------------------- checkpoints

MOST_SEGMENTS = 64
"""After this many generations with partial writes, the next one is written as a whole, so that the number of files stays bounded."""


async def _checkpoint(fed: Federation, state: Tree) -> None:
    """Write the next generation; see ``Federation.checkpoint``."""
    world, store = fed.world, fed.world.checkpoints
    async with store.lock:
        number = store.generation + 1
        covered = [m for m in fed.below() if not m.apart(fed)]
        homes = sorted({fed.home, *fed.homes, *(h for m in covered for h in (m.home, *m.homes))})
        chains = {home: await _commit_home(fed, home, number) for home in homes}
        counted = [m for m in fed.below() if not m.nested]
        everyone = set(world.traffics) == {m.slot for m in [fed, *covered]}  # no scope returns to an earlier moment
        settled = (
            None
            if world.batteries is None
            else world.batteries.settle(fed.clock.now())
            if everyone
            else world.batteries.settled
        )
        books = {m.slot: _write_book(m, number, settled=everyone) for m in [fed, *counted]}
        content = {
            "state": state,
            "clock": float(fed.clock.now()),
            "homes": chains,
            "reducers": {slot: dict(known) for slot, known in world.reducers.items() if _home_of(slot) in homes},
            "batteries": settled,
            "book": books.pop(fed.slot),
            "below": books,
        }
        store.write(fed.slot, content, world.engine.choices, [m.slot for m in covered])
        store.chains.update(chains)
        if world.batteries is not None and everyone:
            world.batteries.settled = settled or {}
            for member in [fed, *covered]:
                member.traffic.draws = []
        for member in [fed, *counted]:
            book = content["book"] if member is fed else books[member.slot]
            member.written = (len(member.records), list(book["segments"]))
        for home in homes:
            await world.engine.settle(home)
        world.decisions.settle(fed.slot, [m.slot for m in fed.below() if m.apart(fed)])
        fed.kept = True


def _home_of(slot: str) -> str:
    """The home below which reducers and stages keep their own states."""
    return slot.partition("//")[0]


async def _commit_home(fed: Federation, home: str, number: int) -> list[str]:
    old = fed.world.checkpoints.chains.get(home, [])
    full = len({name.split("-")[1] for name in old}) >= MOST_SEGMENTS  # a generation may have written several
    fresh = await fed.world.engine.commit(home, number, full=full)
    return fresh if full else [*old, *fresh]


def _write_book(fed: Federation, number: int, *, settled: bool) -> dict[str, Any]:
    """A scope's counts, records and requests in flight; and its draws on batteries, unless they are settled with those of all scopes."""
    folder = fed.world.folder
    done, names = fed.written
    full = len(names) >= MOST_SEGMENTS
    fresh = [] if folder is None else fed.records.trees(0 if full else done)
    segments = [] if full else list(names)
    if folder is not None and fresh:
        name = f"records-{number:08d}-{hash64(fed.slot):016x}.msg"
        write_message(folder / name, {"rows": fresh})
        segments.append(name)
    return {
        "meter": fed.meter.save(),
        "counts": dict(fed.counts),
        "flights": fed.traffic.save(),
        "draws": [] if settled else [draw._asdict() for draw in fed.traffic.draws],
        "segments": segments,
        "records": fed.records.copy() if folder is None else None,
        **({"job": fed.running.slot} if fed.running.slot else {}),
    }


async def _restore(fed: Federation, initial: Tree) -> Any:
    """Return to the last checkpoint; see ``Federation.restore``."""
    store = fed.world.checkpoints
    content = store.slots.get(fed.slot)
    below: dict[str, Any] = {} if content is None else dict(content["below"])
    since = 0 if content is None else content["generation"]
    for slot, own in store.slots.items():
        if slot.startswith(fed.slot + "/") and (slot not in below or own["generation"] > since):
            below[slot] = own["book"]
    for slot, book in below.items():
        _read_book(fed.member(slot), book)
    if content is not None:
        for home, names in content["homes"].items():
            store.chains[home] = list(names)
            await fed.world.engine.load(home, list(names))
        known = {slot: own for slot, own in fed.world.reducers.items() if _home_of(slot) not in content["homes"]}
        fed.world.reducers = {**known, **{slot: dict(own) for slot, own in content.get("reducers", {}).items()}}
        _read_book(fed, content["book"])
        fed.kept = True
        fed.homes = set(content["homes"]) - {fed.home}
    if fed.slot == "main" and fed.world.resume and fed.world.on_restore is not None:
        fed.world.on_restore(fed.records)
    if fed.world.batteries is not None:
        settled = dict((content or {}).get("batteries") or {}) if fed.slot == "main" else fed.world.batteries.settled
        drawn = [draw for traffic in fed.world.traffics.values() for draw in traffic.draws]
        fed.world.batteries.restart(settled, drawn)
    if content is None:
        return initial
    await _set_clock(fed, content["clock"])
    return content["state"]


async def _set_clock(fed: Federation, moment: float) -> None:
    """Go on at the moment of a checkpoint."""
    if fed.slot == "main":
        fed.clock.set(moment)
    elif fed.clock.virtual:
        await fed.clock.sleep_until(moment)
    else:  # the clock of a new process begins at 0: what was waited for is not waited for again
        fed.clock.set(max(fed.clock.now(), moment))


def _read_book(fed: Federation, book: dict[str, Any]) -> None:
    """Return a scope to a checkpoint's book. Requests of a job that does not run again yet are left to it: it sends them from its own checkpoint."""
    folder, registry = fed.world.folder, fed.world.registry
    fed.meter = fed.traffic.meter = Meter.load(book["meter"])
    fed.counts = Counter(book["counts"])
    fed.records = PackedRows(folder=folder) if folder is not None else book["records"].copy()
    for name in book["segments"] if folder is not None else ():
        fed.records.extend(read_message(folder / name)["rows"])
    fed.written = (len(fed.records), list(book["segments"]))
    if book.get("job", "") == fed.running.slot:
        fed.traffic.load(book["flights"], fed.home, lambda name: resolve(name, registry))
    fed.traffic.draws = [
        Draw(draw["moment"], np.array(draw["positions"]), np.array(draw["microjoules"]))
        for draw in book.get("draws", ())
    ]
