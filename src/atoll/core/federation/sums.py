"""Sums: the plain sum that reducers build on, and replies that arrive later and are combined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..algebra.rng import Rng
from ..algebra.tree import Tree
from ..errors import ConfigError, QuorumError
from ..requests.chain import Chain
from ..requests.party import Parties
from ..requests.request import Expects, PartialSum, Request, expecting
from ..requests.results import Combined, Terms
from ..requests.stage import Stage
from ..requests.task import Task, done_before
from .flight import Arrivals, Flight, Handle, by_flight
from .outcomes import combine_sum, count_words, decode_totals, require_quorum
from .reducer import Reducer
from .reduction import Reduction
from .scope import Scope

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Sums"]


class Sums(Scope):
    """Plain sums and requests in flight; see ``Federation``."""

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
