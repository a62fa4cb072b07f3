"""What a budget allows, and what releases of several mechanisms spend together."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from atoll.core.calls import checked_call
from atoll.core.capability import CENTRAL_SERVER, FIXED_COHORT, PROTECTION, Capability, Need
from atoll.core.errors import ConfigError
from atoll.core.event import Event, Gaussian, Laplace, NonPrivate
from atoll.core.extras import need
from atoll.core.validation import Checked, is_real

from .accountant import METHODS, LossTally, PrivacyLoss
from .events import (
    DiscreteGaussian,
    DistributedGaussian,
    Perturbed,
    PrivateRelease,
    RandomisedResponse,
    Skellam,
    neighbours_counted,
    require_setting,
)
from .shuffling import Shuffled

__all__ = ["Budget", "group_privacy", "grouped", "joint", "parallel", "sequential"]


# ------------------------------------------------------------------ composition
#
# Composition: what several releases cost together, by who is in which, and what a group of units costs.


Array = npt.NDArray[np.float64]
Steps = Sequence[tuple[npt.ArrayLike, Collection[str]]]


@checked_call
def sequential(*curves: npt.ArrayLike) -> Array:
    """Releases about the same units: Rényi curves add up. Mironov 2017, Proposition 1."""
    return np.sum([np.asarray(curve, np.float64) for curve in curves], axis=0) if curves else np.zeros(1)


@checked_call
def parallel(steps: Steps) -> Array:
    """Releases about units of which nobody is in two: the largest curve, order by order.

    Sound only if private data do not decide who is in which: form groups from public attributes.

    Args:
        steps: pairs of a Rényi curve and the names of the units that it is about.

    Raises:
        ConfigError: a unit is in two steps.
    """
    seen: set[str] = set()
    for _, units in steps:
        if twice := seen & set(units):
            raise ConfigError(
                f"{min(twice)!r} is in two releases, so they are not parallel",
                where="parallel",
                remedy="use joint(steps), which adds up what each unit is in",
            )
        seen |= set(units)
    return joint(steps)


@checked_call
def joint(steps: Steps) -> Array:
    """Releases about units that partly overlap: the largest of the units' sums, order by order. Mind what `parallel` says about groups.

    Args:
        steps: pairs of a Rényi curve and the names of the units that it is about.
    """
    sums: dict[str, Array] = {}
    for curve, units in steps:
        for unit in set(units):
            sums[unit] = sums.get(unit, 0.0) + np.asarray(curve, np.float64)
    return np.max([*sums.values()], axis=0) if sums else np.zeros(1)


@checked_call
def group_privacy(epsilon: float, delta: float, size: int) -> tuple[float, float]:
    """The guarantee of a group of ``k`` units: ``(k epsilon, delta (e^(k epsilon) - 1) / (e^epsilon - 1))``. Vadhan 2017, Lemma 2.2.

    Args:
        epsilon: of one unit, above 0.
        delta: of one unit.
        size: ``k``, at least 1.

    Raises:
        ConfigError: a value out of range.
    """
    if not (epsilon > 0 and 0 <= delta <= 1 and size >= 1):
        raise ConfigError(
            f"epsilon={epsilon}, delta={delta}, size={size}",
            where="group_privacy",
            remedy="use a positive epsilon, delta in [0, 1] and at least one unit",
        )
    if size * epsilon > 700:
        return size * epsilon, 1.0 if delta > 0 else 0.0
    return size * epsilon, min(1.0, delta * math.expm1(size * epsilon) / math.expm1(epsilon))


@checked_call
def grouped(event: Event, size: int) -> Event:
    """The release as a group of ``size`` units sees it: moved ``size`` times as far, and never with amplification by sampling.

    Raises:
        ConfigError: the group is empty, or nothing is known about this kind of event.
    """
    if size < 1:
        raise ConfigError(f"size={size}", where="grouped", remedy="use at least one unit")
    if isinstance(event, Gaussian):
        return replace(event, noise_multiplier=event.noise_multiplier / size, sampling=1.0)
    if isinstance(event, Laplace | RandomisedResponse):
        bound: Event = Perturbed(unit=event.unit, scope=event.scope, count=event.count, epsilon=size * event.epsilon)
        return replace(event, epsilon=size * event.epsilon, sampling=1.0) if isinstance(event, Laplace) else bound
    if isinstance(event, Shuffled):  # nothing is known of several clones: as without shuffling
        return Perturbed(unit=event.unit, scope=event.scope, count=event.count, epsilon=size * event.epsilon)
    if isinstance(event, PrivateRelease):
        far, failing = group_privacy(event.epsilon, event.delta, size)
        return replace(event, epsilon=far, delta=failing) if failing < 1 else NonPrivate(unit=event.unit, scope=event.scope, count=event.count, what="nothing is left of its privacy for a group")  # fmt: skip
    if isinstance(event, Perturbed):
        return replace(event, epsilon=size * event.epsilon)
    if isinstance(event, Skellam | DiscreteGaussian | DistributedGaussian):
        return replace(event, sensitivity=size * event.sensitivity, sampling=1.0)
    raise ConfigError(
        f"the cost of an event of kind {event.kind!r} for a group is not known",
        where="grouped",
        remedy="use group_privacy on its epsilon and delta",
    )


# ------------------------------------------------------------------ budgets: how much privacy each client may spend, and the refusal before a request would exceed it


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
