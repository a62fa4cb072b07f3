"""SAFA: semi-asynchronous federated averaging (Wu et al. 2021): the pacing, its rounds, and which replies are taken."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from atoll.core import message as M
from atoll.core.algebra import tree as T
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.capability import DISTINCT_CLIENTS, FIXED_COHORT, SINGLE_REPLIES, Capability, Need
from atoll.core.errors import ConfigError, QuorumError
from atoll.core.facets import facet
from atoll.core.requests.party import among
from atoll.core.validation import is_real
from atoll.learn.selection.base import Seen

from ..aggregation.keep_local import SingleReplies
from ..algorithm import Phased
from ..capabilities import LOCAL_STEPS, ONE_MODEL, ONE_PHASE, PARTIAL_WORK, PLAIN_MEAN
from ..checks import require_finite, require_positive
from ..learner import capabilities_of
from ..local.update import own_epochs
from ..round.invitation import Inviter, examples_of, own_reports, reply_bytes, reply_form, reports_of, require_in_time
from ..round.phases import EmptyReplies, account, fold_phase, outgoing, partial_metrics, received_model, round_info
from ..round.rounds import ServerRounds, server_round
from ..round.state import client_examples, initial
from ..selection.base import places_among, places_of
from ..wrapped import declare
from .base import Pacing, refuse, weighs_examples
from .dispatch import (
    Dispatch,
    begin_cache,
    dispatch_models,
    done_by,
    nobody,
    note_request,
    rebuilt,
    replace_entries,
    weigh_cache,
)
from .staleness import Staleness

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.federation.flight import Arrivals, Flight
    from atoll.core.requests.party import Parties
    from atoll.core.requests.results import Combined
    from atoll.learn.selection.base import Selection
    from atoll.rounds.loop import Course

    from ..algorithm import Algorithm
    from ..context import Context

__all__ = ["AdaptiveLag", "SAFA", "deprecation_rate"]


def deprecation_rate(crash: NDArray[np.float64] | float, tolerance: NDArray[np.int64] | int) -> NDArray[np.float64]:
    """Return the share of rounds that a client with a constant crash probability loses to deprecation in the long run.

    A client is deprecated after ``tau + 1`` crashes in a row: ``(1 - cr) cr^(tau+1) / (1 - cr^(tau+1))`` per round, for ``lag > tau``. This is
    also what SAFA throws away (futility).

    Args:
        crash: probability ``cr``, of any shape.
        tolerance: ``tau``, of a compatible shape.
    """
    run = np.asarray(crash, dtype=np.float64) ** (np.asarray(tolerance) + 1.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        # A client that always crashes: the limit for cr -> 1 is 1 / (tau + 1).
        return np.where(run < 1.0, (1.0 - np.asarray(crash)) * run / (1.0 - run), 1.0 / (np.asarray(tolerance) + 1.0))


@dataclass(frozen=True, kw_only=True)
class AdaptiveLag:
    """Gives each client the smallest tolerance at which it loses an expected share of at most ``loss`` of its rounds to deprecation.

    A small tolerance keeps models fresh but costs downloads and discarded work; how much depends on how often a client crashes (see
    `deprecation_rate`). The crash probability is estimated as ``(failed + prior) / (tried + 2 prior)``. So reliable clients stay close to the
    model, and only clients that fail often may lag.

    Attributes:
        loss: share of its rounds that a client may lose, in (0, 1).
        most: the largest tolerance.
        prior: failures, and successes, assumed before any observation.
    """

    loss: float = 0.01
    most: int = 10
    prior: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 < self.loss < 1.0:
            raise ConfigError(f"loss={self.loss}", where="AdaptiveLag", remedy="use a share of rounds between 0 and 1")
        if self.most < 0:
            raise ConfigError(
                f"most={self.most}", where="AdaptiveLag", remedy="use a whole number of rounds, at least 0"
            )
        if not self.prior > 0.0:
            raise ConfigError(f"prior={self.prior}", where="AdaptiveLag", remedy="use a positive number")

    def tolerance(self, failed: NDArray[np.int64], tried: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the tolerance of each client, ``(clients,)``, from its failures and tries."""
        crash = (failed + self.prior) / (tried + 2.0 * self.prior)
        rates = deprecation_rate(crash[:, None], np.arange(self.most + 1)[None, :])
        fits = rates <= self.loss
        return np.where(fits.any(axis=1), fits.argmax(axis=1), self.most).astype(np.int64)


