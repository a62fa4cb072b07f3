"""Accounting: from events to the epsilon that each party has spent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError
from atoll.core.event import Event, Gaussian, Laplace, Ledger, NonPrivate, SeededSecret, unpack_event

from .accountants import ACCOUNTANTS, epsilon_of
from .events import Lattice, Perturbed, RandomisedResponse
from .gaussian import exact_epsilon, moments_epsilon
from .sampling import as_counted, in_the_clear
from .shuffling import Shuffled

__all__ = ["METHODS", "LossTally", "Perturbed", "PrivacyLoss", "spent"]

METHODS = ("exact", "moments", *ACCOUNTANTS)
"""Ways to count: the two closed forms, which ignore sampling and add pure epsilons up, and the accountants."""

_FIELDS = ("party", "request", "job")


@dataclass(frozen=True)
class PrivacyLoss:
    """The joint cost of releases. Costs add up, whatever the releases depend on.

    Attributes:
        gaussian: ``sum D^2 / sigma^2`` over the Gaussian releases, for the closed forms.
        pure: sum of the epsilons of the pure releases, for the closed forms.
        releases: each kind of release and how often it was made, for the accountants.
    """

    gaussian: float = 0.0
    pure: float = 0.0
    releases: tuple[tuple[Event, int], ...] = ()

    def __add__(self, other: PrivacyLoss) -> PrivacyLoss:
        counts = dict(self.releases)
        for event, n in other.releases:
            counts[event] = counts.get(event, 0) + n
        return PrivacyLoss(self.gaussian + other.gaussian, self.pure + other.pure, tuple(counts.items()))

    def times(self, number: int) -> PrivacyLoss:
        """The cost of everything ``number`` times."""
        if number == 0:
            return PrivacyLoss()
        each = tuple((event, n * number) for event, n in self.releases)
        return PrivacyLoss(self.gaussian * number, self.pure * number, each)

    @classmethod
    def of(cls, event: Event) -> PrivacyLoss:
        """Return the cost of an event. In the closed forms, sampling counts as full participation, which is an upper bound.

        Raises:
            ConfigError: no accountant supports this kind of event.
        """
        if event.free:
            return cls()
        one = event if event.count == 1 and event.scope == "*" else replace(event, count=1, scope="*")
        releases = ((one, event.count),)
        if isinstance(event, Gaussian):
            z = event.noise_multiplier
            return cls(gaussian=event.count / z**2 if z > 0 else math.inf, releases=releases)
        if isinstance(event, Laplace | Perturbed | RandomisedResponse | Shuffled):
            return cls(pure=event.count * event.epsilon, releases=releases)
        if isinstance(event, NonPrivate):
            return cls(releases=releases)
        if isinstance(event, Lattice):
            return cls(releases=releases)
        raise ConfigError(
            f"the cost of an event of kind {event.kind!r} is not known",
            where="Loss.of",
            remedy="release with Gaussian or Laplace noise, or count it yourself",
        )

    def epsilon(
        self, delta: float, method: str = "exact", adversary: str = "server", neighbours: str = "add-remove"
    ) -> float:
        """Epsilon at ``delta``.

        Args:
            delta: in (0, 1]; unused if no release was Gaussian.
            method: ``"exact"`` or ``"moments"`` (never smaller; the bound that papers report), which give all of ``delta`` to the Gaussian part;
                or an accountant, see `epsilon_of`.
            adversary: for an accountant: only sampling that it does not know counts.
            neighbours: which data sets are neighbours; see `as_counted` for those that a server sees.

        Raises:
            ConfigError: the method does not exist, or does not count a release.
        """
        if method in ACCOUNTANTS:
            return epsilon_of(self.releases, delta, method, adversary, neighbours)
        if method not in METHODS:
            raise ConfigError(
                f"method={method!r}",
                where="Loss.epsilon",
                remedy=f"use {', '.join(map(repr, METHODS[:-1]))} or {METHODS[-1]!r}",
            )
        for event, _ in self.releases:
            if isinstance(event, Lattice):
                raise ConfigError(
                    f"method {method!r} does not count an event of kind {event.kind!r}",
                    where="Loss.epsilon",
                    remedy="use method 'rdp' or 'pld'",
                )
        if any(in_the_clear(event, adversary) for event, _ in self.releases):
            return math.inf
        seen = ((as_counted(event, adversary, neighbours), event, n) for event, n in self.releases)
        gaussian = self.gaussian + sum(
            n * (PrivacyLoss.of(far).gaussian - PrivacyLoss.of(event).gaussian)
            for far, event, n in seen
            if far is not event
        )
        if not (math.isfinite(gaussian) and math.isfinite(self.pure)):
            return math.inf
        if gaussian == 0.0:
            return self.pure
        bound = exact_epsilon if method == "exact" else moments_epsilon
        return self.pure + bound(gaussian, delta)


@dataclass
class LossTally:
    """The losses of all parties, updated as a ledger grows.

    Attributes:
        ledger: the ledger of a world; entries are read in order and never removed.
        within: slot of a job's scope, whose requests alone are counted; empty counts all.
    """

    ledger: Iterable[Mapping[str, Any]]
    losses: dict[str, PrivacyLoss] = field(default_factory=dict)
    seeded: bool = False
    within: str = ""
    _read: int = 0

    def update(self) -> LossTally:
        """Read the new entries."""
        lines = self.ledger.lines(self._read) if isinstance(self.ledger, Ledger) else [*self.ledger][self._read :]
        self._read += len(lines)
        for entry in lines:
            event = unpack_event({name: value for name, value in entry.items() if name not in _FIELDS})
            self.seeded = self.seeded or isinstance(event, SeededSecret)
            if event.free or (self.within and not str(entry["request"]).startswith(f"{self.within}/")):
                continue
            loss, party = PrivacyLoss.of(event), entry["party"]
            for name in [party] if isinstance(party, str) else party:
                self.losses[name] = self.losses.get(name, PrivacyLoss()) + loss
        return self

    def of(self, party: str) -> PrivacyLoss:
        """The loss of a party, including releases in the name of all parties."""
        both = self.losses.get(party, PrivacyLoss())
        return both + self.losses["*"] if "*" in self.losses and party != "*" else both

    def most(
        self, delta: float, method: str = "exact", adversary: str = "server", neighbours: str = "add-remove"
    ) -> float:
        """Epsilon of the party that has spent the most; see `PrivacyLoss.epsilon`."""
        losses = {self.of(name) for name in self.losses}
        return max((loss.epsilon(delta, method, adversary, neighbours) for loss in losses), default=0.0)


@checked_call
def spent(
    ledger: Iterable[Mapping[str, Any]],
    delta: float,
    method: str = "exact",
    adversary: str = "server",
    neighbours: str = "add-remove",
) -> dict[str, float]:
    """Epsilon of each party in a ledger at ``delta``; see `PrivacyLoss.epsilon`."""
    tally = LossTally(ledger).update()
    return {
        party: tally.of(party).epsilon(delta, method, adversary, neighbours) for party in tally.losses if party != "*"
    }
