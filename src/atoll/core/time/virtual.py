"""Virtual time: asyncio's own time, made to jump.

A ``VirtualLoop`` is an event loop whose clock jumps to the next timer whenever nothing is runnable and no engine work is pending, so that
deadlines, stragglers, ``asyncio.sleep`` and ``asyncio.timeout`` of any program run unchanged, without waiting. Timers of the same moment fire in
the order in which they were set, so a simulation has one order of events.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import math
from collections.abc import Callable
from typing import Any

from ..errors import AtollError
from .idle import IdleSelector, WatchedLoop

__all__ = ["VirtualLoop"]


class _VirtualSelector(IdleSelector):
    """Waits only for engine work: an idle wait becomes a jump of the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.pending = 0
        self.closing: Callable[[], bool] = lambda: False

    def select(self, timeout: float | None = None) -> Any:
        """Check for engine work; else jump to the next timer, or raise an error if there is none."""
        ready = super().select(0)  # never None: the watchers are called below
        if ready or timeout == 0:
            return ready
        if timeout is None and not self.pending and self.alone() and not self.closing():
            if self.told():
                return ready
            raise AtollError(
                "the program waits for something that cannot happen: no timer, no work and no message is pending",
                where="virtual time",
                remedy="check for roles that wait for each other, or for an event or queue that nothing completes",
            )
        if self.pending or timeout is None:
            return super().select(None)
        self.now += timeout
        return ready


class _Timer(asyncio.TimerHandle):
    """A timer with a number, so that a heap of timers has one order."""

    __slots__ = ("number",)
    number: int

    def __lt__(self, other: Any) -> bool:
        return bool((self.when(), self.number) < (other.when(), other.number))


class VirtualLoop(WatchedLoop):
    """An event loop in virtual time."""

    def __init__(self, start: float = 0.0) -> None:
        self._virtual = _VirtualSelector()
        self._virtual.now = start
        super().__init__(self._virtual)
        # A loop that closes waits for a thread that waits for the pool's threads.
        self._virtual.closing = lambda: bool(getattr(self, "_executor_shutdown_called", False))
        self._numbers = itertools.count()

    def call_at(  # type: ignore[override]  # the same but for type variables
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Set a timer; timers of the same moment fire in the order in which they were set."""
        timer = _Timer(when, callback, args, self, context)
        timer.number = next(self._numbers)
        timer._scheduled = True  # type: ignore[attr-defined]  # as asyncio's own call_at does
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        return timer

    @property
    def _clock_resolution(self) -> float:
        """One step of a float: asyncio fires timers that are due before the next tick, and a jump lands exactly on a timer."""
        return math.ulp(self._virtual.now)

    @_clock_resolution.setter
    def _clock_resolution(self, value: float) -> None:
        """Ignore asyncio's own value, which is for real clocks."""

    def time(self) -> float:
        """Virtual seconds."""
        return self._virtual.now

    def set_time(self, now: float) -> None:
        """Move the clock, for a resumed run."""
        self._virtual.now = now

    def work_begins(self) -> None:
        """Mark engine work as pending: time stands still until it ends."""
        self._virtual.pending += 1

    def work_ends(self) -> None:
        """Mark one piece of engine work as ended."""
        self._virtual.pending -= 1
