"""Numbers to whole numbers at random: unbiased, with a length that is bounded for certain."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.privacy.discrete import Source

__all__ = ["conditional", "in_steps", "mean_square", "rounded_bound", "unconditional"]

Array = NDArray[Any]
_FRACTION = 32
_UNIT = 1 << _FRACTION
_TRIES = 64


def in_steps(values: Array, clip: float, step: float) -> NDArray[np.int64]:
    """Return numbers in units of ``step / 2^32``, after the vector is scaled down to a length of at most ``clip``. They are exact from here on.

    Args:
        values: one vector, float64.
        clip: the largest length.
        step: the grid; ``clip / step`` is at most ``2^30``.
    """
    peak = float(np.abs(values).max(initial=0.0))
    part = values / peak if peak > 1e100 or 0 < peak < 1e-100 else values  # else squares overflow, or vanish
    length = math.sqrt(float(part @ part)) * (peak if part is not values else 1.0)
    factor = min(1.0, clip / length) if length > 0 else 1.0
    return np.rint(values * factor / step * _UNIT).astype(np.int64)


def _once(exact: NDArray[np.int64], source: Source) -> NDArray[np.int64]:
    """Round up with the probability of the fraction, exactly, by 32 random bits an entry."""
    bits = source(-(-len(exact) // 2)).view(np.uint32)[: len(exact)]
    down: NDArray[np.int64] = exact >> _FRACTION
    down += (exact & (_UNIT - 1)) > bits
    return down


def unconditional(exact: NDArray[np.int64], source: Source) -> NDArray[np.int64]:
    """Return whole numbers whose mean is the exact value."""
    return _once(exact, source)


def conditional(exact: NDArray[np.int64], most: int, source: Source) -> NDArray[np.int64]:
    """Round until the squared length is at most ``most``; after 64 tries, towards zero, which is never longer than the vector itself.

    Kairouz, Liu, Steinke 2021, Definition 2 and Proposition 22: the mean is off by at most ``sqrt(d) (1 - p) / p`` steps, with ``p`` the probability that one try fits.
    """
    for _ in range(_TRIES):
        made = _once(exact, source)
        if _square(made) <= most:
            return made
    whole: NDArray[np.int64] = np.sign(exact) * (np.abs(exact) >> _FRACTION)
    return whole


def mean_square(exact: NDArray[np.int64]) -> float:
    """``sum_j E u_j^2 = sum_j x_j^2 + p_j (1 - p_j)`` for entries ``u`` rounded at random, ``p`` their fraction; rounded upwards."""
    low = (exact >> _FRACTION).astype(np.float64)
    share = (exact & (_UNIT - 1)).astype(np.float64) / _UNIT
    return float((low * low + share * (2 * low + 1)).sum()) * (1 + 1e-12)


def rounded_bound(clip: float, step: float, entries: int, beta: float = math.exp(-0.5)) -> float:
    """The length that a vector of at most ``clip`` keeps after rounding, except with probability ``beta``, and for certain if ``beta`` is 0.

    The least of ``c + g sqrt(d)`` and the root of ``c^2 + g^2 d / 4 + sqrt(2 ln(1 / beta)) g (c + g sqrt(d) / 2)``; Kairouz, Liu, Steinke 2021, Proposition 22.
    """
    certain = clip + step * math.sqrt(entries)
    if beta == 0:
        return certain
    likely = math.sqrt(2 * math.log(1 / beta)) * step * (clip + step * math.sqrt(entries) / 2)
    return min(certain, math.sqrt(clip**2 + step**2 * entries / 4 + likely))


def _square(whole: NDArray[np.int64]) -> int:
    """The exact squared length: entries are below ``2^31``, so sums of few of them would overflow only above ``2^62`` each."""
    if len(whole) and int(np.abs(whole).max()) >= 1 << 20:
        return sum(int(x) * int(x) for x in whole.tolist())
    return sum(int((part * part).sum()) for part in np.array_split(whole, max(1, len(whole) >> 20)))
