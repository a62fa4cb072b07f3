"""Reducers: how replies are combined.

A reducer is a sub-protocol over a ``Reduction``. The plain one lets the engine add up replies. A secure one runs steps whose party half wraps the
task, so that no party sees a single reply. It returns only named totals and the parties in them. The federation does the rest.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .. import message as M
from ..capability import COUNTS, DISTINCT_CLIENTS, DROPPABLE, SERVER, SINGLE_REPLIES, Capability, Need
from ..errors import CompositionError, ConfigError, PolicyError
from ..execution.sum_builder import describe_refusal
from ..exposure import Exposure
from ..requests.chain import Chain
from ..requests.request import PASSING, PartialSum, Reduced, Reply, Request
from ..requests.results import Outcomes, Terms, is_instant
from .flight import Flight
from .replies import ReplyVerbs, combine_sum, in_steps

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..algebra.tree import Tree
    from ..requests.party import Parties, Party
    from ..requests.request import Mailboxes
    from ..requests.results import Accept, Combined, Exchanged, Late
    from ..requests.task import Task
    from ..time.deadline import Deadline
    from .scope import Scope

__all__ = ["Plain", "Reducer", "Reduction", "TreeReducer"]


class Reduction(ReplyVerbs):
    """One sum: the program's request, and the verbs with which a reducer communicates with the cohort.

    The program's request keeps the random key, the stages' parameters and the private state that it has under the plain reducer, whatever the
    reducer does. The reducer's own requests are below that request's path: their labels, random keys and ``island.state`` are separate, so that two sums
    never share any. What tasks, stages and halves leave takes effect only when the sum succeeds, at the parties in it.

    Attributes:
        request: the program's request; a half gets its totals from ``island.totals()``.
        parties: the cohort.
        terms: the program's conditions for closing the sum.
    """

    def __init__(
        self, scope: Scope, request: Request, parties: Parties, terms: Terms, path: str, home: str = ""
    ) -> None:
        super().__init__(scope.world, parties, path, scope.hub, traffic=scope.traffic)
        self.home = f"{scope.home}//{home}" if home else scope.home + PASSING
        self.request = replace(request, sum=path)
        self.terms = terms
        self._began = self.clock.now()
        self._flights: list[Flight] = []
        self._rejected: dict[int, str] = {}
        self._errors: dict[int, Exception] = {}
        self._others: list[NDArray[np.int64]] = []
        self._late: list[NDArray[np.int64]] = []
        self._parts: list[Reduction] = []
        self._at_once = False

    @property
    def memory(self) -> dict[str, Any]:
        """What a lasting reducer knows at the server of the state that its halves have left at the parties: message trees by name, part of the same checkpoints."""
        known: dict[str, Any] = self.world.reducers.setdefault(self.home, {})
        return known

    @property
    def between(self) -> bool:
        """Whether other organisations take part, who do not take the server's word for anything."""
        return bool(getattr(self.world.engine, "live", False))

    def set_up(self, label: str) -> Reduction:
        """Supersteps for later sums too: what they leave takes effect at once, whatever becomes of this sum. For a lasting reducer.

        Args:
            label: names its requests; unique, also among resumed runs if the parties must not answer as they did before.
        """
        made = self._child(self.parties, self.terms, label)
        made._at_once = True
        return made

    def part(self, parties: Parties, terms: Terms, label: str | int) -> Reduction:
        """A part of the cohort as a reduction of its own, with other names of requests: a reducer may combine the parts' results. What the parties leave takes effect with the whole sum.

        Args:
            parties: the part; no party is in two.
            terms: the conditions for closing it.
            label: names its requests; unique.
        """
        made = self._child(parties, terms, label)
        self._parts.append(made)
        return made

    def _child(self, parties: Parties, terms: Terms, label: str | int) -> Reduction:
        made = Reduction(self, self.request, parties, terms, f"{self.slot}/{label}")
        made.home = self.home
        made._flights, made._rejected, made._errors = self._flights, self._rejected, self._errors
        made._others, made._late = self._others, self._late
        return made

    # ------------------------------------------------------------------ requests of a reducer

    async def fold(
        self,
        half: Task | None = None,
        message: Tree = None,
        *,
        parties: Parties | None = None,
        mail: Mailboxes | None = None,
        terms: Terms | None = None,
        fan_in: int | None = None,
        at: Any = None,
    ) -> PartialSum:
        """Let the parties reply and the engine add up the replies, in cohort order or by groups.

        Args:
            half: a task that replies with aggregates made from ``island.totals()``; without one, the program's own task.
            message: the message for the half.
            parties: the parties to ask, by default the cohort.
            mail: letters for the relay to deliver to the half.
            terms: the conditions for closing the step; by default the program's.
            fan_in: size of the groups.
            at: label of the request in its random path; by default a count.
        """
        parties, terms = self.parties if parties is None else parties, self.terms if terms is None else terms
        request = self.request if half is None else self._wrapping(half, message, at, mail=mail)
        alone = terms.deadline is None and terms.accept is None and fan_in is None
        flight = self._send(request, parties, terms, push="sum" if alone else "fold")
        positions = parties.positions[await self._close(flight, terms)]
        groups = [positions] if fan_in is None else np.split(positions, range(fan_in, len(positions), fan_in))
        parts = [await self.traffic.fold(request, group, flight) for group in groups if len(group)]
        found = parts[0] if len(parts) == 1 else PartialSum.zero().merge(*parts)
        self._rejected.update(found.rejected)
        self._errors.update(found.errors)
        found.exact = half is None  # a half may mask words, which then wrap around, and nobody could tell an overflow
        return found

    async def exchange(
        self,
        parties: Parties,
        task: Task,
        message: Tree = None,
        *,
        mail: Mailboxes | None = None,
        wraps: bool = False,
        deadline: float | Deadline | None = None,
        quorum: int = 1,
        accept: Accept | None = None,
        late: Late = "cancel",
        at: Any = None,
        down: NDArray[np.int64] | None = None,
        up: int | Callable[[], int] | None = None,
    ) -> Exchanged:
        """One superstep; see ``Federation.exchange``.

        Args:
            parties: the parties to ask.
            task: the task to run.
            message: the message, the same for all.
            mail: letters for the relay to deliver.
            wraps: whether the task calls ``island.totals()`` for the reply to the program's request. Then the step closes under the program's terms for
                the sum (deadline, quorum, accept, late, and its sizes), unless other terms are given.
            deadline: seconds after sending; by default the program's.
            quorum: minimum number of replies; with fewer, the superstep fails.
            accept: number of replies after which it closes.
            late: what to do with the others.
            down: bytes of the message to each party; for a step that wraps, those of the program's message.
            up: bytes of a reply, for the model of devices.
            at: label of the request in its random path; by default a count.
        """
        if not wraps:
            terms = Terms(deadline, quorum, accept, late, down, up)
            return await self._ask(parties, self._request(task, message, at, mail=mail), terms)
        terms = replace(
            self.terms,
            deadline=deadline or self.terms.deadline,
            quorum=max(quorum, self.terms.quorum),
            accept=self.terms.accept if accept is None else accept,
            late=self.terms.late if late == "cancel" else late,
            down=self.terms.down if down is None else down,
            up=self.terms.up if up is None else up,
        )
        return await self._ask(parties, self._wrapping(task, message, at, mail=mail), terms)

    async def rehearse(
        self,
        parties: Parties,
        task: Task,
        message: Tree = None,
        *,
        up: Any,
        letters: Any = 0,
        quorum: int = 1,
        at: Any = None,
        told: list[Any] | None = None,
        size: int | None = None,
    ) -> Parties:
        """One superstep of a simulation whose replies need not be made: it takes its time, loses parties and counts bytes as ``exchange`` does, and no task runs.

        Args:
            parties: the parties to ask.
            task: the task that a real superstep runs.
            message: its message.
            up: bytes of each party's reply with its letters, one a party, or a function that gives them once ``told`` is filled.
            letters: bytes of the letters to each party.
            quorum: minimum number of replies; with fewer, the superstep fails.
            at: label of the request in its random path.
            told: a list to which the reply of one party is added, whose task does run.
            size: bytes of the message, if they are known.

        Returns:
            The parties that reply in time.
        """
        request = self._request(task, message, at)
        terms = Terms(quorum=quorum, down=(M.nbytes(message) if size is None else size) + letters)
        flight = self._send(request, parties, terms, push="run")
        accepted = await self._close(flight, terms)
        if told is not None:
            told += [reply.value for reply in await self.world.engine.run(request, parties.positions[accepted[:1]])]
        nbytes = np.broadcast_to(up() if callable(up) else up, len(parties))[accepted]
        self.meter.up(self.hub, parties.positions[accepted], nbytes)
        flight.up += int(nbytes.sum())
        replied: Parties = parties[accepted]
        return replied

    def path_of(self, task: Task, at: Any = None) -> str:
        """The path that the next request of this task and label will have."""
        label = str(self.counts[task.name]) if at is None else f"@{at}"
        return f"{self.slot}/{task.name}/{label}"

    async def session(
        self,
        roles: Mapping[str, tuple[Party | str, Task]],
        *,
        at: Any = None,
        deadline: float | Deadline | None = None,
        quorum: int | None = None,
    ) -> dict[str, Any]:
        """Run a session; see ``Federation.session``. By default it has the deadline of the sum."""
        names = [party if isinstance(party, str) else party.name for party, _ in roles.values()]
        self._others.append(np.array([self.world.roster.position(name) for name in names], dtype=np.int64))
        return await super().session(roles, at=at, deadline=deadline or self.terms.deadline, quorum=quorum)

    # ------------------------------------------------------------------ names and traffic

    def _request(
        self,
        task: Task,
        message: Tree,
        at: Any = None,
        *,
        uplink: Chain | None = None,
        mail: Mailboxes | None = None,
        **more: Any,
    ) -> Request:
        own = {"sum": "" if self._at_once else self.slot, "turn": self.request.turn, **more}
        return super()._request(task, message, at, uplink=uplink, mail=mail, **own)

    def _wrapping(self, half: Task, message: Tree, at: Any = None, *, mail: Mailboxes | None = None) -> Request:
        return self._request(half, message, at, mail=mail, wraps=self.request)

    def _send(self, request: Request, parties: Parties, terms: Terms, push: str) -> Flight:
        flight = super()._send(request, parties, self._set_deadline(request, terms), push)
        self._flights.append(flight)
        return flight

    async def _close(self, flight: Flight, terms: Terms) -> NDArray[np.int64]:
        accepted = await super()._close(flight, self._set_deadline(flight.request, terms))
        self._late.append(flight.parties.positions[flight.dropped])
        return accepted

    def _set_deadline(self, request: Request, terms: Terms) -> Terms:
        """The terms of a step: a step without the program's task has the program's deadline unless it is given another."""
        own = request.wraps is None and request is not self.request
        later = own and terms.deadline is None and self.terms.deadline is not None
        return replace(terms, deadline=self.terms.deadline) if later else terms

    def _took(self, replies: list[Reply]) -> None:
        for reply in replies:
            if self.between and isinstance(reply.error, PolicyError):
                # A party that refuses, whatever the cause, counts as lost: the sum of the others goes on if they are enough.
                reply.rejected, reply.error = describe_refusal(reply.error), None
        self._rejected.update({reply.party: reply.rejected for reply in replies if reply.rejected})
        self._errors.update({reply.party: reply.error for reply in replies if reply.error is not None})

    # ------------------------------------------------------------------ the end

    def result(self, found: Reduced | None = None) -> Combined:
        """The program's result: the totals with the stages undone, and what is known of the parties that were asked."""
        found = Reduced({}, self.parties.positions[:0]) if found is None else found
        if found.rejected or found.errors or self._rejected or self._errors:
            found = self._with_faults(found)
        return combine_sum(
            self.world,
            found,
            self.request.uplink,
            self.request.public,
            self.parties,
            seconds=self.clock.now() - self._began,
            bytes_up=sum(flight.up for flight in self._flights),
            bytes_down=sum(flight.down for flight in self._flights),
            outcomes=self._outcomes(),
            exact=found.exact,
        )

    def _with_faults(self, found: Reduced) -> Reduced:
        """The result with the faults of all steps, of parties that are not in the sum; the reducer's own are counted as refused."""
        own = {**found.rejected, **found.errors}
        refused = np.array([p for p in own if p not in self._rejected and p not in self._errors], dtype=np.int64)
        self.meter.count_ended(self.hub, "refused", refused)
        within = set(found.senders.tolist())
        return replace(
            found,
            rejected={p: why for p, why in {**self._rejected, **found.rejected}.items() if p not in within},
            errors={p: error for p, error in {**self._errors, **found.errors}.items() if p not in within},
        )

    def _outcomes(self) -> Outcomes | None:
        """The outcome for all parties; ``None`` if all reply at once."""
        flights = self._flights
        if not flights or (is_instant(self.traffic.cost) and all(flight.launch is None for flight in flights)):
            return None
        if len(flights) == 1:
            return self.traffic.outcomes(flights[0])
        return in_steps(
            self.request, self.parties, self._began, flights, [self.traffic.outcomes(flight) for flight in flights]
        )

    async def conclude(self, found: Reduced | None) -> None:
        """Tell the parties whether what they left takes effect: it does for those in the sum, and for helpers outside the cohort."""
        cohort = self.parties.positions
        asked = [flight.parties.positions for flight in self._flights] + self._others
        if asked and all(
            positions is cohort or np.array_equal(positions, cohort) for positions in asked
        ):  # the common case
            everyone, helpers = cohort, cohort[:0]
        else:
            everyone = np.unique(np.concatenate([cohort[:0], *asked]))
            helpers = np.setdiff1d(everyone, cohort)
        # A reply that may still arrive is no part of this sum, and its work goes on.
        coming = [f.parties.positions[f.open] for f in self._flights if f in self.traffic.flights]
        over = np.setdiff1d(everyone, np.concatenate(coming)) if coming else everyone
        # Those whose late replies are dropped did their work as they were asked to, so what it left stays (`late="drop"`).
        kept = cohort[:0] if found is None else np.concatenate([found.senders, helpers, *self._late])
        for part in self._parts:
            mine = np.union1d(part.parties.positions, helpers)
            await self.world.engine.conclude(part.slot, np.intersect1d(over, mine), np.intersect1d(kept, mine))
        await self.world.engine.conclude(self.slot, over, kept)


