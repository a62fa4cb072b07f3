"""Privacy profiles: the smallest delta of one release at every epsilon, from which its loss distribution is made.

The profile of a pair is ``H(e) = sup_S P(S) - exp(e) Q(S)``. It is kept as its excess over what every pair has,
``G(e) = H(e) - max(1 - exp(e), 0)``, which is small on both sides and loses no digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from atoll.core.errors import ConfigError
from atoll.core.event import Event, Gaussian, Laplace

from .events import DiscreteGaussian, DistributedGaussian, Lattice, Perturbed, RandomisedResponse, Skellam
from .lattice import discrete_gaussian_law, skellam_law
from .sampling import hidden_rate
from .shuffling import Shuffled, as_seen, excess_of

__all__ = ["FARTHEST", "Profile", "profile", "reach"]

Array = npt.NDArray[np.float64]
Profile = Callable[[Array], Array]

FARTHEST = 500.0
"""A release's losses above this count as infinite."""

_LARGEST_VARIANCE = 1e8


def profile(event: Event, adversary: str, neighbours: str, added: bool) -> Profile:
    """The excess ``G`` of a release (its ``count`` aside) over its worst pair of neighbours.

    A Poisson sample of rate ``q`` turns ``H`` into ``q H(ln(1 + (exp(e) - 1) / q))`` if the unit is removed; if it is added, ``G`` is mirrored,
    ``exp(e) G(-e)``. With neighbours by replacing one, both schemes of sampling have the first form at ``e >= 0`` and its mirror below: Balle, Barthe,
    Gaboardi 2018, Theorems 2 and 9; Zhu, Dong, Wang 2022, Theorem 11. For a Poisson sample this supposes that a unit which is left out moves the
    release no further than one that is replaced, as with clipped sums.

    Args:
        event: the release.
        adversary: who must not know the sample for it to count.
        neighbours: ``"add-remove"`` or ``"replace-one"``. Under ``"add-remove"``, a sample of fixed size does not count.
        added: whether the unit is in the second data set (otherwise it is in the first).
    """
    base, rate = _base(as_seen(event, adversary)), hidden_rate(event, adversary, neighbours)

    def gap(e: Array) -> Array:
        found: Array = np.exp(np.minimum(e, 0.0)) * base(np.abs(e))
        return found

    def removed(e: Array) -> Array:
        share = np.expm1(e) / rate
        inside = share > -1
        return np.where(inside, rate * gap(np.log1p(np.where(inside, share, 0.0))), 0.0)

    def mirrored(of: Profile) -> Profile:
        return lambda e: np.exp(e) * of(-e)

    if rate == 1:
        return gap
    if neighbours == "replace-one":
        return lambda e: np.exp(np.minimum(e, 0.0)) * removed(np.abs(e))
    return mirrored(removed) if added else removed


def reach(of: Profile, tail: float) -> float:
    """How far the losses of a profile go, on either side, except for mass ``tail``; at most `FARTHEST`."""

    def small(e: float) -> bool:
        above, below = of(np.array([e, -e]))
        return bool(max(above, below) <= tail)

    low, high = 0.0, 1e-3
    while not small(high):
        if high >= FARTHEST:
            return FARTHEST
        low, high = high, min(FARTHEST, 2 * high)
    for _ in range(20):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if small(middle) else (middle, high)
    return high


def _phi(x: Array) -> Array:
    return 0.5 * np.fromiter(map(math.erfc, (x * -math.sqrt(0.5)).tolist()), np.float64, len(x))


def _base(event: Event) -> Profile:
    """``H`` at ``e >= 0`` of a symmetric pair, without sampling."""
    if isinstance(event, Gaussian):
        m = 1 / event.noise_multiplier
        return lambda e: np.maximum(_phi(m / 2 - e / m) - np.exp(e) * _phi(-m / 2 - e / m), 0.0)
    if isinstance(event, Laplace):
        epsilon = event.epsilon
        return lambda e: np.where(e < epsilon, -np.expm1((np.minimum(e, epsilon) - epsilon) / 2), 0.0)
    if isinstance(event, RandomisedResponse | Perturbed):
        buckets = event.buckets if isinstance(event, RandomisedResponse) else 2
        top, full = 1 / (1 + (buckets - 1) * math.exp(-event.epsilon)), event.epsilon
        return lambda e: np.where(e < full, -top * np.expm1(np.minimum(e, full) - full), 0.0)
    if isinstance(event, Shuffled):
        return lambda e: excess_of(event, e)
    if isinstance(event, DistributedGaussian) and event.parties == 1:
        return _lattice(event)
    if isinstance(event, Skellam | DiscreteGaussian):
        return _lattice(event)
    if isinstance(event, Lattice):
        raise ConfigError(
            f"the loss distribution of an event of kind {event.kind!r} is not known",
            where="atoll.privacy",
            remedy="count it with accountant 'rdp'",
        )
    raise ConfigError(
        f"the privacy loss of an event of kind {event.kind!r} is not known",
        where="atoll.privacy",
        remedy="release with Gaussian, Laplace, Skellam or discrete Gaussian noise, or count it with accountant 'rdp'",
    )


def _lattice(event: Lattice) -> Profile:
    if event.values > 1 or event.variance > _LARGEST_VARIANCE:
        raise ConfigError(
            f"the privacy loss of {event.values} values with {event.kind} noise of variance {event.variance:g} has no known worst pair",
            where="atoll.privacy",
            remedy="count it with accountant 'rdp', whose bound holds for vectors",
        )
    losses, first, second = _tails(isinstance(event, Skellam), event.variance, int(event.sensitivity))

    def found(e: Array) -> Array:
        at = np.searchsorted(losses, e, side="right")
        return np.maximum(first[at] - np.exp(e) * second[at], 0.0)

    return found


@lru_cache(maxsize=32)
def _tails(skellam: bool, variance: float, shift: int) -> tuple[Array, Array, Array]:
    """Losses in ascending order, and the masses of both laws from each loss on."""
    law = skellam_law if skellam else discrete_gaussian_law
    logs = law(variance, int(14 * math.sqrt(variance)) + 2 * shift + 60)
    first, second = logs[:-shift], logs[shift:]  # P is the law moved to the right: P(k) = law(k - shift)
    from_here = [np.append(np.cumsum(np.exp(part[::-1]))[::-1], 0.0) for part in (first, second)]
    return first - second, from_here[0], from_here[1]
