"""When devices can be asked at all. Pure functions of a seed, the device and the time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError

from .draws import Population, key_of, uniforms
from .traits import probability

__all__ = ["Availability", "Diurnal", "Markov", "Windows"]


@dataclass(frozen=True)
class Availability:
    """Who is there at a moment, and until when."""

    def there(self, population: Population, positions: NDArray[np.int64], now: float) -> NDArray[np.bool_]:
        """Whether each device can be asked."""
        raise NotImplementedError

    def leaves(
        self, population: Population, positions: NDArray[np.int64], now: float, until: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """When each device that is there goes away; any time after its ``until``, or ``inf``, if not before."""
        raise NotImplementedError


@dataclass(frozen=True)
class Diurnal(Availability):
    """Every device is there for the same share of each day; its hour lies about its region's.

    Args:
        share: of the day that a device is there.
        day: seconds of a day.
        regions: how far apart the days of regions begin, as a share of a day: 1 spreads them over the whole day, 0 gives all the same.
        devices: how far apart those of the devices of a region begin, likewise: the smaller, the more a region comes and goes together.
        seed: of the draws.
    """

    share: float = 1 / 3
    day: float = 86_400.0
    regions: float = 1.0
    devices: float = 0.25
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("share", "regions", "devices"):
            probability(getattr(self, name), name, "Diurnal")
        if not self.day > 0:
            raise ConfigError(f"day={self.day} seconds", where="Diurnal", remedy="use a positive number")

    def _hour(self, population: Population, positions: NDArray[np.int64], now: float) -> NDArray[np.float64]:
        """Seconds since each device's day began."""
        zones = uniforms(key_of(self.seed, "zone"), np.arange(len(population.names)))
        own = uniforms(key_of(self.seed, "hour"), positions)
        begins = self.regions * zones[population.region[positions]] + self.devices * own
        return np.mod(now - self.day * begins, self.day)

    def there(self, population: Population, positions: NDArray[np.int64], now: float) -> NDArray[np.bool_]:
        """In the first ``share`` of its day."""
        return self._hour(population, positions, now) < self.share * self.day

    def leaves(
        self, population: Population, positions: NDArray[np.int64], now: float, until: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """At the end of that share; never where it is the whole day."""
        del until
        if self.share == 1.0:
            return np.full(len(positions), np.inf)
        return now + self.share * self.day - self._hour(population, positions, now)


@dataclass(frozen=True)
class Markov(Availability):
    """Devices come and go: a two-state Markov chain in steps of time, each device on its own, stationary from the beginning.

    In every step a device that is there goes with probability ``step / on``, and one that is not comes with ``step / off``. One uniform number a step
    says "go", "come" or "stay as you are"; the state at any time is what the latest number that does not say "stay" said, so that it can be found
    without the past before it.

    Args:
        on: mean seconds that a device stays.
        off: mean seconds that it is away.
        step: seconds of a step; ``step / on + step / off`` must not be above 1.
        seed: of the draws.
    """

    on: float = 3600.0
    off: float = 3600.0
    step: float = 60.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (self.on > 0 and self.off > 0 and self.step > 0) or self.step / self.on + self.step / self.off > 1:
            raise ConfigError(
                f"on={self.on}, off={self.off}, step={self.step} seconds",
                where="Markov",
                remedy="use positive numbers and a step with step / on + step / off <= 1",
            )

    def _says(self, positions: NDArray[np.int64], step: int) -> NDArray[np.int8]:
        """1 come, -1 go, 0 stay."""
        drawn = uniforms(key_of(self.seed, "markov", step), positions)
        go, come = self.step / self.on, self.step / self.off
        return np.where(drawn < go, -1, np.where(drawn < go + come, 1, 0)).astype(np.int8)

    def there(self, population: Population, positions: NDArray[np.int64], now: float) -> NDArray[np.bool_]:
        """What was last said."""
        del population
        step, state = int(now // self.step), np.zeros(len(positions), dtype=np.int8)
        open_ = np.arange(len(positions))
        while len(open_):
            state[open_] = self._says(positions[open_], step)
            open_, step = open_[state[open_] == 0], step - 1
        return state > 0

    def leaves(
        self, population: Population, positions: NDArray[np.int64], now: float, until: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """At the next step that says "go"."""
        del population
        step, when = int(now // self.step) + 1, np.full(len(positions), np.inf)
        open_ = np.flatnonzero(step * self.step < until)
        while len(open_):
            going = self._says(positions[open_], step) < 0
            when[open_[going]] = step * self.step
            step += 1
            open_ = open_[~going]
            open_ = open_[step * self.step < until[open_]]
        return when


@dataclass(frozen=True, eq=False)
class Windows(Availability):
    """You say when: a device is there in its windows only.

    Args:
        windows: ``(position, begin, end)`` of each window, ``begin <= now < end``.
        others: whether devices without a window are always there, or never.
    """

    windows: Sequence[tuple[int, float, float]]
    others: bool = True
    _rows: tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        merged: list[tuple[int, float, float]] = []
        for position, begin, end in sorted((int(p), float(b), float(e)) for p, b, e in self.windows):
            if position < 0 or not begin < end:
                raise ConfigError(
                    f"a window of device {position} from {begin:g} to {end:g}",
                    where="Windows",
                    remedy="give a position of at least 0, and an end after the beginning",
                )
            if merged and merged[-1][0] == position and begin <= merged[-1][2]:
                merged[-1] = (position, merged[-1][1], max(end, merged[-1][2]))
            else:
                merged.append((position, begin, end))
        columns = np.array(merged, dtype=np.float64).reshape(-1, 3)
        object.__setattr__(self, "_rows", (columns[:, 0].astype(np.int64), columns[:, 1], columns[:, 2]))

    def _ends(self, population: Population, now: float) -> NDArray[np.float64]:
        """When the window that each device is in ends; ``-inf`` outside of any."""
        who, begin, end = self._rows
        if len(who) and who.max() >= population.size:
            raise ConfigError(
                f"a window of device {who.max()}, and there are {population.size}",
                where="Windows",
                remedy="give positions in the population",
            )
        ends = np.full(population.size, np.inf if self.others else -np.inf)
        ends[who] = -np.inf
        open_ = (begin <= now) & (now < end)
        ends[who[open_]] = end[open_]
        return ends

    def there(self, population: Population, positions: NDArray[np.int64], now: float) -> NDArray[np.bool_]:
        """In a window."""
        return self._ends(population, now)[positions] > now

    def leaves(
        self, population: Population, positions: NDArray[np.int64], now: float, until: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """When the window ends."""
        del until
        return self._ends(population, now)[positions]
