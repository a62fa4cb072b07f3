"""The traffic of a federation: sending, waiting and closing rounds, in virtual or real time.

Traffic between real organisations, where the arrival of replies cannot be predicted.

In a simulation a model of devices gives the arrival of each reply at once. On a real clock, an engine that is `live` starts the work when it is
sent and fills in the columns of a `Launch` as replies arrive or parties are lost. Rounds close by the same rules.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import message as M
from ..errors import ConfigError, QuorumError
from ..execution.sum_builder import singly
from ..requests.party import Parties, among
from ..requests.request import PartialSum, Reply, Request
from ..requests.results import AcceptRule, Outcomes, Plan, Terms, is_instant
from ..requests.task import Task
from ..time.deadline import WHOLE, Deadline, Share
from ..time.meter import Draw, Meter
from .flight import Arrivals, Flight, Handle, flights_of, saved_flights

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..world import World

__all__ = ["Delivery", "LiveTraffic", "accepted_of"]


class Delivery:
    """Requests in flight on one hub.

    Args:
        world: the world of the requests.
        hub: name of the party that asks.
        meter: counts the requests' bytes.

    Attributes:
        cost: the cost model of the requests.
        draws: what the requests took from batteries since the last settlement; see ``Batteries``.
    """

    def __init__(self, world: World, hub: str, meter: Meter) -> None:
        self.world = world
        self.hub = hub
        self.meter = meter
        self.cost = world.cost
        self.flights: list[Flight] = []
        self.draws: list[Draw] = []

    def send(
        self,
        request: Request,
        parties: Parties,
        version: int = 0,
        *,
        down: NDArray[np.int64] | None = None,
        up: int | Callable[[], int] | None = None,
        deadline: float | Deadline | None = None,
        push: str = "",
    ) -> Flight:
        """Send a request to each party; see ``Terms`` for ``down``, ``up`` and ``deadline``, and ``LiveEngine.launch`` for ``push``."""
        now, shared = self.world.clock.now(), deadline if isinstance(deadline, Deadline) else None
        superstep, risk = (0, WHOLE) if shared is None else (shared.begun, shared.begin())
        n = len(parties)
        inner = request.wraps or request  # the request whose message size `down` gives
        sent: Any = (M.nbytes(inner.message) if down is None else down) + request.argument_bytes
        if request.mail is not None:
            letters = np.array([request.mail.nbytes(name) for name in parties.names], dtype=np.int64)
            self.meter.count_relayed(int(letters.sum()), sum(request.mail.count(name) for name in parties.names))
            sent = sent + letters
        self.meter.down(self.hub, parties.positions, sent)
        if is_instant(self.cost):
            arrives, fraction = np.full(n, now), np.ones(n)
            lost = np.full(n, np.inf)
            energy = reason = spending = None
        else:
            plan = replace(self.plan(request, parties, sent, now, up), superstep=superstep, risk=risk)
            outcomes = self.cost.plan(parties, plan)
            arrives = np.where(outcomes.done, now + outcomes.seconds, np.inf)
            lost = np.where(outcomes.done, np.inf, now + outcomes.seconds)
            fraction, energy, reason = outcomes.fraction, outcomes.energy, outcomes.reason
            spending = outcomes.spending
            if energy is not None:
                self.meter.energy(self.hub, parties.positions, energy)
                self._draw(Draw.of(now, parties.positions, energy))
        total = int(sent.sum()) if isinstance(sent, np.ndarray) else sent * n
        open_, waiting = np.isfinite(arrives), np.zeros(n, dtype=bool)
        flight = Flight(request, parties, arrives, fraction, version, now, total, open_, waiting, lost)
        flight.energy, flight.reason, flight.spending = energy, reason, spending
        flight.credit, flight.unheard = self._credit, self._count_called_off
        return self.begin(flight, push)

    def begin(self, flight: Flight, push: str) -> Flight:
        """Start a request. Here work is done when its reply is wanted, and it is known which parties will not reply."""
        del push
        self.meter.count_ended(self.hub, "crashed", flight.parties.positions[~np.isfinite(flight.arrives)])
        return flight

    def _count_called_off(self, flight: Flight, which: NDArray[np.int64]) -> None:
        self.meter.count_ended(self.hub, "called_off", flight.parties.positions[which])

    def _credit(self, flight: Flight, which: NDArray[np.int64]) -> None:
        """Charge parties that are called off now only for what they have done by the time the message reaches them."""
        if flight.energy is None or flight.spending is None or flight.launch is not None or not len(which):
            return
        charged = flight.energy[which]
        spent = np.minimum(charged, flight.spending.by(self.world.clock.now() - flight.sent, which))
        flight.energy = flight.energy.copy()
        flight.energy[which] = spent
        less = which[spent < charged]
        self.meter.energy(self.hub, flight.parties.positions[less], -charged[spent < charged])
        self.meter.energy(self.hub, flight.parties.positions[less], flight.energy[less])
        self._draw(Draw.of(self.world.clock.now(), flight.parties.positions[which], spent, charged))

    def _draw(self, draw: Draw) -> None:
        if self.world.batteries is not None and len(draw.positions):
            self.world.batteries.draw(draw)
            self.draws.append(draw)

    def plan(
        self,
        request: Request,
        parties: Parties,
        down: int | NDArray[np.int64],
        now: float,
        up: int | Callable[[], int] | None = None,
    ) -> Plan:
        """The request as a cost model sees it."""
        declared = up() if callable(up) else up
        reply = request.task.reply_bytes or 0 if declared is None else declared
        positions, population = parties.positions, self.world.population
        work = functools.partial(request.workload, population, positions)
        lacking = functools.partial(self.world.lacking, positions, now)
        return Plan(request.id, down, reply, now, request.key, work, request.turn, lacking)

    async def close(self, flight: Flight, terms: Terms) -> NDArray[np.int64]:
        """Wait until the round closes; return the indices of the accepted replies, in cohort order.

        Raises:
            QuorumError: fewer replies than the quorum arrived in time.
        """
        limit = terms.limit(flight.sent)
        if (
            is_instant(self.cost)
            and terms.accept is None
            and len(flight.parties) >= terms.quorum
            and limit >= flight.sent
        ):
            flight.open[:] = False  # the common case of a simulation without devices: all parties have replied
            return np.arange(len(flight.parties), dtype=np.int64)
        in_time = np.flatnonzero(flight.arrives <= limit)
        in_time = in_time[np.isfinite(flight.arrives[in_time])]
        # Ties break by position: virtual time has one order, whatever order the cost model was asked in.
        order = in_time[np.lexsort((flight.parties.positions[in_time], flight.arrives[in_time]))]
        if isinstance(terms.accept, Share):
            taken = await terms.accept.close(flight.arrives[order], flight.parties.positions[order])
            accepted, full = order[:taken], terms.accept.moment
        else:
            accepted, full = accepted_of(flight, order, terms.accept)
        if full is not None:
            moment = full
        elif len(order) == len(flight.parties):
            moment = flight.arrives[order].max(initial=flight.sent)
        elif np.isfinite(limit):
            moment = limit
        else:  # no deadline: a loss is known when the link notices it, an unaccepted reply when it arrives
            moment = max(
                flight.arrives[order].max(initial=flight.sent),
                flight.lost[np.isfinite(flight.lost)].max(initial=flight.sent),
            )
        await self.world.clock.sleep_until(float(moment))
        flight.open[accepted] = False
        if terms.late == "arrive":
            self._keep_open(flight)
        else:
            flight.cancelled = np.flatnonzero(flight.open)
            if terms.late == "drop":
                flight.dropped = flight.cancelled
                flight.credit = flight.unheard = None  # no party is called off: all do their work and reply
            flight.cancel()
        self._check_quorum(flight, accepted, terms)
        return np.sort(accepted)

    def _keep_open(self, flight: Flight) -> None:
        """Let late replies arrive on their own, outside the requested sum."""
        if flight.open.any():
            flight.request = replace(flight.request, sum="")
            self.flights.append(flight)

    def outcomes(self, flight: Flight) -> Outcomes:
        """The outcome for each party that was asked."""
        done = np.isfinite(flight.arrives)
        seconds = np.where(done, flight.arrives, flight.lost) - flight.sent
        if flight.launch is not None:  # between real parties, a party still at work has taken at least until now
            seconds = np.minimum(seconds, self.world.clock.now() - flight.sent)
        return Outcomes(seconds, done, flight.fraction, flight.energy, flight.reason)

    def _check_quorum(self, flight: Flight, accepted: NDArray[np.int64], terms: Terms) -> None:
        answered = len(accepted)
        if answered >= terms.quorum:
            return
        self._count_called_off(flight, accepted)
        raise QuorumError(
            f"{answered} of {len(flight.parties)} parties answered{terms.within}, fewer than the quorum of {terms.quorum}",
            where=flight.request.id,
            remedy="lengthen the deadline, invite more parties (over_select) or lower the quorum",
        )

    async def arrivals(self, count: int, until: float | None) -> Arrivals:
        """Wait for ``count`` arrivals, or until a moment; return all that arrived."""
        while True:
            due = np.concatenate([f.due() for f in self.flights]) if self.flights else np.zeros(0)
            limit = np.inf if until is None else until
            enough = np.partition(due, count - 1)[count - 1] if len(due) >= count else due.max(initial=-np.inf)
            moment = min(limit, enough) if len(due) else limit
            if np.isfinite(moment) and moment > self.world.clock.now():
                await self.world.clock.sleep_until(float(moment))
                continue
            return self._take(self.world.clock.now())

    def foreseen(self, until: float | None) -> Arrivals:
        """Take what will arrive until a moment, or at any time."""
        return self._take(float(np.finfo(np.float64).max) if until is None else until)

    def give_up(self, positions: NDArray[np.int64] | None) -> int:
        """Give up replies under way from these parties, or from all."""
        given_up = 0
        for flight in self.flights:
            which = None if positions is None else np.flatnonzero(among(flight.parties.positions, positions))
            given_up += flight.cancel(which)
        self._let_go()
        return given_up

    def _let_go(self) -> None:
        """Forget requests whose replies cannot be used and whose energy cannot be credited any more."""
        now = self.world.clock.now()
        self.flights = [flight for flight in self.flights if flight.alive or flight.falling(now)]

    def _take(self, now: float) -> Arrivals:
        rows = [(i, f, left[f.arrives[left] <= now]) for i, f in enumerate(self.flights) for left in (f.left(),)]
        rows = [row for row in rows if len(row[2])]
        flights = [f for _, f, _ in rows]
        index = np.concatenate([r[2] for r in rows]) if rows else np.zeros(0, dtype=np.int64)
        flight_of = np.repeat(np.arange(len(rows)), [len(r[2]) for r in rows]).astype(np.int64)
        times = np.concatenate([f.arrives[ix] for _, f, ix in rows]) if rows else np.zeros(0)
        positions = (
            np.concatenate([f.parties.positions[ix] for _, f, ix in rows]) if rows else np.zeros(0, dtype=np.int64)
        )
        version = np.array([f.version for f in flights], dtype=np.int64)[flight_of]
        order = np.lexsort((positions, times))
        for _, flight, taken in rows:
            flight.open[taken] = False
            flight.waiting[taken] = True
        self._let_go()
        return Arrivals(
            positions[order], times[order], version[order], flights, flight_of[order], index[order], self.touch
        )

    async def touch(self, handles: list[Handle]) -> list[Reply]:
        """Do the work behind these arrivals, together with all arrived work of the same requests."""
        for flight in dict.fromkeys(h.flight for h in handles):
            if flight.ahead:
                raise ConfigError(
                    "replies sent with ahead=True can be combined, but not read one by one",
                    where=flight.request.id,
                    remedy="use fed.combine([handle]), or send without ahead=True",
                )
            wanted = [h.index for h in handles if h.flight is flight and h.index not in flight.replies]
            if wanted:
                pending = np.flatnonzero(flight.waiting)
                flight.use(np.array(wanted, dtype=np.int64))
                flight.waiting[:] = False
                replies = await self.run(flight, pending)
                flight.replies.update(zip(pending.tolist(), replies, strict=True))
        return [self._require_success(h.flight.replies[h.index]) for h in handles]

    def _require_success(self, reply: Reply) -> Reply:
        if reply.error is not None and self.world.errors == "raise":
            raise reply.error
        return reply

    async def run(self, flight: Flight, which: NDArray[np.int64]) -> list[Reply]:
        """Run the request at some of its parties."""
        positions = flight.parties.positions[which]
        replies = await self.world.engine.run(flight.request, positions)
        usable = np.array([not r.rejected for r in replies], dtype=bool)
        nbytes = np.array([r.nbytes for r in replies], dtype=np.int64)
        self.meter.up(self.hub, positions[usable], nbytes[usable])
        flight.up += int(nbytes.sum())
        if flight.request.wraps is not None:  # a reply to a sum, in its reducer's own form
            self._count_refused([r.party for r in replies if not r.usable])
        return replies

    async def fold(self, request: Request, positions: NDArray[np.int64], flight: Flight | None = None) -> PartialSum:
        """Run a request, sent in a flight, at parties and add up the replies."""
        found = self._receive(await self.world.engine.fold(request, positions))
        if flight is not None:
            flight.up += int(found.nbytes.sum())
        return found

    def _count_refused(self, positions: Iterable[int]) -> None:
        self.meter.count_ended(self.hub, "refused", np.array([*positions], dtype=np.int64))

    def _receive(self, folded: PartialSum) -> PartialSum:
        if folded.errors and self.world.errors == "raise":
            raise folded.errors[min(folded.errors)]
        # Bytes up are those of the sum; of what was kept out only the fate is counted.
        self.meter.up(self.hub, folded.senders, folded.nbytes)
        self._count_refused([*folded.rejected, *folded.errors])
        return folded

    async def fold_ahead(self, flight: Flight, request: Request, which: NDArray[np.int64]) -> PartialSum:
        """Add up replies of a flight that was sent ahead; the first use runs everything that will arrive in one block.

        Args:
            flight: the flight of the replies.
            request: the flight's request, with the uplink of its replies.
            which: indices of the replies to use.
        """
        if flight.kept is None:
            # All that will arrive, in one block: replies used one by one would each pay for a program of one client.
            coming = np.union1d(which, np.flatnonzero(flight.open | flight.waiting))
            positions = flight.parties.positions[coming]
            block = await self.world.engine.fold(replace(request, apart=True), positions)
            flight.kept = dict(zip(coming.tolist(), singly(block, positions), strict=True))
        return self._receive(PartialSum.zero().merge(*(flight.kept.pop(int(i)) for i in which)))

    def save(self) -> dict[str, Any]:
        """The requests in flight, for a checkpoint. An arrival that was not used counts as in flight: it arrives again."""
        self._let_go()
        return saved_flights(self.flights)

    def load(self, saved: dict[str, Any], slot: str, find: Callable[[str], Task]) -> None:
        """Send the requests of a checkpoint again."""
        self.flights = flights_of(saved, self.world.roster, slot, find)
        for flight in self.flights:
            flight.credit, flight.unheard = self._credit, self._count_called_off


def accepted_of(
    flight: Flight, order: NDArray[np.int64], accept: int | AcceptRule | None
) -> tuple[NDArray[np.int64], float | None]:
    """Which of the replies in time are accepted, and when the round is full; ``None`` if it never is."""
    if accept is None:
        return order, None
    if isinstance(accept, int):
        full = len(order) >= accept
        return order[:accept], float(flight.arrives[order[accept - 1]]) if full else None
    taken, closing = accept(flight.parties.positions[order])
    return order[taken], None if closing is None else float(flight.arrives[order[closing]])


# ---------------------------------------------------------------------- between real parties


class LiveTraffic(Delivery):
    """Requests in flight on one hub, between real parties."""

    @property
    def _engine(self) -> Any:
        return self.world.engine

    def begin(self, flight: Flight, push: str) -> Flight:
        """Start the work at once."""
        if push == "sum" and self.world.decisions.get(flight.request.id) is not None:
            push = "fold"  # a party was lost before the crash, and stays out
        return self._launch(flight, push)

    def _launch(self, flight: Flight, push: str) -> Flight:
        launch = self._engine.launch(flight.request, flight.parties.positions, push)
        flight.arrives, flight.lost, flight.launch = launch.arrives, launch.lost, launch
        flight.open = np.ones(len(flight.parties), dtype=bool)
        return flight

    async def close(self, flight: Flight, terms: Terms) -> NDArray[np.int64]:
        """Wait until the round closes; return the indices of the accepted replies, in cohort order.

        If a deadline or a number of replies decides which replies are in, the decision is recorded before any result is seen: a resumed run waits
        for the same replies.

        Raises:
            QuorumError: fewer replies than the quorum arrived in time.
        """
        known = self.world.decisions.get(flight.request.id)
        limit = terms.limit(flight.sent)
        if known is not None:
            accepted = await self._again(flight, known)
        elif isinstance(terms.accept, Share):
            accepted = await self._share_quota(flight, terms.accept, limit)
        else:
            accepted = await self._first(flight, terms, limit)
        if known is None and (len(accepted) < len(flight.parties) or terms.accept is not None or np.isfinite(limit)):
            self.world.decisions.put(flight.request.id, flight.parties.positions[accepted])
        flight.open[accepted] = False
        self._mark_lost(flight)
        if terms.late == "arrive":
            self._keep_open(flight)
        else:
            flight.cancelled = np.flatnonzero(flight.open)
            flight.open[:] = False
            self._count_called_off(flight, flight.cancelled)
            if terms.late == "drop":
                flight.dropped = flight.cancelled
            if flight.launch is not None:
                flight.launch.drop(flight.cancelled, undo=terms.late == "cancel")
                flight.cancelled = flight.cancelled[
                    :0
                ]  # the work is done or dropped at the parties: nothing to run again
        self._check_quorum(flight, accepted, terms)
        return np.sort(accepted)

    async def _first(self, flight: Flight, terms: Terms, limit: float) -> NDArray[np.int64]:
        while True:
            order = self._in_time(flight, limit)
            accept = terms.accept if not isinstance(terms.accept, Share) else None
            accepted, full = accepted_of(flight, order, accept)
            if full is not None or self._resolved(flight) or not await self._until(limit):
                return accepted

    async def _again(self, flight: Flight, known: NDArray[np.int64]) -> NDArray[np.int64]:
        """Wait for the replies that were accepted before a crash."""
        wanted = _find_places(flight.parties.positions, known)
        while not np.isfinite(flight.arrives[wanted]).all() and not self._resolved(flight):
            await self._engine.news.wait()
        return wanted[np.isfinite(flight.arrives[wanted])]

    async def _share_quota(self, flight: Flight, share: Share, limit: float) -> NDArray[np.int64]:
        """Offer replies to a quota as they arrive, until it is met or this request has no more to offer."""
        while True:
            order = self._in_time(flight, limit)
            ended = self._resolved(flight) or self.world.clock.now() >= limit
            if share.report(flight.arrives[order], flight.parties.positions[order], ended=ended):
                self._engine.news.ring()  # other requests wait for this quota too
                return order[: share.taken]
            await self._engine.news.wait(None if ended else self._compute_remaining(limit))

    def _in_time(self, flight: Flight, limit: float) -> NDArray[np.int64]:
        here = np.flatnonzero(np.isfinite(flight.arrives) & (flight.arrives <= limit))
        return here[np.lexsort((flight.parties.positions[here], flight.arrives[here]))]

    @staticmethod
    def _resolved(flight: Flight) -> bool:
        return bool((np.isfinite(flight.arrives) | np.isfinite(flight.lost)).all())

    def _mark_lost(self, flight: Flight) -> None:
        lost = flight.open & np.isfinite(flight.lost)
        self.meter.count_ended(self.hub, "crashed", flight.parties.positions[lost])
        flight.open &= ~lost

    def _compute_remaining(self, limit: float) -> float | None:
        return None if not np.isfinite(limit) else max(0.0, limit - self.world.clock.now())

    async def _until(self, limit: float) -> bool:
        """Wait for news; return false once the moment has come."""
        if self.world.clock.now() >= limit:
            return False
        await self._engine.news.wait(self._compute_remaining(limit))
        return True

    async def arrivals(self, count: int, until: float | None) -> Arrivals:
        """Wait for ``count`` arrivals, or until a moment; return all that arrived."""
        limit = np.inf if until is None else until
        while True:
            for flight in self.flights:
                self._mark_lost(flight)
            left = [flight.arrives[flight.left()] for flight in self.flights]
            here = sum(int(np.isfinite(times).sum()) for times in left)
            waited_for = sum(len(times) for times in left)
            if here >= count or here == waited_for or not await self._until(limit):
                return self._take(self.world.clock.now())

    async def run(self, flight: Flight, which: NDArray[np.int64]) -> list[Reply]:
        """Take replies that have arrived."""
        if not len(which):
            return []
        return await super().run(flight, which)

    async def fold_ahead(self, flight: Flight, request: Request, which: NDArray[np.int64]) -> PartialSum:
        """Add up replies of a flight that was sent ahead, each when it is used, because a block cannot include what has not arrived."""
        return await self.fold(request, flight.parties.positions[which])

    def load(self, saved: dict[str, Any], slot: str, find: Callable[[str], Task]) -> None:
        """Start the requests of a checkpoint again; the parties' states are those before the requests."""
        super().load(saved, slot, find)
        self.flights = [self._launch(self._drop_settled(flight), "") for flight in self.flights if flight.open.any()]

    @staticmethod
    def _drop_settled(flight: Flight) -> Flight:
        """The same flight with only the parties whose replies are still wanted."""
        keep = np.flatnonzero(flight.open)
        columns = {name: getattr(flight, name)[keep] for name in ("arrives", "fraction", "open", "waiting", "lost")}
        return replace(flight, parties=flight.parties[keep], last_left=None, kept=None, **columns)

    def foreseen(self, until: float | None) -> Arrivals:
        """Refuse: arrivals between real parties cannot be predicted."""
        raise ConfigError("arrivals between real parties cannot be predicted", remedy="wait for `arrivals`")


def _find_places(positions: NDArray[np.int64], known: NDArray[np.int64]) -> NDArray[np.int64]:
    """Indices of these parties, ascending, as often as each occurs in ``known``: for a party drawn more than once, the first."""
    left = Counter(known.tolist())
    found = []
    for index, position in enumerate(positions.tolist()):
        if left[position]:
            left[position] -= 1
            found.append(index)
    return np.array(found, dtype=np.int64)
