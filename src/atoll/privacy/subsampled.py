"""Rényi bounds of releases about a sample that the adversary does not know."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from .gaussian import log_phi

__all__ = ["fixed_size", "poisson", "poisson_gaussian"]

Array = npt.NDArray[np.float64]
_MOST_TERMS = 1000


def poisson_gaussian(rate: float, noise: float, order: float) -> float:
    """The Rényi divergence of a Gaussian about a Poisson sample. Mironov, Talwar, Zhang 2019, Section 3.3.

    ``ln E_Q ((1 - q) + q exp((2x - 1) / (2 s^2)))^a / (a - 1)``: exact as a binomial sum at whole orders. At others, two series, whose terms are
    added without their signs, as ``dp-accounting`` does: an upper bound, close except at orders below 3 or so.

    Returns:
        The divergence; infinity where the series does not converge, so that the order is not used.
    """
    whole = order == int(order)
    return max(0.0, (_whole if whole else _fractional)(rate, noise, order) / (order - 1))


def _whole(q: float, s: float, order: float) -> float:
    k = np.arange(int(order) + 1)
    terms = _log_binomials(int(order)) + k * math.log(q) + (order - k) * math.log1p(-q) + (k * k - k) / (2 * s * s)
    return float(np.logaddexp.reduce(terms))


def _fractional(q: float, s: float, order: float) -> float:
    middle = s * s * math.log(1 / q - 1) + 0.5  # where both parts of the mixture weigh the same
    total, before, coefficient = -math.inf, (-math.inf, -math.inf), 0.0
    for i in range(_MOST_TERMS):
        j = order - i
        left = coefficient + i * math.log(q) + j * math.log1p(-q) + (i * i - i) / (2 * s * s)
        left += log_phi((middle - i) / s)
        right = coefficient + j * math.log(q) + i * math.log1p(-q) + (j * j - j) / (2 * s * s)
        right += log_phi((j - middle) / s)
        total = float(np.logaddexp(total, np.logaddexp(left, right)))
        if left < before[0] and right < before[1] and max(left, right) < total - 30:
            return total
        before = (left, right)
        coefficient += math.log(abs(order - i)) - math.log(i + 1)
    return math.inf


def poisson(base: Callable[[float], float], rate: float, orders: tuple[float, ...]) -> Array:
    """A bound for any release about a Poisson sample. Zhu and Wang 2019, Theorem 5, at whole orders; between them by convexity.

    ``(1-q)^(a-1) (a q - q + 1) + C(a,2) q^2 (1-q)^(a-2) e^r(2) + 3 sum_(j>=3) C(a,j) q^j (1-q)^(a-j) e^((j-1) r(j))``.
    """

    def log_moment(a: int) -> float:
        j = np.arange(2, a + 1)
        binomials = _log_binomials(a)[2:]
        terms = (
            binomials + j * math.log(rate) + (a - j) * math.log1p(-rate) + (j - 1) * np.array([base(int(i)) for i in j])
        )
        terms[1:] += math.log(3)
        first = (a - 1) * math.log1p(-rate) + math.log1p((a - 1) * rate)
        return float(np.logaddexp(first, np.logaddexp.reduce(terms)))

    return _between(log_moment, base, orders)


def fixed_size(
    base: Callable[[float], float],
    rate: float,
    orders: tuple[float, ...],
    bound: float = math.inf,
    noise: float | None = None,
) -> Array:
    """A bound for any release about a sample of fixed size without replacement. Wang, Balle, Kasiviswanathan 2019, Theorems 9 and 27.

    Args:
        base: the divergence at an order, for neighbours by replacing one.
        rate: size of the sample over size of the whole.
        orders: of the curve.
        bound: the divergence at infinity, if finite.
        noise: multiplier of Gaussian noise, whose moments ``E_Q (P/Q - 1)^j`` are computed: the bound is then tighter.
    """
    ratio = math.expm1(bound) if bound < 300 else math.inf

    def log_moment(a: int) -> float:
        binomials = _log_binomials(a)
        squares = min(math.log(4) + _log_expm1(base(2)), base(2) + math.log(min(2.0, ratio**2)))
        terms = [0.0, 2 * math.log(rate) + float(binomials[2]) + squares]
        centred = _gaussian_moments(noise, a) if noise is not None and a <= 256 else None
        for j in range(3, a + 1):
            term = (j - 1) * base(j) + math.log(min(2.0, ratio**j if j * math.log1p(ratio) < 700 else 2.0))
            if centred is not None:
                term = min(term, math.log(4) + 0.5 * (centred[j // 2] + centred[(j + 1) // 2]))
            terms.append(j * math.log(rate) + float(binomials[j]) + term)
        return float(np.logaddexp.reduce(terms))

    return _between(log_moment, base, orders)


def _between(log_moment: Callable[[int], float], base: Callable[[float], float], orders: tuple[float, ...]) -> Array:
    """Divergences from moments at whole orders; ``(a - 1) r(a)`` is convex and 0 at 1. Sampling never costs more than everybody."""
    known = {1: 0.0}
    for a in sorted({int(f(o)) for o in orders for f in (math.floor, math.ceil)} - {1}):
        known[a] = log_moment(a)
    found = []
    for order in orders:
        low, share = math.floor(order), order - math.floor(order)
        log = known[low] if share == 0 else (1 - share) * known[low] + share * known[low + 1]
        found.append(max(0.0, min(log / (order - 1), base(order))))
    return np.array(found)


def _gaussian_moments(noise: float, most: int) -> list[float]:
    """``ln E_Q (P/Q - 1)^(2h)`` for ``h = 0, 1, ..`` by the trapezoid rule: every term is positive, and for such functions it converges fast."""
    x = np.arange(-14 * noise, most + 2 + 14 * noise, noise / 40)
    log = (2 * x - 1) / (2 * noise * noise)
    with np.errstate(divide="ignore", over="ignore"):
        distance = np.where(log > 30, log, np.log(np.abs(np.expm1(np.minimum(log, 30.0)))))
    density = -(x**2) / (2 * noise * noise) - math.log(40 * math.sqrt(2 * math.pi))
    moments = []
    for h in range((most + 1) // 2 + 1):
        terms = (2 * h * distance if h else 0.0) + density
        top = terms.max()
        moments.append(float(top + np.log(np.exp(terms - top).sum())))
    return moments


def _log_binomials(a: int) -> Array:
    """``ln C(a, k)`` for ``k = 0 .. a``."""
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, a + 1)))])
    found: Array = logs[-1] - logs - logs[::-1]
    return found


def _log_expm1(x: float) -> float:
    return x + math.log(-math.expm1(-x)) if x > 0 else -math.inf
