"""Times of survival data on a grid that all parties share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError, DataError
from atoll.core.redaction import private
from atoll.fitting.method import AtParty, FitMethod, Known, State, Sums
from atoll.fitting.rows import PartyRows

__all__ = ["OnGrid", "SurvivalMethod"]


@dataclass(frozen=True)
class OnGrid:
    """The rows of a party on the grid.

    Attributes:
        rows: places of the rows that are told.
        place: of each of them on the grid; -1 before the first time.
        event: whether it had the event there.
        moved: how many rows are at a later time than their own.
        left_out: how many rows are not told, since they are too few of their kind.
    """

    rows: NDArray[np.int64]
    place: NDArray[np.int64]
    event: NDArray[np.bool_]
    moved: int
    left_out: int


@dataclass(frozen=True, kw_only=True)
class SurvivalMethod(FitMethod):
    """Base class of methods for times to an event.

    The grid of times is given (``times``), or has the multiples of ``width`` at which parties have events, or the event times of all parties. The time of an event is rounded up to the
    grid, and that of a row without one down, so a grid that has all event times gives the exact answer. Any other gives that of all rows with times so rounded. After the last time
    of the grid nothing is observed. Event times as they are belong to single rows: a minimum count and a secure reducer refuse to ask for them.

    With a minimum count, each party tells at each time 0 or at least ``min_count`` events, and so for rows that leave without one: it moves rows to the next later
    time at which there are enough, and the last ones to the last such time. Rows of a kind that has fewer altogether are left out.

    Attributes:
        time: column of times, from 0.
        event: column of 1 (the event) and 0 (not observed beyond this time).
        times: the grid, ascending.
        width: width of the grid; 0 for none.
    """

    singly: ClassVar[frozenset[str]] = frozenset({"times"})
    time: str = "time"
    event: str = "event"
    times: Sequence[float] = ()
    width: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.width < np.inf:
            raise ConfigError(f"width={self.width}", remedy="use a finite number > 0")
        if len(self.times) and (self.width or (np.diff(np.asarray(self.times, dtype=float)) <= 0).any()):
            raise ConfigError("times that do not ascend, or width beside them", remedy="give ascending times, or width")

    @property
    def extra(self) -> tuple[str, ...]:
        """Time and event."""
        return (self.time, self.event)

    def check(self, known: Known) -> None:
        """Refuse times of single rows where those may not be told."""
        if len(self.times):
            return
        what = "times of single rows" if not self.width else "each party's times"
        if known.sums_only or (known.least > 1 and not self.width):
            raise ConfigError(
                f"{what} would be told",
                where=type(self).__name__,
                remedy="agree on a grid, times=[30, 60, 90]" + ("" if known.sums_only else ", or give width"),
            )

    def begun(self) -> State:
        """The state in which the grid is known, or asked for."""
        if len(self.times):
            return {"phase": self.first, "grid": np.array(self.times, dtype=np.float64)}
        return {"phase": "times"}

    first: ClassVar[str] = ""

    def start(self, known: Known) -> State:
        """Ask for times unless the grid is given."""
        del known
        return self.begun()

    def proposal(self, rows: PartyRows, state: State, party: AtParty) -> Sums:
        """The times at which the party has enough events; with ``width``, rounded."""
        del state, party
        times, events = self._columns(rows)
        grid = np.unique(self._rounded(times[events]))
        placed = self._on(rows, grid) if len(grid) else None
        return {"times": grid if placed is None else grid[np.unique(placed.place[placed.event])]}

    def gather(self, state: State, told: Sequence[Mapping[str, NDArray[Any]]], known: Known) -> State:
        """The union of the times."""
        del state
        grid = np.unique(np.concatenate([np.asarray(one["times"], dtype=np.float64) for one in told]))
        if not len(grid):
            raise DataError(
                "no party tells of an event"
                if known.least > 1
                else f"no row has an event: column {self.event!r} has no 1",
                where=type(self).__name__,
                remedy="use a smaller min_count, or invite parties with events"
                if known.least > 1
                else "look whether 1 is an event there and 0 a row that leaves without one; without events survival stays 1, and there is no curve to fit",
            )
        return {"phase": self.first, "grid": grid}

    def _rounded(self, times: NDArray[np.float64]) -> NDArray[np.float64]:
        """Times of events: the next multiple of the width."""
        return np.ceil(times / self.width - 1e-12) * self.width if self.width else times

    def _columns(self, rows: PartyRows) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        times, events = np.asarray(rows.extra[self.time]), np.asarray(rows.extra[self.event])
        known = np.isin(events, (0, 1))
        if not known.all():
            raise DataError(
                f"column {self.event!r} has {private(f'{events[~known][0]:g}')}, which is neither 0 nor 1",
                where=rows.name,
                remedy="write 1 for a row that has the event and 0 for another: subtract 1 where 2 says event and 1 none",
            )
        if (times < 0).any():
            raise DataError(
                f"column {self.time!r} has a negative time, {private(f'{times.min():g}')}",
                where=rows.name,
                remedy="correct it, or leave the row out: times count from 0",
            )
        return times.astype(np.float64), events.astype(bool)

    def placed(self, rows: PartyRows, state: State, group: NDArray[np.int64] | None = None) -> OnGrid:
        """The rows on the grid of the state; kinds are also told apart by group."""
        return self._on(rows, np.asarray(state["grid"], dtype=np.float64), group)

    def _on(self, rows: PartyRows, grid: NDArray[np.float64], group: NDArray[np.int64] | None = None) -> OnGrid:
        times, events = self._columns(rows)
        place = np.where(
            events,
            np.searchsorted(grid, self._rounded(times), side="left"),
            np.searchsorted(grid, times, side="right") - 1,
        )
        events = events & (place < len(grid))
        place = np.minimum(place, len(grid) - 1)
        keep, made = np.ones(len(rows), bool), place.copy()
        kind = events.astype(np.int64) + (0 if group is None else 2 * group)
        for one in np.unique(kind) if rows.least > 1 else ():
            mine = kind == one
            if mine.sum() < rows.least:
                keep[mine] = False
            else:
                made[mine] = _coarse(place[mine], rows.least)
        moved = int((made != place)[keep].sum())
        at = np.flatnonzero(keep)
        return OnGrid(at, made[at], events[at], moved, int((~keep).sum()))


def _coarse(place: NDArray[np.int64], least: int) -> NDArray[np.int64]:
    """Later places such that each has at least ``least`` rows; the last rows move back to the last such place."""
    values, back, counts = np.unique(place, return_inverse=True, return_counts=True)
    to = np.zeros(len(values), np.int64)
    begun, carried, last = 0, 0, -1
    for k, count in enumerate(counts.tolist()):
        carried += count
        if carried >= least:
            to[begun : k + 1] = last = k
            begun, carried = k + 1, 0
    to[begun:] = last
    return values[to[back]]
