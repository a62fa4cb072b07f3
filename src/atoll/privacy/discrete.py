"""Noise on whole numbers: laws, exact draws from a party's secret, and noise for real numbers on a lattice.

A law gives weights of 60 decimal digits, from which `DiscreteSampler` makes its table. A law keeps all values but a tail of mass at most ``2^-120``.

On a lattice, what leaves is a multiple of a power of two, whatever the value is. Floating-point noise on a floating-point number tells the number by its last bits
(Mironov 2012, "On Significance of the Least Significant Bits for Differential
Privacy"): which results are possible depends on it. Here a value ``x`` becomes ``g (trunc(x / g) + Z)``. The step ``g`` is a power of two that follows from the scale of the
noise alone, ``Z`` is a whole number of the discrete Laplace or discrete Gaussian law, and the sum is rounded once, after it is exact. So the same multiples
of ``g`` are possible for every value.

``Z`` is put together from digits of tables (`DiscreteSampler`), since its scale is millions of steps:

* The magnitude of a discrete Laplace variable is geometric. Digits of a geometric variable are independent: digit ``j`` to base ``B`` has ``P(d) ~ exp(-d B^j / t)``.
* ``Z_0 + k Z_1 + k^2 Z_2`` with discrete Gaussians ``Z_0, Z_1`` of parameter ``8 k`` is a discrete Gaussian, up to a statistical distance of ``2^-500``: each is smooth
on the lattice of the
  next (Micciancio, Walter 2017, "Gaussian Sampling over the Integers", section 3).

**Rounding is part of what is counted.** Rounding towards zero makes no norm longer. So two values of norm at most ``bound`` are at most ``2 bound`` apart afterwards, and nothing is
added. Where a bound of the *distance* of neighbours is all that is known, rounding adds up to a step an entry: give ``sensitivity``, and the noise is wider by that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from functools import lru_cache
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError

__all__ = [
    "DISTANCE",
    "DiscreteGaussianLaw",
    "DiscreteLaplaceLaw",
    "DiscreteSampler",
    "GaussianLattice",
    "LaplaceLattice",
    "LaplacePartLaw",
    "Law",
    "PoissonLaw",
    "SkellamLaw",
    "Source",
    "TAIL_BITS",
    "add_gaussian",
    "add_laplace",
    "clip_rows",
    "sampler_of",
    "snap",
    "words_of",
]

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
class LaplacePartLaw(Law):
    """Half of a part of discrete Laplace noise: the difference of two draws, added up over ``parts`` parties, is `DiscreteLaplaceLaw` of the same scale, exactly.

    Negative binomial with ``r = 1 / parts``: ``P(k) ~ q^k r (r + 1) … (r + k - 1) / k!``, ``q = exp(-1 / scale)``. Sums of those are negative binomial, and with ``r = 1`` geometric, of which discrete Laplace noise is
    the difference of two (Goryczka and Xiong 2017, theorem 3; Bagdasaryan et al. 2022).
    """

    scale: float
    parts: int = 1
    largest: ClassVar[float] = 2.0**12

    def __post_init__(self) -> None:
        self._require("scale", self.scale)
        if self.parts < 1:
            raise ConfigError(f"parts={self.parts}", where=type(self).__name__, remedy="use 1 or more")

    def weights(self) -> tuple[int, list[Decimal]]:
        """By the ratio of neighbours, ``q (k + r) / (k + 1)``."""
        reach = math.ceil(self.scale * (_FAR + math.log(self.scale + 2))) + 2
        with localcontext(DIGITS):
            ratio, r, made = (Decimal(-1) / Decimal(self.scale)).exp(), 1 / Decimal(self.parts), [Decimal(1)]
            for k in range(reach):
                made.append(made[-1] * ratio * (k + r) / (k + 1))
        return 0, made

    @property
    def variance_of_law(self) -> float:
        """``r q / (1 - q)^2``."""
        return math.exp(-1 / self.scale) / math.expm1(-1 / self.scale) ** 2 / self.parts


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


# ---------------------------------------------------------------- draws of whole numbers from uniform random words

Source = Callable[[int], NDArray[np.uint64]]
"""Gives so many uniform random words of 64 bits, never the same twice: a keystream of a party's secret."""
DISTANCE = 2.0**-100
"""Bound of the statistical distance of one draw from its law: ``2^-120`` for the tail, and ``2^-129`` for each of at most ``2^21`` entries of the table."""
_BITS = 128
_LEAST_GUIDE, _MOST_GUIDE = 16, 18
"""Bits of the first word that a guide looks up: more for tables that hold more values than it has cells."""
_PIECE = 1 << 15
_DIGITS = Context(prec=60, Emax=MAX_EMAX, Emin=MIN_EMIN)
_LOW = (1 << 64) - 1


