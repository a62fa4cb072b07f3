"""Traits of devices: one number for all, one each, or a distribution, which may differ by region."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError
from atoll.core.validation import is_real, numbers

from .distributions import Distribution, DrawnPopulation, Equal, known_region

__all__ = ["ByRegion", "GivenTraits", "Trait", "lift", "positive", "probability"]


@dataclass(frozen=True, eq=False)
class GivenTraits(Distribution):
    """Known values, one for each device.

    Args:
        values: one value a device, in the order of the population.
    """

    values: Sequence[float]
    _column: NDArray[np.float64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        column = numbers("GivenTraits", "values", self.values)
        if column.ndim != 1 or not len(column) or not np.isfinite(column).all():
            raise ConfigError(
                f"values of shape {column.shape}", where="GivenTraits", remedy="give one finite number a device"
            )
        column.flags.writeable = False
        object.__setattr__(self, "_column", column)

    @property
    def support(self) -> tuple[float, float]:
        """The smallest and the largest value."""
        return (float(self._column.min()), float(self._column.max()))

    def draw(self, key: int, population: DrawnPopulation, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """Look up the values.

        Raises:
            ConfigError: the numbers of values and devices differ.
        """
        del key
        if len(self._column) != population.size:
            raise ConfigError(
                f"{len(self._column)} values for {population.size} devices",
                where="GivenTraits",
                remedy="give one value a device",
            )
        return self._column[positions]


@dataclass(frozen=True, eq=False)
class ByRegion(Distribution):
    """A separate distribution for each region.

    Args:
        values: maps the name of a region to a number or a distribution.
    """

    values: Mapping[str, float | Distribution]

    def __post_init__(self) -> None:
        if not isinstance(self.values, Mapping) or not self.values:
            raise ConfigError(f"values={self.values!r} names no region", where="ByRegion", remedy="name every region")
        object.__setattr__(self, "values", {str(name): lift(value) for name, value in self.values.items()})

    @property
    def inner(self) -> dict[str, Distribution]:
        """The distribution of each region."""
        return {name: lift(value) for name, value in self.values.items()}

    @property
    def support(self) -> tuple[float, float]:
        """The support over all regions."""
        every = [value.support for value in self.inner.values()]
        return (min(s[0] for s in every), max(s[1] for s in every))

    def within(self, low: float, high: float) -> ByRegion:
        """The same with tighter bounds in every region."""
        return ByRegion({name: value.within(low, high) for name, value in self.inner.items()})

    def check_regions(self, names: Sequence[str], where: str) -> None:
        """Check that every region has a distribution, and no other name.

        Raises:
            ConfigError: a region is missing, or does not exist.
        """
        for name in self.values:
            known_region(name, names, where)
        for name in names:
            if name not in self.values:
                raise ConfigError(
                    f"values has no entry for region {name!r}", where=f"{where}: ByRegion", remedy="name every region"
                )

    def draw(self, key: int, population: DrawnPopulation, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """Draw region by region."""
        self.check_regions(population.names, "devices")
        out = np.zeros(len(positions))
        for i, name in enumerate(population.names):
            here = population.region[positions] == i
            out[here] = self.inner[name].draw(key, population, positions[here])
        return out


Trait = float | Distribution | Sequence[float]
"""A number for all devices, one number each, or a distribution."""


def lift(trait: Any, name: str = "values", where: str = "GivenTraits") -> Distribution:
    """Turn a trait into a distribution.

    Raises:
        ConfigError: it is neither a distribution nor one or more numbers.
    """
    if isinstance(trait, Distribution):
        return trait
    if is_real(trait):
        return Equal(float(trait))
    try:
        return GivenTraits(trait)
    except ConfigError as error:
        several = isinstance(trait, Sequence | np.ndarray) and not isinstance(trait, str)
        what = f"{name}: {error.what}" if several else f"{name}={trait!r}"
        raise ConfigError(what, where=where, remedy="use a number, one number a device, or a distribution") from None


def positive(trait: Any, name: str, where: str) -> Distribution:
    """A trait that must be above 0.

    Raises:
        ConfigError: it may be drawn at or below 0.
    """
    found = lift(trait, name, where)
    low, high = found.support
    if not low > 0.0 or math.isnan(high):
        raise ConfigError(
            f"{name}={trait!r} can be {low:g}",
            where=where,
            remedy="use values above 0; for a Normal, set low= to clip small draws",
        )
    return found


def probability(trait: Any, name: str, where: str) -> Distribution:
    """A trait that is a probability. A Normal is clipped to [0, 1].

    Raises:
        ConfigError: it may be drawn outside [0, 1].
    """
    found = lift(trait, name, where).within(0.0, 1.0)
    low, high = found.support
    if not (low >= 0.0 and high <= 1.0):
        raise ConfigError(
            f"{name}={trait!r} is not a probability: it can be {low if low < 0 else high:g}",
            where=where,
            remedy="use values from 0 to 1",
        )
    return found
