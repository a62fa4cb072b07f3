"""Laplace and Gaussian noise for real numbers, on a lattice: what leaves is a multiple of a power of two, whatever the value is.

Floating-point noise on a floating-point number tells the number by its last bits (Mironov 2012, "On Significance of the Least Significant Bits for Differential
Privacy"): which results are possible depends on it. Here a value ``x`` becomes ``g (trunc(x / g) + Z)``. The step ``g`` is a power of two that follows from the scale of the
noise alone, ``Z`` is a whole number of the discrete Laplace or discrete Gaussian law, and the sum is rounded once, after it is exact. So the same multiples
of ``g`` are possible for every value.

``Z`` is put together from digits of tables (`DiscreteSampler`), since its scale is millions of steps:

* The magnitude of a discrete Laplace variable is geometric. Digits of a geometric variable are independent: digit ``j`` to base ``B`` has ``P(d) ~ exp(-d B^j / t)``.
* ``Z_0 + k Z_1 + k^2 Z_2`` with discrete Gaussians ``Z_0, Z_1`` of parameter ``8 k`` is a discrete Gaussian, up to a statistical distance of ``2^-500``: each is smooth on the lattice of the
  next (Micciancio, Walter 2017, "Gaussian Sampling over the Integers", section 3).

**Rounding is part of what is counted.** Rounding towards zero makes no norm longer. So two values of norm at most ``bound`` are at most ``2 bound`` apart afterwards, and nothing is
added. Where a bound of the *distance* of neighbours is all that is known, rounding adds up to a step an entry: give ``sensitivity``, and the noise is wider by that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError

from .laws import DIGITS, DiscreteGaussianLaw, Law
from .sampler import Source, sampler_of

__all__ = ["GaussianLattice", "LaplaceLattice", "add_gaussian", "add_laplace", "clip_rows", "snap", "words_of"]

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

    def rounded(self, tree: Tree) -> Tree:
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
