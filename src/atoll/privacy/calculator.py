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
from .events import DiscreteGaussian, Skellam
from .sampling import hidden_rate

__all__ = ["MECHANISMS", "NoisePlan", "noise_for", "smallest_noise"]

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
    noise = smallest_noise(lambda sigma: replace(plan, noise=sigma).epsilon(accountant), epsilon, plan.noise)
    return replace(plan, noise=noise)


@checked_call
def smallest_noise(cost: Callable[[float], float], epsilon: float, start: float = 1.0) -> float:
    """Return the smallest noise with ``cost(noise) <= epsilon``, to 7 digits and never less.

    Args:
        cost: the epsilon of a noise; it falls as the noise grows.
        epsilon: positive.
        start: a positive noise where the search begins.

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
            remedy="use a larger epsilon or delta, or accountant 'pld'",
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
