"""Sums: the plain sum that reducers build on, and replies that arrive later and are combined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from .chain import Chain
from .clock import Free
from .errors import ConfigError, QuorumError
from .flight import Arrivals, Flight, Handle, by_flight
from .outcomes import combined, decoded, require_quorum
from .party import Parties
from .reducer import Plain, Reducer
from .request import Folded
from .results import Combined, Terms
from .rng import Rng
from .scope import Scope
from .stage import Stage
from .task import Task, done_before
from .tree import Tree

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .federation import Federation

__all__ = ["Sums"]


class Sums(Scope):
    """Plain sums and work in flight; see ``Federation``."""

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
        if fan_in is None:  # of several groups none knows whether the others make up the quorum
            request = replace(request, least=terms.quorum)
        alone = terms.deadline is None and terms.accept is None and fan_in is None
        push = "sum" if alone else "fold"
        flight = self.traffic.send(request, parties, down=terms.down, up=terms.up, push=push)
        parts: list[Folded] = []
        try:
            accepted = await self.traffic.close(flight, terms)
            if terms.late == "drop" and len(flight.cancelled):
                await self.traffic.run(flight, flight.cancelled)
            positions = parties.positions[accepted]
            groups = (
                [positions] if fan_in is None else [positions[i : i + fan_in] for i in range(0, len(positions), fan_in)]
            )
            parts += [await self.traffic.fold(request, group) for group in groups if len(group)]
            return require_quorum(self._result(flight, parts), len(parties), terms.quorum, request.id)
        except QuorumError as error:
            error.combined = self._result(flight, parts)
            raise

    def _result(self, flight: Flight, parts: list[Folded]) -> Combined:
        request, seconds = flight.request, self.clock.now() - flight.sent
        made = combined(self.world, parts, request.uplink, request.public, flight.parties, seconds, flight.down)
        # Where everyone answers at once there is nothing to tell.
        if type(self.traffic.cost) is Free and flight.launch is None:
            return made
        return replace(made, outcomes=self.traffic.outcomes(flight))

    # ------------------------------------------------------------------ work in flight

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
    ) -> Flight:
        """Send without waiting; the replies come through ``arrivals``.

        Args:
            parties: whom.
            task: what they are asked to do.
            message: the same for everyone.
            version: a number of the program's own, such as that of the model sent.
            at: label of the request in its random path; by default a count.
            down: see ``Terms``.
            up: see ``Terms``.
            ahead: every reply that will arrive is wanted. The first one that is combined runs the work of all in one block, which is the faster way
                where replies are used one by one; from then on none can be cancelled, and checkpoints carry those that were not used.
        """
        flight = self.traffic.send(self._request(task, message, at), parties, version, down=down, up=up)
        flight.ahead = ahead
        self.traffic.flights.append(flight)
        return flight

    async def arrivals(self, count: int = 1, until: float | None = None) -> Arrivals:
        """Wait for ``count`` arrivals or until a moment on the clock; return all that arrived since, as columns.

        Returns at once, possibly with fewer, when nothing more is under way.
        """
        if count < 1:
            raise ConfigError(f"count={count} arrivals", remedy="use a whole number of at least 1")
        return await self.traffic.arrivals(count, until)

    @property
    def under_way(self) -> int:
        """Replies that are still to arrive."""
        return sum(int(f.open.sum()) for f in self.traffic.flights)

    def foreseen(self, until: float | None = None) -> Arrivals:
        """Take what will arrive until a moment (or ever) now, as if it were there: for accountings that pretend to know; the clock stays.

        Raises:
            ConfigError: on a real clock nobody knows.
        """
        if not self.clock.virtual:
            raise ConfigError(
                "what will arrive is not known on a real clock", where=self.slot, remedy="wait for `arrivals`"
            )
        return self.traffic.foreseen(until)

    def cancel(self, positions: NDArray[np.int64] | None = None) -> int:
        """Give up what is under way from these parties (from all), in every request; return how many replies. Their work is never done."""
        return self.traffic.give_up(positions)

    @property
    def busy(self) -> NDArray[np.int64]:
        """Positions of the parties whose replies are still to arrive, sorted."""
        rows = [f.parties.positions[f.open] for f in self.traffic.flights]
        return np.unique(np.concatenate(rows)) if rows else np.zeros(0, dtype=np.int64)

    async def combine(
        self,
        arrived: Arrivals | Sequence[Handle],
        *,
        uplink: Sequence[Stage] | Chain = (),
        reducer: Reducer | None = None,
    ) -> Combined:
        """Add up arrivals instead of looking at each; within each request the order is that of its parties.

        Args:
            arrived: all of them as columns, or some handles.
            uplink: stages for the replies. Those of a flight that was sent ahead are the same every time.
            reducer: how they become one, by default plain addition. Any other one speaks to the parties again, as its protocol has it, but the work that
                they have done is not charged a second time; it takes arrivals of one request.

        Raises:
            ConfigError: an arrival was touched, combined or cancelled before; or a reducer gets arrivals of several requests or of one sent ahead.
        """
        chain = uplink if isinstance(uplink, Chain) else Chain(uplink)
        count = self.counts["combine"]
        self.counts["combine"] += 1
        rows = arrived.by_flight() if isinstance(arrived, Arrivals) else by_flight(arrived)
        plain = reducer is None or type(reducer) is Plain
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
            reducer.check(chain)
            return await self._reduced(reducer, *rows[0], chain, count)
        public = tuple(chain.public(Rng.of(self.world.seed).child(self.slot, "combine", count)))
        parts = [await self._folded(flight, which, chain, public) for flight, which in rows]
        return combined(self.world, parts, Chain(), (), asked)

    async def _folded(self, flight: Flight, which: NDArray[np.int64], chain: Chain, public: tuple[Tree, ...]) -> Folded:
        """The sum of some arrivals of a flight, with the stages undone."""
        if flight.ahead:  # replies of one block have the same parameters, whenever they are used
            public = tuple(chain.public(Rng(flight.request.key).child("public")))
        request = replace(flight.request, uplink=chain, public=public)
        if flight.ahead:
            found = await self.traffic.fold_ahead(flight, request, which)
        else:
            found = await self.traffic.fold(request, flight.parties.positions[which])
        return replace(found, totals=decoded(found.totals, chain, public))

    async def _reduced(
        self, reducer: Reducer, flight: Flight, which: NDArray[np.int64], chain: Chain, count: int
    ) -> Combined:
        """The sum of some arrivals of a flight, by a protocol of its own."""
        request, parties = flight.request, flight.parties[which]
        terms = Terms(down=np.zeros(len(parties), dtype=np.int64), up=0)
        label = (request.turn, "combine", count)
        fed = cast("Federation", self)
        return await reducer.reduce(fed, parties, done_before(request.task), request.message, chain, terms, label)
