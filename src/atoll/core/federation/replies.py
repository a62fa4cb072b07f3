"""Replies, until the program sees them: questions, supersteps, passes and sessions return single ones; `combine_sum` undoes the stages on a sum.

`atoll.core.execution.session` has how the roles of a session communicate.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..algebra import tree as T
from ..algebra.aggregate import Total, Totals
from ..algebra.tree import Tree
from ..calls import checked_call
from ..errors import ConfigError, QuorumError, SessionError
from ..execution.session import Switch
from ..requests.chain import Chain
from ..requests.party import Parties, Party
from ..requests.request import Mailboxes, PartialSum, Reply, Request, TaskResult
from ..requests.results import Accept, Combined, Exchanged, Late, Outcomes, Replies, Terms
from ..requests.task import Task
from ..time.deadline import WHOLE, Deadline, Prospect, Prospects
from ..time.meter import Fate
from .flight import Flight
from .scope import Scope

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..world import World

__all__ = [
    "ReplyVerbs",
    "combine_sum",
    "count_words",
    "decode_totals",
    "hold_session",
    "in_steps",
    "require_quorum",
    "sort_replies",
]


def sort_replies(
    world: World, flight: Flight, accepted: NDArray[np.int64], replies: list[Reply], quorum: int
) -> Exchanged:
    """Sort single replies into values, errors, notes and mail.

    Raises:
        QuorumError: fewer usable replies than the quorum.
        TaskError: a task raised, and the world does not drop errors.
    """
    name = world.roster.name
    good = [(i, r) for i, r in zip(accepted.tolist(), replies, strict=True) if r.usable]
    errors = {name(r.party): r.error for r in replies if r.error is not None}
    if errors and world.errors == "raise":
        raise next(iter(errors.values()))
    rejected = {name(r.party): r.rejected for r in replies if r.rejected}
    if len(good) < quorum:
        shown = "; ".join(f"{k}: {v}" for k, v in [*errors.items(), *rejected.items()][:3])
        raise QuorumError(
            f"{len(good)} of {len(flight.parties)} parties gave a usable reply, fewer than the quorum of {quorum}",
            where=flight.request.id,
            remedy=f"look at the errors: {shown}",
        )
    senders = flight.parties[np.array([i for i, _ in good], dtype=np.int64)]
    mail = Mailboxes()
    for _, reply in good:
        mail.put(name(reply.party), reply.mail)
    world.note_letters(mail)
    notes = {name(r.party): r.notes for _, r in good if r.notes}
    values = [r.value for _, r in good]
    silent = flight.parties.without(senders)
    return Exchanged(senders, values, silent, errors, notes, mail, rejected=rejected)


def decode_totals(
    totals: Totals, chain: Chain, public: Sequence[Tree], inputs: dict[str, dict[str, Tree]] | None = None
) -> Totals:
    """Undo the uplink's stages on each sum; ``inputs`` is given what stages that fit got, see ``Chain.decode``."""
    return {name: chain.decode(total, public, name, inputs) for name, total in totals.items()} if chain else totals


def count_words(
    found: PartialSum, chain: Chain, public: Sequence[Tree], *, exact: bool
) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    """What a reducer and the uplink's stages counted in a sum: words, and how many of them were clamped and overflowed. And what the last stage counted, by aggregate."""
    counts, told = Counter(found.counts), dict[str, dict[str, int]]()
    for name, total in found.totals.items() if chain else ():
        made = chain.counts(total, public, name, exact=exact)
        counts.update({of: count for of, count in made.items() if of != "word_bits"})
        known = chain.find_parameters(public, len(chain.stages) - 1, name)
        if made and isinstance(known, dict) and "version" in known:
            told[name] = {**made, "n": int(total.n), "version": int(known["version"])}
    return dict(counts), told