# ---------------------------------------------------------------- SAFA


@dataclass(frozen=True, kw_only=True)
class SAFA(Pacing):
    """Clients with a moderately stale model keep working on it; a round takes the first replies, and surplus replies count one round later.

    In round ``t``, the current version is ``t-1``; client k trains from version ``v_k``, with lag ``(t-1) - v_k``:

    1. Lag-tolerant distribution: up-to-date clients (``v_k = t-1``) and deprecated ones (lag above the tolerance) receive the model. Others keep theirs,
       and what they had trained before they crashed.
       If the selection rule invites only some clients, the server still stops every client that works beyond the tolerance. A client that has submitted
       since it received a model gets the new one at its next invitation.
    2. Every invited client trains. The round closes when the selection rule has enough replies (``CFCFM``: ``count`` replies, first from clients not
       taken last time), or at the deadline.
    3. Discriminative aggregation over a cache with one model per client: the taken replies and, for deprecated clients, ``w(t-1)`` enter the cache;
       ``w(t) = sum_k (n_k/n) c_k``, or the plain mean if the algorithm counts clients equally; then the other replies enter (the bypass) and count next round.

    The server rebuilds a client's model as the base it received plus its update, so it refuses a secure reducer, which hides updates. Uplink stages act
    on the updates. Everything else in replies (control variates, running statistics) is folded on arrival.

    Wu, He, Lin, Mao, Maple, Jarvis 2021, "SAFA: a Semi-Asynchronous Protocol for Fast Federated Learning with Low Overhead"; Wu 2021, "Towards
    Efficient Horizontal Federated Learning", Eqs. 3.7-3.11, Algorithms 1 and 2. The sources differ: the tables follow ``lag > tau``, Eq. 3.7 prints
    ``lag >= tau`` (``literal``); the tables restart every client in every round and count all that finish before the deadline, although
    the round closed earlier, which a server cannot know (``published``). By default, a slow client works on, and its reply counts when it arrives. A client
    that will crash works on until then, and only then continues from what it had done.

    Attributes:
        lag_tolerance: ``tau``, rounds that a client's model may lag behind; or a rule that sets each client's own.
        lag_seconds: a lagging model is also too old this many seconds after it was made, for rounds of uneven length; ``None``, as
            published, counts only rounds.
        deadline: ``T_lim``, seconds of a round; ``None`` waits until the round is full or no client can answer any more.
        literal: deprecate at ``lag >= tau``, as Eq. 3.7 is printed.
        resume: a client that crashed continues from its last whole epoch; otherwise it restarts from its base.
        published: use the assumptions of the tables; virtual time only, and with a deadline.
        bounded: when a round is full, the server tells clients that still work. They keep what they have and finish in the next rounds. So a round uploads
            little more than it takes, while the published method uploads every reply.
        staleness: weights an entry of the cache by its age in rounds; ``None`` weights all entries equally, as published.
    """

    lag_tolerance: int | AdaptiveLag = 5
    lag_seconds: float | None = None
    deadline: float | None = None
    literal: bool = False
    resume: bool = True
    published: bool = False
    bounded: bool = False
    staleness: Staleness | None = None

    def __post_init__(self) -> None:
        least = 1 if self.literal else 0
        tau = self.lag_tolerance
        if not isinstance(tau, AdaptiveLag) and not (is_real(tau) and tau >= least and float(tau).is_integer()):
            raise ConfigError(
                f"lag_tolerance={self.lag_tolerance!r}",
                where="SAFA",
                remedy="use a whole number of rounds, at least 0 (1 with literal=True); the source found 5 best",
            )
        if self.lag_seconds is not None:
            require_positive("SAFA", lag_seconds=self.lag_seconds)
        if self.deadline is not None and not self.deadline > 0:
            raise ConfigError(
                f"deadline={self.deadline} seconds", where="SAFA", remedy="use a positive number, or None"
            )
        if self.bounded and (self.published or not self.resume):
            raise ConfigError(
                f"bounded=True with published={self.published}, resume={self.resume}",
                where="SAFA",
                remedy="use resume=True and published=False: a stopped client continues from what it has",
            )
        if self.published and self.deadline is None:
            raise ConfigError(
                "published=True without a deadline",
                where="SAFA",
                remedy="give the deadline by which a client counts as finished",
            )

    def deprecated(
        self, lag: NDArray[np.int64], failed: NDArray[np.int64], tried: NDArray[np.int64], age: NDArray[np.float64]
    ) -> NDArray[np.bool_]:
        """Return the clients with a lag beyond the tolerance.

        Args:
            lag: lag of each client in rounds, ``(clients,)`` like all arguments.
            failed: number of failures of each client, for adaptive tolerances.
            tried: number of tries of each client.
            age: seconds since each client's model was made.
        """
        tolerance: Any = self.lag_tolerance
        if isinstance(tolerance, AdaptiveLag):
            tolerance = tolerance.tolerance(failed, tried)
        late = np.asarray(lag >= tolerance if self.literal else lag > tolerance)
        return (late if self.lag_seconds is None else late | (age > self.lag_seconds)) & (lag > 0)

    def algorithm(self, base: Algorithm) -> Algorithm:
        """Return the base with its update as a single reply."""
        return SingleReplies(base=base)

    @property
    def needs(self) -> tuple[Need, ...]:
        """The base's needs, one server that sees each reply, and replies that rebuild as base plus update."""
        partly = Need(PARTIAL_WORK, "lets clients continue from their last finished epoch", "resume=False")
        return (
            *super().needs,
            Need(ONE_PHASE, "has clients with models of several versions, which would mix the phases", "Synchronous()"),
            Need(PLAIN_MEAN, "aggregates over its own cache", "Synchronous()"),
            Need(DISTINCT_CLIENTS, "keeps one model per client", "Synchronous()"),
            Need(SINGLE_REPLIES, "rebuilds single models", "Synchronous() or FedBuff()"),
            *((partly,) if self.resume else ()),
        )

    @property
    def offers(self) -> frozenset[Capability]:
        """Rounds of clients that have models of several versions and may crash."""
        return super().offers - {FIXED_COHORT, ONE_MODEL}

    def updates(self, selection: Selection, population: int) -> int:
        """Return all clients for a rule that takes replies as they come, since all train."""
        return population if selection.picks else super().updates(selection, population)

    def check(self, context: Context) -> None:
        """Refuse updates without a client weight, and work that cannot continue where it was cut off."""
        weighs_examples(self, context.algorithm, context.learner.init(Rng(0)))
        whole = own_epochs(context.algorithm) == 1 or LOCAL_STEPS in capabilities_of(context.learner)
        if self.resume and not whole:
            why = "this model runs its own training, and its training cannot be cut at an epoch"
            refuse(self, why, "pacing", "use resume=False")

    def course(self, context: Context) -> Course:
        """Return rounds over clients with models of several versions."""
        return LagTolerantRounds(self, context)


