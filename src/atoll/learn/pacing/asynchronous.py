"""Rounds in which clients work on models of several versions: the pacings' base, working clients, arrivals, and what a row says of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.tree import Tree
from atoll.core.capability import DISTINCT_CLIENTS, Capability, Need
from atoll.core.errors import QuorumError
from atoll.core.facets import facet
from atoll.core.requests.party import among
from atoll.learn.selection.base import Seen

from ..algorithm import Phased, RoundInfo
from ..capabilities import ONE_PHASE, WHOLE_POPULATION
from ..checks import require_finite, require_positive
from ..round.invitation import Inviter, reply_bytes, reply_form
from ..round.phases import (
    EmptyReplies,
    examples_behind,
    fitted_to_mock,
    fitted_to_sum,
    fold_phase,
    lengths,
    outgoing,
    shares,
)
from ..round.rounds import ServerRounds, server_round
from ..round.state import initial, weigh_population
from ..selection.base import places_of
from ..wrapped import declare
from .base import Pacing, refuse

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.federation.federation import Federation
    from atoll.core.federation.flight import Flight, Handle
    from atoll.core.federation.reducer import Reducer
    from atoll.core.requests.chain import Chain
    from atoll.core.requests.party import Parties
    from atoll.core.requests.results import Combined

    from ..context import Context

__all__ = ["Asynchronous", "InFlight", "MOST_LOOKS", "RoundLog", "require_at_work"]


@dataclass(frozen=True, kw_only=True)
class Asynchronous(Pacing):
    """Base class of the asynchronous pacings.

    Attributes:
        look_again: seconds after which a server without working clients looks again for available ones.
    """

    look_again: float = 60.0

    def __post_init__(self) -> None:
        require_positive(type(self).__name__, look_again=self.look_again)

    @property
    def needs(self) -> tuple[Need, ...]:
        """The base's needs, a server, distinct clients, and one contact per round."""
        return (
            *super().needs,
            Need(ONE_PHASE, "lets clients work in different rounds", "Synchronous()"),
            Need(DISTINCT_CLIENTS, "gives a client one request at a time", "Synchronous()"),
        )

    @property
    def offers(self) -> frozenset[Capability]:
        """Only the whole population, over several rounds: clients work on models of several versions."""
        return frozenset({WHOLE_POPULATION})


def require_at_work(pacing: Pacing, setting: str, wanted: int, most: int) -> None:
    """Refuse a setting that needs more clients than can work at once.

    Args:
        pacing: the pacing with the setting.
        setting: name and value of the setting.
        wanted: number of clients needed.
        most: number of clients that work.

    Raises:
        CompositionError: the setting needs more.
    """
    if wanted > most:
        why = f"{setting}, but only {most} clients work at once"
        refuse(pacing, why, "pacing", f"use at most {most}, or select more clients")


# ---------------------------------------------------------------- events of a round in which clients work on models of several versions


