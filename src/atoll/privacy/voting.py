"""Votes whose winner is told and whose counts are not: the bounds of PATE for noise on counts, and for the votes that were cast.

Papernot, Song, Mironov, Raghunathan, Talwar, Erlingsson 2018, "Scalable Private Learning with PATE" (GNMax and Confident-GNMax).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError
from atoll.core.event import Gaussian, register_event

__all__ = ["NoisyVote", "log_odds_of_answer", "log_odds_of_winner", "vote_curve"]

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