class DiscreteSampler:
    """Draws from a law: the value is the number of thresholds ``T_k = round(2^128 P(X <= k))`` that are not above a uniform number of 128 bits.

    The first 64 bits decide, unless they equal those of a threshold. Only then are 64 more drawn, so a draw costs 8 bytes of keystream. A guide over
    the first 16 bits finds most values without a search. The number of thresholds that a search visits depends on the value, so times may tell of it:
    do not let an adversary measure single draws.

    Args:
        law: the law.

    Attributes:
        first: the smallest value.
        high: the first 64 bits of each threshold but the last, which is ``2^128``.
        low: their other 64 bits.
    """

    def __init__(self, law: Law) -> None:
        self.law = law
        self.first, weights = law.weights()
        with localcontext(_DIGITS):
            below, thresholds = Decimal(0), list[int]()
            unit = (1 << _BITS) / sum(weights, below)
            for weight in weights[:-1]:
                below += weight
                thresholds.append(min((1 << _BITS) - 1, int((below * unit).to_integral_value())))
        self.high: NDArray[np.uint64] = np.array([t >> 64 for t in thresholds], dtype=np.uint64)
        self.low: NDArray[np.uint64] = np.array([t & _LOW for t in thresholds], dtype=np.uint64)
        bits = min(_MOST_GUIDE, max(_LEAST_GUIDE, len(self.high).bit_length()))
        self._shift = np.uint64(64 - bits)
        begins = np.searchsorted(self.high, np.arange(1 << bits, dtype=np.uint64) << self._shift, side="left")
        inside = np.diff(begins, append=len(self.high))
        self._begins: NDArray[np.int64] = begins.astype(np.int64)
        self._several = inside > 1
        self._sparse = bool((inside == 0).mean() > 0.5)
        self._padded = np.append(self.high, np.uint64(_LOW))
        if self._sparse:
            self._begins[inside > 0] = -1

    @property
    def distance(self) -> float:
        """Statistical distance of one draw from the law, at most `DISTANCE`."""
        return (len(self.high) + 1) * 2.0 ** -(_BITS + 1) + 2.0**-TAIL_BITS

    def draw(self, source: Source, count: int) -> NDArray[np.int64]:
        """Return independent draws.

        Args:
            source: uniform random words.
            count: how many.

        Raises:
            ConfigError: the count is negative.
        """
        if count < 0:
            raise ConfigError(f"count={count} draws", where="DiscreteSampler", remedy="use 0 or more")
        out = np.empty(count, dtype=np.int64)
        for start in range(0, count, _PIECE):
            piece = out[start : start + _PIECE]
            words = source(len(piece))
            cells = words >> self._shift
            piece[:] = self._begins[cells]
            if self._sparse:  # most cells have one value
                rest = np.flatnonzero(piece < 0)
            else:  # most have one threshold
                edges = self._padded[piece]
                rest = np.flatnonzero(self._several[cells] | (edges == words))
                piece += edges < words
            piece[rest] = self._find_places(words[rest], source)
        out += self.first
        return out

    def _find_places(self, words: NDArray[np.uint64], source: Source) -> NDArray[np.int64]:
        """How many thresholds are not above each number that begins with one of these words."""
        place: NDArray[np.int64] = np.searchsorted(self.high, words, side="left").astype(np.int64)
        last = max(0, len(self.high) - 1)
        for i in np.flatnonzero(self.high[np.minimum(place, last)] == words).tolist():
            more, at = int(source(1)[0]), int(place[i])
            while at <= last and self.high[at] == words[i] and int(self.low[at]) <= more:
                at += 1
            place[i] = at
        return place


@lru_cache(maxsize=128)
def sampler_of(law: Law) -> DiscreteSampler:
    """The sampler of a law; its table is made once."""
    return DiscreteSampler(law)


# ---------------------------------------------------------------- Laplace and Gaussian noise for real numbers

Array = NDArray[np.float64]

_LAPLACE_BITS = 40
"""The scale of Laplace noise is ``2^40`` to ``2^41`` steps."""
_DIGIT_BITS = 12
"""Bits of a digit of a geometric variable."""
_WIDTH = 9
"""``k = 2^9``."""
_SMOOTH = 8
"""``Z_0`` and ``Z_1`` have the parameter ``8 k``."""
_TOP = 4
"""The deviation of Gaussian noise is ``2^(4 + 18)`` to twice as many steps."""
_MARGIN = 1 - 2.0**-40
"""Norms are computed in floating-point numbers: vectors are scaled down to a little less than their bound."""


