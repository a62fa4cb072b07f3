"""Coefficients of banded factorisations: the square root of the prefix sums, cut off, and those with the least error for a number of rounds.

For a lower triangular Toeplitz matrix ``C`` with diagonals ``c_0 .. c_(b-1)`` over ``n`` rounds, the noise in the prefix sums is ``B z`` with ``B = A C^-1``, Toeplitz with
the coefficients ``w = C^-1 1``. With participations at least ``b`` rounds apart, its mean square over the rounds, for one unit of noise a participation, is

``E(c) = ||c||^2 (1 / n) sum_(i<n) (n - i) w_i^2``.

`optimal` minimises it: Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu 2023, "(Amplified) Banded Matrix Factorization: A unified approach to private training",
in the Toeplitz form of McKenna 2024, "Scaling up the Banded Matrix Factorization Mechanism for Differentially Private ML".
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.extras import need

__all__ = ["mean_error", "optimal", "root"]

Vector = NDArray[np.float64]
_STEPS = 500


def root(bands: int) -> Vector:
    """``c_j = binomial(2 j, j) / 4^j``: the square root of the matrix of prefix sums; Kalinin, Lampert 2024."""
    j = np.arange(1, bands)
    return np.concatenate([[1.0], np.cumprod((2 * j - 1) / (2 * j))])


def mean_error(coefficients: Vector, rounds: int) -> float:
    """Return ``E(c)``, the mean square of the noise in the prefix sums.

    Raises:
        MissingExtraError: SciPy is not installed.
    """
    return _error(np.asarray(coefficients, np.float64), rounds)[0]


@lru_cache(maxsize=32)
def optimal(bands: int, rounds: int) -> tuple[float, ...]:
    """Return the coefficients with the least `mean_error`, with ``c_0 = 1``; never worse than `root`.

    Args:
        bands: number of diagonals; more than ``rounds`` of them are not used.
        rounds: rounds of the training.

    Raises:
        MissingExtraError: SciPy is not installed.
    """
    begin = root(min(bands, rounds))
    if len(begin) == 1:
        return (1.0,)
    optimize = need("scipy.optimize", "dp", "coefficients of least error", where="atoll.privacy")

    def loss(free: Vector) -> tuple[float, Vector]:
        value, slope = _error(np.concatenate([[1.0], free]), rounds)
        return value, slope[1:]

    settings = {"maxiter": _STEPS, "ftol": 1e-15, "gtol": 1e-10}
    found = np.concatenate([[1.0], optimize.minimize(loss, begin[1:], jac=True, method="L-BFGS-B", options=settings).x])
    better = found if _error(found, rounds)[0] <= _error(begin, rounds)[0] else begin
    return tuple(float(c) for c in better)


def _error(c: Vector, rounds: int) -> tuple[float, Vector]:
    """``E(c)`` and its gradient: with ``v`` the solution of ``C' v = dE/dw``, ``dw`` contributes ``-sum_i v_i w_(i-j)`` to the derivative by ``c_j``."""
    w, shares = _solved(c, np.ones(rounds)), np.arange(rounds, 0, -1) / rounds
    spread, length = float((shares * w * w).sum()), float(c @ c)
    back = _solved(c, (2 * shares * w)[::-1])[::-1]
    moved = np.array([-float(back[j:] @ w[: rounds - j]) if j < rounds else 0.0 for j in range(len(c))])
    return length * spread, 2 * c * spread + length * moved


def _solved(c: Vector, right: Vector) -> Vector:
    """Solve ``C x = right``."""
    signal: Any = need("scipy.signal", "dp", "coefficients of least error", where="atoll.privacy")
    made: Vector = signal.lfilter([1.0], c, right)
    return made
