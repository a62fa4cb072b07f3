"""Samples of units at their owners: at which rate, what noise they need, and how far an estimate errs.

A site draws each unit of each group by itself with probability q, by a keyed hash: ``SHA-256(key | unit | group) < q 2^256``. The key is 32 fresh bytes of the site's own secret for every release. So

* nobody else knows which rows are in, which is what makes noise smaller: the coordinator names the rate, and the noise follows from it;
* nobody steers the draw: no seed comes from outside, the rule has no other freedom than the key, and a statement that is asked again gets its release from the site's record, never another draw;
* the site itself learns its own draw, of its own rows alone. It could as well change its rows.

============  ===========================================================================================  ==========================================
sampler       what is drawn                                                                                noise for epsilon
============  ===========================================================================================  ==========================================
uniform       units, at one rate                                                                           for ``ln(1 + (e^epsilon - 1) / q)``
stratified    units of group g at the rate ``q_g = min(1, m / n_g)``, with m so that all groups together   for ``ln(1 + (e^epsilon - 1) / q_g)``
              have the part q; n_g is a noised number of units, which takes a part of epsilon
distinct      values of a column, each with all of its rows: for ``COUNT(DISTINCT …)``                      for epsilon: other units show a value too
============  ===========================================================================================  ==========================================

An estimate is the noised sum of the sample divided by q (Horvitz and Thompson 1952). Its variance is at most ``(1 - q) / q B + v / q^2``, with v the variance of the noise and B a bound of the sum of squares of
what units contribute: the count itself for a count; ``(l + h) S - l h N`` for a sum S of N values in [l, h], since ``(x - l) (h - x) >= 0``.

Source: the survey of federated computing, section 3.3: Bater et al. 2020, "SAQE: Practical Privacy-Preserving Approximate Query Processing for Data Federations". Two things differ: its sample is drawn
obliviously in secure computation, since its owners share rows before they sample, which ours do with ``sampled_by=shares`` alone (`atoll.query.strategies.secret_sample`); and a join of samples is not sampled by us.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.statistics.disclosure import noise_std, rate_of

__all__ = [
    "SAMPLERS",
    "Estimate",
    "count_error",
    "draw_condition",
    "find_rate",
    "noise_spread",
    "sample_epsilon",
    "stratify_rates",
]

SAMPLERS = ("uniform", "stratified", "distinct")
_DIGITS = 16
"""Hexadecimal digits of a hash that are compared: a rate is rounded down to a multiple of 2^-64."""
_LEAST_RATE = 2.0**-20


def sample_epsilon(epsilon: float, rate: float) -> float:
    """The epsilon of an answer over a uniform sample that costs ``epsilon``: ``ln(1 + (e^epsilon - 1) / q)``.

    Args:
        epsilon: what the answer costs.
        rate: q, the probability of a unit to be in the sample.
    """
    if rate >= 1:
        return epsilon
    return epsilon - math.log(rate) + math.log1p(-(1 - rate) * math.exp(-epsilon))


def count_error(rows: float, rate: float, epsilon: float) -> float:
    """The standard deviation of a count from a uniform sample with noise, scaled up: ``sqrt(N (1 - q) / q + v / q^2)`` with the variance v of discrete Laplace noise for `sample_epsilon`."""
    noise = noise_std(rate_of(sample_epsilon(epsilon, rate), 1))
    return math.sqrt(rows * (1 - rate) / rate + (noise / rate) ** 2)


def stratify_rates(units: ArrayLike, rate: float) -> NDArray[np.float64]:
    """The rate of each group, so that groups have as many units in the sample as each other, or all that they have.

    Args:
        units: about how many units each group has, ``(groups,)``; fewer than 1 count as 1.
        rate: which part of all units is in the sample.

    Returns:
        ``min(1, m / n_g)``, with m so that ``sum min(m, n_g)`` is the part of ``sum n_g``.
    """
    counts = np.maximum(np.asarray(units, np.float64), 1.0)
    wanted, ordered = rate * counts.sum(), np.sort(counts)
    below = np.concatenate([[0.0], np.cumsum(ordered)[:-1]])
    levels = (wanted - below) / np.arange(len(counts), 0, -1)  # m if the groups before this one are whole
    fitting = np.flatnonzero(levels <= ordered)
    most = float(levels[fitting[0]]) if len(fitting) else float(ordered[-1])
    found: NDArray[np.float64] = np.clip(most / counts, _LEAST_RATE, 1.0)
    return found


def draw_condition(key: bytes, parts: Sequence[str], rate: str | float) -> str:
    """Local SQL of whether something is in the sample.

    Args:
        key: the site's, for this release.
        parts: local SQL of what names it, as text that may be NULL.
        rate: the rate, or local SQL of its 16 digits; see `rate_digits`.
    """
    texts = ", ".join(f"coalesce(replace({part}, '|', '||'), '|n')" for part in parts)
    digits = rate if isinstance(rate, str) else f"'{rate_digits(rate)}'"
    return f"left(sha256(concat_ws('|,', '{key.hex()}', {texts})), {_DIGITS}) < {digits}"


def rate_digits(rate: float) -> str:
    """A rate as hexadecimal digits that hashes are compared with; of 1, digits that all hashes are below."""
    return "g" if rate >= 1 else f"{math.floor(rate * 16**_DIGITS):0{_DIGITS}x}"


def noise_spread(rate: Fraction, times: float) -> tuple[float, float]:
    """Variance and fourth cumulant of discrete Laplace noise.

    Args:
        rate: ``epsilon / sensitivity``.
        times: how often it is in a sum: once for each site, or ``n / (n - 1)`` times if n sites add parts.
    """
    variance, a = noise_std(rate) ** 2, math.exp(-float(rate))
    return times * variance, times * variance**2 * ((1 + 4 * a + a * a) / (2 * a) if a > 0 else 0.0)


@dataclass(frozen=True)
class Estimate:
    """A number that is known up to an error.

    Attributes:
        value: the estimate.
        variance: of its error.
        fourth: fourth cumulant of the error: noise is heavier in the tails than a normal law.
        slope: by how much the variance grows with the number itself, as that of a count in a sample does: few rows in the sample may be of more than the estimate says.
        low: what the true number is surely not below.
        high: what it is surely not above.
    """

    value: float
    variance: float
    fourth: float = 0.0
    low: float = -math.inf
    high: float = math.inf
    slope: float = 0.0

    def half_width(self, confidence: float) -> float:
        """How far the true number may be: ``|a| + sqrt(q^2 s^2 + a^2)`` with the deviation s, a quantile q, and ``a = q^2 slope / 2``: so far the numbers x reach for which ``(x - value)^2 <= q^2 (s^2 + slope (x - value))`` (Wilson 1927).

        The quantile is ``max(z, z + (z^3 - 3 z) k / 24)`` with that of the normal law, z, and the excess kurtosis k (Cornish and Fisher 1938), at most Chebyshev's ``1 / sqrt(1 - c)``.

        Args:
            confidence: with which probability, for normal errors; Laplace noise alone is covered with at least 0.95 where 0.95 is asked.
        """
        middle, half = self._reach(confidence)
        return abs(middle) + half

    def _reach(self, confidence: float) -> tuple[float, float]:
        """By how much the middle of the interval is above the estimate, and half of its length."""
        if self.variance <= 0:
            return 0.0, 0.0
        z = NormalDist().inv_cdf((1 + confidence) / 2)
        excess = self.fourth / self.variance**2
        q = min(max(z, z + (z**3 - 3 * z) * excess / 24), 1 / math.sqrt(1 - confidence))
        middle = q * q * self.slope / 2
        return middle, math.sqrt(q * q * self.variance + middle * middle)

    def interval(self, confidence: float) -> tuple[float, float]:
        """Where the true number lies."""
        middle, half = self._reach(confidence)
        low, high = max(self.low, self.value + middle - half), min(self.high, self.value + middle + half)
        return min(low, self.high), max(high, self.low)

    def relative(self, confidence: float) -> float:
        """The half width as a part of the estimate; infinite for 0."""
        half = self.half_width(confidence)
        return half / abs(self.value) if self.value else (math.inf if half else 0.0)


def find_rate(error: Callable[[float], float], wanted: float) -> float | None:
    """The smallest rate at which an error is at most what is wanted; ``None`` if it is larger with all units.

    Args:
        error: the error at a rate, which falls as the rate grows.
        wanted: the largest.
    """
    if error(1.0) > wanted:
        return None
    low, high = _LEAST_RATE, 1.0
    if error(low) <= wanted:
        return low
    for _ in range(40):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if error(middle) <= wanted else (middle, high)
    return high
