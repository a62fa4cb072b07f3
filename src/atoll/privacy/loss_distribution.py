"""Privacy loss distributions: releases as distributions of ``ln P/Q``, composed by the fast Fourier transform, always rounded to the safe side.

A profile is the smallest delta of one release at every epsilon; its loss distribution is made from it. The profile of a pair is ``H(e) = sup_S P(S) - exp(e) Q(S)``. It
is kept as its excess over what every pair has,
``G(e) = H(e) - max(1 - exp(e), 0)``, which is small on both sides and loses no digits.

A profile is replaced by the chords between its values at multiples of a step: a pair of distributions that is never better for us, and
equal at these points ("connect the dots", Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022). Composition adds losses: it convolves
(Koskela, Jälkö, Honkela 2020). Mass that is cut off counts as an infinite loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError
from atoll.core.event import Event, Gaussian, Laplace

from .events import (
    DiscreteGaussian,
    DistributedGaussian,
    Lattice,
    Perturbed,
    RandomisedResponse,
    Skellam,
    discrete_gaussian_law,
    hidden_rate,
    skellam_law,
)
from .shuffling import Shuffled, as_seen, excess_of

__all__ = ["FARTHEST", "LossDistribution", "Profile", "compose", "profile", "reach"]

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

    def compute_removed(e: Array) -> Array:
        share = np.expm1(e) / rate
        inside = share > -1
        return np.where(inside, rate * gap(np.log1p(np.where(inside, share, 0.0))), 0.0)

    def mirror_profile(of: Profile) -> Profile:
        return lambda e: np.exp(e) * of(-e)

    if rate == 1:
        return gap
    if neighbours == "replace-one":
        return lambda e: np.exp(np.minimum(e, 0.0)) * compute_removed(np.abs(e))
    return mirror_profile(compute_removed) if added else compute_removed


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
        # Balle and Wang 2018, Theorem 8.
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

    def compute_delta(e: Array) -> Array:
        at = np.searchsorted(losses, e, side="right")
        return np.maximum(first[at] - np.exp(e) * second[at], 0.0)

    return compute_delta


@lru_cache(maxsize=32)
def _tails(skellam: bool, variance: float, shift: int) -> tuple[Array, Array, Array]:
    """Losses in ascending order, and the masses of both laws from each loss on."""
    law = skellam_law if skellam else discrete_gaussian_law
    logs = law(variance, int(14 * math.sqrt(variance)) + 2 * shift + 60)
    first, second = logs[:-shift], logs[shift:]  # P is the law moved to the right: P(k) = law(k - shift)
    from_here = [np.append(np.cumsum(np.exp(part[::-1]))[::-1], 0.0) for part in (first, second)]
    return first - second, from_here[0], from_here[1]


# ---------------------------------------------------------------- privacy loss distributions

_STEP = 1e-4
_TAIL = 1e-15  # mass that a composition may cut off on either side
_ONE_TAIL = 1e-20  # and one release
_WIDEST = 2**21  # most bins; wider losses take a coarser step
_FAR = 600.0
_POWERS: Array = np.concatenate([-np.geomspace(1e-2, 1e3, 26)[::-1], np.geomspace(1e-2, 1e3, 26)])


@dataclass(frozen=True, eq=False)
class LossDistribution:
    """A distribution of the privacy loss.

    Attributes:
        step: distance between losses.
        first: the smallest loss, in steps.
        masses: probability of each loss ``(first + i) step``.
        infinite: probability of an infinite loss.
    """

    step: float
    first: int
    masses: Array
    infinite: float

    def delta(self, epsilon: float) -> float:
        """``infinite + sum_(l > epsilon) p (1 - exp(epsilon - l))``."""
        losses = self.step * (self.first + np.arange(len(self.masses)))
        above = losses > epsilon
        return float(self.infinite - (self.masses[above] * np.expm1(epsilon - losses[above])).sum())

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon of at least 0 whose delta is not above ``delta``; infinite if there is none."""
        if self.infinite > delta:
            return math.inf
        if self.delta(0.0) <= delta:
            return 0.0
        start = max(0, 1 - self.first)  # the smallest loss above 0
        above = self.infinite + np.cumsum(self.masses[:0:-1])[::-1]  # of each loss but the last: the mass above it
        at = min(
            start + int(np.searchsorted(-above[start:], -delta)), len(above)
        )  # from here on, all mass above is small
        low = max(start - 1, at - int(_FAR / self.step), 0)
        losses = self.step * (np.arange(low, len(self.masses)) - at)
        with np.errstate(under="ignore"):
            shares = np.cumsum((self.masses[low:] * np.exp(-losses))[:0:-1])[
                ::-1
            ]  # between losses, delta is above - exp(epsilon) shares
            # Beyond `at` all mass above is small already: a smaller factor there changes nothing, and does not overflow.
            deltas = above[low:] - np.exp(np.minimum(losses[:-1], _FAR)) * shares
        last = max(0, int(np.searchsorted(-deltas, -delta)) - 1)
        base = self.step * (self.first + at)
        found = (
            base + math.log((above[low + last] - delta) / shares[last])
            if above[low + last] > delta
            else base + losses[last]
        )
        return max(0.0, float(found))


