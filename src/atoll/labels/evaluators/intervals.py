"""Whether a method beats a baseline, over seeds that both ran."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from atoll.core.calls import checked_call
from atoll.core.errors import DataError

__all__ = ["PairedGain", "paired_gain", "t_quantile"]


@dataclass(frozen=True)
class PairedGain:
    """A method against a baseline, seed by seed.

    Attributes:
        gain: median of the differences, method minus baseline.
        mean: mean of the differences.
        interval: of the mean, at ``level``; ``None`` with one seed.
        level: such as 0.95.
        differences: one a seed.
    """

    gain: float
    mean: float
    interval: tuple[float, float] | None
    level: float
    differences: tuple[float, ...]

    @property
    def helped(self) -> bool:
        """Whether the whole interval is above 0; ``False`` with one seed, which shows nothing of the spread."""
        return self.interval is not None and self.interval[0] > 0


@checked_call
def paired_gain(scores: Sequence[float], baseline: Sequence[float], *, level: float = 0.95) -> PairedGain:
    """Compare scores of the same seeds: Student's interval of the mean difference, ``d +- t_{n-1} s / sqrt(n)``.

    Differences of one seed share the labelled rows, the parties and the test rows, so that what they have in common cancels. The interval assumes that differences
    are about normal; with three seeds ``t`` is 4.30.

    Args:
        scores: the method's, one a seed.
        baseline: the baseline's, of the same seeds in the same order.
        level: of the interval.

    Raises:
        DataError: no seeds, or other numbers of them, or a score that is not finite.
    """
    a, b = np.asarray(scores, np.float64), np.asarray(baseline, np.float64)
    if a.shape != b.shape or a.ndim != 1 or not len(a) or not np.isfinite(a - b).all() or not 0 < level < 1:
        raise DataError(
            f"scores of {a.shape} and {b.shape} seeds at level {level}",
            where="paired gain",
            remedy="give one finite score a seed for both, and a level between 0 and 1",
        )
    d = a - b
    interval = None
    if len(d) > 1:
        half = t_quantile((1 + level) / 2, len(d) - 1) * float(d.std(ddof=1)) / math.sqrt(len(d))
        interval = (float(d.mean()) - half, float(d.mean()) + half)
    return PairedGain(float(np.median(d)), float(d.mean()), interval, level, tuple(d.tolist()))


@checked_call
def t_quantile(share: float, freedom: int) -> float:
    """Return the quantile of Student's t distribution with a whole number of degrees of freedom, by bisection.

    The distribution function is the finite sum of Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    if share < 0.5:
        return -t_quantile(1 - share, freedom)
    low, high = 0.0, 1.0
    while _t_within(high, freedom) < 2 * share - 1 and high < 1e12:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_within(middle, freedom) < 2 * share - 1 else (low, middle)
    return (low + high) / 2


def _t_within(t: float, freedom: int) -> float:
    """The probability of a value between ``-t`` and ``t``."""
    angle = math.atan(t / math.sqrt(freedom))
    cos, sin = math.cos(angle), math.sin(angle)
    odd = freedom % 2
    term, total = (cos if odd else 1.0), 0.0
    for k in range((freedom - 1) // 2 if odd else freedom // 2):
        total += term
        upper = 2 * k + (2 if odd else 1)
        term *= cos * cos * upper / (upper + 1)
    return 2 / math.pi * (angle + sin * total) if odd else sin * total