@dataclass(frozen=True)
class Reducer:
    """Base class of reducers.

    Attributes:
        secure: whether the server sees only sums, so that stages must be summable and ``Parts`` are refused.
        lasting: whether what the party halves leave in ``island.state`` outlives a sum that succeeds, at the parties in it: one key set-up may then
            serve many sums of a scope. By default it ends with the sum.
        indexes: whether encodings that are indices reach it as counts (``Stage.addends``), and it adds these up.
        others: parties that the protocol needs beside the cohort, such as a key holder: name -> role.
    """

    secure: ClassVar[bool] = False
    lasting: ClassVar[bool] = False
    indexes: ClassVar[bool] = False
    others: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **more: Any) -> None:
        """Refuse a reducer of another version of Atoll when its class is defined, not in the middle of its first sum.

        Raises:
            ConfigError: a method cannot be called as Atoll calls it.
        """
        super().__init_subclass__(**more)
        for name, parameters in _CALLS.items():
            _require_signature(cls, name, parameters)
        if inspect.isfunction(cls.__dict__.get("others")):
            raise ConfigError(
                f"others of {cls.__qualname__} is a method",
                where=f"{cls.__module__}:{cls.__qualname__}",
                remedy="make it an attribute, or a property: name of a party -> its role",
            )

    @property
    def plain(self) -> bool:
        """Whether replies are added up on arrival, without a protocol."""
        return False

    @property
    def needs(self) -> tuple[Need, ...]:
        """What the other parts of a job must offer; add your own needs to ``super().needs``."""
        server = () if self.plain else (Need(SERVER, "combines many replies", "Plain()"),)
        secure = (Need(DISTINCT_CLIENTS, "takes one reply of each client", "a plain reducer"),) if self.secure else ()
        return (*server, *secure)

    @property
    def offers(self) -> frozenset[Capability]:
        """What the reducer offers to the other parts of a job."""
        # A secure reducer that fails commits nothing: see `Reduction`.
        shown = frozenset({DROPPABLE}) if self.secure else frozenset({SINGLE_REPLIES, COUNTS})
        return shown | {COUNTS} if self.indexes else shown

    def check(self, uplink: Chain, parties: Parties, terms: Terms, task: Task) -> None:
        """Refuse parts that cannot be combined soundly, before any party is contacted.

        Args:
            uplink: the stages of the replies.
            parties: the cohort.
            terms: the conditions under which the sum closes, with its quorum.
            task: the cohort's task.

        Raises:
            CompositionError: the parts cannot be combined.
            QuorumError: the cohort is too small; a training with varying cohorts may skip such a round.
        """
        del parties, task
        name = type(self).__name__
        if self.secure:
            uplink.within(uplink.replies, hidden=True, indexing=self.indexes).require_summable(name)
        if terms.late == "arrive":
            raise CompositionError(
                "late='arrive' passes single replies to the program", where=name, remedy="use the plain reducer"
            )

    def exposures(self, parties: int) -> tuple[Exposure, ...]:
        """Who sees what of the replies of a cohort; a secure reducer of your own should say more than this.

        Raises:
            AtollError: the reducer cannot add up so many parties.
        """
        del parties
        if self.secure:
            return (Exposure("server", "the sum of the replies", f"{type(self).__name__} keeps its promise"),)
        return (Exposure("server", "the reply of every client"),)

    def word_length(self, uplink: Chain, parties: int) -> int | None:
        """Bits of a number on the way up, if the reducer turns numbers into words of one length; ``None`` if it leaves them as they are."""
        del uplink, parties
        return None

    def sealed_bits(self, bits: int, parties: int, numbers: int, *, wraps: bool = False) -> int | None:
        """Bits on the way up of numbers that travel as ciphertexts; ``None`` if words travel as they are.

        Args:
            bits: of a word.
            parties: size of the cohort.
            numbers: how many words.
            wraps: whether a stage made them words that wrap around.
        """
        del bits, parties, numbers, wraps
        return None

    async def reduce(self, reduction: Reduction) -> Reduced:
        """Ask the parties and combine their replies.

        Args:
            reduction: the cohort, the program's request, and the verbs to communicate with parties.

        Returns:
            The totals, still encoded by the stages, and the positions of the parties in them, in cohort order.
        """
        raise NotImplementedError


