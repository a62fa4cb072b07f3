"""Cuckoo hashing: every item in a bin of its own, one of three that follow from the item alone, with a proven bound on failure.

Bins form three tables of one size, and an item has one candidate bin in each (Fotakis, Pagh, Sanders, Spirakis 2005, "Space efficient hash tables with worst case constant
access time"). There is no placement exactly where some ``t`` bins hold all candidates of ``s = t + 1`` items (Hall 1935), and a smallest such set has at least two candidates
in each of its bins. So for ``n`` items, ``m`` bins and any ``z > 0`` the probability of failure is at most

    sum over t of  C(n, s) C(m, t) (s!)^3 (3 / m)^(3s) (e^z - 1 - z)^t / z^(3s),

where ``(s!)^3 (e^z - 1 - z)^t / z^(3s)`` bounds the ways to meet the bins at least twice each. `bins_for` takes the fewest bins for which this is at most 2^-40: 1.305 an item
from 16,384 items on, more for fewer. So no stash is needed. (Pinkas, Schneider, Zohner 2018, "Scalable private set intersection based on OT extension", fitted 1.27 bins an item to
experiments.)
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["FAILURE_BITS", "TABLES", "bins_for", "candidate_bins", "failure_bits", "place_items"]

TABLES = 3
FAILURE_BITS = 40
"""A set has no placement with a probability of at most 2 to minus this."""
_MANY, _RATIO = 1 << 14, 1.305
"""From this many items on, this many bins an item keep the bound."""
_ROUNDS = 1000
"""Rounds of evictions, after which the last items are placed by search. Far below the threshold of 1.089 bins an item, a few dozen rounds are enough."""


@functools.lru_cache(maxsize=256)
def bins_for(items: int) -> int:
    """How many bins a set of this size needs: a multiple of three, which depends on the size alone."""
    low = max(1, -(-items // TABLES))
    if items >= _MANY:
        return TABLES * -(-math.ceil(_RATIO * items) // TABLES)
    high = low + items + 64
    while low < high:
        middle = (low + high) // 2
        if failure_bits(items, TABLES * middle) >= FAILURE_BITS:
            high = middle
        else:
            low = middle + 1
    return TABLES * low


def failure_bits(items: int, bins: int) -> float:
    """Minus the binary logarithm of the bound on failure; infinite where every set has a placement.

    Args:
        items: number of items.
        bins: number of bins, at least as many, a multiple of three.
    """
    t = np.arange(TABLES, items, dtype=np.float64)
    if not len(t):
        return np.inf
    s = t + 1
    z = _saddle_points(TABLES * s / t)
    ways = TABLES * _log_factorial(s) + t * np.log(np.expm1(z) - z) - TABLES * s * np.log(z)
    terms = _log_choose(items, s) + _log_choose(bins, t) + ways + TABLES * s * np.log(TABLES / bins)
    # Three bins that hold all candidates of four items are one of each table, which can be counted exactly.
    terms[0] = _log_choose(items, s[:1])[0] - 9 * np.log(bins / TABLES)
    top = terms.max()
    return float(-(top + np.log(np.exp(terms - top).sum())) / np.log(2))


def _saddle_points(mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """The ``z`` that makes the bound least: that of a Poisson law of at least 2 with this mean, ``z (e^z - 1) / (e^z - 1 - z)``, which grows with z."""
    low, high = np.zeros_like(mean), mean + 1
    for _ in range(50):
        z = (low + high) / 2
        above = z * np.expm1(z) / (np.expm1(z) - z) > mean
        low, high = np.where(above, low, z), np.where(above, z, high)
    return high


def _log_factorial(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """``ln x!`` for whole numbers: Stirling's series with an error below 1e-10 from 10 on, and a table before."""
    small = np.array([math.lgamma(i + 1) for i in range(10)])
    y = np.maximum(x, 10.0)
    series = (
        (y + 0.5) * np.log(y) - y + 0.5 * math.log(2 * math.pi) + 1 / (12 * y) - 1 / (360 * y**3) + 1 / (1260 * y**5)
    )
    return np.asarray(np.where(x < 10, small[np.minimum(x, 9).astype(np.int64)], series))


def _log_choose(n: int, k: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(_log_factorial(np.float64(n) + 0 * k) - _log_factorial(k) - _log_factorial(n - k))


def candidate_bins(words: NDArray[np.uint64], bins: int) -> NDArray[np.int64]:
    """The candidates of items, ``(n, 3)``: one bin in each third of all bins.

    Args:
        words: 3 words of 64 bits of each item, uniform, ``(n, 3)``.
        bins: number of bins, a multiple of three.
    """
    size = bins // TABLES
    return np.asarray((words % np.uint64(size)).astype(np.int64) + size * np.arange(TABLES))


def place_items(candidates: NDArray[np.int64], bins: int) -> NDArray[np.int64] | None:
    """Give each item a bin of its own: for each bin its item, -1 if it is empty; ``None`` if there is no such placement.

    Many items move at once: each goes to its next candidate, and whoever was there goes on to its own next one. What is left after `_ROUNDS` is placed by
    augmenting paths, so that a placement is found wherever there is one.

    Args:
        candidates: ``(n, 3)``, three different bins of each item.
        bins: number of bins.
    """
    table, turn = np.full(bins, -1, dtype=np.int64), np.zeros(len(candidates), dtype=np.int64)
    moving = np.arange(len(candidates))
    for _ in range(_ROUNDS):
        if not len(moving):
            return table
        goals = candidates[moving, turn[moving]]
        before = table[goals]
        table[goals] = moving
        placed = table[goals] == moving
        out = before[placed]
        moving = np.concatenate([moving[~placed], out[out >= 0]])
        turn[moving] = (turn[moving] + 1) % TABLES
    for item in moving.tolist():
        if not _augment(item, candidates, table):
            return None
    return table


def _augment(item: int, candidates: NDArray[np.int64], table: NDArray[np.int64]) -> bool:
    """Place one more item along a shortest path of items that each move on by one bin; return whether there is one."""
    reached: dict[int, int] = {}
    queue = [item]
    for one in queue:
        for goal in candidates[one].tolist():
            if goal in reached:
                continue
            reached[goal] = one
            if table[goal] >= 0:
                queue.append(int(table[goal]))
                continue
            while True:  # back to the item: each mover leaves its bin to the one that asked for it
                mover = reached[goal]
                left = _bin_of(mover, candidates, table)
                table[goal] = mover
                if mover == item:
                    return True
                goal = left
    return False


def _bin_of(item: int, candidates: NDArray[np.int64], table: NDArray[np.int64]) -> int:
    return next((goal for goal in candidates[item].tolist() if table[goal] == item), -1)
