"""Laws of whole numbers, as weights of 60 decimal digits, from which `DiscreteSampler` makes its table.

A law keeps all values but a tail of mass at most ``2^-120``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from typing import ClassVar

from atoll.core.errors import ConfigError

__all__ = ["TAIL_BITS", "DiscreteGaussianLaw", "DiscreteLaplaceLaw", "Law", "PoissonLaw", "SkellamLaw"]

TAIL_BITS = 120
"""The values that a law leaves out have mass at most ``2^-TAIL_BITS``."""
_FAR = 130 * math.log(2)
DIGITS = Context(prec=60, Emax=MAX_EMAX, Emin=MIN_EMIN)


@dataclass(frozen=True)
class Law:
    """Base class of laws."""

    largest: ClassVar[float] = 0.0
    """The largest parameter: above it, the table would have more than about a million entries."""

    def weights(self) -> tuple[int, list[Decimal]]:
        """The smallest value, and the weights of it and the following values, which need not add up to 1."""
        raise NotImplementedError

    @property
    def variance_of_law(self) -> float:
        """The variance of one draw."""
        raise NotImplementedError

    def _require(self, name: str, value: float) -> None:
        if not (math.isfinite(value) and 0 < value <= self.largest):
            raise ConfigError(
                f"{name}={value}", where=type(self).__name__,
                remedy=f"use a number above 0 and at most {self.largest:g}; a larger one needs a coarser grid",
            )  # fmt: skip


@dataclass(frozen=True)
class DiscreteGaussianLaw(Law):
    """``P(k) ~ exp(-k^2 / (2 variance))``; its variance is at most ``variance``. Canonne, Kamath, Steinke 2020."""

    variance: float
    largest: ClassVar[float] = 2.0**26

    def __post_init__(self) -> None:
        self._require("variance", self.variance)

    def weights(self) -> tuple[int, list[Decimal]]:
        """By the recurrence ``w(k + 1) = w(k) exp(-(2 k + 1) / (2 variance))``."""
        reach = math.ceil(math.sqrt(2 * self.variance * (_FAR + math.log(self.variance + 2)))) + 2
        with localcontext(DIGITS):
            ratio = (Decimal(-1) / (2 * Decimal(self.variance))).exp()
            step, half = ratio * ratio, [Decimal(1)]
            for _ in range(reach):
                half.append(half[-1] * ratio)
                ratio *= step
        return -reach, [*half[:0:-1], *half]

    @property
    def variance_of_law(self) -> float:
        """Summed term by term where it differs from ``variance``, which is above 1 never visible in double precision."""
        if self.variance > 4:
            return self.variance
        terms = [math.exp(-k * k / (2 * self.variance)) for k in range(1, 100)]
        return 2 * sum(k * k * w for k, w in enumerate(terms, 1)) / (1 + 2 * sum(terms))


@dataclass(frozen=True)
class SkellamLaw(Law):
    """The difference of two Poisson variables of mean ``variance / 2`` each. Sums of independent ones are Skellam, of the sum of the variances."""

    variance: float
    largest: ClassVar[float] = 2.0**26

    def __post_init__(self) -> None:
        self._require("variance", self.variance)

    def weights(self) -> tuple[int, list[Decimal]]:
        """From ``I_k(v) / I_(k-1)(v)``, whose continued fraction runs from far outside inwards: every term is positive."""
        v = self.variance
        reach = _least(lambda t: t * math.asinh(t / v) - (math.hypot(t, v) - v)) + 2
        start = reach + 60 + int(10 * math.sqrt(v))
        with localcontext(DIGITS):
            twice, ratio, ratios = 2 / Decimal(v), Decimal(0), []
            for k in range(start, 0, -1):
                ratio = 1 / (twice * k + ratio)
                if k <= reach:
                    ratios.append(ratio)
            half = [Decimal(1)]
            for ratio in reversed(ratios):
                half.append(half[-1] * ratio)
        return -reach, [*half[:0:-1], *half]

    @property
    def variance_of_law(self) -> float:
        """``variance``."""
        return self.variance


@dataclass(frozen=True)
class DiscreteLaplaceLaw(Law):
    """``P(k) ~ exp(-|k| / scale)``: a count of sensitivity 1 with this noise is ``1 / scale``-private. Ghosh, Roughgarden, Sundararajan 2009."""

    scale: float
    largest: ClassVar[float] = 2.0**11

    def __post_init__(self) -> None:
        self._require("scale", self.scale)

    def weights(self) -> tuple[int, list[Decimal]]:
        """Powers of ``exp(-1 / scale)``."""
        reach = math.ceil(self.scale * (_FAR + math.log(self.scale + 2))) + 2
        with localcontext(DIGITS):
            ratio, half = (Decimal(-1) / Decimal(self.scale)).exp(), [Decimal(1)]
            for _ in range(reach):
                half.append(half[-1] * ratio)
        return -reach, [*half[:0:-1], *half]

    @property
    def variance_of_law(self) -> float:
        """``2 q / (1 - q)^2`` with ``q = exp(-1 / scale)``."""
        return 2 * math.exp(-1 / self.scale) / math.expm1(-1 / self.scale) ** 2


@dataclass(frozen=True)
class PoissonLaw(Law):
    """``P(k) = exp(-mean) mean^k / k!``."""

    mean: float
    largest: ClassVar[float] = 2.0**26

    def __post_init__(self) -> None:
        self._require("mean", self.mean)

    def weights(self) -> tuple[int, list[Decimal]]:
        """From the mode outwards."""
        mean, mode = self.mean, int(self.mean)
        above = _least(lambda t: (mean + t) * math.log1p(t / mean) - t) + 2
        below = _least(lambda t: t * t / (2 * mean)) + 2
        with localcontext(DIGITS):
            rate, up, down = Decimal(mean), [Decimal(1)], [Decimal(1)]
            for k in range(mode + 1, mode + above + 2):
                up.append(up[-1] * rate / k)
            for k in range(mode, max(0, mode - below - 1), -1):
                down.append(down[-1] * k / rate)
        return mode - (len(down) - 1), [*down[:0:-1], *up]

    @property
    def variance_of_law(self) -> float:
        """``mean``."""
        return self.mean


def _least(exponent: Callable[[int], float]) -> int:
    """The least distance from the mean at which Chernoff's bound ``exp(-exponent)`` is small enough."""
    high = 1
    while exponent(high) < _FAR:
        high *= 2
    low = high // 2
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if exponent(middle) < _FAR else (low, middle)
    return high