# ---------------------------------------------------------------- the rounds of SAFA


class LagTolerantRounds(ServerRounds):
    """One server's rounds with ``SAFA``.

    The state has the server's entries and, by client: ``version`` (base of its model), ``holds`` (it received that and has not submitted since), ``progress``
    (whole epochs done on it without a reply), ``tried`` and ``failed`` (rounds), ``made`` (clock seconds at which its model was made). It also has ``newest``:
    the same for the newest model; ``bases``: version -> the message that sent it; ``cache``: see ``model_cache``; ``shares``: ``n_k / n``; ``falling``: clients
    that work towards a crash still to come, which only the devices know; ``doing``: progress of each client (see ``at_work``), only for the row.
    """

    def __init__(self, pacing: SAFA, context: Context) -> None:
        super().__init__(context)
        self.pacing = pacing
        self.phase = context.algorithm.phases[0]
        self.epochs = own_epochs(context.algorithm)
        self.empty = EmptyReplies()

    def initial(self, fed: Federation) -> Tree:
        """Start with the initial model at every client and in the cache.

        Raises:
            ConfigError: the pacing needs to know clients' progress, or which will answer, and real parties do not report that.
        """
        unknown = [name for name in ("published", "bounded") if getattr(self.pacing, name)]
        if unknown and fed.live:
            raise ConfigError(
                f"{unknown[0]}=True between real parties: their progress is unknown",
                where="SAFA",
                remedy="leave it out, or simulate",
            )
        state, clients = initial(fed, self.context), len(fed.parties)
        return {
            **state,
            "version": np.zeros(clients, dtype=np.int64),
            "holds": np.zeros(clients, dtype=bool),
            "progress": np.zeros(clients, dtype=np.int64),
            "tried": np.zeros(clients, dtype=np.int64),
            "failed": np.zeros(clients, dtype=np.int64),
            "made": np.full(clients, fed.clock.now()),
            "newest": fed.clock.now(),
            "bases": {},
            "cache": begin_cache(state["server"]["params"], clients),
            "shares": None,
            "falling": None,
            "doing": nobody(clients),
        }

    async def round(self, fed: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Distribute, wait, aggregate."""
        context = self.context
        if not context.algorithm.plan(state["server"]):
            return await server_round(fed, self.context, state, number)
        if state["shares"] is None:
            examples = await client_examples(fed, self.context.clients)
            if not examples.sum():
                raise QuorumError(
                    f"none of the {len(examples)} clients has rows", where="Training", remedy="give one of them rows"
                )
            by = (
                examples if weighs_examples(self.pacing, context.algorithm, state["server"]["params"]) else examples > 0
            )
            state = {**state, "shares": by / by.sum(), "weight": float(examples.sum())}
        state = {**state, "contacts": state["contacts"] + 1}
        inviter = Inviter(fed, self.context, state)
        if number == 1:
            require_in_time(inviter)
        heard, spent = await inviter.run_survey()
        state = {**state, "selection": heard}
        invited = replace(inviter, state=state).invite()
        row: dict[str, Any] = {"selected": len(invited), "bytes_up": 0, "bytes_down": 0, **spent}
        start = fed.clock.now()
        state, sent, flights = await self._distribute(fed, state, invited, row)
        came = await gather_replies(fed, context.selection, state["selection"], sent, self.pacing, start)
        over = self._over(fed, sent, came, state["doing"]["share"])
        if self.pacing.bounded:
            over = self._called_off(fed, over, flights)
        state = {**state, "falling": over.falling(sent)}
        return await self._aggregate(fed, state, number, over, came, row)

    # ------------------------------------------------------------------ lag-tolerant distribution

    def _dispatch(self, fed: Federation, state: Tree, invited: Parties) -> Dispatch:
        everyone = fed.parties.positions
        lag = state["contacts"] - 1 - state["version"]
        old = self.pacing.deprecated(lag, state["failed"], state["tried"], fed.clock.now() - state["made"])
        asked, busy = among(everyone, invited.positions), among(everyone, fed.busy)
        return dispatch_models(asked, busy, lag, old, state["holds"], state.get("falling"))

    async def _distribute(
        self, fed: Federation, state: Tree, invited: Parties, row: dict[str, Any]
    ) -> tuple[Tree, Dispatch, list[tuple[Flight, int]]]:
        turn, everyone = state["contacts"], fed.parties
        sent = self._dispatch(fed, state, invited)
        doing, before = state["doing"], state["progress"][sent.deprecated].sum() / self.epochs
        row["wasted"] = float(before + done_by(doing, fed.clock.now())[sent.stopped].sum())
        # No client works on a model that is too old: invited clients get the new one.
        fed.cancel(everyone.positions[sent.deprecated])
        version = np.where(sent.fresh, turn - 1, state["version"])
        progress = np.where(sent.fresh | sent.deprecated, 0, state["progress"])
        state, message, _ = outgoing(fed, self.context, state, everyone[sent.fresh], self.phase)
        bases = {**state["bases"], str(turn - 1): message}
        made = np.where(sent.fresh, state["newest"], state["made"])
        holds = (state["holds"] & ~sent.deprecated) | sent.fresh
        state = {**state, "version": version, "holds": holds, "progress": progress, "made": made, "bases": bases}
        flights: list[tuple[Flight, int]] = []
        up = functools.cache(lambda: reply_bytes(self.context, state, self.phase))
        form = functools.cache(lambda: reply_form(self.context, state, self.phase))
        for base, done, who in sent.groups(version, progress):
            # A stopped client does the rest; after a crash, a client does all of its work again from where it was.
            work = self.epochs - done if self.pacing.bounded else self.epochs
            whole = {} if done == 0 else {"epochs": done + work, "done": done}
            # Clients that continue are told so and keep their models.
            note = None if base == turn - 1 else np.full(len(who), M.nbytes({"version": base, "phase": self.phase}))
            flight = await fed.send(
                everyone[who],
                self.context.learner.train,
                {**bases[str(base)], **whole},
                version=base,
                at=(turn, self.phase) if base == turn - 1 else (turn, self.phase, base, done),
                down=note,
                up=up,
                expects=form,
            )
            row["bytes_down"] += flight.down
            sent = sent.learning(who, flight, work, self.epochs)
            doing = note_request(doing, who, flight, work / self.epochs)
            flights.append((flight, work))
        return {**state, "doing": doing}, sent, flights

    def _over(self, fed: Federation, sent: Dispatch, came: SafaArrivals, share: NDArray[np.float64]) -> Dispatch:
        """End the round: note the crashes noticed by now."""
        if not fed.live:
            return sent.end_round(np.inf if self.pacing.published else fed.clock.now())
        everyone = fed.parties.positions
        return sent.note_missed(among(everyone, came.arrived.positions), among(everyone, fed.busy), share)

    def _called_off(self, fed: Federation, sent: Dispatch, flights: list[tuple[Flight, int]]) -> Dispatch:
        """Tell clients that still work that the round is full: they keep what they have. All of them started in this round."""
        for flight, work in flights:
            places = places_of(fed.parties.positions, flight.parties.positions)
            sent = sent.called_off(places, flight, fed.clock.now(), work, self.epochs)
        fed.cancel()
        return sent

    # ------------------------------------------------------------------ discriminative aggregation

    async def _aggregate(
        self, fed: Federation, state: Tree, number: int, sent: Dispatch, came: SafaArrivals, row: dict[str, Any]
    ) -> tuple[Tree, dict[str, Any]]:
        context, turn, params, before = self.context, state["contacts"], state["server"]["params"], state
        combined = await fed.combine(came.arrived, uplink=context.uplink(self.phase))
        account(row, combined)
        if context.learner_metrics is None:
            row.update(partial_metrics(row, combined))
        combined, why = self.empty.without(combined, len(fed.parties))
        if why:
            row["failed"] = why
        declare(row, context.declared(state, self.phase), combined.n)
        parts = combined.value.get("update", [])
        senders = np.array([part.sender for part in parts], dtype=np.int64)
        places, picked = places_of(fed.parties.positions, senders), came.find_picked(senders)
        counts = np.array(
            [part.weight > 0 for part in parts], dtype=bool
        )  # a reply of 0 examples is no model of its client
        models = rebuilt(parts, state["version"][places], state["bases"], params)
        cache, shares = state["cache"], state["shares"]
        # (1) before: taken replies enter the cache, and the model for deprecated clients without one
        now, later = picked & counts, ~picked & counts
        cache = replace_entries(cache, places[now], T.map(lambda leaf: leaf[now], models), shares, turn)
        stale = np.flatnonzero(sent.deprecated & ~among(np.arange(len(shares)), places[now]))
        cache = replace_entries(cache, stale, T.map(lambda leaf: np.asarray(leaf)[None], params), shares, turn)
        # (2) the model is the cache's mean
        mean = weigh_cache(cache, shares, turn, self.pacing.staleness)
        mean = T.map(lambda value, leaf: value.astype(np.asarray(leaf).dtype), mean, params)
        info = round_info(fed, state, (number, True), row["selected"], combined.n)
        fed.announce("before_aggregation", number=number, phase=self.phase, params=params)
        state = self._fold_sum(state, combined, T.sub(mean, params), info)
        fed.announce("after_aggregation", number=number, phase=self.phase, params=state["server"]["params"])
        # (3) after: the other replies enter, and count in the next round
        cache = replace_entries(cache, places[later], T.map(lambda leaf: leaf[later], models), shares, turn)
        row.update(sent.row(), **came.row(picked, state["version"][places]))
        row["silent"] += row["crashed"]  # clients that work on are not
        row["late"] = sent.working - len(places) - row["crashed"]
        row["wasted"] += sent.count_lost(self.epochs, kept=self.pacing.resume)
        state = self._moved_on({**state, "cache": cache, "newest": fed.clock.now()}, sent, places)
        state = {**state, "server": facet(context.algorithm, Phased).advance(state["server"], info)}
        require_finite(state["server"]["params"], number)
        asked = fed.parties[np.flatnonzero(sent.asked)]
        known = received_model(before["bases"][str(turn - 1)])
        # Version v is the model of round v + 1.
        based = before["version"][places_of(fed.parties.positions, combined.senders.positions)] + 1
        seen = came.seen(combined, own_reports(context, known), based)
        row.update(context.evaluation.list_participants(asked, seen.replied))
        pending = np.array(sorted(int(v) + 1 for v in state["bases"]), dtype=np.int64)
        seen = replace(seen, asked=asked, round=turn, row={"round": number, **row}, pending=pending)
        return {**state, "selection": context.selection.accept(seen, state["selection"])}, row

    def _fold_sum(self, state: Tree, combined: Combined, update: Tree, info: Any) -> Tree:
        if combined.n == 0:  # no reply, but the cache may still have changed
            moved = T.add(state["server"]["params"], update)
            return {**state, "server": {**state["server"], "params": moved}}
        kinds = {**combined.kinds, "update": "mean"}
        whole = replace(combined, value={**combined.value, "update": update}, kinds=kinds)
        return fold_phase(self.context, state, whole, info, self.phase)

    def _moved_on(self, state: Tree, sent: Dispatch, places: NDArray[np.int64]) -> Tree:
        """Update clients: those that submitted have this round's version; crashed ones keep whole epochs if they can resume."""
        turn = state["contacts"]
        version, progress = state["version"].copy(), state["progress"].copy()
        made, holds = state["made"].copy(), state["holds"].copy()
        version[places], progress[places], made[places], holds[places] = turn, 0, state["newest"], False
        if self.pacing.resume:
            progress += sent.saved
            if self.pacing.bounded:
                progress = np.minimum(progress, self.epochs - 1)  # at least one epoch is left
        state = {**state, "tried": state["tried"] + sent.begin, "failed": state["failed"] + sent.crashed}
        bases = {str(v): state["bases"][str(v)] for v in np.unique(version[holds]).tolist()}
        return {**state, "version": version, "holds": holds, "progress": progress, "made": made, "bases": bases}


# ---------------------------------------------------------------- the replies of a SAFA round, and which of them are taken


@dataclass(frozen=True)
class SafaArrivals:
    """The replies of a round.

    Attributes:
        arrived: all replies.
        taken: indices into ``arrived`` of the replies that count in this round; the others count in the next.
    """

    arrived: Arrivals
    taken: NDArray[np.int64]

    @property
    def seconds(self) -> NDArray[np.float64]:
        """Seconds from sending to arrival, one per reply."""
        began = np.array([flight.sent for flight in self.arrived.flights])
        return self.arrived.time - began[self.arrived.flight_of] if len(self.arrived) else np.zeros(0)

    @property
    def slowest(self) -> float:
        """Seconds of the slowest taken reply; 0 if there is none."""
        return float(self.seconds[self.taken].max(initial=0.0))

    def find_picked(self, positions: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether the replies of these clients are taken."""
        return among(positions, self.arrived.positions[self.taken])

    def places(self, senders: Parties) -> NDArray[np.int64]:
        """Return the indices into ``arrived`` of these clients' replies."""
        return places_among(self.arrived.positions, senders.positions)

    def row(self, picked: NDArray[np.bool_], bases: NDArray[np.int64]) -> dict[str, Any]:
        """Return the entries of the round's row about usable replies; see ``History``.

        Args:
            picked: which replies are taken.
            bases: version of the model from which each sender started.
        """
        return {
            "picked": int(picked.sum()),
            "undrafted": int((~picked).sum()),
            "version_variance": float(np.var(bases)) if len(bases) else 0.0,
            "slowest_picked": self.slowest,
        }

    def seen(self, combined: Combined, own: Callable[[str], Tree], based: NDArray[np.int64]) -> Seen:
        """Return what the selection rule learns from the taken replies.

        Args:
            combined: all replies.
            own: the server's report on its own data.
            based: the round of the model from which each sender started.
        """
        chosen = np.flatnonzero(self.find_picked(combined.senders.positions))
        told = {name: [values[i] for i in chosen.tolist()] for name, values in reports_of(combined).items()}
        rows = examples_of(combined)
        rows = rows[chosen] if len(rows) else rows
        taking = combined.senders[chosen]
        return Seen(0, taking, taking, self.seconds[self.places(taking)], told, {}, own, rows, based[chosen])


async def gather_replies(
    fed: Federation, rule: Selection, known: Tree, sent: Dispatch, pacing: SAFA, start: float
) -> SafaArrivals:
    """Wait until the selection rule has enough replies.

    Args:
        fed: the federation.
        rule: the selection rule, which takes replies.
        known: the rule's memory.
        sent: the clients that work.
        pacing: the training's pacing.
        start: when the round began.
    """
    limit = None if pacing.deadline is None else start + pacing.deadline
    working = sent.working
    count = min(rule.cohort_size(len(fed.parties)), working)
    found = await fed.arrivals(until=start)  # no reply yet, unless a late one arrived while the server was busy
    taken, closing = rule.take(found.positions, count, known) if count else (np.zeros(0, np.int64), None)
    while closing is None and len(found) < working:
        more = await fed.arrivals(max(1, rule.missing(found.positions, count, known)), until=limit)
        if limit is not None and len(more) and more.time[-1] > limit:
            more = more.until(limit)  # likewise: replies that are too late belong to the next round
        if len(more) == 0:
            break
        found = found.then(more)
        taken, closing = rule.take(found.positions, count, known)
    if closing is not None:
        found = found.until(found.time[closing])  # more may have arrived meanwhile on a running clock
    elif len(found) < working and limit is None:
        falls = sent.falls[np.isfinite(sent.falls)]
        await fed.clock.sleep_until(float(falls.max(initial=fed.clock.now())))
    if pacing.published:
        found = found.then(fed.foreseen())
        fed.cancel()
    return SafaArrivals(found, taken)
