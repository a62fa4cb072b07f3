"""The interface of availability rules, and the rule that is data: when each device is available, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError
from atoll.core.validation import Checked, numbers

from .draws import DrawnPopulation

__all__ = ["Availability", "Windows"]


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
        rows = _merged(rows)
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


def _merged(rows: NDArray[np.float64]) -> NDArray[np.float64]:
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