# How the federation calls the methods that a reducer may have of its own.
_CALLS = {
    "reduce": ("reduction",),
    "check": ("uplink", "parties", "terms", "task"),
    "exposures": ("parties",),
    "word_length": ("uplink", "parties"),
    "sealed_bits": ("bits", "parties", "numbers"),
}


def _require_signature(cls: type[Reducer], name: str, parameters: tuple[str, ...]) -> None:
    """Refuse a method that does not take what it is called with."""
    own = cls.__dict__.get(name)
    if not inspect.isfunction(own):
        return
    signature = inspect.signature(own)
    try:
        signature.bind(None, *parameters)
    except TypeError as error:
        begin = "async def" if name == "reduce" else "def"
        more = "; reduction.parties, .terms and its verbs have what earlier versions passed" if name == "reduce" else ""
        raise ConfigError(
            f"{cls.__qualname__}.{name}{signature} is not called so by this version of Atoll",
            where=f"{cls.__module__}:{cls.__qualname__}",
            remedy=f"write `{begin} {name}(self, {', '.join(parameters)})`{more} (docs/extend/reducer.md)",
        ) from error


@dataclass(frozen=True)
class Plain(Reducer):
    """Add up the replies on arrival, in cohort order."""

    @property
    def plain(self) -> bool:
        """True, unless a subclass hides replies or has its own protocol."""
        return not self.secure and type(self).reduce is Plain.reduce

    def check(self, uplink: Chain, parties: Parties, terms: Terms, task: Task) -> None:
        """Allow everything, except what a ``secure`` subclass must refuse."""
        if self.secure:
            super().check(uplink, parties, terms, task)

    async def reduce(self, reduction: Reduction) -> Reduced:
        """Ask the parties and add up."""
        return await reduction.fold()


@dataclass(frozen=True)
class TreeReducer(Reducer):
    """Add up in groups of ``fan_in``, then add up the groups: the order of a tree of aggregators.

    Attributes:
        fan_in: number of replies that a node adds up.
    """

    fan_in: int = 8

    def __post_init__(self) -> None:
        if self.fan_in < 2:
            raise ConfigError(f"fan_in={self.fan_in}", remedy="use a whole number of at least 2")

    async def reduce(self, reduction: Reduction) -> Reduced:
        """Ask the parties and add up by groups."""
        return await reduction.fold(fan_in=self.fan_in)
