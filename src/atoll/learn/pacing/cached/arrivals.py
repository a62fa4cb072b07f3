"""The replies of a SAFA round, and which of them are taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.requests.party import among

from ...selection import Seen
from ...selection.members import places_among
from ...server.observed import examples_of, reports_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.algebra.tree import Tree
    from atoll.core.federation.federation import Federation
    from atoll.core.federation.flight import Arrivals
    from atoll.core.requests.party import Parties
    from atoll.core.requests.results import Combined

    from ...selection import Selection
    from ..safa import SAFA
    from ..versions.dispatch import Dispatch

__all__ = ["SafaArrivals", "gathered"]


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

    def picked(self, positions: NDArray[np.int64]) -> NDArray[np.bool_]:
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
        chosen = np.flatnonzero(self.picked(combined.senders.positions))
        told = {name: [values[i] for i in chosen.tolist()] for name, values in reports_of(combined).items()}
        rows = examples_of(combined)
        rows = rows[chosen] if len(rows) else rows
        taking = combined.senders[chosen]
        return Seen(0, taking, taking, self.seconds[self.places(taking)], told, {}, own, rows, based[chosen])


async def gathered(
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
