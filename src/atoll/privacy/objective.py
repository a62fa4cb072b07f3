"""The cost of noise in the objective: pure differential privacy of a perturbed minimiser.

Chaudhuri, Monteleoni and Sarwate 2011; Upcycled-FL, Theorem 6.3. A client sends the minimiser of ``F(w) + mu/2 ||w - W||^2 + <n, w>`` with
``F(w) = (1/n) sum_z f(y w^T x)``, ``f`` convex, ``|f'| <= u1``, ``|f''| <= u2``, ``||x|| <= R``, and noise of density
``exp(-alpha ||n||_2)``. If ``u2 R^2 <= n mu / 2``, one release costs ``epsilon = (2/n) (u1 R alpha + 1.4 u2 R^2 / mu)`` and ``delta = 0``, and
releases add up. The paper has ``R = 1``; for other bounds rescale ``x`` to ``x / R`` and ``w`` to ``R w``, which divides ``alpha`` and ``mu``
by ``R`` and ``R^2``.

The ``1.4`` is ``-ln(1 - t) < 1.4 t`` on ``(0, 1/2]``, for each of the two eigenvalues by which one record may change the Hessian.
"""

from __future__ import annotations

import math

from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError

__all__ = ["LOGISTIC", "objective_alpha", "objective_epsilon"]

LOGISTIC = (1.0, 0.25)
"""``(u1, u2)`` of ``f(t) = ln(1 + e^-t)``."""


@checked_call
def objective_epsilon(
    examples: int,
    alpha: float,
    mu: float,
    *,
    releases: int = 1,
    slopes: tuple[float, float] = LOGISTIC,
    radius: float = 1.0,
) -> float:
    """Epsilon of several releases of one client.

    Args:
        examples: the client's number of examples ``n``.
        alpha: inverse scale of the noise: a larger value is less noise.
        mu: weight of the quadratic term, positive.
        releases: number of releases.
        slopes: ``(u1, u2)``.
        radius: bound ``R`` on the norm of the features.

    Raises:
        ConfigError: ``mu`` is too small for the theorem, or a number is not positive.
    """
    u1, u2 = slopes
    _require(examples, alpha, mu, u2 * radius**2)
    if releases < 0:
        raise ConfigError(f"releases={releases}", where="objective perturbation", remedy="use 0 or more")
    return releases * (2.0 / examples) * (u1 * radius * alpha + 1.4 * u2 * radius**2 / mu)


@checked_call
def objective_alpha(
    epsilon: float,
    examples: int,
    mu: float,
    *,
    releases: int = 1,
    slopes: tuple[float, float] = LOGISTIC,
    radius: float = 1.0,
) -> float:
    """The ``alpha`` that spends a budget; the inverse of `objective_epsilon`.

    Raises:
        ConfigError: the regulariser alone costs more than the budget, or ``mu`` is too small.
    """
    u1, u2 = slopes
    _require(examples, 1.0, mu, u2 * radius**2)
    rest = epsilon * examples / (2.0 * releases) - 1.4 * u2 * radius**2 / mu
    if not rest > 0:
        raise ConfigError(
            f"epsilon={epsilon} for {releases} releases of {examples} examples with mu={mu}",
            where="objective perturbation",
            remedy="spend more, release less often, or use a larger mu",
        )
    return rest / (u1 * radius)


def _require(examples: int, alpha: float, mu: float, curvature: float) -> None:
    if not (examples >= 1 and alpha > 0 and math.isfinite(alpha) and mu > 0 and math.isfinite(mu)):
        raise ConfigError(
            f"examples={examples}, alpha={alpha}, mu={mu}",
            where="objective perturbation",
            remedy="use at least one example, and a positive alpha and mu",
        )
    if curvature > 0.5 * examples * mu:
        raise ConfigError(
            f"mu={mu} is too small for {examples} examples",
            where="objective perturbation",
            remedy=f"use mu of at least {2.0 * curvature / examples:g}: the theorem requires u2 R^2 <= n mu / 2",
        )