def combine_sum(
    world: World,
    whole: PartialSum,
    chain: Chain,
    public: Sequence[Tree],
    asked: Parties,
    *,
    exact: bool = False,
    **spent: Any,
) -> Combined:
    """Undo the stages of a sum, and list who is in it; ``spent`` are fields of the result about time, bytes and devices.

    ``exact`` says that words were added up without a modulus, so that overflows can be counted.
    """
    name = world.roster.name
    # Engines and trees add in orders of their own; single replies return to the cohort's, so that no result depends on the engine.
    if whole.single:
        whole = whole.sign().arrange(asked.positions)
    counts, told, inputs = whole.counts, whole.told, dict(whole.inputs)
    if chain:
        counts, told = count_words(whole, chain, public, exact=exact)
    totals = decode_totals(whole.totals, chain, public, inputs)
    senders = Parties(world.roster, whole.senders)
    rejected = {name(k): why for k, why in whole.rejected.items()}
    errors = {name(k): error for k, error in whole.errors.items()}
    silent = asked.without(senders)
    if rejected or errors:
        silent = silent.without(asked.named(*rejected, *errors))
    return Combined(
        {k: _make_undefined(t) if len(senders) and _is_undefined(t) else t.result() for k, t in totals.items()},
        len(senders),
        {k: t.weight for k, t in totals.items()},
        senders,
        silent,
        rejected,
        errors,
        kinds={k: t.kind for k, t in totals.items()},
        roles={k: t.role for k, t in totals.items()},
        asked=asked,
        counts=counts,
        inputs=inputs,
        told=told,
        outliers={name(k): why for k, why in whole.outliers.items()},
        **spent,
    )


def _is_undefined(total: Total) -> bool:
    """Whether a metric is a mean of nothing: those that replied had no such number, or no row."""
    return total.role == "metric" and total.kind == "mean" and not total.weight


def _make_undefined(total: Total) -> Tree:
    """The value of such a metric: NaN, since 0 would be a number that nobody measured."""
    return T.map(lambda leaf: np.full_like(np.asarray(leaf, dtype=np.float64), np.nan)[()], total.result())


def in_steps(
    request: Request, parties: Parties, began: float, flights: Sequence[Flight], steps: Sequence[Outcomes]
) -> Outcomes:
    """The outcome of each party of a cohort over several steps: it is done if it was in every step that asked it.

    Args:
        request: the program's request; the share of its work that a party has done is that of the step that wraps it.
        parties: the cohort.
        began: when the first step was sent.
        flights: the steps.
        steps: the outcome of each party in each step.
    """
    n = len(parties)
    seconds, done, fraction = np.zeros(n), np.ones(n, dtype=bool), np.zeros(n)
    energy = None if all(step.energy is None for step in steps) else np.zeros(n)
    reason = None if all(step.reason is None for step in steps) else np.zeros(n, dtype=np.int8)
    for flight, step in zip(flights, steps, strict=True):
        order = np.argsort(flight.parties.positions, kind="stable")
        known = flight.parties.positions[order]
        place = np.searchsorted(known, parties.positions).clip(max=max(0, len(known) - 1))
        here = np.flatnonzero(known[place] == parties.positions) if len(known) else np.zeros(0, dtype=np.int64)
        there = order[place[here]]
        seconds[here] = flight.sent - began + step.seconds[there]
        if request.id == (flight.request.wraps or flight.request).id:
            fraction[here] = step.fraction[there]
        if energy is not None and step.energy is not None:
            energy[here] += step.energy[there]
        if reason is not None and step.reason is not None:
            reason[here] = np.where(done[here] & ~step.done[there], step.reason[there], reason[here])
        done[here] &= step.done[there]
    return Outcomes(seconds, done, fraction, energy, reason)


def require_quorum(result: Combined, asked: int, quorum: int, where: str) -> Combined:
    """Return the sums if enough replies are in them.

    Raises:
        QuorumError: there are fewer.
    """
    if result.n >= quorum:
        return result
    raise QuorumError(
        f"{result.n} of {asked} replies can be used, fewer than the quorum of {quorum}",
        where=where,
        remedy=_why(result),
    )


def _why(result: Combined) -> str:
    if result.rejected:
        name, reason = next(iter(result.rejected.items()))
        return f"{len(result.rejected)} replies were rejected, first {name}: {reason}; look at that party's data, or lower the learning rate of a training"
    if result.errors:
        name, error = next(iter(result.errors.items()))
        return f"{len(result.errors)} tasks raised, first {name}: {error}"
    return "lengthen the deadline, invite more parties (over_select) or lower the quorum"


