"""Releases with discrete noise, and randomised response, as events; and the laws of their noise, accurate far in the tails."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Literal, Self, get_args

import numpy as np
import numpy.typing as npt

from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError
from atoll.core.event import Event, Gaussian, NonPrivate, Sampled, register_event

__all__ = [
    "ADVERSARIES",
    "Adversary",
    "DiscreteGaussian",
    "DistributedGaussian",
    "Lattice",
    "NEIGHBOURS",
    "Neighbours",
    "Perturbed",
    "PrivateRelease",
    "RandomisedResponse",
    "Skellam",
    "SkellamMixture",
    "as_counted",
    "discrete_gaussian_law",
    "hidden_rate",
    "in_the_clear",
    "neighbours_counted",
    "require_setting",
    "skellam_divergence",
    "skellam_law",
]


# ------------------------------------------------------------------ releases with discrete noise, and randomised response, as events; and the laws of their noise, accurate far in the tails


@register_event
@dataclass(frozen=True, kw_only=True)
class Perturbed(Event):
    """The minimiser of a perturbed objective: an ``epsilon``-private release."""

    epsilon: float
    kind: ClassVar[str] = "perturbed-objective"

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_positive("epsilon", self.epsilon)


@register_event
@dataclass(frozen=True, kw_only=True)
class PrivateRelease(Perturbed):
    """A release of which nothing is known but that it is ``(epsilon, delta)``-private: a threshold on noised counts, or noise on a sample that only its party knows.

    Accountants count the worst release of this kind: with probability ``delta`` it tells all, else it is a randomised response of two values (Kairouz, Oh, Viswanath 2015, theorem 3.3).

    Attributes:
        epsilon: above 0.
        delta: in [0, 1). Accountants take it off the delta at which they give an epsilon.
    """

    delta: float = 0.0
    kind: ClassVar[str] = "private-release"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.delta < 1:
            raise ConfigError(f"delta={self.delta}", remedy="use a number of at least 0 and below 1")


@register_event
@dataclass(frozen=True, kw_only=True)
class RandomisedResponse(Sampled):
    """A report of one of ``buckets`` values: the true one with probability ``e^epsilon / (e^epsilon + buckets - 1)``, else any other.

    Warner 1965; Kairouz, Oh, Viswanath 2014.
    """

    epsilon: float
    buckets: int = 2
    kind: ClassVar[str] = "randomised-response"

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_positive("epsilon", self.epsilon)
        if self.buckets < 2:
            raise ConfigError(f"buckets={self.buckets}", remedy="use at least 2 values to choose from")


@dataclass(frozen=True, kw_only=True)
class Lattice(Sampled):
    """Integer noise on integer vectors.

    Attributes:
        variance: variance of the noise on one entry (for the discrete Gaussian its parameter ``sigma^2``).
        sensitivity: how far one unit moves the vector, in L2.
        values: the number of entries; one, or as many as the vector has.
        slack: statistical distance of the drawn noise from its law, over all entries and parties. Accountants charge it to delta.
        between: see `Gaussian`.
    """

    variance: float
    sensitivity: float = 1.0
    values: int = 1
    slack: float = 0.0
    between: str = ""
    rounded: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_positive("variance", self.variance)
        _require_positive("sensitivity", self.sensitivity)
        if not 0 <= self.slack < 1:
            raise ConfigError(f"slack={self.slack}", remedy="use a statistical distance in [0, 1)")
        if self.between not in ("", "add-remove"):
            raise ConfigError(f"between={self.between!r}", remedy="use '' or 'add-remove'")
        whole = self.sensitivity == int(self.sensitivity) or not self.rounded
        if self.values < 1 or (self.values == 1 and not whole):
            raise ConfigError(
                f"sensitivity={self.sensitivity}, values={self.values}",
                remedy="use at least one value, and a whole sensitivity where there is one: the noise is on whole numbers",
            )

    def twice_as_far(self) -> Self:
        """The release as a unit sees it that moves it twice as far."""
        return replace(self, sensitivity=2 * self.sensitivity, between="")


@register_event
@dataclass(frozen=True, kw_only=True)
class Skellam(Lattice):
    """The difference of two Poisson variables on each entry of an integer vector. Agarwal, Kairouz, Liu 2021."""

    kind: ClassVar[str] = "skellam"


@register_event
@dataclass(frozen=True, kw_only=True)
class DiscreteGaussian(Lattice):
    """``P(k) ~ exp(-k^2 / (2 sigma^2))`` on each entry of an integer vector. Canonne, Kamath, Steinke 2020."""

    kind: ClassVar[str] = "discrete-gaussian"


@register_event
@dataclass(frozen=True, kw_only=True)
class DistributedGaussian(Lattice):
    """The sum of ``parties`` discrete Gaussians of variance ``variance / parties`` each, which is no discrete Gaussian.

    Kairouz, Liu, Steinke 2021, "The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation", Proposition 14.

    Attributes:
        parties: number of summands, each with a standard deviation of at least 1/2.
    """

    parties: int = 1
    kind: ClassVar[str] = "distributed-gaussian"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.parties < 1 or (self.parties > 1 and self.variance < self.parties / 4):
            raise ConfigError(
                f"variance={self.variance} of {self.parties} parties",
                remedy="use a finer grid: the noise of each party needs a standard deviation of at least 1/2",
            )


@register_event
@dataclass(frozen=True, kw_only=True)
class SkellamMixture(Lattice):
    """Skellam noise on a vector that was rounded at random. ``sensitivity`` bounds the root of the mean squared L2 distance after rounding.

    Bao, Zhu, Xiao, Yang, Ooi, Tan, Xu 2022, "Skellam Mixture Mechanism: a Novel Approach to Federated Learning with Differential Privacy". The bound of its
    divergence is ours, see ``renyi.mixture_bound``.

    Attributes:
        largest: how far one unit moves an entry.
        both: whether both of the vectors that are compared were rounded (one unit is replaced), or one of them is 0 (it is added or removed).
    """

    largest: int = 1
    both: bool = False
    rounded: ClassVar[bool] = False
    kind: ClassVar[str] = "skellam-mixture"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.largest < 1:
            raise ConfigError(f"largest={self.largest}", remedy="use a whole number of at least 1")

    def twice_as_far(self) -> Self:
        """The same between two vectors that were both rounded."""
        return replace(super().twice_as_far(), largest=2 * self.largest, both=True)


def _require_positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{name}={value}", remedy="use a finite number > 0")


Array = npt.NDArray[np.float64]


@lru_cache(maxsize=64)
def skellam_law(variance: float, reach: int) -> Array:
    """``ln P(k)`` for ``k = -reach .. reach``, with ``P(k) = exp(-v) I_k(v)``.

    The ratios ``I_k / I_(k-1)`` come from their continued fraction, from far outside inwards: every term is positive, nothing cancels.
    """
    start = reach + 60 + int(10 * math.sqrt(variance))
    ratios, ratio = np.empty(reach), 0.0
    for k in range(start, 0, -1):
        ratio = 1.0 / (2.0 * k / variance + ratio)
        if k <= reach:
            ratios[k - 1] = ratio
    return _normalise_profile(np.concatenate([[0.0], np.cumsum(np.log(ratios))]))


@lru_cache(maxsize=64)
def discrete_gaussian_law(variance: float, reach: int) -> Array:
    """``ln P(k)`` for ``k = -reach .. reach``, with ``P(k) ~ exp(-k^2 / (2 variance))``."""
    return _normalise_profile(-(np.arange(reach + 1.0) ** 2) / (2.0 * variance))


@checked_call
def skellam_divergence(order: float, variance: float, shift: int = 1) -> float:
    """The Rényi divergence of one Skellam variable and the same moved by ``shift``, summed term by term.

    Args:
        order: above 1.
        variance: of the variable.
        shift: a whole number.
    """
    reach = int(40 * math.sqrt(variance) + 2 * order * shift + 60)
    law = skellam_law(variance, reach)
    terms = order * law[:-shift] + (1.0 - order) * law[shift:]
    top = terms.max()
    return max(0.0, float(top + np.log(np.exp(terms - top).sum())) / (order - 1.0))


def _normalise_profile(half: Array) -> Array:
    whole = np.concatenate([half[:0:-1], half])
    top = whole.max()
    found: Array = whole - (top + math.log(np.exp(whole - top).sum()))
    return found


# ------------------------------------------------------------------ which sampling an adversary does not know: only that protects


Adversary = Literal["server", "clients", "model"]
Neighbours = Literal["add-remove", "replace-one"]
ADVERSARIES: tuple[str, ...] = get_args(Adversary)
NEIGHBOURS: tuple[str, ...] = get_args(Neighbours)

_SEES = {
    "everyone": frozenset(ADVERSARIES),
    "clients": frozenset({"server", "clients"}),
    "server": frozenset({"server"}),
}
_KNOWS = {"public": frozenset(ADVERSARIES), "server": frozenset({"server"}), "party": frozenset[str]()}


def hidden_rate(event: Event, adversary: str, neighbours: str) -> float:
    """The rate at which a unit takes part, as far as the adversary does not know who does: 1 if it knows the draw.

    A sample of fixed size counts for neighbours by replacing one only: if one is added, everybody's rate changes.
    """
    if not isinstance(event, Sampled) or adversary in _KNOWS[event.drawn_by]:
        return 1.0
    if (event.scheme, neighbours) == ("fixed", "add-remove"):
        return 1.0
    return event.sampling


def as_counted(event: Event, adversary: str, neighbours: str) -> Event:
    """The release between the neighbours that count against this adversary.

    A server sees which users and which islands take part, so what hides whether one does hides nothing from it: against a server, one is replaced by another. A release
    whose sensitivity is that of a unit which is there or not (``between="add-remove"``) then moves twice as far: away, and back. Examples are not seen one by one.
    """
    return event.twice_as_far() if _replaced(event, adversary, neighbours) else event  # type: ignore[attr-defined]


def _replaced(event: Event, adversary: str, neighbours: str) -> bool:
    seen = adversary == "server" and event.unit != "example"
    return getattr(event, "between", "") == "add-remove" and (seen or neighbours == "replace-one")


def neighbours_counted(events: Iterable[Event], adversary: str, neighbours: str) -> str:
    """The neighbours that an epsilon of these releases is about, where ``neighbours`` was asked for: by replacing one if a release counts so; see `as_counted`."""
    return "replace-one" if any(_replaced(event, adversary, neighbours) for event in events) else neighbours


def in_the_clear(event: Event, adversary: str) -> bool:
    """Whether the adversary sees a release that has no noise."""
    if isinstance(event, NonPrivate):
        return adversary in _SEES[event.seen_by]
    return isinstance(event, Gaussian) and event.noise_multiplier == 0


def require_setting(adversary: str, neighbours: str, where: str = "atoll.privacy") -> None:
    """Refuse an adversary or neighbours that do not exist.

    Raises:
        ConfigError: names the value and those that exist.
    """
    if adversary not in ADVERSARIES:
        raise ConfigError(f"adversary={adversary!r}", where=where, remedy=f"use one of {', '.join(ADVERSARIES)}")
    if neighbours not in NEIGHBOURS:
        raise ConfigError(f"neighbours={neighbours!r}", where=where, remedy=f"use one of {', '.join(NEIGHBOURS)}")
