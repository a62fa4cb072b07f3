"""Rényi differential privacy: a curve of each release, also about a hidden sample, sums of curves, and their conversion to epsilon.

``D_a(P || Q) = ln E_Q (P/Q)^a / (a - 1)`` bounds a release at order ``a > 1`` if it bounds every pair of neighbours (Mironov 2017). Curves of releases
about the same data add up, whatever depends on what.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError
from atoll.core.event import Event, Gaussian, Laplace, NonPrivate, Sampled, register_event

from .events import (
    DiscreteGaussian,
    DistributedGaussian,
    Perturbed,
    RandomisedResponse,
    Skellam,
    SkellamMixture,
    hidden_rate,
    skellam_divergence,
)
from .gaussian import log_phi
from .shuffling import Shuffled, as_seen, shuffled_divergence

__all__ = [
    "NoisyVote",
    "ORDERS",
    "distributed_bound",
    "divergence",
    "fixed_size",
    "log_odds_of_answer",
    "log_odds_of_winner",
    "mixture_bound",
    "poisson",
    "poisson_gaussian",
    "renyi_curve",
    "renyi_delta",
    "renyi_epsilon",
    "vote_curve",
]


# ------------------------------------------------------------------ votes whose winner is told and whose counts are not
#
# Votes whose winner is told and whose counts are not: the bounds of PATE for noise on counts, and for the votes that were cast.
# Papernot, Song, Mironov, Raghunathan, Talwar, Erlingsson 2018, "Scalable Private Learning with PATE" (GNMax and Confident-GNMax).


Array = npt.NDArray[np.float64]


@register_event
@dataclass(frozen=True, kw_only=True)
class NoisyVote(Gaussian):
    """An outcome of noisy counts: the class with the most votes, or whether the largest count passes a threshold.

    ``noise_multiplier`` is the noise's standard deviation divided by how far one unit moves the counts: ``sqrt(2)`` if a vote changes, 1 if it is added, and 1 for
    the largest count. Every accountant counts it as that Gaussian release, whatever the votes were. Accountant ``"rdp"`` also uses ``log_other``: where nearly
    all agree, the outcome would have been the same without any one of them. **That epsilon depends on the votes, and so does this line of the ledger**: whoever
    may not see the votes may not see them either.

    Attributes:
        log_other: natural logarithm of a bound of the probability of all outcomes but the likeliest; 0 says nothing.
    """

    log_other: float = 0.0
    kind: ClassVar[str] = "noisy-vote"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.log_other <= 0.0:
            raise ConfigError(f"log_other={self.log_other}", where="NoisyVote", remedy="use a logarithm of 0 or less")


def vote_curve(event: NoisyVote, orders: tuple[float, ...]) -> Array:
    """The Rényi bound of one vote at ``orders``: the smaller of the Gaussian's and theorem 6 of the paper at the orders of its proposition 10.

    With ``q`` the probability of other outcomes, ``e(a) = a / (2 z^2)``, ``m2 = z sqrt(2 ln(1/q))`` and ``m1 = m2 + 1``:
    ``D_a <= ln((1 - q) A^(a-1) + q B^(a-1)) / (a - 1)``, ``A = (1 - q) / (1 - (q e^e(m2))^((m2-1)/m2))``, ``B = e^e(m1) / q^(1/(m1-1))``,
    for ``1 < a <= m1``, ``m2 > 1`` and ``q <= e^((m2-1) e(m2)) / (m1/(m1-1) m2/(m2-1))^m2``. A bound of ``q`` does, since there the result grows with it.
    """
    a = np.asarray(orders, np.float64)
    twice = 2.0 * event.noise_multiplier**2
    if twice == 0.0:
        return np.full(len(a), math.inf)
    plain, logq = a / twice, event.log_other
    if logq == 0.0 or twice == math.inf:
        return plain
    m2 = math.sqrt(twice * -logq) if logq > -math.inf else math.inf
    if m2 == math.inf:
        return np.zeros(len(a))
    m1 = m2 + 1.0
    if m2 <= 1.0:
        return plain
    e1, e2 = m1 / twice, m2 / twice
    most = (m2 - 1.0) * e2 - m2 * (math.log(m1 / (m1 - 1.0)) + math.log(m2 / (m2 - 1.0)))
    inside = (logq + e2) * (m2 - 1.0) / m2
    if logq > most or inside >= 0.0:
        return plain
    stays = math.log1p(-math.exp(logq))
    log_a = (a - 1.0) * (stays - _log1mexp(inside))
    log_b = (a - 1.0) * (e1 - logq / (m1 - 1.0))
    bound = np.logaddexp(stays + log_a, logq + log_b) / (a - 1.0)
    return np.where(a <= m1, np.minimum(plain, np.maximum(bound, 0.0)), plain)


@checked_call
def log_odds_of_winner(counts: npt.ArrayLike, sigma: float) -> float:
    """``ln`` of a bound of the probability that noise makes another class than the largest count win: proposition 7 of the paper.

    ``q <= sum_(j != i) P(N(0, 2 sigma^2) >= n_i - n_j)``, and never above ``1 - 1/C``.

    Args:
        counts: votes by class, ``(classes,)``, at least two.
        sigma: standard deviation of the noise on each count, positive.
    """
    n = np.sort(np.asarray(counts, np.float64))
    if n.ndim != 1 or len(n) < 2 or not sigma > 0:
        raise ConfigError(
            f"counts of shape {n.shape}, sigma={sigma}",
            where="log_odds_of_winner",
            remedy="give the votes of two classes or more, and a positive noise",
        )
    each = [_log_above(float(n[-1] - other) / (math.sqrt(2.0) * sigma)) for other in n[:-1]]
    return min(float(np.logaddexp.reduce(each)), math.log1p(-1.0 / len(n)))


@checked_call
def log_odds_of_answer(counts: npt.ArrayLike, sigma: float, threshold: float) -> float:
    """``ln`` of the probability of the rarer outcome of the check ``max_j n_j + N(0, sigma^2) >= threshold``."""
    if not sigma > 0:
        raise ConfigError(f"sigma={sigma}", where="log_odds_of_answer", remedy="use a positive noise")
    return _log_above(abs(threshold - float(np.max(np.asarray(counts, np.float64)))) / sigma)


def _log_above(x: float) -> float:
    """``ln P(N(0, 1) >= x)`` for ``x >= 0``; far out its upper bound ``-x^2/2 - ln(x sqrt(2 pi))``, which is never too small."""
    if x < 25.0:
        return math.log(0.5 * math.erfc(x / math.sqrt(2.0)))
    return -0.5 * x * x - math.log(x * math.sqrt(2.0 * math.pi))


def _log1mexp(x: float) -> float:
    """``ln(1 - e^x)`` for ``x < 0``."""
    return math.log(-math.expm1(x)) if x > -math.log(2.0) else math.log1p(-math.exp(x))


# ------------------------------------------------------------------ rényi differential privacy
#
# Rényi differential privacy: a curve of each release, also about a hidden sample, sums of curves, and their conversion to epsilon.


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

    return _at_orders(log_moment, base, orders)


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

    return _at_orders(log_moment, base, orders)


def _at_orders(log_moment: Callable[[int], float], base: Callable[[float], float], orders: tuple[float, ...]) -> Array:
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


_LARGEST_SHIFT = 1 << 20

ORDERS: tuple[float, ...] = (*(1 + x / 10 for x in range(1, 100)), *range(11, 64), 128, 256, 512, 1024)
"""The orders of a curve; those of ``dp-accounting``."""


def divergence(event: Event, order: float) -> float:
    """The Rényi bound of one release at an order above 1, without any sampling.

    Raises:
        ConfigError: no bound of this kind of event is known.
    """
    if isinstance(event, Gaussian):
        return _gaussian(event, order)
    if isinstance(event, Laplace):
        first = math.log(order / (2 * order - 1)) + (order - 1) * event.epsilon
        second = math.log((order - 1) / (2 * order - 1)) - order * event.epsilon
        return max(0.0, float(np.logaddexp(first, second)) / (order - 1))
    if isinstance(event, RandomisedResponse | Perturbed):
        return _response(event.epsilon, event.buckets if isinstance(event, RandomisedResponse) else 2, order)
    if isinstance(
        event, DiscreteGaussian
    ):  # Canonne, Kamath, Steinke 2020, Theorem 4 and Corollary 16: as the Gaussian
        return order * event.sensitivity**2 / (2 * event.variance)
    if isinstance(event, Skellam):
        return _skellam(event, order)
    if isinstance(event, Shuffled):
        return shuffled_divergence(event, order)
    if isinstance(event, DistributedGaussian):
        return distributed_bound(order, event.variance, event.parties, event.sensitivity, event.values)
    if isinstance(event, SkellamMixture):
        return _at_order(
            order, lambda whole: mixture_bound(whole, event.variance, event.sensitivity, event.largest, both=event.both)
        )
    if isinstance(event, NonPrivate):
        return math.inf
    raise ConfigError(
        f"the Rényi divergence of an event of kind {event.kind!r} is not known",
        where="atoll.privacy",
        remedy="release with Gaussian, Laplace, Skellam or discrete Gaussian noise, or count it yourself",
    )


@lru_cache(maxsize=512)
def renyi_curve(
    event: Event, adversary: str = "server", neighbours: str = "add-remove", orders: tuple[float, ...] = ORDERS
) -> Array:
    """The curve of one release (its ``count`` aside) at ``orders``, with the amplification by sampling that the adversary does not know.

    Poisson sampling counts for neighbours by adding or removing one, sampling of fixed size for neighbours by replacing one. Any other pair is
    counted without amplification.
    """
    if event.free:
        return np.zeros(len(orders))
    event = as_seen(event, adversary)
    rate = hidden_rate(event, adversary, neighbours)
    scheme = event.scheme if isinstance(event, Sampled) else ""
    if rate < 1 and (scheme, neighbours) == ("poisson", "add-remove"):
        if isinstance(event, Gaussian) and event.noise_multiplier > 0:
            return np.array([poisson_gaussian(rate, event.noise_multiplier, order) for order in orders])
        return poisson(lambda order: divergence(event, order), rate, orders)
    if rate < 1 and (scheme, neighbours) == ("fixed", "replace-one"):
        noise = event.noise_multiplier if isinstance(event, Gaussian) and event.noise_multiplier > 0 else None
        bound = event.epsilon if isinstance(event, Laplace | RandomisedResponse) else math.inf
        return fixed_size(lambda order: divergence(event, order), rate, orders, bound, noise)
    if isinstance(event, NoisyVote):
        return vote_curve(event, orders)
    return np.array([divergence(event, order) for order in orders])


@checked_call
def renyi_epsilon(curve: npt.ArrayLike, delta: float, orders: tuple[float, ...] = ORDERS) -> float:
    """Epsilon of a curve, ``min_a r + ln(1 - 1/a) - ln(a delta) / (a - 1)``.

    Canonne, Kamath, Steinke 2020, Proposition 12; where ``delta`` is so large that total variation suffices, it is 0.
    """
    r, a = np.asarray(curve, np.float64), np.asarray(orders)
    if not 0 < delta <= 1:
        raise ConfigError(f"delta={delta}", where="renyi_epsilon", remedy="use delta in (0, 1]")
    if np.any(delta**2 + np.expm1(-r) > 0):  # Bretagnolle-Huber: total variation <= sqrt(1 - exp(-KL))
        return 0.0
    usable = a > 1.01  # below, the bound is large and not stable
    found = r + np.log1p(-1 / a) - np.log(delta * a) / (a - 1)
    return max(0.0, float(found[usable].min()))


@checked_call
def renyi_delta(curve: npt.ArrayLike, epsilon: float, orders: tuple[float, ...] = ORDERS) -> float:
    """Delta of a curve at ``epsilon``: the inverse of `renyi_epsilon`."""
    r, a = np.asarray(curve, np.float64), np.asarray(orders)
    logs = np.minimum((a - 1) * (r - epsilon + np.log1p(-1 / a)) - np.log(a), 0.5 * np.log(-np.expm1(-r) + 1e-300))
    return min(1.0, math.exp(float(logs.min())))


def _gaussian(event: Gaussian, order: float) -> float:
    if isinstance(event, NoisyVote):
        return float(vote_curve(event, (order,))[0])
    return order / (2 * event.noise_multiplier**2) if event.noise_multiplier > 0 else math.inf


def _response(epsilon: float, buckets: int, order: float) -> float:
    """Randomised response with 2 buckets is the worst of all ``epsilon``-private releases (Kairouz, Oh, Viswanath 2015)."""
    other = -math.log(math.exp(-epsilon) * (buckets - 1) + 1) - epsilon  # ln of the probability of one other value
    terms = [other + order * epsilon, other + (1 - order) * epsilon]
    if buckets > 2:
        terms.append(other + math.log(buckets - 2))
    return max(0.0, float(np.logaddexp.reduce(terms)) / (order - 1))


def _skellam(event: Skellam, order: float) -> float:
    """One entry: exact. Vectors: Agarwal, Kairouz, Liu 2021, Theorem 3.5, which holds at whole orders; between them ``(a - 1) r`` is convex."""
    if event.values == 1:
        return skellam_divergence(order, event.variance, int(event.sensitivity))
    return _at_order(order, lambda whole: skellam_bound(whole, event.variance, event.sensitivity, event.values))


def _at_order(order: float, bound: Callable[[int], float]) -> float:
    """A bound at any order from one that holds at whole orders above 1: ``(a - 1) D_a`` is convex, and 0 at 1."""
    low, high = math.floor(order), math.ceil(order)
    if low == high:
        return bound(low)
    share = order - low
    below = (low - 1) * bound(low) if low > 1 else 0.0
    return ((1 - share) * below + share * (high - 1) * bound(high)) / (order - 1)


@checked_call
def skellam_bound(order: float, variance: float, sensitivity: float = 1.0, values: int = 1) -> float:
    """``a D^2 / (2 v) + min(((2 a - 1) D^2 + 6 D1) / (4 v^2), 3 D1 / (2 v))``, the bound of the Skellam paper.

    ``D1`` is the L1 sensitivity that ``D`` allows on whole numbers, ``min(sqrt(values) D, D^2)``.
    """
    l1 = min(math.sqrt(values) * sensitivity, sensitivity**2)
    extra = min(((2 * order - 1) * sensitivity**2 + 6 * l1) / (4 * variance**2), 3 * l1 / (2 * variance))
    return order * sensitivity**2 / (2 * variance) + extra


@checked_call
def distributed_bound(order: float, variance: float, parties: int, sensitivity: float = 1.0, values: int = 1) -> float:
    """A bound for the sum of discrete Gaussians of ``parties``, whose parameters add up to ``variance``.

    With ``t = 10 sum_(k=1)^(parties-1) exp(-2 pi^2 (variance / parties) k / (k + 1))``, ``V = variance`` and ``D1`` the L1 sensitivity, the least of

    * ``a D^2 / (2 V) + max(1, a / 4) t d``,
    * ``a/2 (D^2 / V + 2 t D1 / sqrt(V) + t^2 d)``,
    * ``a/2 (D / sqrt(V) + t sqrt(d))^2``.

    Kairouz, Liu, Steinke 2021, Proposition 14; the first is the larger of its form there and in Theorem 1. ``d`` is the number of entries that differ, so
    at most ``D^2`` on whole numbers, because equal entries have no divergence.
    """
    share = variance / parties
    steps = np.arange(1, parties)
    tau = 10 * float(np.exp(-2 * math.pi**2 * share * steps / (steps + 1)).sum())
    entries, l1 = min(float(values), sensitivity**2), min(math.sqrt(values) * sensitivity, sensitivity**2)
    square, deviation = sensitivity**2 / variance, math.sqrt(variance)
    return min(
        order * square / 2 + max(1.0, order / 4) * tau * entries,
        order / 2 * (square + 2 * tau * l1 / deviation + tau**2 * entries),
        order / 2 * (math.sqrt(square) + tau * math.sqrt(entries)) ** 2,
    )


@checked_call
def mixture_bound(order: float, variance: float, sensitivity: float, largest: int, *, both: bool = False) -> float:
    """A bound for Skellam noise on vectors rounded at random, at whole orders.

    Let ``u`` be a rounded entry and ``B_k`` a bound of the divergence for a shift of ``k``. Divergences are jointly convex in the pair of distributions, so
    the release with rounded ``u`` against none has ``D <= sum_j ln E exp((a - 1) B_|u_j|) / (a - 1)``. ``u`` takes two neighbouring values, so both
    ``E u^2`` and ``E exp((a - 1) B_|u|)`` run straight between whole numbers, and with ``sum_j E u_j^2 <= D^2``

        ``D_a <= D^2 max_(0 <= k < largest) (exp((a - 1)(B_(k+1) - B_k)) - 1) / ((a - 1)(2 k + 1))``.

    If both vectors are rounded, their difference has up to three values, and ``ln E exp(x) <= E exp(x) - 1`` gives
    ``D^2 max_(1 <= k <= largest) (exp((a - 1) B_k) - 1) / ((a - 1) k^2)``, with ``D^2`` a bound of the mean squared distance.
    The paper of Bao et al. 2022 has ``(1.09 a + 0.91) D^2 / (2 variance)`` for a narrower range of orders.
    """
    if largest > _LARGEST_SHIFT:
        return math.inf
    k, a = np.arange(largest + 1.0), order - 1.0
    extra = np.minimum(((2 * order - 1) * k**2 + 6 * k) / (4 * variance**2), 3 * k / (2 * variance))
    bound = order * k**2 / (2 * variance) + extra
    with np.errstate(over="ignore"):
        if both:
            worst = np.expm1(a * bound[1:]) / (a * k[1:] ** 2)
        else:
            worst = np.expm1(a * np.diff(bound)) / (a * (2 * k[:-1] + 1))
    return sensitivity**2 * float(worst.max())
