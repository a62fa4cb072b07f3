"""When devices are available: pure functions of a seed, the device and the time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError
from atoll.core.validation import Checked, numbers

from .traits import DrawnPopulation, key_of, probability, uniforms

__all__ = ["Availability", "Diurnal", "Markov", "Windows"]


# The interface of availability rules, and the rule that is data: when each device is available, as columns.


@dataclass(frozen=True)
class Availability(Checked):
    """Which devices are available at a moment, and until when."""

    def there(self, population: DrawnPopulation, positions: NDArray[np.int64], now: float) -> NDArray[np.bool_]:
        """Whether each device is available."""
        raise NotImplementedError

    def leaves(
        self, population: DrawnPopulation, positions: NDArray[np.int64], now: float, until: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """When each available device leaves; if not before its ``until``, any time from then on, or ``inf``."""
        raise NotImplementedError

    def recorded(self, population: DrawnPopulation, until: float) -> Windows:
        """The same rule as data: for every moment before ``until`` the windows give the same answers, to the bit.

        Raises:
            ConfigError: the rule cannot be recorded.
        """
        del population, until
        raise ConfigError(
            f"{type(self).__name__} cannot be recorded: it does not say when devices come and go",
            where="Fleet.recorded",
            remedy="give it a method recorded(population, until) that returns Windows",
        )


@dataclass(frozen=True, eq=False)
class Windows(Availability):
    """Availability that you list: a device is available only in its windows.

    Columns are sorted by device and time, so a query costs one binary search for each device asked about, for any number of windows.

    Args:
        windows: ``(position, begin, end)`` of each window, ``begin <= now < end``.
        others: whether devices without a window are always there, or never.
        until: seconds up to which the windows are known; asking about a later moment raises an error. By default they hold forever.
    """

    windows: Sequence[tuple[int, float, float]]
    others: bool = True
    until: float | None = None
    columns: tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.until is not None and not self.until > 0:
            raise ConfigError(f"until={self.until} seconds", where="Windows", remedy="use a positive number")
        rows = numbers("Windows", "windows", self.windows)
        if rows.size and (rows.ndim != 2 or rows.shape[1] != 3):
            raise ConfigError(
                f"windows of shape {rows.shape}", where="Windows", remedy="give rows of position, begin and end"
            )
        rows = rows.reshape(-1, 3)
        rows = rows[np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))]
        wrong = np.flatnonzero(~((rows[:, 0] >= 0) & (rows[:, 1] < rows[:, 2])))
        if len(wrong):
            position, begin, end = rows[wrong[0]]
            raise ConfigError(
                f"a window of device {position:.0f} from {begin:g} to {end:g}",
                where="Windows",
                remedy="give a position of at least 0, and an end after the beginning",
            )
        rows = _merge_windows(rows)
        columns = rows[:, 0].astype(np.int64), rows[:, 1].copy(), rows[:, 2].copy()
        for column in columns:
            column.flags.writeable = False
        object.__setattr__(self, "columns", columns)

    @classmethod
    def of(
        cls, who: NDArray[np.int64], begin: NDArray[np.float64], end: NDArray[np.float64], until: float | None
    ) -> Windows:
        """Windows from columns; a device without one is never available."""
        return cls(cast("Sequence[tuple[int, float, float]]", np.column_stack([who, begin, end])), False, until)

    def _ends(self, population: DrawnPopulation, positions: NDArray[np.int64], now: float) -> NDArray[np.float64]:
        """The end of the window that each device is in; ``-inf`` outside of any.

        Raises:
            ConfigError: a window's device does not exist, or the windows are not known at this moment.
        """
        who, begin, end = self.columns
        if len(who) and who[-1] >= population.size:
            raise ConfigError(
                f"a window of device {who[-1]}, but there are {population.size} devices",
                where="Windows",
                remedy="give positions in the population",
            )
        if self.until is not None and now >= self.until:
            raise ConfigError(
                f"availability at {now:g} s is requested, but the windows are known up to {self.until:g} s",
                where="Windows",
                remedy="record them with a later until, or end the run sooner",
            )
        first, after = np.searchsorted(who, positions, "left"), np.searchsorted(who, positions, "right")
        low, high = first.copy(), after.copy()  # windows before low have begun, those from high on have not
        while (low < high).any():
            middle = (low + high) // 2
            begun = (low < high) & (begin[np.minimum(middle, len(begin) - 1)] <= now)
            low, high = np.where(begun, middle + 1, low), np.where(begun, high, middle)
        ends = np.full(len(positions), -np.inf)
        inside = np.flatnonzero(low > first)
        ends[inside] = end[low[inside] - 1]
        ends[ends <= now] = -np.inf
        if self.others:
            ends[first == after] = np.inf
        return ends

    def there(self, population: DrawnPopulation, positions: NDArray[np.int64], now: float) -> NDArray[np.bool_]:
        """Whether each device is in a window."""
        return self._ends(population, positions, now) > now

    def leaves(
        self, population: DrawnPopulation, positions: NDArray[np.int64], now: float, until: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """The end of the window."""
        del until
        return self._ends(population, positions, now)

    def recorded(self, population: DrawnPopulation, until: float) -> Windows:
        """Return itself; with ``inf``, up to its own end if it holds forever.

        Raises:
            ConfigError: the windows are not known until then.
        """
        if self.until is not None and until > self.until:
            raise ConfigError(
                f"until={until:g} s, but the windows are known up to {self.until:g} s",
                where="Windows",
                remedy=f"ask for at most {self.until:g} s",
            )
        self._ends(population, population.positions[:0], 0.0)
        return self


def _merge_windows(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sorted rows, with touching or overlapping windows of a device merged."""
    same = rows[1:, 0] == rows[:-1, 0]
    if not (same & (rows[1:, 1] <= rows[:-1, 2])).any():
        return rows
    merged: list[list[float]] = []
    for position, begin, end in rows.tolist():
        if merged and merged[-1][0] == position and begin <= merged[-1][2]:
            merged[-1][2] = max(end, merged[-1][2])
        else:
            merged.append([position, begin, end])
    return np.array(merged)


