"""HybridFL: edges over-select clients, and the cloud ends the round at a quota that all edges fill together (Wu et al. 2021).

Source: W. Wu, "Efficient Horizontal Federated Learning" (PhD thesis, 2021), chapter 4, algorithm 3.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core import message as M
from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Part
from atoll.core.algebra.tree import Tree
from atoll.core.capability import Need
from atoll.core.errors import CompositionError, ConfigError, QuorumError
from atoll.core.facets import facet
from atoll.core.time.deadline import Quota, Share
from atoll.rounds.loop import Course

from ..algorithm import Phased
from ..capabilities import ONE_PHASE, PLAIN_MEAN, SAMPLE, SOLE_UPDATE
from ..checks import require_finite
from ..local.reports import BUFFERS, COUNTERS
from ..round.invitation import Inviter, outcome_columns, reply_bytes, reply_form, require_in_time
from ..round.phases import NO_EXAMPLES, account, explain_empty, partial_metrics, round_info
from ..round.state import (
    averaged_model,
    broadcast_extras,
    compressed_broadcast,
    counter_moves,
    global_model,
    held_by,
    initial,
    moved_buffers,
    population_examples,
)
from ..topology.hierarchical import sum_rows
from ..wrapped import declare
from .base import Pacing
from .slack import LateCount, SlackEstimator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.federation.federation import Federation
    from atoll.core.requests.party import Parties
    from atoll.core.requests.results import Combined

    from ..context import Context

__all__ = ["HybridFL"]


@dataclass(frozen=True, kw_only=True)
class HybridFL(Pacing):
    """Over-selection that every edge tunes from counts only, a quota over all regions, and a cloud model after every round.

    With ``topology=Hierarchical(groups=...)`` and ``selection=Uniform(C)``, in every round

    1. the cloud sends ``w`` to all edges; edge r, with ``N_r`` clients, invites ``ceil(C_r N_r)`` of them at random, ``C_r = min(1, C / theta_r)``;
    2. edges tell the cloud how many models arrived, never from which clients; at ``C N`` models, or after ``deadline`` seconds, the cloud ends the round for all;
    3. edge r combines the arrived models, ``Psi_r`` with ``EDC_r = sum |D_k|`` examples, and its own last model for all other clients of its region:
       ``w_r <- (1 - EDC_r/|D_r|) w_r + (1/|D_r|) sum_{k in Psi_r} |D_k| w_k``; and updates ``theta_r`` from its counts;
    4. the cloud computes ``sum_r EDC_r w_r / sum_r EDC_r``; its difference from ``w`` is the mean update that the algorithm folds.

    Edges need two sums of their clients' replies, of models and of examples, so a secure reducer at the edge can hide single replies. Edges count
    clients but never identify them. Messages of counts, signals and completion are metered and take no time.

    A region without submissions keeps its model and has no weight. A round without any submission changes nothing and says so in ``failed``, however
    often that happens; ``on_failure="stop"`` ends the training. If all invited clients have answered, a round ends below its quota.

    Rows have, for every edge, ``edge-0/theta``, ``/fraction`` (``C_r`` as carried out), ``/quality`` (``q_r``), ``/selected``, ``/submitted``,
    ``/completed`` (by the deadline, including late ones; ``None`` if the edge does not learn of them) and ``/edc``; ``client_seconds``
    (invitation to signal) and ``cloud_seconds`` (between cloud and edges).

    Attributes:
        slack: estimates ``theta_r``. The published one, `PaperLiteral`, cannot learn; see `atoll.learn.pacing.slack`. Real parties stop when the
            quota is full, so Atoll refuses estimators that count later completions there.
        theta: initial ``theta_r``; ``None`` is the estimator's own.
        deadline: ``T_lim``, seconds after an edge's invitations. ``None``: a round below its quota ends when links have noticed all losses.
        most: a region fills at most ``most * C N_r`` of the quota, so that fast regions do not keep the slow ones out; ``None`` for no limit.
        joint: edges send the cloud the two numbers behind their estimates, and the cloud sizes all selections together. It matters to
            ``ChanceConstrained``, which then needs fewer clients than if every region had to ensure its own part.
        hindsight: learn from late completions when the round closes, before they happen; possible only in a simulation. By default
            an edge learns from a round when its time limit has passed.
        on_failure: what to do with a round without submissions: ``"skip"`` or ``"stop"``.
    """

    layered: ClassVar[bool] = True
    slack: SlackEstimator = field(default_factory=LateCount)
    theta: float | None = None
    deadline: float | None = None
    most: float | None = None
    joint: bool = False
    hindsight: bool = False
    on_failure: str = "skip"

    def __post_init__(self) -> None:
        if not isinstance(self.slack, SlackEstimator):
            raise ConfigError(f"slack={self.slack!r}", where="HybridFL", remedy="use an estimator such as LateCount()")
        if self.deadline is not None and not self.deadline > 0:
            raise ConfigError(
                f"deadline={self.deadline} seconds", where="HybridFL", remedy="use a positive number, or None"
            )
        if self.most is not None and not self.most >= 1:
            raise ConfigError(
                f"most={self.most}: the regions together could not fill the quota",
                where="HybridFL",
                remedy="use at least 1, or None for no limit",
            )
        if self.on_failure not in ("skip", "stop"):
            raise ConfigError(f"on_failure={self.on_failure!r}", where="HybridFL", remedy="use 'skip' or 'stop'")
        self.estimator()  # refuses a wrong theta

    def estimator(self) -> SlackEstimator:
        """Return the estimator, with this pacing's initial theta."""
        return self.slack if self.theta is None else self.slack.begin_at(self.theta)

    @property
    def needs(self) -> tuple[Need, ...]:
        """The base's needs, edges that draw without knowing which clients are available, and replies with only a model update."""
        return (
            *super().needs,
            Need(SAMPLE, "has edges that may not know which clients are available", "Synchronous()"),
            Need(PLAIN_MEAN, "uses the region's last model for absent clients", "Synchronous()"),
            Need(ONE_PHASE, "asks each client once", "Synchronous()"),
            Need(SOLE_UPDATE, "treats regional models as means of clients' models by examples", "Synchronous()"),
        )

    def course(self, context: Context) -> Course:
        """Return rounds of cloud and edges."""
        return RegionalRounds(self, context)