@dataclass(frozen=True)
class Cast:
    """The roles of one session.

    Attributes:
        roles: maps a role to its request, and the position of its party.
        parties: the roles' parties, in their order.
        turn: the turn of the session.
    """

    roles: dict[str, tuple[Request, int]]
    parties: Parties
    turn: int

    @property
    def path(self) -> str:
        """The path that identifies the session: that of its first role's request."""
        return next(iter(self.roles.values()))[0].id


async def hold_session(
    scope: Scope,
    roles: Mapping[str, tuple[Party | str, Task]],
    at: Any,
    deadline: float | Deadline | None,
    quorum: int | None,
) -> dict[str, Any]:
    """See ``Federation.session``."""
    if len(roles) < 2:
        raise ConfigError(f"a session of {len(roles)} role(s)", remedy="give at least two roles")
    if quorum is not None and not 1 <= quorum <= len(roles):
        raise ConfigError(f"quorum={quorum} of {len(roles)} roles", where="session", remedy="use 1 to all of them")
    terms, began = Terms(deadline), scope.clock.now()
    cast = _cast(scope, roles, at)
    switch = _switch(scope, cast, deadline, terms.limit(began), quorum)
    switch.agreed = scope.world.decisions.take_step(cast.path)
    switch.note_step = functools.partial(scope.world.decisions.put_step, cast.path)
    # Written by an attempt that crashed. The program may have seen that outcome, so the same roles end well again.
    known = scope.world.decisions.get(cast.path)
    if known is not None:
        switch.known = [list(roles)[i] for i in known.tolist()]
    for request, position in cast.roles.values():
        scope.meter.down(scope.hub, np.array([position], dtype=np.int64), request.argument_bytes)
    try:
        with _expiring(scope, switch, terms.limit(began)):
            ended = await _converse(scope, cast, switch, began)
    except SessionError as error:
        _decide(scope, cast, switch)
        await _over(scope, cast, switch, terms.limit(began), well=[])
        raise SessionError(
            error.what + (terms.within if switch.missed else ""), where=cast.path, remedy=error.remedy
        ) from error
    finally:
        _meter_messages(scope, cast, switch)
    if len(switch.well) < len(roles):
        _decide(scope, cast, switch)
    for role in switch.well:
        reply = ended[role].reply
        scope.meter.up(scope.hub, np.array([reply.party]), np.array([reply.nbytes]))
    await _over(scope, cast, switch, terms.limit(began), well=switch.well)
    return {role: ended[role].reply.value for role in switch.well}


def _cast(scope: Scope, roles: Mapping[str, tuple[Party | str, Task]], at: Any) -> Cast:
    requests: dict[str, tuple[Request, int]] = {}
    turn = None
    for role, (party, task) in roles.items():
        name = party if isinstance(party, str) else party.name
        request = scope._request(task, None, None if at is None else (role, at))
        turn = request.turn if turn is None else turn
        requests[role] = (request, scope.world.roster.position(name))
    label = at[0] if isinstance(at, tuple | list) and at else at
    if isinstance(label, int | np.integer):
        turn = int(label)
    positions = np.array([position for _, position in requests.values()], dtype=np.int64)
    return Cast(requests, Parties(scope.world.roster, positions), turn or 0)


def _switch(scope: Scope, cast: Cast, deadline: Any, until: float, quorum: int | None) -> Switch:
    """The relay of a session, with what the model of devices predicts for its roles."""
    found = _foreseen(scope, cast, deadline, until)
    cost, names = scope.traffic.cost, dict(zip(cast.roles, cast.parties.names, strict=True))
    if not scope.clock.virtual:
        until = math.inf  # on a real clock, the clock decides
    if found is None:
        prospects = {role: Prospect(until=until) for role in cast.roles}
        return Switch(names, cost.transfer, prospects, quorum)
    prospects = {role: replace(one, until=until) for role, one in zip(cast.roles, found.roles, strict=True)}
    place = {role: i for i, role in enumerate(cast.roles)}
    return Switch(names, cost.transfer, prospects, quorum, lambda s, t, n: found.carry(place[s], place[t], n))