@checked_call
def compose(
    releases: Mapping[Event, int],
    adversary: str = "server",
    neighbours: str = "add-remove",
    added: bool = False,
    error: float = 0.0,
) -> LossDistribution:
    """The loss of all releases together.

    Args:
        releases: maps a release to how often it is made.
        adversary: from whom samples must be hidden to count.
        neighbours: ``"add-remove"`` or ``"replace-one"``.
        added: the direction of the pair; see `profile`.
        error: by about how much an epsilon may be too large, for speed: the step between losses is then ``sqrt(error / releases)``.

    Raises:
        ConfigError: the worst pair of a release is not known.
    """
    keys = [(event, adversary, neighbours, added) for event in releases]
    widest = max((_reach(*key) for key in keys), default=0.0)
    finest = max(_STEP, math.sqrt(error / max(1, sum(releases.values()))))
    step = finest * 2 ** max(0, math.ceil(math.log2(max(2 * widest / finest / (_WIDEST / 4), 1e-9))))
    while True:
        parts = [(_single(*key, step), n) for key, n in zip(keys, releases.values(), strict=True)]
        low, high = _window(parts, step)
        if high - low < _WIDEST:
            return _convolve(parts, low, high, step)
        if step > 1.0:
            raise ConfigError(
                f"{sum(releases.values())} releases have losses too wide to count",
                where="atoll.privacy",
                remedy="use more noise, fewer releases, or accountant 'rdp'",
            )
        step *= 2 ** math.ceil(math.log2((high - low) / _WIDEST + 1e-9) + 1e-9) if high - low > _WIDEST else 2


@lru_cache(maxsize=64)
def _reach(event: Event, adversary: str, neighbours: str, added: bool) -> float:
    return reach(profile(event, adversary, neighbours, added), _ONE_TAIL)


@lru_cache(maxsize=32)
def _single(event: Event, adversary: str, neighbours: str, added: bool, step: float) -> tuple[LossDistribution, Array]:
    """The distribution of one release, and the logarithms of its moments ``E exp(t l)`` at `_POWERS`."""
    last = max(2, math.ceil(_reach(event, adversary, neighbours, added) / step))
    grid = np.arange(-last, last + 1, dtype=np.float64)
    excess = profile(event, adversary, neighbours, added)(step * grid)
    # H is linear in exp(e) between the dots. The mass at a dot is exp(e) times the change of slope; that of max(1 - exp(e), 0) is 1, at 0.
    up, down = np.append(np.diff(excess), 0.0) / math.expm1(step), np.diff(excess) / -math.expm1(-step)
    down = np.insert(down, 0, excess[0])  # left of the dots, H runs straight to 1 at exp(e) = 0
    masses = up - down + (grid == 0)
    masses = np.maximum(masses, 0.0)
    infinite = float(excess[-1])
    kept = np.flatnonzero(masses > 0)
    found = LossDistribution(step, int(grid[kept[0]]), masses[kept[0] : kept[-1] + 1], infinite)
    return found, _log_moments(found)


def _log_moments(of: LossDistribution) -> Array:
    with np.errstate(divide="ignore"):
        logs = np.log(of.masses)
    losses = of.step * (of.first + np.arange(len(of.masses)))
    found = np.empty(len(_POWERS))
    for i, power in enumerate(_POWERS):
        terms = logs + power * losses
        top = terms.max()
        found[i] = top + math.log(np.exp(terms - top).sum())
    return found


def _window(parts: list[tuple[tuple[LossDistribution, Array], int]], step: float) -> tuple[int, int]:
    """Steps between which all losses are, except for mass `_TAIL` on either side, by Chernoff's bound."""
    low, high = (sum(n * f(one) for (one, _), n in parts) for f in (_first, _last))
    moments = sum((n * logs for (_, logs), n in parts), np.zeros(len(_POWERS)))
    bounds = (moments - math.log(_TAIL)) / _POWERS / step
    high = min(high, math.ceil(bounds[_POWERS > 0].min()))
    low = max(low, math.floor(bounds[_POWERS < 0].max()))
    return low, high


def _first(one: LossDistribution) -> int:
    return one.first


def _last(one: LossDistribution) -> int:
    return one.first + len(one.masses) - 1


def _convolve(
    parts: list[tuple[tuple[LossDistribution, Array], int]], low: int, high: int, step: float
) -> LossDistribution:
    size = 2 ** max(4, math.ceil(math.log2(high - low + 1)))
    product = np.ones(size // 2 + 1, np.complex128)
    finite = 0.0
    for (one, _), n in parts:
        places = (one.first + np.arange(len(one.masses))) % size
        product *= np.fft.rfft(np.bincount(places, one.masses, minlength=size)) ** n
        finite += n * math.log1p(-one.infinite) if one.infinite < 1 else -math.inf
    masses = np.roll(np.fft.irfft(product, size), -(low % size))
    # What lies outside comes in again on the other side: from below as too large a loss, which is safe; from above it is counted as infinite too.
    return LossDistribution(step, low, np.maximum(masses, 0.0), min(1.0, -math.expm1(finite) + _TAIL))
