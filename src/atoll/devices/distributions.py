"""Traits of devices as distributions. A draw is a function of a seed and the device's position: the same for any subset and order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError
from atoll.core.validation import Checked

from .draws import DrawnPopulation, uniforms

__all__ = ["Distribution", "Equal", "Exponential", "Normal", "Uniform", "UniformDistribution"]


@dataclass(frozen=True)
class Distribution(Checked):
    """The distribution of a trait over devices."""

    @property
    def support(self) -> tuple[float, float]:
        """The smallest and the largest value that can be drawn."""
        raise NotImplementedError

    def draw(self, key: int, population: DrawnPopulation, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """The values of the devices at these positions."""
        raise NotImplementedError

    def within(self, low: float, high: float) -> Distribution:
        """The same distribution, restricted to an interval; only a ``Normal`` can be wider than its own bounds say."""
        del low, high
        return self

    def check_regions(self, names: Sequence[str], where: str) -> None:
        """Refuse regions that do not exist."""
        del names, where


@dataclass(frozen=True)
class Equal(Distribution):
    """Every device has the same value.

    Args:
        value: the value.
    """

    value: float

    @property
    def support(self) -> tuple[float, float]:
        """The value, as both bounds."""
        return (self.value, self.value)

    def draw(self, key: int, population: DrawnPopulation, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the value for each device."""
        del key, population
        return np.full(len(positions), float(self.value))


@dataclass(frozen=True)
class Normal(Distribution):
    """A normal distribution, clipped: a value outside ``[low, high]`` becomes the bound (it is not drawn again).

    Args:
        mean: mean before clipping.
        std: standard deviation before clipping.
        low: smallest value; ``None`` sets no bound, which only traits that may be negative accept.
        high: largest value.
    """

    mean: float
    std: float
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if not self.std >= 0.0 or not math.isfinite(self.mean):
            raise ConfigError(
                f"std={self.std} about mean={self.mean}", where="Normal", remedy="use a std of at least 0"
            )
        if not self.support[0] <= self.support[1]:
            raise ConfigError(f"low={self.low} above high={self.high}", where="Normal", remedy="swap them")

    @property
    def support(self) -> tuple[float, float]:
        """The bounds."""
        return (-math.inf if self.low is None else self.low, math.inf if self.high is None else self.high)

    def draw(self, key: int, population: DrawnPopulation, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """Transform two uniform numbers a device (Box and Muller 1958)."""
        del population
        radius, angle = uniforms(key, 2 * positions), uniforms(key, 2 * positions + 1)
        standard = np.sqrt(-2.0 * np.log(radius)) * np.cos(2.0 * np.pi * angle)
        return np.clip(self.mean + self.std * standard, *self.support)

    def within(self, low: float, high: float) -> Normal:
        """The same distribution with tighter bounds."""
        mine = self.support
        return replace(self, low=max(low, mine[0]), high=min(high, mine[1]))


@dataclass(frozen=True)
class Exponential(Distribution):
    """An exponential distribution, drawn again until it is at least ``minimum``.

    An exponential variable is memoryless: a value of at least ``minimum`` is distributed as ``minimum`` plus a fresh draw, and is drawn that way here.
    Drawing a whole population again until its smallest value is large enough gives the same distribution.

    Args:
        mean: mean of a draw without the minimum (``1 / lambda``).
        minimum: smaller values are drawn again.
    """

    mean: float
    minimum: float = 0.0

    def __post_init__(self) -> None:
        if not (self.mean > 0.0 and self.minimum >= 0.0):
            raise ConfigError(
                f"mean={self.mean}, minimum={self.minimum}", where="Exponential", remedy="use mean > 0 and minimum >= 0"
            )

    @property
    def support(self) -> tuple[float, float]:
        """From the minimum, or from just above 0 without one."""
        return (max(self.minimum, 5e-324), math.inf)

    def draw(self, key: int, population: DrawnPopulation, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """Draw by inversion."""
        del population
        return self.minimum - self.mean * np.log(uniforms(key, positions))


@dataclass(frozen=True)
class UniformDistribution(Distribution):
    """A uniform distribution between two values.

    Args:
        low: smallest value.
        high: largest value.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ConfigError(f"low={self.low} above high={self.high}", where="Uniform", remedy="swap them")

    @property
    def support(self) -> tuple[float, float]:
        """The two values."""
        return (self.low, self.high)

    def draw(self, key: int, population: DrawnPopulation, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """Draw one uniform number a device."""
        del population
        return self.low + (self.high - self.low) * uniforms(key, positions)


Uniform = UniformDistribution
"""The name in settings and in `atoll.devices`; the class is longer, as `atoll.Uniform` is the selection rule."""