# ---------------------------------------------------------------- the rounds of regions under a cloud


_NUMBER = M.nbytes(0)
"""Bytes of a count from an edge, or of the cloud's signal with the round number."""


class RegionalRounds(Course):
    """The rounds of `HybridFL`. State: the cloud's, as for any server, and ``edges``: log, model and client holdings of each edge.

    Args:
        pace: the pacing.
        context: the training's context.
    """

    def __init__(self, pace: HybridFL, context: Context) -> None:
        self.pace, self.context = pace, context
        n, count = len(context.clients), context.selection.count  # type: ignore[attr-defined]  # Uniform, says HybridFL.check
        self.groups = context.groups
        self.quota = context.selection.cohort_size(n)
        share = float(count) if isinstance(count, float) and count > 0 else self.quota / n
        self.seats = Seats(pace.estimator(), share, np.array([len(group) for group in self.groups]))

    def initial(self, fed: Federation) -> Tree:
        """Start with the global model in every region, and empty logs.

        Raises:
            ConfigError: edges learn from late completions, but real parties stop when the quota is full.
        """
        self._require_foresight(fed)
        state = initial(fed, self.context)
        edge = {"log": fresh(self.seats.estimator), "model": averaged_model(state), "down": {}, "examples": None}
        return {**state, "edges": [edge] * len(self.groups)}

    def _require_foresight(self, fed: Federation) -> None:
        slack = self.pace.slack
        if fed.live and slack.counts_late:
            raise ConfigError(
                f"{type(slack).__name__} between real parties: it counts clients that finish after the quota is full, but those are told to stop",
                where="HybridFL.slack",
                remedy="use slack=UncensoredOnly(), or ChanceConstrained(base=UncensoredOnly()); or simulate",
            )

    def turns(self, rounds: int) -> int | None:
        """Return the number of rounds with clients: a turn is such a round."""
        return facet(self.context.algorithm, Phased).contacts(rounds)

    async def round(self, fed: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Run one round of the cloud."""
        state = await self._weigh_regions(fed, state)
        algorithm = self.context.algorithm
        phases = [p for p in algorithm.plan(state["server"]) if facet(algorithm, Phased).wanted(state["server"], p)]
        row: dict[str, Any] = {"selected": 0, "replied": 0}
        if phases:
            state = {**state, "contacts": state["contacts"] + 1}
            if number == 1:
                require_in_time(Inviter(fed, self.context, state))
            state, row = await self._contact(fed, state, number, phases[0])
        if "failed" not in row:
            info = round_info(fed, state, (number, bool(phases)), row["selected"], row["replied"])
            state = {**state, "server": facet(algorithm, Phased).advance(state["server"], info)}
            require_finite(state["server"]["params"], number)
        return state, row

    async def model(self, watch: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Return the cloud's model."""
        del watch, number
        return global_model(state), {}

    async def _weigh_regions(self, fed: Federation, state: Tree) -> Tree:
        """Return the state with the examples of every region; if unknown, edges ask their clients once."""
        if state["weight"] is not None:
            return state
        found = await asyncio.gather(*(self._examples(fed, r) for r in range(len(self.groups))))
        edges = [{**edge, "examples": n} for edge, n in zip(state["edges"], found, strict=True)]
        return {**state, "edges": edges, "weight": float(sum(found))}

    async def _examples(self, fed: Federation, r: int) -> float:
        """Return the examples of a region."""
        members = self.groups[r]
        known = self.context.clients.part(members)
        if known.sizes is not None:
            return float(np.sum(known.sizes))

        async def program(scope: Federation, message: Tree) -> float:
            del message
            return await population_examples(scope, known)

        return float(await fed.nest(f"edge-{r}", program, fed.parties[members]))

    async def _contact(self, fed: Federation, state: Tree, number: int, phase: str) -> tuple[Tree, dict[str, Any]]:
        """Run steps 1 to 4: distribute, wait for the quota, compute regional models, then the global one."""
        context, begin = self.context, fed.clock.now()
        logs = [learn_counts(self.seats.estimator, edge["log"], begin) for edge in state["edges"]]
        invited, quota = self.seats.count_seats(logs, self.pace.joint), Quota(self.quota)
        visits = [
            EdgeVisit(
                self.context,
                self.pace,
                self.seats,
                r,
                {**edge, "log": log},
                (state["contacts"], phase),
                int(n),
                quota.share(most),
            )
            for r, (edge, log, n, most) in enumerate(
                zip(state["edges"], logs, invited, self.seats.most(self.pace.most), strict=True)
            )
        ]
        sent = {"broadcast": context.algorithm.broadcast(state["server"], phase), "buffers": state["buffers"]}
        await asyncio.gather(*(fed.nest(v.name, v.program, fed.parties[self.groups[v.r]], sent) for v in visits))
        self._signals(fed, visits)
        row = self._row(visits, self.seats.thetas(logs))
        row["cloud_seconds"] = fed.clock.now() - begin - row["client_seconds"]
        state = {**state, "edges": [visit.edge for visit in visits]}
        return self._fold_regions(fed, state, visits, row, (number, phase))

    def _fold_regions(
        self, fed: Federation, state: Tree, visits: list[EdgeVisit], row: dict[str, Any], at: tuple[int, str]
    ) -> tuple[Tree, dict[str, Any]]:
        """Return the cloud's aggregation, (4.22): regional models weighted by the data of this round's submissions."""
        total = sum(visit.edc for visit in visits)
        number, phase = at
        if not total > 0:
            what = f"none of {row['selected']} clients submitted a model"
            longer = "lengthen the deadline, or"
            if row["replied"]:
                what, longer = explain_empty(row["replied"]), f"{NO_EXAMPLES}or"
            if self.pace.on_failure == "stop":
                remedy = f"{longer} let such rounds be skipped (on_failure='skip')"
                raise QuorumError(what, where=f"round {number}", remedy=remedy)
            return state, {**row, "failed": what}
        now = averaged_model(state)
        there = [visit for visit in visits if visit.edc > 0]
        away = _total([T.scale(T.sub(v.edge["model"], now), v.edc / total) for v in there])
        step = {name: away[name] for name in state["server"]["params"]}
        buffers = {n: T.add(value, away[n]) if n in away else value for n, value in state["buffers"].items()}
        counted = [Part(visit.counted, 1.0) for visit in there if visit.counted]
        buffers = moved_buffers(buffers, {COUNTERS: counted}, len(counted))
        info = round_info(fed, state, (number, True), row["selected"], row["replied"])
        server = self.context.algorithm.fold(state["server"], {"update": step}, info, phase)
        require_finite(server["params"], number)
        return {**state, "server": server, "buffers": buffers}, row

    def _signals(self, fed: Federation, visits: list[EdgeVisit]) -> None:
        """Meter the messages between cloud and edges other than models: a count for each submission, then the signal."""
        roster = fed.world.roster
        for visit in visits:
            place = np.array([roster.position(visit.name)], dtype=np.int64)
            fed.meter.control(fed.hub, "up", place, _NUMBER, visit.share.taken)
            fed.meter.control(fed.hub, "down", place, _NUMBER)
            if self.pace.joint:  # the edge's counts, and how many clients it shall invite
                fed.meter.control(fed.hub, "up", place, M.nbytes(visit.edge["log"]["state"]))
                fed.meter.control(fed.hub, "down", place, _NUMBER)

    def _row(self, visits: list[EdgeVisit], thetas: Any) -> dict[str, Any]:
        """Return the round's row, region by region."""
        row = sum_rows([visit.row for visit in visits])
        late = self.seats.estimator.counts_late
        for v, theta, wanted in zip(visits, thetas.tolist(), self.seats.wanted.tolist(), strict=True):
            heard = late or v.share.moment is None
            columns = {
                "theta": theta,
                "fraction": v.selected / len(self.groups[v.r]),
                "quality": v.share.taken / wanted,
                "selected": v.selected,
                "submitted": v.share.taken,
                "completed": v.share.completed if heard else None,
                "edc": v.edc,
            }
            row.update({f"{v.name}/{name}": value for name, value in columns.items()})
        return {**row, "client_seconds": max(visit.seconds for visit in visits), "edc": sum(v.edc for v in visits)}


def _total(trees: list[Tree]) -> Tree:
    made = trees[0]
    for tree in trees[1:]:
        made = T.add(made, tree)
    return made


# ---------------------------------------------------------------- an edge server's round of regions


_BIT = M.nbytes(None)
"""Bytes of a message without content: stop, and done."""


@dataclass
class EdgeVisit:
    """One edge in one round.

    Attributes:
        context: the training's context.
        pace: the pacing.
        seats: numbers of clients that regions invite.
        r: the region's number.
        edge: the edge's state before, and later after the round.
        at: the contact and phase.
        wanted: number of clients to invite.
        share: the edge's part of the quota.
        selected: number of clients invited.
        edc: examples behind the submissions, ``EDC_r``.
        counted: how far each of the model's counters moved.
        seconds: time from the invitations to the signal.
    """

    context: Context
    pace: HybridFL
    seats: Seats
    r: int
    edge: Tree
    at: tuple[int, str]
    wanted: int
    share: Share
    selected: int = 0
    edc: float = 0.0
    counted: Tree = field(default_factory=dict)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.name = f"edge-{self.r}"
        self.row: dict[str, Any] = {"selected": 0, "replied": 0, "bytes_up": 0, "bytes_down": 0}

    async def program(self, scope: Federation, sent: Tree) -> Tree:
        """Receive the model to train, and return the region's model and the number of examples behind it."""
        invited = self._invite_clients(scope)
        self.selected = self.row["selected"] = len(invited)
        begin = scope.clock.now()
        combined: Combined | None = None
        try:
            if self.selected:
                combined = await self._ask(scope, invited, sent)
                self._require_counted()
        except QuorumError:  # the reducer opens no sum of so few
            combined = None
        finally:
            await self.share.give_up()
        self.seconds = scope.clock.now() - begin
        if combined is not None:
            self._combine(scope, combined, sent)
        replied = invited[:0] if combined is None else combined.senders
        self.row.update(self.context.evaluation.list_participants(invited, replied))
        self._tell(scope, invited, combined)
        self._note(begin, combined)
        return {"model": self.edge["model"], "edc": self.edc}

    def _invite_clients(self, scope: Federation) -> Parties:
        """Return ``wanted`` random available clients: an invitation needs no identity."""
        there = scope.available(scope.parties)
        count = min(self.wanted, len(there))
        draw = scope.rng.child("selection", self.at[0]).generator()
        chosen: Parties = there[draw.choice(len(there), count, replace=False)] if count else there[:0]
        return chosen

    async def _ask(self, scope: Federation, invited: Parties, sent: Tree) -> Combined:
        context, phase = self.context, self.at[1]
        rest = broadcast_extras(sent, context.learner, self.at[0])
        known = self.edge["down"]
        broadcast, down, sizes = compressed_broadcast(
            scope, context.downlink, known, sent["broadcast"], rest, invited, self.at
        )
        self.edge = {**self.edge, "down": down}
        known = {"server": {"params": sent["broadcast"]["params"]}, "buffers": sent["buffers"]}
        return await scope.sum(
            invited,
            self.context.learner.train,
            {"broadcast": {**broadcast, **rest}, "phase": phase},
            uplink=context.uplink(phase),
            reducer=context.reducer,
            deadline=self.pace.deadline,
            quorum=0,
            accept=self.share,
            at=self.at,
            down=sizes,
            up=lambda: reply_bytes(context, known, phase),
            expects=lambda: reply_form(context, known, phase),
        )

    def _require_counted(self) -> None:
        """Refuse a reducer with a protocol that does not end at the quota: its replies would not be counted."""
        if not self.share.over:
            name = type(self.context.reducer).__name__
            raise CompositionError(
                f"{name} waits for its own replies, not for the quota of all regions",
                where="Training.reducer",
                remedy="pass `accept=terms.accept` to the superstep in which clients train, or use a reducer that does",
            )

    def _combine(self, scope: Federation, combined: Combined, sent: Tree) -> None:
        """Apply (4.19) in the form without client identities: the region's last model replaces all clients not in the sums."""
        account(self.row, combined)
        if self.context.learner_metrics is None:
            self.row.update(partial_metrics(self.row, combined))
        state = {"server": sent["broadcast"], "buffers": sent["buffers"]}
        declare(self.row, self.context.declared(state, self.at[1]), combined.n)
        self.row.update(outcome_columns(scope, combined))
        self.edge = {**self.edge, "down": held_by(self.edge["down"], combined.senders.positions)}
        self.edc = float(combined.weight.get("update", 0.0))
        if self.edc > 0:
            before = self.edge["model"]
            mean = {**T.add(sent["broadcast"]["params"], combined["update"]), **combined.value.get(BUFFERS, {})}
            self.counted = counter_moves(combined.value, combined.n)
            moved = T.add(before, T.scale(T.sub(mean, before), self.edc / self.edge["examples"]))
            self.edge = {**self.edge, "model": moved}

    def _tell(self, scope: Federation, invited: Parties, combined: Combined | None) -> None:
        """Meter messages other than models: the stop signal to clients that have not submitted, and the notes of those that finish anyway."""
        rest = invited if combined is None else invited.without(combined.senders)
        scope.meter.control(scope.hub, "down", rest.positions, _BIT)
        if self.seats.estimator.counts_late:
            scope.meter.control(scope.hub, "up", self.share.late, _BIT)

    def _note(self, begin: float, combined: Combined | None) -> None:
        """Write the round's counts into the log, to learn from when they are complete."""
        pace, share, late = self.pace, self.share, self.seats.estimator.counts_late
        hit = share.moment is not None or share.taken < share.completed  # the region's own limit also closes the round
        counts = {
            "selected": self.selected,
            "submitted": share.taken,
            "quota_hit": hit,
            "completed": share.completed if late or not hit else None,
            "wanted": float(self.seats.wanted[self.r]),
        }
        waits = hit and late and not pace.hindsight
        ready = begin + (pace.deadline or _longest(combined)) if waits else begin
        self.edge = {**self.edge, "log": note_counts(self.edge["log"], counts, ready)}


def _longest(combined: Combined | None) -> float:
    """Return the seconds until it is known for every invited client whether it finishes, without a deadline."""
    if combined is None or combined.outcomes is None:
        return 0.0
    known = combined.outcomes.seconds
    return float(known[np.isfinite(known)].max(initial=0.0))


# ---------------------------------------------------------------- an edge's knowledge of its region's reliability


def fresh(estimator: SlackEstimator) -> Tree:
    """Return an empty log: the estimator's state, and the rounds that it has not learned from yet."""
    return {"state": estimator.init(), "pending": []}


def note_counts(log: Tree, counts: dict[str, Any], ready: float) -> Tree:
    """Return the log with a round's counts, arguments of ``SlackEstimator.update``, to learn from at time ``ready``."""
    return {**log, "pending": [*log["pending"], {"ready": float(ready), "counts": counts}]}


def learn_counts(estimator: SlackEstimator, log: Tree, now: float) -> Tree:
    """Return the log after learning from rounds with complete counts, in the order of the rounds."""
    state = log["state"]
    for entry in log["pending"]:
        if entry["ready"] <= now:
            state = estimator.update(state, **entry["counts"])
    return {"state": state, "pending": [entry for entry in log["pending"] if entry["ready"] > now]}


@dataclass(frozen=True)
class Seats:
    """Numbers of clients that regions invite, and of submissions that they may fill.

    Attributes:
        estimator: estimates the slack factors.
        share: ``C``, submissions wanted divided by clients.
        clients: ``N_r``, ``(regions,)``.
    """

    estimator: SlackEstimator
    share: float
    clients: NDArray[np.int64]

    @property
    def wanted(self) -> NDArray[np.float64]:
        """``C N_r``."""
        return np.asarray(self.share * self.clients, dtype=np.float64)

    def thetas(self, logs: list[Tree]) -> NDArray[np.float64]:
        """Return the factor of each region."""
        return np.array([float(self.estimator.theta(log["state"])) for log in logs])

    def count_seats(self, logs: list[Tree], joint: bool) -> NDArray[np.int64]:
        """Return how many clients each region invites.

        Args:
            logs: the edges' logs.
            joint: whether the cloud sizes all regions, or every edge its own.
        """
        if joint:
            states = [log["state"] for log in logs]
            together = {name: np.array([state[name] for state in states]) for name in states[0]}
            return self.estimator.counts(together, self.share, self.clients)
        pairs = zip(logs, self.clients.tolist(), strict=True)
        return np.array([int(self.estimator.counts(log["state"], self.share, n)) for log, n in pairs], dtype=np.int64)

    def most(self, factor: float | None) -> list[int | None]:
        """Return how many submissions each region may fill."""
        return [None if factor is None else math.ceil(factor * n - 1e-9) for n in self.wanted.tolist()]
