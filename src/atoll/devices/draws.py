"""Draws for devices: pure functions of a key and a device's position, computed for a whole population at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.rng import Rng, mix_keys
from atoll.core.errors import ConfigError, nearest

__all__ = ["Drawable", "DrawnPopulation", "key_of", "known_region", "region_names", "uniforms"]


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
