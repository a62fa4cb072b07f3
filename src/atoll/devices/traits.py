"""Traits of devices: one number for all, one each, or a distribution, which may differ by region."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.rng import Rng, mix_keys
from atoll.core.errors import ConfigError, nearest
from atoll.core.validation import Checked, is_real, numbers

__all__ = [
    "ByRegion",
    "Distribution",
    "Drawable",
    "DrawnPopulation",
    "Equal",
    "Exponential",
    "GivenTraits",
    "Normal",
    "Trait",
    "Uniform",
    "UniformDistribution",
    "key_of",
    "known_region",
    "lift",
    "positive",
    "probability",
    "region_names",
    "uniforms",
]


# ------------------------------------------------------------------ traits of devices as distributions. A draw is a function of a seed and the device's position
#
# Traits of devices as distributions. A draw is a function of a seed and the device's position: the same for any subset and order.


def key_of(seed: int, *path: str | int) -> int:
    """The key of a stream of draws."""
    return Rng.of(seed).child("devices", *path).key


def uniforms(key: int, numbers: NDArray[np.int64]) -> NDArray[np.float64]:
    """A number in (0, 1) for each of ``numbers``, a function of the key and that number alone."""
    bits = mix_keys(key, mix_keys(key, numbers.astype(np.uint64)))
    return ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def region_names(regions: int | Sequence[str]) -> tuple[str, ...]:
    """The names of regions in order of appearance; a number of regions names them ``"0"``, ``"1"``, ..."""
    if isinstance(regions, int | np.integer):
        return tuple(str(i) for i in range(int(regions)))
    return tuple(dict.fromkeys(str(name) for name in regions))


class Drawable(Protocol):
    """A distribution that can be drawn for a population."""

    def draw(self, key: int, population: DrawnPopulation, positions: NDArray[np.int64], /) -> NDArray[np.float64]:
        """The values of the devices at these positions."""
        ...


class DrawnPopulation:
    """The regions of all devices, and columns that are drawn once for all of them.

    Args:
        size: number of devices.
        regions: number of regions of (nearly) equal size, in the order of the devices; or the name of each device's region.

    Attributes:
        names: names of the regions.
        region: index into ``names`` of each device, shape ``(size,)``.
    """

    def __init__(self, size: int, regions: int | Sequence[str] = 1) -> None:
        self.size = size
        self.names = region_names(regions)
        if isinstance(regions, int | np.integer):
            count = int(regions)
            if not 1 <= count <= max(1, size):
                raise ConfigError(
                    f"regions={count} for {size} devices", where="devices", remedy=f"use a number from 1 to {size}"
                )
            parts = np.array_split(np.arange(size), count)
            self.region = np.repeat(np.arange(count), [len(part) for part in parts])
        else:
            if len(regions) != size:
                raise ConfigError(
                    f"regions has {len(regions)} entries for {size} devices",
                    where="devices",
                    remedy="name the region of each device, or give a number of regions",
                )
            place = {name: i for i, name in enumerate(self.names)}
            self.region = np.array([place[str(name)] for name in regions], dtype=np.int64)
        self._kept: dict[tuple[int, int], tuple[object, NDArray[np.float64]]] = {}

    @property
    def positions(self) -> NDArray[np.int64]:
        """The positions of all devices."""
        return np.arange(self.size, dtype=np.int64)

    def column(self, trait: Drawable, key: int, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """A trait of some devices; the first call draws it for all devices."""
        place = (key, id(trait))
        if place not in self._kept:
            self._kept[place] = (
                trait,
                trait.draw(key, self, self.positions),
            )  # keeps a reference to the trait, so that no other object gets its id
        return self._kept[place][1][positions]


def known_region(name: str, names: Sequence[str], where: str) -> None:
    """Refuse the name of a region that does not exist.

    Raises:
        ConfigError: it is not in ``names``.
    """
    if name not in names:
        raise ConfigError(
            f"{name!r} is not a region.{nearest(name, names)}", where=where, remedy=f"use {', '.join(map(repr, names))}"
        )


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


# ------------------------------------------------------------------ traits of devices: one number for all, one each, or a distribution, which may differ by region


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
