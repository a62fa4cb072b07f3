"""What the batteries of devices lack, as a world keeps it: what requests took from each, less what it has taken in since.

A battery that lacks ``d`` joules and is filled with ``watts`` lacks ``max(0, d - watts * t)`` after ``t`` seconds: never less than nothing, which no sum
of what was spent can tell. So the world keeps, for each device, what it lacked when it was last drawn on, and when that was. A question costs as much
as devices are asked about.

A scope may go back to a checkpoint of its own, while others do not. So every scope also keeps its draws since the last moment to which nobody can go
back any more, and after a resume they are drawn again as time reaches them: a program that is replayed finds what it found before. Such a moment is
every checkpoint of the outermost program that covers all others, as those of trainings do.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from .meter import Meter

__all__ = ["Batteries", "Draw", "Spender"]


class Draw(NamedTuple):
    """One request's: when, from whom, and whole microjoules of each; negative where they are given back."""

    moment: float
    positions: NDArray[np.int64]
    microjoules: NDArray[np.int64]

    @classmethod
    def of(cls, moment: float, positions: NDArray[np.int64], joules: NDArray[np.float64], before: Any = 0.0) -> Draw:
        """Of those who spend something: so much, of which they were charged a part before."""
        each = (np.rint(joules * 1e6) - np.rint(before * 1e6)).astype(np.int64)
        some = each != 0
        return cls(moment, positions[some], each[some])


class Spender(Protocol):
    """Whoever sends requests to devices.

    Attributes:
        meter: what they have cost.
        draws: what they took from batteries since all was last settled.
    """

    meter: Meter
    draws: list[Draw]


@dataclass
class Batteries:
    """What each battery lacks.

    Attributes:
        watts: with which all are filled, all the time.
        settled: what was known at the last moment to which nobody can go back, as it is saved: positions, microjoules, moments.
    """

    watts: float
    settled: dict[str, Any] = field(default_factory=dict)
    _lacks: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    _at: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    _ahead: deque[Draw] = field(default_factory=deque)

    def lacking(self, positions: NDArray[np.int64], now: float) -> NDArray[np.float64]:
        """Joules that each of these batteries lacks of being full."""
        self._reach(now)
        self._grow(positions)
        return self._now(positions, now) / 1e6

    def draw(self, draw: Draw) -> None:
        """Take from batteries, now."""
        self._reach(draw.moment)
        self._take(draw)

    def restart(self, settled: dict[str, Any], draws: Iterable[Draw]) -> None:
        """Begin again from what is settled; what was drawn after it comes when time reaches it."""
        self.settled = settled
        self._lacks, self._at = np.zeros(0, dtype=np.int64), np.zeros(0)
        if settled:
            positions = np.array(settled["positions"], dtype=np.int64)
            self._grow(positions)
            self._lacks[positions], self._at[positions] = settled["microjoules"], settled["moments"]
        self._ahead = deque(sorted(draws, key=lambda draw: draw.moment))

    def settle(self, now: float) -> dict[str, Any]:
        """What is known now, as it is saved."""
        self._reach(now)
        positions = np.flatnonzero(self._lacks)
        return {"positions": positions, "microjoules": self._lacks[positions], "moments": self._at[positions]}

    def _now(self, positions: NDArray[np.int64], now: float) -> NDArray[np.int64]:
        taken = np.rint(self.watts * np.maximum(0.0, now - self._at[positions]) * 1e6)
        return np.maximum(0.0, self._lacks[positions] - taken).astype(np.int64)

    def _take(self, draw: Draw) -> None:
        self._grow(draw.positions)
        self._lacks[draw.positions] = np.maximum(0, self._now(draw.positions, draw.moment) + draw.microjoules)
        self._at[draw.positions] = draw.moment

    def _reach(self, now: float) -> None:
        while self._ahead and self._ahead[0].moment <= now:
            self._take(self._ahead.popleft())

    def _grow(self, positions: NDArray[np.int64]) -> None:
        """Room for these positions: pages that nobody writes to take no memory."""
        size = int(positions.max(initial=-1)) + 1
        if size > len(self._lacks):
            more = max(size, 2 * len(self._lacks)) - len(self._lacks)
            self._lacks = np.concatenate([self._lacks, np.zeros(more, dtype=np.int64)])
            self._at = np.concatenate([self._at, np.zeros(more)])
