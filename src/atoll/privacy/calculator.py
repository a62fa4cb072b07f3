"""One mechanism, many times: its epsilon, and the noise that an epsilon needs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError
from atoll.core.event import Gaussian, Laplace, Sampled

from .accountant import epsilon_of
from .events import DiscreteGaussian, Skellam, hidden_rate

__all__ = ["LOGISTIC", "MECHANISMS", "NoisePlan", "noise_for", "objective_alpha", "objective_epsilon", "smallest_noise"]


# ------------------------------------------------------------------ the cost of noise in the objective: pure differential privacy of a perturbed minimiser
#
# Chaudhuri, Monteleoni and Sarwate 2011; Upcycled-FL, Theorem 6.3. A client sends the minimiser of ``F(w) + mu/2 ||w - W||^2 + <n, w>`` with
# ``F(w) = (1/n) sum_z f(y w^T x)``, ``f`` convex, ``|f'| <= u1``, ``|f''| <= u2``, ``||x|| <= R``, and noise of density
# ``exp(-alpha ||n||_2)``. If ``u2 R^2 <= n mu / 2``, one release costs ``epsilon = (2/n) (u1 R alpha + 1.4 u2 R^2 / mu)`` and ``delta = 0``, and
# releases add up. The paper has ``R = 1``; for other bounds rescale ``x`` to ``x / R`` and ``w`` to ``R w``, which divides ``alpha`` and ``mu``
# by ``R`` and ``R^2``.
#
# The ``1.4`` is ``-ln(1 - t) < 1.4 t`` on ``(0, 1/2]``, for each of the two eigenvalues by which one record may change the Hessian.


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


# ------------------------------------------------------------------ one mechanism, many times: its epsilon, and the noise that an epsilon needs


_Mechanism = Literal["gaussian", "laplace", "skellam", "discrete-gaussian"]
MECHANISMS: tuple[str, ...] = get_args(_Mechanism)
_CLOSE = 1e-7  # relative distance of a noise that was searched


@dataclass(frozen=True, kw_only=True)
class NoisePlan:
    """A mechanism that is used ``steps`` times.

    Attributes:
        mechanism: ``"gaussian"``, ``"laplace"``, ``"skellam"`` or ``"discrete-gaussian"``.
        noise: standard deviation of the noise on one entry (``sigma`` of the discrete Gaussian); scale of Laplace noise.
        sensitivity: how far one unit moves a release: in L2, for Laplace in L1. Discrete noise is on whole numbers.
        values: the number of entries of a release; matters for discrete noise.
        sampling: the rate at which a unit takes part in a step.
        scheme: ``"poisson"`` or ``"fixed"``.
        drawn_by: who knows the sample: ``"public"``, ``"server"`` or ``"party"``.
        steps: the number of releases.
        delta: in (0, 1).
        unit: what is protected: ``"user"``, ``"example"`` or ``"island"``.
        adversary: from whom: ``"server"``, ``"clients"`` or ``"model"`` (whoever gets the model).
        neighbours: ``"add-remove"`` or ``"replace-one"``.
    """

    mechanism: str
    noise: float
    delta: float
    steps: int = 1
    sensitivity: float = 1.0
    values: int = 1
    sampling: float = 1.0
    scheme: str = "poisson"
    drawn_by: str = "server"
    unit: str = "user"
    adversary: str = "model"
    neighbours: str = "add-remove"

    def __post_init__(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise ConfigError(
                f"mechanism={self.mechanism!r}", where="NoisePlan", remedy=f"use one of {', '.join(MECHANISMS)}"
            )
        if not (self.noise > 0 and math.isfinite(self.noise) and self.sensitivity > 0 and self.steps >= 1):
            raise ConfigError(
                f"noise={self.noise}, sensitivity={self.sensitivity}, steps={self.steps}",
                where="NoisePlan",
                remedy="use positive numbers",
            )

    @property
    def event(self) -> Sampled:
        """One release, as an event."""
        drawn = {"unit": self.unit, "sampling": self.sampling, "scheme": self.scheme, "drawn_by": self.drawn_by}
        if self.mechanism == "gaussian":
            return Gaussian(noise_multiplier=self.noise / self.sensitivity, **drawn)  # type: ignore[arg-type]
        if self.mechanism == "laplace":
            return Laplace(epsilon=self.sensitivity / self.noise, **drawn)  # type: ignore[arg-type]
        kind = Skellam if self.mechanism == "skellam" else DiscreteGaussian
        return kind(variance=self.noise**2, sensitivity=self.sensitivity, values=self.values, **drawn)  # type: ignore[arg-type]

    @property
    def amplified(self) -> bool:
        """Whether the sampling counts: the adversary does not know it, and it fits the neighbours."""
        return hidden_rate(self.event, self.adversary, self.neighbours) < 1

    def epsilon(self, accountant: str) -> float:
        """Epsilon of all steps."""
        return epsilon_of(((self.event, self.steps),), self.delta, accountant, self.adversary, self.neighbours)


@checked_call
def noise_for(plan: NoisePlan, epsilon: float, accountant: str) -> NoisePlan:
    """The plan with the smallest noise that keeps ``epsilon``, to 7 digits and never less.

    Args:
        plan: its noise is where the search begins.
        epsilon: positive.
        accountant: see `epsilon_of`.

    Raises:
        ConfigError: no noise keeps it.
    """
    more = "" if accountant == "pld" else ", or accountant='pld'"
    noise = smallest_noise(lambda sigma: replace(plan, noise=sigma).epsilon(accountant), epsilon, plan.noise, more)
    return replace(plan, noise=noise)


@checked_call
def smallest_noise(cost: Callable[[float], float], epsilon: float, start: float = 1.0, more: str = "") -> float:
    """Return the smallest noise with ``cost(noise) <= epsilon``, to 7 digits and never less.

    Args:
        cost: the epsilon of a noise; it falls as the noise grows.
        epsilon: positive.
        start: a positive noise where the search begins.
        more: what the caller could also change, if no noise keeps epsilon: the end of the remedy.

    Raises:
        ConfigError: no noise keeps it.
    """
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise ConfigError(f"epsilon={epsilon}", where="noise_for", remedy="use a finite number > 0")

    def excess(noise: float) -> float:
        try:
            found = cost(noise)
        except ConfigError as error:
            if "too wide" not in str(error):
                raise
            return math.inf
        return math.log(found / epsilon) if found > 0 else -1.0

    low, above, high, below = _bracket(excess, start)
    if below > 0:
        raise ConfigError(
            f"no noise below {high:g} keeps epsilon={epsilon:g}",
            where="noise_for",
            remedy=f"use a larger epsilon or delta{more}",
        )
    for turn in range(100):
        if high - low <= _CLOSE * high:
            break
        # A chord, a little to the safe side so that both ends come in; every third time the middle.
        share = above / (above - below) if math.isfinite(above) and turn % 3 < 2 else 0.5
        nudge = _CLOSE / 3 * high * (1 if turn % 3 == 0 else -1) if turn % 3 < 2 else 0.0
        middle = min(max(low + share * (high - low) + nudge, low + _CLOSE / 10 * high), high - _CLOSE / 10 * high)
        value = excess(middle)
        if value > 0:
            low, above = middle, value
        else:
            high, below = middle, value
    return high


def _bracket(excess: Callable[[float], float], start: float) -> tuple[float, float, float, float]:
    """Two noises around the zero of a falling function, each with its value."""
    low = high = start
    above = below = excess(start)
    while below > 0 and high < 1e9:
        low, above, high = high, below, 2 * high
        below = excess(high)
    while above <= 0 and low > 1e-6:
        high, below, low = low, above, low / 2
        above = excess(low)
    return low, above, high, below
