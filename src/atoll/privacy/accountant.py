"""Accounting: from events to the epsilon that each party has spent, by the accountant that you choose."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np

from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError
from atoll.core.event import Event, Gaussian, Laplace, Ledger, NonPrivate, Sampled, SeededSecret, unpack_event
from atoll.core.extras import need

from .events import (
    Lattice,
    Perturbed,
    PrivateRelease,
    RandomisedResponse,
    as_counted,
    hidden_rate,
    in_the_clear,
    require_setting,
)
from .gaussian import exact_epsilon, moments_epsilon
from .loss_distribution import compose
from .renyi import ORDERS, renyi_curve, renyi_epsilon
from .shuffling import Shuffled

__all__ = ["ACCOUNTANTS", "Accountant", "LossTally", "METHODS", "Perturbed", "PrivacyLoss", "epsilon_of", "spent"]

Accountant = Literal["rdp", "pld", "dp-accounting-rdp", "dp-accounting-pld"]
ACCOUNTANTS: tuple[str, ...] = get_args(Accountant)
_FARTHEST = 700.0
Releases = tuple[tuple[Event, int], ...]


@lru_cache(maxsize=4096)
def epsilon_of(
    releases: Releases,
    delta: float,
    accountant: str = "pld",
    adversary: str = "server",
    neighbours: str = "add-remove",
    error: float = 0.0,
) -> float:
    """Epsilon of releases about the same data, at ``delta``.

    Args:
        releases: pairs of a release and how often it is made; the event's own ``count`` multiplies.
        delta: in (0, 1).
        accountant: ``"rdp"`` and ``"pld"`` are ours; ``"dp-accounting-rdp"`` and ``"dp-accounting-pld"`` ask the library of that name.
        adversary: ``"server"``, ``"clients"`` or ``"model"``: from whom it protects. Only sampling that it does not know counts.
        neighbours: ``"add-remove"`` or ``"replace-one"``: which data sets are neighbours. The noise of every event is relative to the
            sensitivity between such neighbours.
        error: by about how much the result of ``"pld"`` may be too large, for speed; it is never too small.

    Raises:
        ConfigError: a setting does not exist, or the accountant does not know a kind of event.
        MissingExtraError: ``dp-accounting`` is not installed.
    """
    require_setting(adversary, neighbours, "epsilon_of")
    if accountant not in ACCOUNTANTS or not 0 < delta < 1:
        raise ConfigError(
            f"accountant={accountant!r}, delta={delta}",
            where="epsilon_of",
            remedy=f"use one of {', '.join(ACCOUNTANTS)}, and delta in (0, 1)",
        )
    counted = [
        (as_counted(event, adversary, neighbours), n * event.count) for event, n in releases if not event.free and n > 0
    ]
    if any(in_the_clear(event, adversary) for event, _ in counted):
        return math.inf
    counted = [(event, n) for event, n in counted if not isinstance(event, NonPrivate)]
    if not counted:
        return 0.0
    failing = _failing(counted)
    if failing > 0:
        certain = tuple((replace(event, delta=0.0) if isinstance(event, PrivateRelease) else event, n) for event, n in releases)  # fmt: skip
        left = delta - failing
        return epsilon_of(certain, left, accountant, adversary, neighbours, error) if left > 0 else math.inf
    slack = sum(n * event.slack for event, n in counted if isinstance(event, Lattice))
    if slack > 0:
        return _with_slack(releases, delta, slack, (accountant, adversary, neighbours))
    if accountant == "rdp":
        curve = sum((n * renyi_curve(e, adversary, neighbours) for e, n in counted), np.zeros(len(ORDERS)))
        pure = sum(n * _pure(e) for e, n in counted)
        return min(pure, renyi_epsilon(curve, delta))
    if accountant == "pld":
        return _by_loss(counted, delta, adversary, neighbours, error)
    return _by_library(counted, delta, accountant, adversary, neighbours)


def _failing(counted: Iterable[tuple[Event, int]]) -> float:
    """The probability that one of the releases tells all: the sum of their own deltas."""
    return sum(n * event.delta for event, n in counted if isinstance(event, PrivateRelease))


def _with_slack(releases: Releases, delta: float, slack: float, how: tuple[str, str, str]) -> float:
    """Epsilon of noise that is drawn within a statistical distance of its law: ``(epsilon, d)`` for the law is ``(epsilon, d + (1 + exp(epsilon)) slack)`` for the draws."""
    exact = tuple((replace(event, slack=0.0) if isinstance(event, Lattice) else event, n) for event, n in releases)
    half = epsilon_of(exact, delta / 2, *how)
    charged = (1 + math.exp(min(half, _FARTHEST))) * slack
    return epsilon_of(exact, delta - charged, *how) if charged <= delta / 2 else math.inf


def _pure(event: Event) -> float:
    return event.epsilon if isinstance(event, Laplace | RandomisedResponse | Perturbed | Shuffled) else math.inf


def _by_loss(counted: list[tuple[Event, int]], delta: float, adversary: str, neighbours: str, error: float) -> float:
    """Gaussian releases to everybody are one with less noise, exactly; the rest composes as distributions, in both directions."""
    plain, joined = 0.0, dict[Event, int]()
    for event, n in counted:
        if isinstance(event, Gaussian) and hidden_rate(event, adversary, neighbours) == 1:
            plain += n / event.noise_multiplier**2
        else:
            joined[event] = joined.get(event, 0) + n
    if not joined:
        return exact_epsilon(plain, delta)
    if plain > 0:
        joined[Gaussian(noise_multiplier=1 / math.sqrt(plain))] = 1
    sampled = neighbours == "add-remove" and any(hidden_rate(event, adversary, neighbours) < 1 for event in joined)
    return max(compose(joined, adversary, neighbours, added, error).epsilon(delta) for added in {False, sampled})


def _by_library(
    counted: list[tuple[Event, int]], delta: float, accountant: str, adversary: str, neighbours: str
) -> float:
    library = need("dp_accounting", "dp", f"accountant={accountant!r}", where="atoll.privacy")
    module = need(f"dp_accounting.{accountant[-3:]}", "dp", f"accountant={accountant!r}", where="atoll.privacy")
    relation = library.NeighboringRelation
    kind = module.RdpAccountant if accountant.endswith("rdp") else module.PLDAccountant
    found = kind(
        neighboring_relation=relation.ADD_OR_REMOVE_ONE if neighbours == "add-remove" else relation.REPLACE_ONE
    )
    for event, n in counted:
        theirs = _theirs(library, event, adversary, neighbours)
        if theirs is None or not found.supports(theirs):
            raise ConfigError(
                f"dp-accounting does not count an event of kind {event.kind!r} for neighbours={neighbours!r}",
                where=accountant,
                remedy="use accountant 'pld' or 'rdp'",
            )
        if isinstance(event, RandomisedResponse):  # its PLD accountant of 0.6 leaves out the count of this one
            for _ in range(n):
                found.compose(theirs)
        else:
            found.compose(theirs, n)
    return float(found.get_epsilon(delta))


def _theirs(library: Any, event: Event, adversary: str, neighbours: str) -> Any:
    """The event in the library's words; ``None`` if it has none."""
    if isinstance(event, Gaussian):
        noise = library.GaussianDpEvent(event.noise_multiplier)
    elif isinstance(event, Laplace):
        noise = library.LaplaceDpEvent(1 / event.epsilon)
    elif isinstance(event, RandomisedResponse):
        lie = event.buckets / (math.exp(event.epsilon) + event.buckets - 1)
        noise = library.RandomizedResponseDpEvent(lie, event.buckets)
    else:
        return None
    rate = hidden_rate(event, adversary, neighbours)
    scheme = event.scheme if isinstance(event, Sampled) else ""
    if rate < 1 and (scheme, neighbours) == ("poisson", "add-remove"):
        return library.PoissonSampledDpEvent(rate, noise)
    if rate < 1 and (scheme, neighbours) == ("fixed", "replace-one"):
        share = Fraction(rate).limit_denominator(10**7)
        return library.SampledWithoutReplacementDpEvent(share.denominator, share.numerator, noise)
    return noise


# ---------------------------------------------------------------- accounting: from events to the epsilon that each party has spent

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
        left = delta - _failing(self.releases)
        if left <= 0 and left < delta:
            return math.inf
        if gaussian == 0.0:
            return self.pure
        bound = exact_epsilon if method == "exact" else moments_epsilon
        return self.pure + bound(gaussian, left)


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
