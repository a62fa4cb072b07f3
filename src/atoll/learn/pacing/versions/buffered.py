"""Rounds that collect replies on several versions of the model and fold them together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.errors import CompositionError, QuorumError
from atoll.core.requests.party import Parties

from .in_flight import InFlight

if TYPE_CHECKING:
    from atoll.core.algebra.tree import Tree
    from atoll.core.federation.federation import Federation
    from atoll.core.federation.flight import Flight, Handle
    from atoll.core.requests.results import Combined

    from .round_log import RoundLog

__all__ = ["Buffered", "groups_of", "together"]


class Buffered(InFlight):
    """One server update per round, from the replies that ``gather`` collects: one sum per request, so that a secure reducer can hide single replies."""

    factor: float = 1.0
    """Factor of the whole update: the server's learning rate."""

    async def gather(self, fed: Federation, state: Tree, log: RoundLog) -> tuple[list[Handle], Tree]:
        """Wait until a round has its replies; return them, still held, and the state."""
        raise NotImplementedError

    def weight(self, staleness: int) -> float:
        """Return the weight of an update with this staleness."""
        del staleness
        return 1.0

    async def updates(self, fed: Federation, state: Tree, log: RoundLog) -> Tree:
        """Fill, gather, fold."""
        state = await self.fill(fed, state, log)
        taken, state = await self.gather(fed, state, log)
        parts = []
        for flight, handles in groups_of(taken):
            found = await self._combined(fed, state, flight, handles, log)
            if found is not None and found.n:
                log.used(handles, found, state["version"])
                parts.append((found, self.factor * self.weight(state["version"] - flight.version)))
        state = self.released(fed, state, taken)
        if not parts:
            return state
        state = self.applied(fed, state, together(parts, fed))
        return self.fitted(fed, state, parts[-1][0])

    async def _combined(
        self, fed: Federation, state: Tree, flight: Flight, handles: Sequence[Handle], log: RoundLog
    ) -> Combined | None:
        try:
            return await fed.combine(handles, uplink=self.chain(state, flight), reducer=self.reducer)
        except QuorumError:
            if self.reducer is None:
                raise
            log.late += len(handles)  # the protocol lost too many replies
            log.wasted += len(handles)
            return None


def groups_of(handles: Sequence[Handle]) -> list[tuple[Flight, list[Handle]]]:
    """Return arrivals by the request that they answer, earlier requests first."""
    flights = sorted(dict.fromkeys(h.flight for h in handles), key=lambda flight: flight.request.turn)
    return [(flight, [h for h in handles if h.flight is flight]) for flight in flights]


def together(parts: Sequence[tuple[Combined, float]], fed: Federation) -> Combined:
    """Return sums of several groups as one: ``update = sum_g c_g W_g u_g / sum_g W_g``; other means by weight, sums added, single replies concatenated.

    Args:
        parts: the groups' sums, each with the factor ``c_g`` of its updates.
        fed: the federation, for the names of parties.

    Raises:
        CompositionError: a reply is a vote; its results cannot be added up.
    """
    first, value, weight = parts[0][0], dict[str, Any](), dict[str, float]()
    for name in first.value:
        kind = first.kinds.get(name, "sum")
        weight[name] = sum(part.weight[name] for part, _ in parts)
        found = [part.value[name] for part, _ in parts]
        if kind == "mean":
            shares = [part.weight[name] / weight[name] if weight[name] else 0.0 for part, _ in parts]
            factors = [c if name == "update" else 1.0 for _, c in parts]
            found = [T.scale(v, share * c) for v, share, c in zip(found, shares, factors, strict=True)]
        elif kind == "vote" and len(parts) > 1:
            raise CompositionError(
                f"{name!r} is a majority vote, and votes about several versions of the model cannot be added up",
                where="Training.pacing",
                remedy="use an algorithm whose replies are means or sums, or Synchronous()",
            )
        whole = found[0]
        for other in found[1:]:
            whole = whole + other if kind == "parts" else T.add(whole, other)
        value[name] = whole
    counts = Counter[str]()
    for part, _ in parts:
        counts.update(part.counts)
    senders = Parties(fed.world.roster, np.concatenate([part.senders.positions for part, _ in parts]))
    return replace(
        first, value=value, weight=weight, n=sum(part.n for part, _ in parts), senders=senders, counts=dict(counts)
    )
