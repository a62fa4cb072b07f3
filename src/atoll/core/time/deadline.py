"""Deadlines that several supersteps share, and how the crashes of a turn are divided among the supersteps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from ..errors import ConfigError

__all__ = ["WHOLE", "Deadline", "Risk"]

Risk = tuple[float, float]
"""The part of a turn that a request stands for, from its beginning (0) to its end (1): crashes between the two hit it."""

WHOLE: Risk = (0.0, 1.0)
"""The whole turn."""


class Deadline:
    """A deadline that several requests share. ``Federation.deadline`` makes one; every verb takes it as ``deadline=``.

    A device that crashes in a turn does so once, at a point that its trace draws between 0 and 1. Each superstep stands for a part of the turn, and
    crashes with a point in that part hit it: with ``supersteps=(1, 8, 1)`` eight of ten hit the second. The chance of a crash in the turn
    stays that of the trace. A device that has crashed does not reply to later supersteps either.

    Args:
        until: the time, in seconds on the program's clock; ``math.inf`` sets no limit.
        seconds: its distance from the start, for messages.
        supersteps: the number of requests that share a turn, or a weight for each, in proportion to its time or work. ``None``: each request stands for
            the whole turn, so that all crashes of the turn hit the first.

    Attributes:
        begun: number of requests made under it.

    Raises:
        ConfigError: seconds or weights are not positive.
    """

    def __init__(self, until: float, seconds: float | None, supersteps: int | Sequence[float] | None = None) -> None:
        if seconds is not None and not seconds > 0:
            raise ConfigError(f"deadline={seconds} seconds", remedy="use a positive number, or None")
        weights = [1.0] * supersteps if isinstance(supersteps, int) else supersteps
        if weights is not None and (not weights or not all(0 <= w < math.inf for w in weights) or not sum(weights)):
            raise ConfigError(
                f"supersteps={supersteps!r}",
                where="deadline",
                remedy="use a number of at least 1, or a weight for each",
            )
        self.until, self.seconds = until, seconds
        self.begun = 0
        ends = [] if weights is None else list(itertools.accumulate(weights))
        self._ends = [end / ends[-1] for end in ends]

    def begin(self) -> Risk:
        """Count the next request; return the part of the turn that it stands for.

        Raises:
            ConfigError: there are more requests than supersteps.
        """
        number, self.begun = self.begun, self.begun + 1
        if not self._ends:
            return WHOLE
        if number >= len(self._ends):
            raise ConfigError(
                f"superstep {number + 1} under a deadline for {len(self._ends)}",
                where="deadline",
                remedy="set the number of requests that share it at the start: fed.deadline(seconds, supersteps=...)",
            )
        return (self._ends[number - 1] if number else 0.0), self._ends[number]

    def __repr__(self) -> str:
        return f"Deadline(until={self.until:g})"
