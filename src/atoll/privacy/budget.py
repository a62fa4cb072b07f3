"""Budgets: how much privacy each client may spend, and the refusal before a request would exceed it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from atoll.core.capability import CENTRAL_SERVER, FIXED_COHORT, PROTECTION, Capability, Need
from atoll.core.errors import ConfigError
from atoll.core.event import Event
from atoll.core.extras import need
from atoll.core.validation import Checked, is_real

from .accountant import METHODS, LossTally, PrivacyLoss
from .sampling import neighbours_counted, require_setting

__all__ = ["Budget"]


@dataclass(frozen=True)
class Budget(Checked):
    """How much privacy each client may spend in total.

    Attributes:
        epsilon: the epsilon of a client without an entry in ``clients``.
        delta: the delta of every client.
        clients: maps a party's name to its own epsilon.
        method: how to count. ``"exact"`` and ``"moments"`` are closed forms for Gaussian releases, and add up the epsilons of others. ``"pld"`` and
            ``"rdp"`` are accountants of everything that Atoll releases; ``"dp-accounting-pld"`` and ``"dp-accounting-rdp"`` ask that library.
        on_excess: what to do with a training that needs more rounds than fit: ``"refuse"`` it before any client is contacted, if that is
            known beforehand, or ``"stop"`` it before the round that would exceed the budget.
        adversary: from whom the budget protects: ``"server"``, ``"clients"`` or ``"model"`` (whoever gets the model). An accountant counts
            only sampling that it does not know.
        neighbours: ``"add-remove"`` or ``"replace-one"``: an accountant counts sampling that fits. Noise is relative to this sensitivity. Against a server, which sees
            who takes part, releases of users and islands count by replacing one, whatever this says (`GaussianNoise`).
    """

    epsilon: float
    delta: float = 1e-5
    clients: Mapping[str, float] = field(default_factory=dict)
    method: Literal["exact", "moments", "rdp", "pld", "dp-accounting-rdp", "dp-accounting-pld"] = "exact"
    on_excess: Literal["refuse", "stop"] = "refuse"
    adversary: Literal["server", "clients", "model"] = "server"
    neighbours: Literal["add-remove", "replace-one"] = "add-remove"

    def __post_init__(self) -> None:
        if not isinstance(self.clients, Mapping) or not all(map(is_real, self.clients.values())):
            raise ConfigError(
                f"clients={self.clients!r}",
                where="Budget",
                remedy="give a dict that maps a party's name to its epsilon",
            )
        if not all(value > 0 for value in (self.epsilon, *self.clients.values())) or not 0 < self.delta < 1:
            raise ConfigError(
                f"epsilon={self.epsilon}, delta={self.delta}, clients={dict(self.clients)}",
                where="Budget",
                remedy="use a positive epsilon, and delta in (0, 1)",
            )
        if self.method not in METHODS:
            raise ConfigError(f"method={self.method!r}", where="Budget", remedy=f"use one of {', '.join(METHODS)}")
        require_setting(self.adversary, self.neighbours, "Budget")
        if self.method.startswith("dp-accounting"):
            need("dp_accounting", "dp", f"method={self.method!r}", where="Budget")
        if self.on_excess not in ("refuse", "stop"):
            raise ConfigError(f"on_excess={self.on_excess!r}", where="Budget", remedy="use 'refuse' or 'stop'")

    @property
    def needs(self) -> tuple[Need, ...]:
        """Return the needs: events to count, and a server that knows beforehand whose budget a round would spend."""
        return (
            Need(PROTECTION, "counts what is released under privacy", "no budget"),
            Need(
                CENTRAL_SERVER,
                "is kept by the server that invites",
                "no budget: what every client spends is in the ledger",
            ),
            Need(
                FIXED_COHORT,
                "counts against the clients that a round will ask",
                "no budget: what every client spends is in the ledger",
            ),
        )

    @property
    def offers(self) -> frozenset[Capability]:
        """Return nothing: no other part depends on a budget."""
        return frozenset()

    def of(self, party: str) -> float:
        """A party's epsilon."""
        return float(self.clients.get(party, self.epsilon))

    def measure_epsilon(self, loss: PrivacyLoss) -> float:
        """Epsilon of a loss, as this budget counts."""
        return loss.epsilon(self.delta, self.method, self.adversary, self.neighbours)

    def terms(self, loss: PrivacyLoss) -> str:
        """What the epsilon of a loss means: unit, neighbours, adversary and how it is counted."""
        events = [event for event, _ in loss.releases]
        neighbours = neighbours_counted(events, self.adversary, self.neighbours)
        units = " and ".join(sorted({event.unit for event, _ in loss.releases})) or "none"
        return f"unit {units}, neighbours {neighbours}, adversary {self.adversary}, counted by {self.method}"

    def exceeded(self, tally: LossTally, parties: Iterable[str], planned: Mapping[str, Iterable[Event]]) -> str | None:
        """Return why a request may not be made, or ``None`` if each party can afford it.

        Args:
            tally: what the parties have spent.
            parties: the parties that would be asked.
            planned: maps a party to what it would release.
        """
        tally.update()
        for party in parties:
            loss = tally.of(party)
            for event in planned[party]:
                loss = loss + PrivacyLoss.of(event)
            after = self.measure_epsilon(loss)
            if after > self.of(party) * (1 + 1e-12):
                before = self.measure_epsilon(tally.of(party))
                return (
                    f"the privacy budget of {party} is epsilon={self.of(party):g} at delta={self.delta:g}: "
                    f"{before:.4g} is spent, and another release would make it {after:.4g} ({self.terms(loss)})"
                )
        return None

    def affords(self, epsilon: float, before: PrivacyLoss, once: PrivacyLoss, most: int) -> int:
        """How many of ``most`` further contacts, each at cost ``once``, keep a party within its ``epsilon``; rounding never makes it too few.

        Args:
            epsilon: the party's epsilon; see `of`.
            before: what the party has spent.
            once: the cost of one contact.
            most: the number of contacts requested.
        """

        def after(times: int) -> float:
            return self.measure_epsilon(before + once.times(times))

        limit = epsilon * (1 + 1e-9)
        if most and after(most) <= limit:  # as in every training whose noise was found from its epsilon
            return most
        return bisect_right(range(1, most + 1), limit, key=after)
