"""Discrete Gaussian and Skellam noise, and Skellam noise on plainly rounded updates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError
from atoll.core.event import Event
from atoll.privacy.discrete import DiscreteGaussianLaw, Law, SkellamLaw, Source
from atoll.privacy.events import DistributedGaussian, Skellam, SkellamMixture

from .rounding import in_steps, mean_square, unconditional
from .stage import _MANY, LatticeNoise

__all__ = ["DiscreteGaussianNoise", "SkellamMixtureNoise", "SkellamNoise"]

_SHRINK = 0.99


@dataclass(frozen=True, kw_only=True)
class DiscreteGaussianNoise(LatticeNoise):
    """Discrete Gaussian noise at each client: the distributed discrete Gaussian mechanism (Kairouz, Liu, Steinke 2021).

    The sum of the clients' noise is no discrete Gaussian. Its accounting has a term for that (`DistributedGaussian`), which is invisible once each client's noise
    has a standard deviation of a few steps, and is refused below half a step. See `LatticeNoise` for settings and errors.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sharing > 1 and self.variance < self.sharing / 4:
            raise ConfigError(
                f"step={self.step:g}: the noise of one party has a standard deviation of {math.sqrt(self.variance / self.sharing):.3g} steps",
                where="DiscreteGaussianNoise",
                remedy="use a finer step, for at least half a step, or SkellamNoise",
            )

    def law(self, variance: float) -> Law:
        """The discrete Gaussian of this parameter."""
        return DiscreteGaussianLaw(variance)

    def released(self) -> Event:
        """The sum of the discrete Gaussians that count."""
        return DistributedGaussian(
            unit=self.unit,
            variance=self.variance,
            sensitivity=self.apart,
            values=_MANY,
            parties=self.sharing,
            slack=self.slack,
            between=self.between,
        )


@dataclass(frozen=True, kw_only=True)
class SkellamNoise(LatticeNoise):
    """Skellam noise at each client: sums of Skellam variables are Skellam, so ``least`` clients together release one (Agarwal, Kairouz, Liu 2021).

    It costs a little more than a discrete Gaussian on coarse grids, and works with any variance. See `LatticeNoise` for settings and errors.
    """

    adds_up: ClassVar[bool] = True

    def law(self, variance: float) -> Law:
        """The Skellam law of this variance."""
        return SkellamLaw(variance)

    def released(self) -> Event:
        """One Skellam release."""
        return Skellam(
            unit=self.unit, variance=self.variance, sensitivity=self.apart, values=_MANY, slack=self.slack, between=self.between,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SkellamMixtureNoise(SkellamNoise):
    """Skellam noise on updates that are rounded once, without a bound of the rounded length (Bao et al. 2022, SMM).

    Rounding is part of the mechanism: what counts is the mean squared length after it, ``sum_j x_j^2 + p_j (1 - p_j)`` with ``p`` the fractions, which is kept at
    ``(inflation clip / g)^2`` or below. So rounding has no bias at all, and grids can be coarser than with conditional rounding. An update that would
    exceed the bound is scaled down.
    """

    def _round_vector(self, vector: NDArray[np.float64], source: Source) -> NDArray[np.int64]:
        exact = in_steps(vector, self.clip, self.step)
        while mean_square(exact) > self._most:
            exact = (exact * _SHRINK).astype(np.int64)
        return unconditional(exact, source)

    def released(self) -> Event:
        """One mixture."""
        reach = math.isqrt(self._most) + 1
        return SkellamMixture(
            unit=self.unit, variance=self.variance, sensitivity=self.apart, values=_MANY, slack=self.slack,
            largest=2 * reach if self.replaced else reach, both=self.replaced, between=self.between,
        )  # fmt: skip