def words_of(generator: np.random.Generator) -> Source:
    """Uniform random words of a generator."""
    return lambda count: generator.integers(0, (1 << 64) - 1, count, dtype=np.uint64, endpoint=True)


@dataclass(frozen=True)
class _Digit(Law):
    """A digit of a geometric variable: ``P(d) ~ exp(-d rate)`` for ``d`` below ``2^12``."""

    rate: Decimal

    def weights(self) -> tuple[int, list[Decimal]]:
        """Powers of ``exp(-rate)``."""
        with localcontext(DIGITS):
            ratio, made = (-self.rate).exp(), [Decimal(1)]
            for _ in range((1 << _DIGIT_BITS) - 1):
                made.append(made[-1] * ratio)
        return 0, made


@dataclass(frozen=True)
class _Lattice:
    """Multiples of a power of two, and noise on them.

    Attributes:
        scale: of the noise: of Laplace noise its scale, of Gaussian noise its standard deviation.
        step: of the lattice; 0 is the one that the scale has by itself.
    """

    scale: float
    step: float = 0.0
    fine: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise ConfigError(f"a scale of {self.scale}", where="noise", remedy="use a finite number above 0")
        if not self.step:
            object.__setattr__(self, "step", math.ldexp(0.5, math.frexp(self.scale)[1] - self.fine))

    def draw(self, source: Source, count: int) -> NDArray[np.int64]:
        """Return independent noise, in steps."""
        raise NotImplementedError

    @classmethod
    def covering(cls, scale: float, sensitivity: float | None, entries: int) -> Self:
        """The lattice for noise of this scale on a vector of so many entries; see `add_laplace` for ``sensitivity``.

        Noise that covers ``sensitivity`` must cover ``sensitivity + step * norm``, with the L1 or L2 norm of a vector of ones, and a step is at most ``2^-fine`` of the result.

        Raises:
            ConfigError: the scale is no finite number above 0, or rounding so many entries would count for more than the values.
        """
        share = 0.0 if sensitivity is None else scale / sensitivity * cls.norm_of_ones(entries) * 2.0**-cls.fine
        if not share < 0.5:
            raise ConfigError(
                f"noise of {scale:g} for a sensitivity of {sensitivity:g} in {entries} entries",
                where="noise",
                remedy="use a larger epsilon, or release fewer numbers: rounding them would count for more than they do",
            )
        return cls(scale / (1 - share))

    @staticmethod
    def norm_of_ones(entries: int) -> float:
        """The norm in which neighbours are apart, of a vector of ones."""
        raise NotImplementedError

    def round_tree(self, tree: Tree) -> Tree:
        """Return a tree whose leaves of NumPy in float64 are on the lattice, rounded towards zero; other leaves stay: what rounds them to float32 rounds their noise too."""

        def one(leaf: Any) -> Any:
            exact = isinstance(leaf, np.ndarray | np.generic) and leaf.dtype == np.float64
            return np.asarray(self.round(leaf) * self.step)[()] if exact else leaf

        return T.map(one, tree)

    def round(self, values: Array) -> Array:
        """Return the values in whole steps, rounded towards zero. No norm grows."""
        with np.errstate(over="ignore"):
            steps: Array = np.trunc(np.asarray(values, np.float64) / self.step)
        return steps

    def add(self, values: Array, source: Source) -> Array:
        """Return the values on the lattice, with noise."""
        flat = np.ravel(values)
        noisy: Array = (self.round(flat) + self.draw(source, flat.size)) * self.step
        return noisy.reshape(np.shape(values))


