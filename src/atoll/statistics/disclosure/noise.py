"""Discrete Laplace noise, exactly: no floating-point number is in it, so none of its last bits can tell the value below (Mironov 2012).

``P(z) = (1 - a) / (1 + a) a^|z|`` with ``a = exp(-numerator / denominator)``, drawn as in Canonne, Kamath and Steinke 2020, algorithms 1 and 2, from the party's
secret. A whole number that one row moves by at most ``s`` is ``epsilon``-private with ``numerator / denominator = epsilon / s``.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["discrete_laplace", "noise_std", "rate_of"]


class NoiseSource(Protocol):
    """The part of a party's secret that is needed."""

    def integer(self, below: int) -> int:
        """A uniform whole number."""
        ...


def rate_of(epsilon: float, sensitivity: int) -> Fraction:
    """``epsilon / sensitivity`` as a fraction of whole numbers, rounded down, so that noise is never too small."""
    return Fraction(int(epsilon * (1 << 40)), 1 << 40) / sensitivity


def discrete_laplace(rate: Fraction, secret: NoiseSource, shape: int | tuple[int, ...]) -> NDArray[np.int64]:
    """Independent draws.

    Args:
        rate: ``epsilon / sensitivity``, positive.
        secret: the party's entropy.
        shape: shape of the result.
    """
    count = int(np.prod(shape))
    drawn = [_draw(rate.numerator, rate.denominator, secret) for _ in range(count)]
    return np.array(drawn, dtype=np.int64).reshape(shape)


def noise_std(rate: Fraction) -> float:
    """The standard deviation: ``sqrt(2 a) / (1 - a)``."""
    a = np.exp(-float(rate))
    return float(np.sqrt(2 * a) / -np.expm1(-float(rate)))


def _draw(s: int, t: int, secret: NoiseSource) -> int:
    """One draw with ``a = exp(-s / t)``."""
    while True:
        u = secret.integer(t)
        if not _bernoulli_exp(u, t, secret):
            continue
        v = 0
        while _bernoulli_exp(1, 1, secret):
            v += 1
        magnitude = (u + t * v) // s
        negative = secret.integer(2) == 1
        if negative and magnitude == 0:
            continue
        return -magnitude if negative else magnitude


def _bernoulli_exp(numerator: int, denominator: int, secret: NoiseSource) -> bool:
    """True with probability ``exp(-numerator / denominator)``, for a ratio in [0, 1]."""
    k = 1
    while secret.integer(denominator * k) < numerator:
        k += 1
    return k % 2 == 1
