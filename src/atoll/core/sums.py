"""Sums: the plain sum that reducers build on, and replies that arrive later and are combined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .chain import Chain
from .errors import ConfigError
from .flight import Arrivals, Flight, Handle, by_flight
from .outcomes import combined, require_quorum
from .party import Parties
from .results import Combined, Terms
from .rng import Rng
from .scope import Scope
from .stage import Stage
from .task import Task
from .tree import Tree

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
        flight = self.traffic.send(request, parties, down=terms.down, up=terms.up)
        accepted = await self.traffic.close(flight, terms)
        if terms.late == "drop" and len(flight.cancelled):
            await self.traffic.run(flight, flight.cancelled)
        positions = parties.positions[accepted]
        groups = (
            [positions] if fan_in is None else [positions[i : i + fan_in] for i in range(0, len(positions), fan_in)]
        )
        parts = [await self.traffic.fold(request, group) for group in groups if len(group)]
        seconds = self.clock.now() - flight.sent
        result = combined(self.world, parts, uplink, request.public, parties, seconds, flight.down)
        result = replace(result, outcomes=self.traffic.outcomes(flight))
        return require_quorum(result, len(parties), terms.quorum, request.id)

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
    ) -> Flight:
        """Send without waiting; the replies come through ``arrivals``. See ``Terms`` for ``down`` and ``up``."""
        flight = self.traffic.send(self._request(task, message, at), parties, version, down=down, up=up)
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

    async def combine(self, arrived: Arrivals | Sequence[Handle], *, uplink: Sequence[Stage] = ()) -> Combined:
        """Add up arrivals instead of looking at each; within each request the order is that of its parties.

        Args:
            arrived: all of them as columns, or some handles.
            uplink: stages for the replies.

        Raises:
            ConfigError: an arrival was touched, combined or cancelled before.
        """
        chain = Chain(uplink)
        count = self.counts["combine"]
        self.counts["combine"] += 1
        public = tuple(chain.public(Rng.of(self.world.seed).child(self.slot, "combine", count)))
        rows = arrived.by_flight() if isinstance(arrived, Arrivals) else by_flight(arrived)
        for flight, which in rows:
            flight.use(which)
        parts = [
            await self.traffic.fold(
                replace(flight.request, uplink=chain, public=public), flight.parties.positions[which]
            )
            for flight, which in rows
        ]
        asked = np.concatenate(
            [flight.parties.positions[which] for flight, which in rows] or [self.parties.positions[:0]]
        )
        return combined(self.world, parts, chain, public, Parties(self.world.roster, asked))
