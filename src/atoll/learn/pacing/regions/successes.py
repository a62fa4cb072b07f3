"""The distribution of a number of successes in independent trials with unequal probabilities (Poisson-binomial)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.core.errors import ConfigError

__all__ = ["at_least", "success_law"]


def success_law(probabilities: ArrayLike, trials: ArrayLike = 1) -> NDArray[np.float64]:
    """Return ``P(S = k)`` for ``k = 0..n``, where ``S = sum_j Binomial(trials_j, p_j)`` and ``n = sum_j trials_j``.

    The characteristic function ``prod_j (1 - p_j + p_j e^{iw})^{trials_j}`` at ``n + 1`` angles, transformed back (Hong 2013, "On computing
    the distribution function for the Poisson binomial distribution"). Exact up to rounding, about 1e-15 per entry.

    Args:
        probabilities: probabilities of success, each in [0, 1], shape ``(groups,)``.
        trials: how many trials have each probability; one number for all or ``(groups,)``.

    Raises:
        ConfigError: a probability is outside [0, 1] or a number of trials is negative.
    """
    p = np.atleast_1d(np.asarray(probabilities, dtype=np.float64))
    n = np.broadcast_to(np.asarray(trials), p.shape)
    if not ((p >= 0) & (p <= 1)).all() or (n < 0).any():
        raise ConfigError(
            f"probabilities {p[:5].tolist()} with trials {n[:5].tolist()}",
            where="success_law",
            remedy="use probabilities in [0, 1] and numbers of trials of at least 0",
        )
    total = int(n.sum())
    turn = np.exp(2j * np.pi * np.arange(total + 1) / (total + 1))
    wave = np.ones(total + 1, dtype=np.complex128)
    for share, times in zip(p, n, strict=True):
        wave *= (1 - share + share * turn) ** int(times)
    law: NDArray[np.float64] = np.clip(np.fft.fft(wave).real / (total + 1), 0.0, 1.0)
    return law


def at_least(quota: int, probabilities: ArrayLike, trials: ArrayLike = 1) -> float:
    """Return ``P(S >= quota)``; see `success_law`."""
    return float(min(1.0, success_law(probabilities, trials)[max(quota, 0) :].sum()))