def _foreseen(scope: Scope, cast: Cast, deadline: Any, until: float) -> Prospects | None:
    shared = deadline if isinstance(deadline, Deadline) else None
    superstep, risk = (0, WHOLE) if shared is None else (shared.begun, shared.begin())
    ask = getattr(scope.traffic.cost, "session", None)
    if ask is None:
        return None
    now, plans = scope.clock.now(), []
    for i, (request, _) in enumerate(cast.roles.values()):
        plan = scope.traffic.plan(request, cast.parties[i : i + 1], request.argument_bytes, now, 0)
        plans.append(replace(plan, turn=cast.turn, superstep=superstep, risk=risk))
    found: Prospects | None = ask(cast.parties, plans, until)
    return found


async def _converse(scope: Scope, cast: Cast, switch: Switch, began: float) -> dict[str, TaskResult]:
    if (
        switch.known is not None and len(switch.known) < switch.quorum
    ):  # the session ended before a crash, and the program continued
        for role in cast.roles:
            switch.ended(role, "" if role in switch.known else "late", began)
        switch.require_quorum()
    return await scope.world.engine.converse(cast.roles, switch, began)


@contextlib.contextmanager
def _expiring(scope: Scope, switch: Switch, until: float) -> Iterator[None]:
    """On a real clock, end the session at its deadline."""
    if scope.clock.virtual or not math.isfinite(until):
        yield
        return
    timer = asyncio.get_running_loop().call_later(max(0.0, until - scope.clock.now()), switch.expire)
    try:
        yield
    finally:
        timer.cancel()


def _decide(scope: Scope, cast: Cast, switch: Switch) -> None:
    """On a real clock, record which roles ended well before the program learns that others did not."""
    if not scope.clock.virtual and switch.known is None:
        well = [i for i, role in enumerate(cast.roles) if role in switch.well]
        scope.world.decisions.put(cast.path, np.array(well, dtype=np.int64))


async def _over(scope: Scope, cast: Cast, switch: Switch, until: float, well: list[str]) -> None:
    """Record the outcomes of roles whose results are not used, and wait until the session is over on the program's clock."""
    for role, (_, position) in cast.roles.items():
        if role not in well:
            fate: Fate = "crashed" if switch.ends[role][0] == "lost" else "called_off"
            scope.meter.count_ended(scope.hub, fate, np.array([position], dtype=np.int64))
    await scope.clock.sleep_until(min(until, max(time for _, time in switch.ends.values())))


def _meter_messages(scope: Scope, cast: Cast, switch: Switch) -> None:
    """Count the messages between the roles of a session."""
    party = {role: (switch.parties[role], position) for role, (_, position) in cast.roles.items()}
    for role, words in switch.said.items():
        for other, said in words.items():
            scope.meter.between(said, party[role], party[other], scope.hub)


