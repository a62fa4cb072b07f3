"""Lower bounds of a Gaussian mechanism's noise from canaries of one run: its whole trade-off curve, in place of one point of it.

A mechanism is ``mu``-GDP if telling two neighbours apart is never easier than telling ``N(0, 1)`` from ``N(mu, 1)`` (Dong, Roth, Su 2022). That says more than one
``(epsilon, delta)``: it limits how often an auditor's *surest* guesses can be right too. Mahloujifar, Melis, Chaudhuri 2024, "Auditing f-Differential Privacy in One Run",
bound the chance of ``v`` or more right guesses among ``r``, for ``m`` canaries. If that chance is below ``a``, the run refutes ``mu``; we follow their recursion.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from .gaussian import exact_epsilon

__all__ = ["gaussian_bound", "gaussian_refuted"]

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