@dataclass
class RoundLog:
    """Events of a round, for its row and for the selection rule.

    Attributes:
        asked: positions of the invited clients, in order.
        senders: positions of the clients with used replies, in order.
        seconds: time from invitation to arrival for each sender.
        staleness: versions by which each sender's base was behind.
        bases: version of each sender's base.
        crashed: number of invited clients that will never answer.
        late: replies that arrived and were not used.
        wasted: local updates discarded.
        rejected: name -> why a reply was rejected.
        errors: name -> the error that a task raised.
        metrics: name -> sum of weighted values, and sum of weights.
        examples: sum of weights of all replies.
        counts: entries that travelled as words, and how many were clamped or overflowed; see ``Combined.counts``.
        words: bits of the longest words, of a stage that makes them as long as the last sum needs; else 0.
        unanswered: requests since the last reply.
        failed: why no reply could be used; empty otherwise.
    """

    asked: list[int] = field(default_factory=list)
    senders: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    staleness: list[int] = field(default_factory=list)
    bases: list[int] = field(default_factory=list)
    crashed: int = 0
    late: int = 0
    wasted: float = 0.0
    rejected: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, list[float]] = field(default_factory=dict)
    examples: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    words: int = 0
    unanswered: int = 0
    failed: str = ""

    def note_request(self, flight: Flight) -> None:
        """Record a request."""
        self.unanswered += 1
        self.asked += flight.parties.positions.tolist()
        if flight.foretold:
            lost = ~np.isfinite(flight.arrives)
            self.crashed += int(lost.sum())
            self.wasted += float(flight.fraction[lost].sum())

    def note_missed(self, clients: int) -> None:
        """Record lost real parties; their progress is unknown, so each counts as a whole discarded update."""
        self.crashed += clients
        self.wasted += clients

    def parties(self, fed: Federation) -> tuple[Parties, Parties]:
        """Return the invited clients, and those with used replies."""
        everyone = fed.world.roster.all()
        return everyone[np.array(self.asked, dtype=np.int64)], everyone[np.array(self.senders, dtype=np.int64)]

    def used(self, handles: Sequence[Handle], combined: Combined, version: int) -> None:
        """Record replies used in a server update."""
        there = set(combined.senders.positions.tolist())
        for handle in handles:
            if handle.party.position in there:
                self.senders.append(handle.party.position)
                self.seconds.append(float(handle.flight.arrives[handle.index] - handle.flight.sent))
                self.staleness.append(version - handle.version)
                self.bases.append(handle.version)
        self.rejected.update(combined.rejected)
        self.errors.update({name: str(error) for name, error in combined.errors.items()})
        self.counts.update(combined.counts)
        self.words = max(self.words, *lengths(combined.told).values(), 0)
        self.examples += examples_behind(combined)
        for name, value in combined.of("metric").items():
            total = self.metrics.setdefault(name, [0.0, 0.0])
            total[0] += combined.weight[name] * float(value) if combined.weight[name] else 0.0
            total[1] += combined.weight[name]

    def row(self, *, own_metrics: bool = False) -> dict[str, Any]:
        """Return the round's row, without bytes and times.

        Args:
            own_metrics: whether clients name their metrics themselves, so that some may lack one.
        """
        late = np.asarray(self.staleness, dtype=np.float64)
        row: dict[str, Any] = {
            "selected": len(self.asked),
            "replied": len(self.senders),
            "rejected": len(self.rejected),
            "synchronised": len(self.asked),
            "crashed": self.crashed,
            "late": self.late,
            "wasted": self.wasted,
            "staleness": float(late.mean()) if len(late) else 0.0,
            "most_stale": int(late.max(initial=0)),
            "version_variance": float(np.var(self.bases)) if self.bases else 0.0,
        }
        if self.failed:
            row["failed"] = self.failed
        if self.rejected:
            row["rejected_clients"] = dict(self.rejected)
        if self.errors:
            row["errors"] = dict(self.errors)
        row.update(shares(self.counts))
        if self.words:
            row["word_bits"] = self.words
        some = {
            name: f"{weight:g} of {self.examples:g} examples"
            for name, (_, weight) in self.metrics.items()
            if own_metrics and weight < self.examples * (1 - 1e-9)
        }
        if some:
            row["partial_metrics"] = some
        return {**row, **{name: total / weight for name, (total, weight) in self.metrics.items() if weight}}


# ---------------------------------------------------------------- arrivals that a program keeps until it uses them


class WaitingReplies(Sequence["Handle"]):
    """Arrivals in order of time; simultaneous ones in the order of their requests.

    They are not part of the state: unused arrivals arrive again in a resumed run.
    """

    def __init__(self) -> None:
        self._handles: list[Handle] = []

    def __len__(self) -> int:
        return len(self._handles)

    def __getitem__(self, i: Any) -> Any:
        return self._handles[i]

    @property
    def positions(self) -> NDArray[np.int64]:
        """Positions of the senders."""
        return positions_of(self._handles)

    def add(self, arrived: Iterable[Handle]) -> None:
        """Add arrivals."""
        self._handles = sorted([*self._handles, *arrived], key=_order)

    def let_go(self, handles: Iterable[Handle]) -> None:
        """Remove arrivals."""
        gone = set(map(id, handles))
        self._handles = [handle for handle in self._handles if id(handle) not in gone]


def positions_of(handles: Iterable[Handle]) -> NDArray[np.int64]:
    """Return the positions of the senders of arrivals."""
    return np.array([handle.party.position for handle in handles], dtype=np.int64)


def _order(handle: Handle) -> tuple[float, int, int]:
    return float(handle.flight.arrives[handle.index]), handle.flight.request.turn, handle.party.position


# ---------------------------------------------------------------- working clients and arrivals


MOST_LOOKS = 100_000
"""How often a server without working clients looks again for available ones."""
MOST_ASKS = 1_000
"""How many requests of a round in a row may stay without a reply."""