@dataclass(frozen=True)
class Diurnal(Availability):
    """Every device is available for the same share of each day, at an hour around that of its region.

    Args:
        share: share of the day for which a device is available.
        day: seconds of a day.
        regions: spread of the starting times of regions, as a share of a day: 1 spreads them over the whole day, 0 gives all the same.
        devices: spread of the starting times of devices within a region, likewise: the smaller, the more a region's devices come and go together.
        seed: seed of the draws.
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

    @property
    def _always(self) -> bool:
        """Whether the missing part of a day is too short for a simulation to notice."""
        return self.share > 1.0 - 1e-12

    def _shift(self, population: DrawnPopulation, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """The start of each device's day number 0, in days."""
        zones = uniforms(key_of(self.seed, "zone"), np.arange(len(population.names)))
        return self.regions * zones[population.region[positions]] + self.devices * uniforms(
            key_of(self.seed, "hour"), positions
        )

    def _stay(
        self, shift: NDArray[np.float64], number: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """When a device becomes available and leaves in its day of a number. All other methods derive from these two, to the bit."""
        begin = (number + shift) * self.day
        return begin, np.minimum(begin + self.share * self.day, (number + 1.0 + shift) * self.day)

    def _number(self, shift: NDArray[np.float64], now: float) -> NDArray[np.float64]:
        """The number of each device's day at a moment: that day has begun, and the next has not."""
        number = np.floor(now / self.day - shift)
        early, late = (number + shift) * self.day > now, (number + 1.0 + shift) * self.day <= now
        return number - early + late

    def there(self, population: DrawnPopulation, positions: NDArray[np.int64], now: float) -> NDArray[np.bool_]:
        """Whether each device is in the first ``share`` of its day."""
        return self.leaves(population, positions, now, np.full(len(positions), np.inf)) > now

    def leaves(
        self, population: DrawnPopulation, positions: NDArray[np.int64], now: float, until: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """The end of that share; never, if it is the whole day."""
        del until
        if self._always:
            return np.full(len(positions), np.inf)
        shift = self._shift(population, positions)
        return self._stay(shift, self._number(shift, now))[1]

    def recorded(self, population: DrawnPopulation, until: float) -> Windows:
        """The devices' days as windows."""
        who = population.positions
        if self._always:
            return Windows.of(who, np.full(len(who), -np.inf), np.full(len(who), np.inf), until)
        shift = self._shift(population, who)
        numbers = self._number(shift, 0.0)[:, None] + np.arange(math.ceil(until / self.day) + 1.0)
        begin, end = self._stay(shift[:, None], numbers)
        kept = (begin < end) & (end > 0.0) & (begin < until)
        return Windows.of(np.nonzero(kept)[0], begin[kept], end[kept], until)


@dataclass(frozen=True)
class Markov(Availability):
    """Devices come and go: a two-state Markov chain in steps of time, independent for each device, stationary from the start.

    In each step an available device leaves with probability ``step / on``, and an absent one returns with ``step / off``. One uniform number a step
    means "go", "come" or "stay"; the latest number that is not "stay" gives the state, so the state at any time can be found
    without the earlier past.

    Args:
        on: mean seconds that a device stays available.
        off: mean seconds that it is absent.
        step: seconds of a step; ``step / on + step / off`` must be at most 1.
        seed: seed of the draws.
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
        if math.isinf(self.on) and math.isinf(self.off):
            raise ConfigError(
                f"on={self.on}, off={self.off} seconds: no device ever comes or goes",
                where="Markov",
                remedy="give at least one of them a finite number",
            )

    def _step(self, now: float) -> int:
        """The number of the step at a moment: ``step * number <= now < step * (number + 1)``, to the bit."""
        number = int(now // self.step)
        return number + (self.step * (number + 1) <= now) - (self.step * number > now)

    def _says(self, positions: NDArray[np.int64], step: int) -> NDArray[np.int8]:
        """1 for come, -1 for go, 0 for stay."""
        drawn = uniforms(key_of(self.seed, "markov", step), positions)
        go, come = self.step / self.on, self.step / self.off
        return np.where(drawn < go, -1, np.where(drawn < go + come, 1, 0)).astype(np.int8)

    def there(self, population: DrawnPopulation, positions: NDArray[np.int64], now: float) -> NDArray[np.bool_]:
        """Whether the latest "come" or "go" of each device is "come"."""
        del population
        step, state = self._step(now), np.zeros(len(positions), dtype=np.int8)
        open_ = np.arange(len(positions))
        while len(open_):
            state[open_] = self._says(positions[open_], step)
            open_, step = open_[state[open_] == 0], step - 1
        return state > 0

    def leaves(
        self, population: DrawnPopulation, positions: NDArray[np.int64], now: float, until: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """The next step that means "go"."""
        del population
        step, when = self._step(now) + 1, np.full(len(positions), np.inf)
        open_ = np.flatnonzero(step * self.step < until)
        while len(open_):
            going = self._says(positions[open_], step) < 0
            when[open_[going]] = step * self.step
            step += 1
            open_ = open_[~going]
            open_ = open_[step * self.step < until[open_]]
        return when

    def recorded(self, population: DrawnPopulation, until: float) -> Windows:
        """Record step by step; an availability that lasts beyond ``until`` is followed to its end."""
        everyone = population.positions
        since = np.where(
            self.there(population, everyone, 0.0), 0.0, np.nan
        )  # the start of each device's current window
        rows: list[tuple[NDArray[np.int64], NDArray[np.float64], float]] = []
        step, asked = 1, everyone
        while True:
            moment = step * self.step
            if moment >= until:  # absent devices stay absent as far as the windows are known
                asked = asked[~np.isnan(since[asked])]
            if not len(asked) or (moment >= until and math.isinf(self.on)):
                break
            says = self._says(asked, step)
            going, coming = asked[(says < 0) & ~np.isnan(since[asked])], asked[(says > 0) & np.isnan(since[asked])]
            rows.append((going, since[going], moment))
            since[going], since[coming] = np.nan, moment
            step += 1
        left = asked[~np.isnan(since[asked])]
        rows.append((left, since[left], math.inf))
        who, begin = (np.concatenate([row[i] for row in rows]) for i in (0, 1))
        return Windows.of(who, begin, np.repeat([row[2] for row in rows], [len(row[0]) for row in rows]), until)
