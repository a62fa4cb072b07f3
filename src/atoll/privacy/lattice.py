"""Laws of integer noise: logarithms of probabilities that are accurate far in the tails."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from atoll.core.calls import checked_call

__all__ = ["discrete_gaussian_law", "skellam_divergence", "skellam_law"]

Array = npt.NDArray[np.float64]


@lru_cache(maxsize=64)
def skellam_law(variance: float, reach: int) -> Array:
    """``ln P(k)`` for ``k = -reach .. reach``, with ``P(k) = exp(-v) I_k(v)``.

    The ratios ``I_k / I_(k-1)`` come from their continued fraction, from far outside inwards: every term is positive, nothing cancels.
    """
    start = reach + 60 + int(10 * math.sqrt(variance))
    ratios, ratio = np.empty(reach), 0.0
    for k in range(start, 0, -1):
        ratio = 1.0 / (2.0 * k / variance + ratio)
        if k <= reach:
            ratios[k - 1] = ratio
    return _normalised(np.concatenate([[0.0], np.cumsum(np.log(ratios))]))


@lru_cache(maxsize=64)
def discrete_gaussian_law(variance: float, reach: int) -> Array:
    """``ln P(k)`` for ``k = -reach .. reach``, with ``P(k) ~ exp(-k^2 / (2 variance))``."""
    return _normalised(-(np.arange(reach + 1.0) ** 2) / (2.0 * variance))


@checked_call
def skellam_divergence(order: float, variance: float, shift: int = 1) -> float:
    """The Rényi divergence of one Skellam variable and the same moved by ``shift``, summed term by term.

    Args:
        order: above 1.
        variance: of the variable.
        shift: a whole number.
    """
    reach = int(40 * math.sqrt(variance) + 2 * order * shift + 60)
    law = skellam_law(variance, reach)
    terms = order * law[:-shift] + (1.0 - order) * law[shift:]
    top = terms.max()
    return max(0.0, float(top + np.log(np.exp(terms - top).sum())) / (order - 1.0))


def _normalised(half: Array) -> Array:
    whole = np.concatenate([half[:0:-1], half])
    top = whole.max()
    found: Array = whole - (top + math.log(np.exp(whole - top).sum()))
    return found
