"""Lower bounds of epsilon from canaries: coins that an auditor guesses after one run.

Each of ``m`` canaries is in the run or not, by a fair coin that the mechanism does not know. The auditor sees what was released and guesses
``r`` of the coins; it may leave out the others. An ``(epsilon, delta)``-private mechanism limits how many guesses can be right: with
``delta = 0`` the number is never (stochastically) above ``Binomial(r, e^epsilon / (1 + e^epsilon))``. Many right guesses refute small epsilons.
Steinke, Nasr, Jagielski 2023, "Privacy Auditing with One (1) Training Run", theorems 3.1 and 5.2.

For a Gaussian mechanism the whole trade-off curve bounds the noise, in place of one point of it. A mechanism is ``mu``-GDP if telling two neighbours apart is never
easier than telling ``N(0, 1)`` from ``N(mu, 1)`` (Dong, Roth, Su 2022). That says more than one
``(epsilon, delta)``: it limits how often an auditor's *surest* guesses can be right too. Mahloujifar, Melis, Chaudhuri 2024, "Auditing f-Differential Privacy in One Run",
bound the chance of ``v`` or more right guesses among ``r``, for ``m`` canaries. If that chance is below ``a``, the run refutes ``mu``; we follow their recursion.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError

from .gaussian import exact_epsilon

__all__ = ["Audit", "Tradeoff", "audit_p_value", "gaussian_bound", "gaussian_refuted", "guessed", "lower_bound"]

_CLOSE = 1e-9
_NORMAL = NormalDist()


def gaussian_refuted(mu: float, right: int, guesses: int, canaries: int, chance: float) -> bool:
    """Return whether a ``mu``-GDP run has so many right guesses with a probability below ``chance``.

    ``some`` is (a bound of) the part of all canaries that are guessed right together with ``i`` or more others, ``rest`` of those guessed wrong. With
    ``g(x) = Phi(Phi^-1(x) - mu)``, each step down replaces ``rest`` by ``g(some)`` if that is more, and ``some`` grows by ``i / (r - i)`` times the difference. At
    the end both together can be ``r / m`` at most.

    Args:
        mu: the hypothesis, above 0.
        right: right guesses, ``v``.
        guesses: guesses, ``r``.
        canaries: coins, ``m``.
        chance: in (0, 1).
    """
    some, rest = chance * right / canaries, chance * (guesses - right) / canaries
    for i in range(right - 1, -1, -1):
        least = _harder(some, mu)
        if least <= rest:  # from here on nothing changes
            break
        some = min(1.0, some + i / (guesses - i) * (least - rest))
        rest = least
    return some + rest > guesses / canaries


def gaussian_bound(right: int, guesses: int, confidence: float, delta: float, canaries: int) -> float:
    """Return the epsilon at ``delta`` of the largest ``mu`` that is refuted; 0 if none is.

    Args:
        right: right guesses.
        guesses: guesses, as many as were fixed beforehand.
        confidence: in (0, 1): if the run is ``mu``-GDP, its bound is above the epsilon of ``mu`` with probability ``1 - confidence`` at most.
        delta: in (0, 1).
        canaries: coins.
    """
    low, high = 0.0, 1.0

    def refuted(mu: float) -> bool:
        return gaussian_refuted(mu, right, guesses, canaries, 1 - confidence)

    if not refuted(_CLOSE):
        return 0.0
    while refuted(high):
        low, high = high, 2 * high
    while high - low > _CLOSE * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return exact_epsilon(low**2, delta) if low > 0 else 0.0


def _harder(share: float, mu: float) -> float:
    """``Phi(Phi^-1(share) - mu)``."""
    if not 0.0 < share < 1.0:
        return float(share >= 1.0)
    return 0.5 * math.erfc((mu - _NORMAL.inv_cdf(share)) / math.sqrt(2))


# ---------------------------------------------------------------- lower bounds of epsilon from canaries

Array = npt.NDArray[np.float64]
Tradeoff = Literal["approximate", "gaussian"]
"""What a claim says of all pairs of errors: those of one ``(epsilon, delta)``, or those of Gaussian noise."""


@checked_call
def audit_p_value(right: int, guesses: int, epsilon: float, delta: float = 0.0, canaries: int | None = None) -> float:
    """The probability, at most, that ``right`` or more of the guesses are right if the run is ``(epsilon, delta)``-private.

    ``P[B >= v] + 2 m delta max_i P[v > B >= v - i] / i`` with ``B ~ Binomial(r, 1 / (1 + e^-epsilon))``: theorem 5.2.

    Args:
        right: right guesses, ``v``.
        guesses: guesses, ``r``.
        epsilon: the hypothesis, at least 0.
        delta: in [0, 1).
        canaries: coins, ``m``; by default all were guessed.

    Raises:
        ConfigError: ``right <= guesses <= canaries`` does not hold, or epsilon or delta are not in their range.
    """
    coins = guesses if canaries is None else canaries
    if not (0 <= right <= guesses <= coins and guesses >= 1 and epsilon >= 0 and 0 <= delta < 1):
        raise ConfigError(
            f"right={right}, guesses={guesses}, canaries={coins}, epsilon={epsilon}, delta={delta}",
            where="audit_p_value",
            remedy="use right <= guesses <= canaries, epsilon >= 0 and delta in [0, 1)",
        )
    law = _binomial(guesses, epsilon)
    value = float(law[right:].sum())
    if delta > 0 and right > 0:
        below = np.cumsum(law[right - 1 :: -1])  # P[v > B >= v - i] for i = 1 .. v
        value += 2 * coins * delta * float((below / np.arange(1, right + 1)).max())
    return min(1.0, value)


@checked_call
def lower_bound(
    right: int,
    guesses: int,
    confidence: float = 0.95,
    delta: float = 0.0,
    canaries: int | None = None,
    tradeoff: Tradeoff = "approximate",
) -> float:
    """The largest epsilon that is refuted: a lower bound that is above the true one with probability ``1 - confidence`` at most.

    For Gaussian noise, ``tradeoff="gaussian"`` proves far more with the same guesses: a claim ``(epsilon, delta)`` of it is one of all its epsilons and deltas, see
    `gaussian_bound`. It says nothing about a mechanism that claims a single ``(epsilon, delta)`` and is not Gaussian.

    Args:
        right: right guesses.
        guesses: guesses; their number may not depend on which are right.
        confidence: in (0, 1).
        delta: in [0, 1).
        canaries: coins; by default all were guessed.
        tradeoff: what is claimed: one ``(epsilon, delta)``, or Gaussian noise.

    Returns:
        At least 0, which says nothing.

    Raises:
        ConfigError: see `audit_p_value`; ``confidence`` is not in (0, 1); or Gaussian noise with ``delta`` 0.
    """
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence={confidence}", where="lower_bound", remedy="use a number in (0, 1), as 0.95")
    if tradeoff not in ("approximate", "gaussian"):
        raise ConfigError(f"tradeoff={tradeoff!r}", where="lower_bound", remedy="use 'approximate' or 'gaussian'")
    if tradeoff == "gaussian":
        if not delta > 0:
            raise ConfigError("Gaussian noise at delta=0", where="lower_bound", remedy="use the delta of the claim")
        audit_p_value(right, guesses, 0.0, delta, canaries)  # refuses numbers that make no sense
        return gaussian_bound(right, guesses, confidence, delta, guesses if canaries is None else canaries)

    def refuted(epsilon: float) -> bool:
        return audit_p_value(right, guesses, epsilon, delta, canaries) < 1 - confidence

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
    while high - low > _CLOSE * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _binomial(n: int, epsilon: float) -> Array:
    """``P[B = k]`` for ``k = 0 .. n`` with success probability ``1 / (1 + e^-epsilon)``."""
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])
    k = np.arange(n + 1)
    failure = -epsilon - math.log1p(math.exp(-epsilon))
    found: Array = np.exp(logs[-1] - logs - logs[::-1] - k * math.log1p(math.exp(-epsilon)) + (n - k) * failure)
    return found


@dataclass(frozen=True)
class Audit:
    """The result of an audit: what a run claims, and what its canaries say.

    Attributes:
        claimed: epsilon that the run claims.
        lower: lower bound of epsilon; above ``claimed``, the claim is refuted.
        confidence: probability that ``lower`` is not above the true epsilon.
        delta: delta of both.
        right: right guesses.
        guesses: guesses.
        canaries: coins.
        unit: what a canary is: ``"user"`` or ``"example"``.
        neighbours: how a coin changes the data: ``"add-remove"`` or ``"replace-one"``.
        adversary: who guesses: what it sees is what was scored.
        tradeoff: what the claim says of all pairs of errors; see `lower_bound`.
    """

    claimed: float
    lower: float
    confidence: float
    delta: float
    right: int
    guesses: int
    canaries: int
    unit: str = "user"
    neighbours: str = "add-remove"
    adversary: str = "model"
    tradeoff: Tradeoff = "approximate"

    @property
    def refuted(self) -> bool:
        """Whether the canaries refute the claim."""
        return self.lower > self.claimed

    @property
    def verdict(self) -> str:
        """What follows, in a sentence."""
        share = f"{self.right} of {self.guesses} guesses about {self.canaries} canaries ({self.unit}s) are right"
        noise = " if the noise is Gaussian" if self.tradeoff == "gaussian" else ""
        found = f"epsilon is at least {self.lower:.3g}{noise} with confidence {100 * self.confidence:g} %"
        says = "which refutes" if self.refuted else "which does not contradict"
        return f"{share}: {found}, {says} the claimed epsilon {self.claimed:.3g} at delta {self.delta:g}."

    def plain(self) -> dict[str, Any]:
        """The numbers as plain values."""
        return {**asdict(self), "refuted": self.refuted}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Audit:
        """The inverse of `plain`."""
        return cls(**{field.name: plain[field.name] for field in fields(cls) if field.name in plain})


@checked_call
def guessed(scores: npt.ArrayLike, coins: npt.ArrayLike, guesses: int) -> int:
    """How many of the auditor's guesses are right: "in" for the highest half of the scores that it guesses, "out" for the lowest.

    Args:
        scores: a number for each canary, ``(canaries,)``; large if it seems to have been in.
        coins: whether it was, ``(canaries,)``.
        guesses: how many to guess: ``ceil(guesses / 2)`` at the top, the others at the bottom. Fixed before anybody looks at the coins.

    Raises:
        ConfigError: shapes differ, or there are fewer canaries than guesses.
    """
    score, coin = np.asarray(scores, np.float64), np.asarray(coins, bool)
    if score.shape != coin.shape or score.ndim != 1 or not 1 <= guesses <= len(score):
        raise ConfigError(
            f"scores of shape {score.shape}, coins of shape {coin.shape}, guesses={guesses}",
            where="guessed",
            remedy="give one score and one coin to each canary, and guess 1 to all of them",
        )
    order = np.argsort(-score, kind="stable")
    top = -(-guesses // 2)
    return int(coin[order[:top]].sum() + (~coin[order[len(order) - (guesses - top) :]]).sum())
