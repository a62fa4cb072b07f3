"""Traffic between real organisations, where the arrival of replies cannot be predicted.

In a simulation a model of devices gives the arrival of each reply at once. On a real clock, an engine that is `live` starts the work when it is
sent and fills in the columns of a `Launch` as replies arrive or parties are lost. Rounds close by the same rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ConfigError
from ..requests.request import PartialSum, Reply, Request
from ..requests.results import Terms
from ..requests.task import Task
from ..time.quota import Share
from .delivery import Delivery, accepted_of
from .flight import Arrivals, Flight

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["LiveTraffic"]


class LiveTraffic(Delivery):
    """Requests in flight on one hub, between real parties."""

    @property
    def _engine(self) -> Any:
        return self.world.engine

    def begin(self, flight: Flight, push: str) -> Flight:
        """Start the work at once."""
        if push == "sum" and self.world.decisions.get(flight.request.id) is not None:
            push = "fold"  # a party was lost before the crash, and stays out
        return self._launched(flight, push)

    def _launched(self, flight: Flight, push: str) -> Flight:
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
            accepted = await self._shared(flight, terms.accept, limit)
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
            self._unheard(flight, flight.cancelled)
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
        wanted = _named(flight.parties.positions, known)
        while not np.isfinite(flight.arrives[wanted]).all() and not self._resolved(flight):
            await self._engine.news.wait()
        return wanted[np.isfinite(flight.arrives[wanted])]

    async def _shared(self, flight: Flight, share: Share, limit: float) -> NDArray[np.int64]:
        """Offer replies to a quota as they arrive, until it is met or this request has no more to offer."""
        while True:
            order = self._in_time(flight, limit)
            ended = self._resolved(flight) or self.world.clock.now() >= limit
            if share.report(flight.arrives[order], flight.parties.positions[order], ended=ended):
                self._engine.news.ring()  # other requests wait for this quota too
                return order[: share.taken]
            await self._engine.news.wait(None if ended else self._left(limit))

    def _in_time(self, flight: Flight, limit: float) -> NDArray[np.int64]:
        here = np.flatnonzero(np.isfinite(flight.arrives) & (flight.arrives <= limit))
        return here[np.lexsort((flight.parties.positions[here], flight.arrives[here]))]

    @staticmethod
    def _resolved(flight: Flight) -> bool:
        return bool((np.isfinite(flight.arrives) | np.isfinite(flight.lost)).all())

    def _mark_lost(self, flight: Flight) -> None:
        lost = flight.open & np.isfinite(flight.lost)
        self.meter.ended(self.hub, "crashed", flight.parties.positions[lost])
        flight.open &= ~lost

    def _left(self, limit: float) -> float | None:
        return None if not np.isfinite(limit) else max(0.0, limit - self.world.clock.now())

    async def _until(self, limit: float) -> bool:
        """Wait for news; return false once the moment has come."""
        if self.world.clock.now() >= limit:
            return False
        await self._engine.news.wait(self._left(limit))
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
        self.flights = [self._launched(self._left_of(flight), "") for flight in self.flights if flight.open.any()]

    @staticmethod
    def _left_of(flight: Flight) -> Flight:
        """The same flight with only the parties whose replies are still wanted."""
        keep = np.flatnonzero(flight.open)
        columns = {name: getattr(flight, name)[keep] for name in ("arrives", "fraction", "open", "waiting", "lost")}
        return replace(flight, parties=flight.parties[keep], last_left=None, kept=None, **columns)

    def foreseen(self, until: float | None) -> Arrivals:
        """Refuse: arrivals between real parties cannot be predicted."""
        raise ConfigError("arrivals between real parties cannot be predicted", remedy="wait for `arrivals`")


def _named(positions: NDArray[np.int64], known: NDArray[np.int64]) -> NDArray[np.int64]:
    """Indices of these parties, ascending, as often as each occurs in ``known``: for a party drawn more than once, the first."""
    left = Counter(known.tolist())
    found = []
    for index, position in enumerate(positions.tolist()):
        if left[position]:
            left[position] -= 1
            found.append(index)
    return np.array(found, dtype=np.int64)
