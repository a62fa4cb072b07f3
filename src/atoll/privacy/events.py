"""Releases with discrete noise, and randomised response, as events."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from atoll.core.errors import ConfigError
from atoll.core.event import Event, Sampled, register_event

__all__ = ["DiscreteGaussian", "Perturbed", "RandomisedResponse", "Skellam"]


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
class _Lattice(Sampled):
    """Integer noise on integer vectors.

    Attributes:
        variance: variance of the noise on one entry (for the discrete Gaussian its parameter ``sigma^2``).
        sensitivity: how far one unit moves the vector, in L2.
        values: the number of entries; one, or as many as the vector has.
    """

    variance: float
    sensitivity: float = 1.0
    values: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_positive("variance", self.variance)
        _require_positive("sensitivity", self.sensitivity)
        if self.values < 1 or (self.values == 1 and self.sensitivity != int(self.sensitivity)):
            raise ConfigError(
                f"sensitivity={self.sensitivity}, values={self.values}",
                remedy="use at least one value, and a whole sensitivity where there is one: the noise is on whole numbers",
            )


@register_event
@dataclass(frozen=True, kw_only=True)
class Skellam(_Lattice):
    """The difference of two Poisson variables on each entry of an integer vector. Agarwal, Kairouz, Liu 2021."""

    kind: ClassVar[str] = "skellam"


@register_event
@dataclass(frozen=True, kw_only=True)
class DiscreteGaussian(_Lattice):
    """``P(k) ~ exp(-k^2 / (2 sigma^2))`` on each entry of an integer vector. Canonne, Kamath, Steinke 2020."""

    kind: ClassVar[str] = "discrete-gaussian"


def _require_positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{name}={value}", remedy="use a finite number > 0")
