"""Events of a round in which clients work on models of several versions, for its row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ...server.phases import lengths, shares

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.federation.flight import Flight, Handle
    from atoll.core.requests.party import Parties
    from atoll.core.requests.results import Combined

__all__ = ["RoundLog"]


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
    counts: Counter[str] = field(default_factory=Counter)
    words: int = 0
    unanswered: int = 0
    failed: str = ""

    def sent(self, flight: Flight) -> None:
        """Record a request."""
        self.unanswered += 1
        self.asked += flight.parties.positions.tolist()
        if flight.foretold:
            lost = ~np.isfinite(flight.arrives)
            self.crashed += int(lost.sum())
            self.wasted += float(flight.fraction[lost].sum())

    def missed(self, clients: int) -> None:
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
        for name, value in combined.of("metric").items():
            total = self.metrics.setdefault(name, [0.0, 0.0])
            total[0] += combined.weight[name] * float(value)
            total[1] += combined.weight[name]

    def row(self) -> dict[str, Any]:
        """Return the round's row, without bytes and times."""
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
        return {**row, **{name: total / weight for name, (total, weight) in self.metrics.items() if weight}}