class ReplyVerbs(Scope):
    """The verbs that return replies; see ``Federation``."""

    @checked_call
    async def ask_all(
        self,
        parties: Parties,
        task: Task,
        message: Tree = None,
        *,
        deadline: float | Deadline | None = None,
        quorum: int = 1,
        accept: Accept | None = None,
        late: Late = "cancel",
        at: Any = None,
        down: NDArray[np.int64] | None = None,
        up: int | Callable[[], int] | None = None,
    ) -> Replies:
        """Ask each party and wait for the replies; see ``Terms`` for deadline, quorum, accept, late, down and up.

        Raises:
            QuorumError: fewer replies than the quorum arrived in time.
            TaskError: a party's task raised (unless the world drops errors).
        """
        terms = Terms(deadline, quorum, accept, late, down, up)
        return await self._ask(parties, self._request(task, message, at), terms)

    @checked_call
    async def ask(self, party: Party | str, task: Task, message: Tree = None, **terms: Any) -> Any:
        """Ask one party; return its reply."""
        return (await self.ask_all(self._one(party), task, message, **terms)).values[0]

    def _one(self, party: Party | str) -> Parties:
        name = party if isinstance(party, str) else party.name
        return Parties(self.world.roster, np.array([self.world.roster.position(name)], dtype=np.int64))

    def deadline(self, seconds: float | None = None, *, supersteps: int | Sequence[float] | None = None) -> Deadline:
        """Make a deadline that several requests share, and divide the crashes of a turn among them: pass it to each as ``deadline=``.

        Args:
            seconds: seconds from now until all of them must be over; ``None`` for no limit.
            supersteps: number of requests in a turn, or a weight for each, in proportion to its time or work, such as ``(1, 8, 1)``. A device that crashes
                in the turn may then do so at any of them; see ``Deadline``.

        Example::

            limit = fed.deadline(60, supersteps=3)
            first = await fed.exchange(fed.parties, share, deadline=limit)
            second = await fed.exchange(first.senders, masked, deadline=limit)
        """
        until = math.inf if seconds is None else self.clock.now() + seconds
        return Deadline(until, seconds, supersteps)

    async def _ask(self, parties: Parties, request: Request, terms: Terms) -> Exchanged:
        flight = self._send(request, parties, terms, push="run")
        accepted = await self._close(flight, terms)
        replies = await self.traffic.run(flight, accepted)
        self._took(replies)
        return sort_replies(self.world, flight, accepted, replies, terms.quorum)

    def _took(self, replies: list[Reply]) -> None:
        """Process replies that have arrived, usable or not."""

    @checked_call
    async def exchange(
        self,
        parties: Parties,
        task: Task,
        message: Tree = None,
        *,
        mail: Mailboxes | None = None,
        deadline: float | Deadline | None = None,
        quorum: int = 1,
        accept: Accept | None = None,
        late: Late = "cancel",
        at: Any = None,
        down: NDArray[np.int64] | None = None,
        up: int | Callable[[], int] | None = None,
    ) -> Exchanged:
        """Run one superstep: parties get their mail, reply, and post sealed envelopes that the relay holds.

        The next superstep delivers the envelopes, once the program has fixed the senders: ``mail=last.mail.only_from(names)``. ``first.mail | second.mail``
        has the letters of two supersteps.

        Args:
            parties: parties to ask.
            task: the task to run.
            message: the message, the same for all.
            mail: letters for the relay to deliver.
            deadline: seconds after sending, or a deadline that several requests share: ``fed.deadline(...)``.
            quorum: minimum number of replies; with fewer, the superstep fails.
            accept: number of replies after which it closes.
            late: what to do with the others; see ``Terms``.
            at: label of the request in its random path; by default a count.
            down: bytes of the message to each party, if they differ from its size; letters are added.
            up: bytes of a reply with its letters, for the model of devices.
        """
        request = self._request(task, message, at, mail=mail)
        return await self._ask(parties, request, Terms(deadline, quorum, accept, late, down, up))

    @checked_call
    async def relay(self, parties: Parties, task: Task, message: Tree = None, *, at: Any = None, **terms: Any) -> Any:
        """A sequential pass: each party's reply is the next party's message; return the last reply."""
        for i in range(len(parties)):
            label = None if at is None else (*(at if isinstance(at, tuple | list) else (at,)), i)
            message = (await self.ask_all(parties[i : i + 1], task, message, at=label, **terms)).values[0]
        return message

    async def session(
        self,
        roles: Mapping[str, tuple[Party | str, Task]],
        *,
        at: Any = None,
        deadline: float | Deadline | None = None,
        quorum: int | None = None,
    ) -> dict[str, Any]:
        """Run a session: each role runs at its party and talks to the others. Return the result of each role that ended well.

        Args:
            roles: maps a role to its party and task, ``async (island, peers) -> result``.
            at: label of the session in its random path; by default a count.
            deadline: seconds after the start, or a deadline that several requests share: ``fed.deadline(...)``.
            quorum: number of roles that must end well; by default all. A role that waits for a message of a lost or late role gets a
                ``SessionError``, which it may catch.

        Raises:
            SessionError: too few roles ended well. Then every party has the state from before the session.
            TaskError: a role raised, or all roles wait for each other.
        """
        return await hold_session(self, roles, at, deadline, quorum)
