"""What the parties of a ledger have spent, by job, and what the jobs that are open may still spend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atoll.core.errors import ConfigError
from atoll.core.event import Admitted, Closed, Event, Ledger, NonPrivate, unpack_event

from ..accountant import PrivacyLoss

__all__ = ["FIELDS", "LedgerAccount", "loss_of", "worst"]

FIELDS = ("party", "request", "job")
"""Fields of a line that are none of its event's."""


def loss_of(event: Event) -> PrivacyLoss:
    """The cost of an event; one that no accountant knows costs as much as a release without noise."""
    try:
        return PrivacyLoss.of(event)
    except ConfigError:
        return PrivacyLoss.of(NonPrivate(unit=event.unit, count=event.count, what=f"an event of kind {event.kind!r}"))


def worst(spent: PrivacyLoss, most: PrivacyLoss) -> PrivacyLoss:
    """What a job has spent or may spend at most, release by release: its promise includes what it has spent."""
    counts = dict(most.releases)
    more = {event: n - counts.get(event, 0) for event, n in spent.releases if n > counts.get(event, 0)}
    return sum((PrivacyLoss.of(event).times(n) for event, n in more.items()), most)


@dataclass
class LedgerAccount:
    """The spending of all jobs of a ledger, updated as the ledger grows.

    Attributes:
        ledger: a ledger, or its lines.
        losses: party -> job -> what the job has spent of the party; ``"*"`` is everybody.
        admitted: party -> job -> what the job was admitted for; the newest counts.
        names: job -> its name, for people.
        closed: jobs that have ended for good.
        terms: party -> the newest budget that it counted by; none if there was none.
        notes: kinds of events that cost nothing and say something about all others, such as ``"seeded-secret"``.
    """

    ledger: Ledger | Iterable[Mapping[str, Any]]
    losses: dict[str, dict[str, PrivacyLoss]] = field(default_factory=dict)
    admitted: dict[str, dict[str, PrivacyLoss]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    terms: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: set[str] = field(default_factory=set)
    _read: int = 0

    def update(self) -> LedgerAccount:
        """Read the new lines."""
        lines = self.ledger.lines(self._read) if isinstance(self.ledger, Ledger) else [*self.ledger][self._read :]
        self._read += len(lines)
        for line in lines:
            event = unpack_event({name: value for name, value in line.items() if name not in FIELDS})
            parties = [line["party"]] if isinstance(line["party"], str) else line["party"]
            self._take(event, parties, line.get("job", ""))
        return self

    def _take(self, event: Event, parties: Sequence[str], job: str) -> None:
        if isinstance(event, Admitted):
            most = sum((loss_of(unpack_event(dict(one))) for one in event.most), PrivacyLoss())
            self.names[job] = event.name
            self.closed.discard(job)
            for party in parties:
                self.admitted.setdefault(party, {})[job] = most
                self.terms[party] = dict(event.budget)
        elif isinstance(event, Closed):
            self.closed.add(job)
        elif event.free:
            self.notes.add(event.kind)
        else:
            loss = loss_of(event)
            for party in parties:
                jobs = self.losses.setdefault(party, {})
                jobs[job] = jobs.get(job, PrivacyLoss()) + loss

    @property
    def parties(self) -> list[str]:
        """Everybody who has spent or may spend, in the order of the ledger; ``"*"`` if it names nobody."""
        named = dict.fromkeys(party for party in (*self.losses, *self.admitted) if party != "*")
        return list(named or (("*",) if "*" in self.losses else ()))

    def jobs(self, party: str) -> list[str]:
        """The jobs that have spent of a party, in the order of the ledger."""
        return list(dict.fromkeys((*self.losses.get(party, ()), *self.losses.get("*", ()))))

    def spent(self, party: str, job: str | None = None) -> PrivacyLoss:
        """What was spent of a party, releases in the name of all parties included.

        Args:
            party: the party.
            job: by this job; by default by all.
        """
        total = PrivacyLoss()
        for jobs in (self.losses.get(party, {}), self.losses.get("*", {}) if party != "*" else {}):
            for by in jobs if job is None else {job} & jobs.keys():
                total = total + jobs[by]
        return total

    def open(self, party: str, besides: str | None = None) -> PrivacyLoss:
        """What was spent of a party, and what jobs that are open may still spend.

        Args:
            party: the party.
            besides: a job that does not count.
        """
        promised, total = self.admitted.get(party, {}), PrivacyLoss()
        for job in dict.fromkeys((*self.jobs(party), *promised)):
            if job != besides:
                most = PrivacyLoss() if job in self.closed else promised.get(job, PrivacyLoss())
                total = total + worst(self.spent(party, job), most)
        return total