class InFlight(ServerRounds):
    """Base class of the courses of asynchronous pacings.

    In addition to the server's entries, the state has ``"version"``, the server's updates so far, and by client ``"until"``, the clock time from which it
    can be invited again (``inf`` while its reply is awaited or not yet used), and ``"base"``, the version that it received last.

    Args:
        pacing: the training's pacing.
        context: the training's context.
    """

    def __init__(self, pacing: Asynchronous, context: Context) -> None:
        super().__init__(context)
        self.look_again = pacing.look_again
        self.phase = context.algorithm.phases[0]
        self.held = WaitingReplies()
        self.empty = EmptyReplies()
        self.last: Flight

    @property
    def ahead(self) -> bool:
        """Whether a request runs ahead in one block; not if evaluation reads clients' private states between rounds, or a protocol combines replies."""
        return not self.context.evaluation.personal and self.reducer is None

    @property
    def reducer(self) -> Reducer | None:
        """The protocol that combines replies; ``None`` for plain addition."""
        return None if self.context.reducer.plain else self.context.reducer

    def at_work(self, fed: Federation) -> int:
        """Return how many clients should work at the same time."""
        return self.context.selection.cohort_size(len(fed.parties))

    def turns(self, rounds: int) -> int | None:
        """Return ``None``: a turn is a request, and their number per round depends on the answers."""
        del rounds
        return None

    def initial(self, fed: Federation) -> Tree:
        """Start with no client working."""
        clients = len(fed.parties)
        own = {"version": 0, "until": np.full(clients, -np.inf), "base": np.zeros(clients, dtype=np.int64)}
        return {**initial(fed, self.context), **own}

    async def round(self, fed: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Run one round; if the algorithm's plan contacts no client, only the server's part."""
        context = self.context
        state = await weigh_population(fed, context, state)
        if not context.algorithm.plan(state["server"]):
            state, row = await server_round(fed, self.context, state, number)
            return {**state, "version": state["version"] + 1}, row
        log = RoundLog()
        state = await self.updates(fed, state, log)
        info = replace(
            self.info(fed, state, len(log.senders)), round=number, rng=fed.rng.child("server", "round", number)
        )
        state = {**state, "server": facet(context.algorithm, Phased).advance(state["server"], info)}
        require_finite(state["server"]["params"], number)
        row = log.row(own_metrics=context.learner_metrics is None)
        declare(row, context.declared(state, self.phase, min(log.bases, default=None)), len(log.senders))
        row |= context.evaluation.list_participants(*log.parties(fed))
        return self._learn_round(fed, state, log, {"round": number, **row}), row

    async def updates(self, fed: Federation, state: Tree, log: RoundLog) -> Tree:
        """Run the server's updates of one round."""
        raise NotImplementedError

    def _learn_round(self, fed: Federation, state: Tree, log: RoundLog, row: dict[str, Any]) -> Tree:
        asked, senders = log.parties(fed)
        seen = Seen(state["contacts"], asked, senders, np.array(log.seconds), {}, row)
        return {**state, "selection": self.context.selection.accept(seen, state["selection"])}

    # ------------------------------------------------------------------ asking

    def free(self, fed: Federation, state: Tree) -> Parties:
        """Return clients that are available and not working."""
        idle = np.flatnonzero(state["until"] <= fed.clock.now())
        return fed.available(fed.parties[idle])

    async def fill(self, fed: Federation, state: Tree, log: RoundLog) -> Tree:
        """Invite clients until ``at_work`` clients work."""
        state = self._without_lost(fed, state, log)
        working = int((state["until"] > fed.clock.now()).sum()) - len(self.held)
        return await self.ask(fed, state, log, self.free(fed, state), self.at_work(fed) - working)

    async def ask(
        self, fed: Federation, state: Tree, log: RoundLog, among: Parties, count: int, version: int | None = None
    ) -> Tree:
        """Send the current model to ``count`` of these clients, chosen by the selection rule."""
        count = min(count, len(among))
        if count < 1:
            return state
        context = self.context
        state = {**state, "contacts": state["contacts"] + 1}
        candidates = Inviter(fed, self.context, state, among).candidates()
        invited = candidates.parties[context.selection.invite(candidates, count, state["selection"])]
        state, message, sizes = outgoing(fed, context, state, invited, self.phase)
        state = await fitted_to_mock(fed, context, state, self.phase, message, state["version"])
        flight = await fed.send(
            invited,
            self.context.learner.train,
            message,
            version=state["version"] if version is None else version,
            at=(state["contacts"], self.phase),
            down=sizes,
            up=lambda: reply_bytes(context, state, self.phase),
            expects=lambda: reply_form(context, state, self.phase, message.get("reports")),
            ahead=self.ahead,
        )
        log.note_request(flight)
        self.last = flight
        where = places_of(fed.parties.positions, invited.positions)
        until, base = state["until"].copy(), state["base"].copy()
        until[where] = np.where(np.isfinite(flight.arrives), np.inf, flight.lost) if flight.foretold else np.inf
        base[where] = flight.version
        return {**state, "until": until, "base": base}

    # ------------------------------------------------------------------ waiting

    async def await_more(self, fed: Federation, state: Tree, log: RoundLog) -> Tree:
        """Wait for one more arrival or a noticed crash; if no client works, invite again.

        Raises:
            QuorumError: no client works, and none becomes available.
        """
        for _ in range(MOST_LOOKS):
            now = fed.clock.now()
            ahead = state["until"][np.isfinite(state["until"]) & (state["until"] > now)]
            noticed = float(ahead.min()) if len(ahead) else math.inf
            if fed.under_way:
                came = (await fed.arrivals(1, until=noticed if math.isfinite(noticed) else None)).handles()
                self.held.add(came)
                log.unanswered = 0 if len(came) else log.unanswered
                return self._without_lost(fed, state, log)
            _require_answers(log, state)
            before = state["contacts"]
            state = await self.fill(fed, state, log)
            if state["contacts"] > before:
                continue
            if math.isfinite(noticed):
                await fed.clock.sleep_until(noticed)
                return state
            if len(fed.available(fed.parties)):
                break
            await fed.clock.sleep_until(now + self.look_again)
        raise QuorumError(
            "no client works, and no client can be invited",
            where=f"contact {state['contacts']}",
            remedy="use devices that answer and are available more often, or invite more clients",
        )

    def _without_lost(self, fed: Federation, state: Tree, log: RoundLog) -> Tree:
        """Free real parties with a reply neither under way nor held: they were lost and can be invited again. A simulation knows them beforehand."""
        if not fed.live:
            return state
        everyone = fed.parties.positions
        hoped = among(everyone, fed.busy) | among(everyone, self.held.positions)
        lost = np.isposinf(state["until"]) & ~hoped
        log.note_missed(int(lost.sum()))
        return {**state, "until": np.where(lost, fed.clock.now(), state["until"])}

    async def hold_arrivals(self, fed: Federation) -> None:
        """Hold all arrivals so far, without waiting."""
        self.held.add((await fed.arrivals(1, until=fed.clock.now())).handles())

    # ------------------------------------------------------------------ using

    def released(self, fed: Federation, state: Tree, handles: Sequence[Handle]) -> Tree:
        """Make these clients available for invitations again."""
        until = state["until"].copy()
        until[places_of(fed.parties.positions, positions_of(handles))] = fed.clock.now()
        self.held.let_go(handles)
        return {**state, "until": until}

    def chain(self, state: Tree, flight: Flight) -> Chain:
        """Return the uplink of the replies to a request, with the parameters that went out with it."""
        return self.context.chain(state, self.phase, flight.version)

    def fit_uplink(self, fed: Federation, state: Tree, combined: Combined) -> Tree:
        """Return the state with the uplink's parameters fitted to a sum; those that a working client has are kept."""
        at_work = [flight.version for flight in fed.traffic.flights if flight.open.any()]
        oldest = min([*at_work, *(handle.flight.version for handle in self.held), state["version"]])
        return fitted_to_sum(fed, self.context, state, self.phase, combined, state["version"], oldest)

    async def drop_replies(self, fed: Federation, state: Tree, handles: Sequence[Handle], log: RoundLog) -> None:
        """Drop replies that are not used; their work is then never done, unless it ran in a block with others."""
        log.late += len(handles)
        log.wasted += len(handles)
        for handle in handles:
            if handle.flight.kept is None:
                handle.cancel()
            else:
                await fed.combine([handle], uplink=self.chain(state, handle.flight))

    def info(self, fed: Federation, state: Tree, replied: int) -> RoundInfo:
        """Return what the fold of a server update can use; ``round`` counts updates."""
        version = state["version"] + 1
        stream = fed.rng.child("server", "update", version)
        return RoundInfo(version, replied, replied, len(fed.parties), state["weight"], stream)

    def replace_empty(self, fed: Federation, combined: Combined, log: RoundLog) -> Combined:
        """Return a sum of no replies in place of one of 0 examples: there is no mean of their updates to take a step by.

        Raises:
            QuorumError: no client has examples.
        """
        found, log.failed = self.empty.without(combined, len(fed.parties))
        return found

    def apply_replies(self, fed: Federation, state: Tree, combined: Combined) -> Tree:
        """Return the next version: replies folded into the server's state; unchanged if none can be used."""
        if combined.n == 0:
            return state
        step = {"number": state["version"] + 1, "phase": self.phase}
        fed.announce("before_aggregation", **step, params=state["server"]["params"])
        state = fold_phase(self.context, state, combined, self.info(fed, state, combined.n), self.phase)
        fed.announce("after_aggregation", **step, params=state["server"]["params"])
        return {**state, "version": state["version"] + 1}


def _require_answers(log: RoundLog, state: Tree) -> None:
    if log.unanswered > MOST_ASKS:
        raise QuorumError(
            f"{log.unanswered} requests in a row had no reply: every invited client crashed",
            where=f"contact {state['contacts']}",
            remedy="use devices that crash less often, or give them less work",
        )
