"""What the batteries of devices lack: what requests took from each, minus what it has recharged since.

A battery that lacks ``d`` joules and recharges with ``watts`` lacks ``max(0, d - watts * t)`` after ``t`` seconds. The maximum with 0 cannot be computed
from the total energy spent. So the world stores, for each device, what it lacked at its last draw, and when that was. A query costs as
much as the number of devices asked about.

A scope may return to its own checkpoint while others do not. So each scope also keeps its draws since the last moment before which no scope can
return, and a resume repeats them as time reaches them: a program that is replayed sees what it saw before. Such a moment is each checkpoint of the
outermost program that covers all other scopes, as those of trainings do.
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
    """The draws of one request: time, positions, and whole microjoules of each; negative for a credit."""

    moment: float
    positions: NDArray[np.int64]
    microjoules: NDArray[np.int64]

    @classmethod
    def of(cls, moment: float, positions: NDArray[np.int64], joules: NDArray[np.float64], before: Any = 0.0) -> Draw:
        """The draws of the devices that spend energy; ``before`` is the part that was charged earlier."""
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
        watts: recharging power of all batteries, all the time.
        settled: the state at the last moment before which no scope can return, as it is saved: positions, microjoules, moments.
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
        """Take energy from batteries, now."""
        self._reach(draw.moment)
        self._take(draw)

    def restart(self, settled: dict[str, Any], draws: Iterable[Draw]) -> None:
        """Start again from the settled state; later draws are repeated when time reaches them."""
        self.settled = settled
        self._lacks, self._at = np.zeros(0, dtype=np.int64), np.zeros(0)
        if settled:
            positions = np.array(settled["positions"], dtype=np.int64)
            self._grow(positions)
            self._lacks[positions], self._at[positions] = settled["microjoules"], settled["moments"]
        self._ahead = deque(sorted(draws, key=lambda draw: draw.moment))

    def settle(self, now: float) -> dict[str, Any]:
        """Settle the state as of now, and return it as it is saved."""
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
        """Make room for these positions: pages that are never written take no memory."""
        size = int(positions.max(initial=-1)) + 1
        if size > len(self._lacks):
            more = max(size, 2 * len(self._lacks)) - len(self._lacks)
            self._lacks = np.concatenate([self._lacks, np.zeros(more, dtype=np.int64)])
            self._at = np.concatenate([self._at, np.zeros(more)])
