"""What keeps single rows from showing: minimum counts of cells, numbers on a public grid, and exact noise.

A cell of 1 to ``least - 1`` rows would say something about few. If the total is known, a lone hidden cell follows from the others; so cells are hidden, smallest
first, until the hidden ones are at least two with at least ``least`` rows together (complementary suppression, Cox 1980).

Bins whose edges move, and quantiles at many shares, read single values off a column: the number of values below 1.00 and that below 1.05 differ by the values
between, and 601 quantiles of 300 values are the values. Whatever edges and shares a request names, it is answered from *coarse* values. The line is halved again and
again at public points: 0, powers of two, and the middles between them. An interval is halved as long as both halves have enough values. If only one has, the few of
the other count as values at its near end. If neither has, the interval ends there, and all its values become its middle, or the value itself if they are equal.

So every coarse value stands for at least ``least`` values. It is a point of the grid, or a number that so many rows share. Any set that edges or ranks cut out of coarse
values is empty or has at least ``least`` of them. The points depend on the data only through counts of at least ``least`` values.

Errors: a value moves within its interval. Fewer than ``least`` values at a time move to a neighbouring interval, so the rank of a value errs by less than ``least`` at
each end of an interval.

Noise. ``P(z) = (1 - a) / (1 + a) a^|z|`` with ``a = exp(-numerator / denominator)``, drawn as in Canonne, Kamath and Steinke 2020, algorithms 1 and 2, from the party's
secret. A whole number that one row moves by at most ``s`` is ``epsilon``-private with ``numerator / denominator = epsilon / s``.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["coarsen", "discrete_laplace", "hidden", "noise_std", "public_edges", "rate_of", "reach", "show_counts"]


def hidden(counts: ArrayLike, least: int) -> NDArray[np.bool_]:
    """Which cells must not be shown, ``(cells,)``.

    Args:
        counts: rows of each cell.
        least: the minimum count.
    """
    rows = np.asarray(counts, dtype=np.int64)
    small = (rows > 0) & (rows < least)
    while small.any():
        if small.sum() >= 2 and rows[small].sum() >= least:
            break
        left = np.where(small | (rows == 0), np.iinfo(np.int64).max, rows)
        if left.min(initial=np.iinfo(np.int64).max) == np.iinfo(np.int64).max:
            break
        small[int(np.argmin(left))] = True
    return small


def show_counts(counts: ArrayLike, least: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The counts with 0 in the cells that must not be shown, and which these are."""
    rows = np.asarray(counts, dtype=np.int64)
    small = hidden(rows, least)
    return np.where(small, 0, rows), small


# ---------------------------------------------------------------- numbers on a public grid

Numbers = NDArray[np.float64]
_PARTS = 1 << 12
"""Intervals are not made finer than the number of values divided by this; it bounds the work, not what is told."""


def coarsen(values: NDArray[Any], least: int) -> Numbers:
    """The finite values, each as the coarse value that stands for it, in the order of the input, ``(finite values,)``.

    Fewer than ``least`` values become none at all.

    Args:
        values: numbers of one column, flat.
        least: how many values share a coarse one; 1 leaves the values as they are.
    """
    x = np.asarray(values).reshape(-1).astype(np.float64)
    x = x[np.isfinite(x)]
    if least <= 1:
        return x
    if len(x) < least:
        return x[:0]
    order = np.argsort(x, kind="stable")
    made = np.empty_like(x)
    for start, stop, point in _intervals(x[order] + 0.0, least):
        made[order[start:stop]] = point
    return made


def _intervals(x: Numbers, least: int) -> list[tuple[int, int, float]]:
    """Start, stop and coarse value of each interval of sorted values."""
    wanted = max(least, len(x) // _PARTS)
    outer = _outermost(x, least)
    found: list[tuple[int, int, float]] = []
    left: list[tuple[int, int, float, float]] = [(0, len(x), -outer, outer)]
    while left:
        start, stop, low, high = left.pop()
        middle = low / 2 + high / 2
        if x[start] == x[stop - 1] or not low < middle < high:
            found.append((start, stop, float(x[start]) if x[start] == x[stop - 1] else middle))
            continue
        cut = start + int(np.searchsorted(x[start:stop], middle))
        below, above = cut - start, stop - cut
        if below >= wanted and above >= wanted:
            left += [(start, cut, low, middle), (cut, stop, middle, high)]
        elif below < least <= above:
            left.append((start, stop, middle, high))
        elif above < least <= below:
            left.append((start, stop, low, middle))
        else:
            found.append((start, stop, middle))
    return found


def _outermost(x: Numbers, least: int) -> float:
    """The smallest power of two whose magnitude fewer than ``least`` values reach: those count as values at the end."""
    exponent = reach(x, least)
    return 0.0 if exponent is None else math.ldexp(1.0, min(1023, exponent))


def reach(x: Numbers, least: int) -> int | None:
    """The smallest exponent ``k`` with fewer than ``least`` magnitudes of at least ``2^k``; ``None`` if fewer than ``least`` values are not 0.

    Args:
        x: finite numbers.
        least: the minimum count.
    """
    if len(x) < least:
        return None
    magnitude = float(np.partition(np.abs(x), len(x) - least)[len(x) - least])
    return math.frexp(magnitude)[1] if magnitude else None


def public_edges(low: float, high: float, bins: int) -> Numbers:
    """At most so many bins (and 1 more) that cover a range: whole multiples of a power of two, so that requests of other ranges have edges of the same grid.

    Args:
        low: the lower end.
        high: the upper end.
        bins: the number of bins that is asked for.
    """
    span = high - low or 1.0
    width = math.ldexp(1.0, math.ceil(math.log2(span / bins)))
    while math.ceil(high / width) - math.floor(low / width) > bins and width < 2.0**1000 and bins > 1:
        width *= 2
    first, last = math.floor(low / width), math.ceil(high / width)
    return np.asarray(np.arange(first, max(last, first + 1) + 1, dtype=np.float64) * width, np.float64)


# ---------------------------------------------------------------- discrete Laplace noise


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