@dataclass(frozen=True)
class LaplaceLattice(_Lattice):
    """Discrete Laplace noise: ``P(z) ~ exp(-|z| step / scale)``. The step is ``2^-41`` to ``2^-40`` of the scale, or that of another lattice, to compare with what is on it."""

    fine: ClassVar[int] = _LAPLACE_BITS

    @staticmethod
    def norm_of_ones(entries: int) -> float:
        """The L1 norm."""
        return float(entries)

    def draw(self, source: Source, count: int) -> NDArray[np.int64]:
        """Return noise: a geometric magnitude, and a sign; of zeros, one sign is drawn again."""
        found = self._magnitudes(source, count)
        signs = np.unpackbits(source(-(-count // 64)).view(np.uint8), count=count).astype(bool)
        while len(again := np.flatnonzero((found == 0) & signs)):
            found[again] = self._magnitudes(source, len(again))
            signs[again] = (source(len(again)) >> np.uint64(63)).astype(bool)
        np.negative(found, out=found, where=signs)
        return found

    def _magnitudes(self, source: Source, count: int) -> NDArray[np.int64]:
        found = np.zeros(count, dtype=np.int64)
        for sampler in _digits(self.scale / self.step):
            found <<= _DIGIT_BITS
            found += sampler.draw(source, count)
        return found


@dataclass(frozen=True)
class GaussianLattice(_Lattice):
    """Discrete Gaussian noise: ``P(z) ~ exp(-(z step)^2 / (2 scale^2))``. The step is ``2^-23`` to ``2^-22`` of the deviation."""

    fine: ClassVar[int] = _TOP + 2 * _WIDTH

    @staticmethod
    def norm_of_ones(entries: int) -> float:
        """The L2 norm."""
        return math.sqrt(entries)

    def draw(self, source: Source, count: int) -> NDArray[np.int64]:
        """Return noise, from three tables."""
        below = sampler_of(DiscreteGaussianLaw(float((_SMOOTH << _WIDTH) ** 2)))
        parts = (self.scale / self.step / 2.0 ** (2 * _WIDTH)) ** 2
        top = sampler_of(DiscreteGaussianLaw(parts - _SMOOTH**2 * (1 + 2.0 ** (-2 * _WIDTH))))
        found = top.draw(source, count)
        for _ in range(2):
            found <<= _WIDTH
            found += below.draw(source, count)
        return found


def add_laplace(values: Any, scale: float, generator: np.random.Generator, sensitivity: float | None = None) -> Array:
    """Return ``values`` on a lattice, with discrete Laplace noise.

    Args:
        values: real numbers, one vector whatever their shape.
        scale: of the noise.
        generator: from a secret.
        sensitivity: how far neighbours are apart in L1, if that is what is known; ``None`` where every vector is bounded, since rounding makes none longer.

    Raises:
        ConfigError: the scale is no finite number above 0, or there are so many entries that rounding would count for more than the values.
    """
    return LaplaceLattice.covering(scale, sensitivity, np.size(values)).add(values, words_of(generator))


def add_gaussian(
    values: Any, deviation: float, generator: np.random.Generator, sensitivity: float | None = None
) -> Array:
    """Return ``values`` on a lattice, with discrete Gaussian noise; see `add_laplace`, with distances in L2."""
    return GaussianLattice.covering(deviation, sensitivity, np.size(values)).add(values, words_of(generator))


def snap(values: Array, scale: float) -> Array:
    """Return the values rounded to a lattice of ``2^-21`` to ``2^-20`` of the scale of noise that they have already.

    For noise whose law has no exact sampler here. Rounding what is released costs nothing, and of the noise's floating-point law, which is right to ``2^-50`` of its scale, no
    gap is left to see.
    """
    step = math.ldexp(0.5, math.frexp(scale)[1] - 20)
    return np.asarray(np.rint(np.asarray(values, np.float64) / step) * step)


def clip_rows(rows: Array, bound: float, norm: int, step: float) -> Array:
    """Scale each row down to a norm of at most ``bound`` and round it towards zero: whole steps of a lattice, whose norm is at most ``bound / step`` in exact arithmetic.

    Args:
        rows: vectors, ``(rows, entries)``; those that are not finite become zero, so that they stay bounded.
        bound: largest norm.
        norm: 1 or 2.
        step: of the lattice.
    """
    peak = np.abs(rows).max(axis=1, initial=0.0, keepdims=True)
    usable = np.isfinite(peak)
    safe = np.where(usable & (peak > 0), peak, 1.0)
    part = np.where(usable, rows, 0.0) / safe
    length = np.linalg.norm(part, norm, axis=1, keepdims=True)  # of the row over its peak: squares do not overflow
    found: Array = part * np.minimum(safe, _MARGIN * bound / np.where(length > 0, length, 1.0))
    return np.asarray(np.trunc(found / step))


@lru_cache(maxsize=64)
def _digits(scale: float) -> list[Any]:
    """Samplers of the digits of a geometric variable with ``P(n) ~ exp(-n / scale)``, the highest first: beyond them, its mass is below ``exp(-2^7)``."""
    digits = -(-(math.frexp(scale)[1] + 7) // _DIGIT_BITS)
    with localcontext(DIGITS):
        rates = [Decimal(1 << (_DIGIT_BITS * j)) / Decimal(scale) for j in reversed(range(digits))]
    return [sampler_of(_Digit(rate)) for rate in rates]
