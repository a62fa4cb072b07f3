"""The cost of Gaussian noise: the moments bound in closed form, and the exact composition of Gaussian releases.

One release of a vector with L2 sensitivity ``D`` and noise ``N(0, sigma^2 I)`` costs ``r = D^2 / sigma^2``. Costs add up, even if each release
depends on those before it. ``sigma`` is always a standard deviation in this room, never a variance.

* Moments (Abadi et al. 2016; Upcycled-FL, Theorem 6.2), with ``a = r/2``: ``delta = exp(-(epsilon - a)^2 / (4 a))`` for ``epsilon >= a``,
  ``epsilon = a + 2 sqrt(a ln(1/delta))``.
* Exact (Balle and Wang 2018, Theorem 8; Dong, Roth and Su 2022, Corollary 3.3), with ``m = sqrt(r)``:
  ``delta = Phi(m/2 - epsilon/m) - e^epsilon Phi(-m/2 - epsilon/m)``. Never larger than the moments bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError

__all__ = [
    "cost",
    "exact_delta",
    "exact_epsilon",
    "exact_sigma",
    "moments_delta",
    "moments_epsilon",
    "moments_sigma",
]


@checked_call
def cost(releases: float, sensitivity: float, sigma: float) -> float:
    """``r = M D^2 / sigma^2`` of ``M`` releases.

    Args:
        releases: ``M``, 0 or more.
        sensitivity: ``D``: how far one record can move one release, in L2.
        sigma: standard deviation of the noise on each coordinate.

    Raises:
        ConfigError: a negative number of releases, or a sensitivity or noise that is not positive.
    """
    if not (releases >= 0 and _positive(sensitivity) and _positive(sigma)):
        raise ConfigError(
            f"releases={releases}, sensitivity={sensitivity}, sigma={sigma}",
            where="atoll.privacy",
            remedy="use releases of 0 or more, and a positive, finite sensitivity and sigma",
        )
    return releases * (sensitivity / sigma) ** 2


@checked_call
def moments_epsilon(r: float, delta: float) -> float:
    """The moments bound ``epsilon(delta)`` at a total cost ``r``."""
    _check(r, delta=delta)
    return r / 2 + 2 * math.sqrt(r / 2 * math.log(1 / delta))


@checked_call
def moments_delta(r: float, epsilon: float) -> float:
    """The moments bound ``delta(epsilon)`` at a total cost ``r``; 1 (no guarantee) below ``epsilon = r/2``."""
    _check(r, epsilon=epsilon)
    if r == 0:
        return 0.0
    return math.exp(-((epsilon - r / 2) ** 2) / (2 * r)) if epsilon > r / 2 else 1.0


@checked_call
def moments_sigma(epsilon: float, delta: float, releases: float, sensitivity: float) -> float:
    """The smallest noise whose moments bound keeps a budget: ``D sqrt(M / (2a))``, ``a = (sqrt(ln(1/delta) + epsilon) - sqrt(ln(1/delta)))^2``."""
    _budget(epsilon, delta, releases, sensitivity)
    tail = math.log(1 / delta)
    # The difference of the roots, rewritten to avoid cancellation.
    a = (epsilon / (math.sqrt(tail + epsilon) + math.sqrt(tail))) ** 2
    return sensitivity * math.sqrt(releases / (2 * a))


@checked_call
def exact_delta(r: float, epsilon: float) -> float:
    """The smallest ``delta`` at ``epsilon`` of Gaussian releases of total cost ``r``."""
    _check(r, epsilon=epsilon)
    if r == 0:
        return 0.0
    m = math.sqrt(r)
    above, below = log_phi(m / 2 - epsilon / m), epsilon + log_phi(-m / 2 - epsilon / m)
    return max(0.0, -math.exp(above) * math.expm1(min(0.0, below - above)))


@checked_call
def exact_epsilon(r: float, delta: float) -> float:
    """The smallest ``epsilon`` at ``delta`` of Gaussian releases of total cost ``r``."""
    _check(r, delta=delta)
    if exact_delta(r, 0.0) <= delta:
        return 0.0
    # The moments bound is never below the exact curve.
    return _bisect(lambda epsilon: exact_delta(r, epsilon) <= delta, 0.0, moments_epsilon(r, delta))


@checked_call
def exact_sigma(epsilon: float, delta: float, releases: float, sensitivity: float) -> float:
    """The smallest noise that keeps a budget over ``releases`` Gaussian releases."""
    _budget(epsilon, delta, releases, sensitivity)
    enough = moments_sigma(epsilon, delta, releases, sensitivity)
    kept: Callable[[float], bool] = lambda s: exact_delta(cost(releases, sensitivity, s), epsilon) <= delta  # noqa: E731
    return _bisect(kept, enough * 1e-6, enough)


def _bisect(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The smallest number in (low, high] for which a monotone condition holds, to the last bits; rounded to the side where it holds."""
    for _ in range(200):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def log_phi(x: float) -> float:
    """``ln Phi(x)`` of the standard normal distribution, accurate far in its tail too."""
    if x > -30.0:
        return math.log(0.5 * math.erfc(-x / math.sqrt(2.0)))
    y = 1.0 / (x * x)
    series = 1.0 - y * (1.0 - 3.0 * y * (1.0 - 5.0 * y * (1.0 - 7.0 * y)))
    return -0.5 * x * x - math.log(-x) - 0.5 * math.log(2.0 * math.pi) + math.log(series)


def _positive(value: float) -> bool:
    return value > 0 and math.isfinite(value)


def _check(r: float, *, delta: float = 0.5, epsilon: float = 0.0) -> None:
    if not (r >= 0 and math.isfinite(r) and 0 < delta <= 1 and epsilon >= 0):
        raise ConfigError(
            f"r={r}, delta={delta}, epsilon={epsilon}",
            where="atoll.privacy",
            remedy="use a finite cost of 0 or more, delta in (0, 1] and epsilon of 0 or more",
        )


def _budget(epsilon: float, delta: float, releases: float, sensitivity: float) -> None:
    if not (_positive(epsilon) and 0 < delta < 1 and releases > 0 and _positive(sensitivity)):
        raise ConfigError(
            f"epsilon={epsilon}, delta={delta}, releases={releases}, sensitivity={sensitivity}",
            where="atoll.privacy",
            remedy="use positive numbers, and delta in (0, 1)",
        )
