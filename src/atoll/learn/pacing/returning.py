"""When clients come back: check-in times, so that about the wanted number check in during every period."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["DAY", "activity", "return_times"]

DAY = 86_400.0
"""Seconds."""


def activity(times: NDArray[np.float64], day: Sequence[float]) -> NDArray[np.float64]:
    """Return the share of the clients that is available at these times. ``day`` cuts a day into equal parts; empty means all clients, always."""
    if not len(day):
        return np.ones(np.shape(times))
    slots = (np.asarray(times, dtype=np.float64) % DAY / DAY * len(day)).astype(np.int64)
    return np.asarray(day, dtype=np.float64)[np.minimum(slots, len(day) - 1)]


def return_times(
    now: float,
    count: int,
    rng: np.random.Generator,
    *,
    population: int,
    goal: int,
    period: float,
    small: float = 10.0,
    day: Sequence[float] = (),
) -> NDArray[np.float64]:
    """Return when ``count`` clients should check in again, so that about ``goal`` of the population do in every ``period``.

    With ``a(t)`` the share of the ``N`` clients available at ``t`` (`activity`), each client gets

    * in a small population, ``N <= small * goal``, one of the next multiples of the period: the next with probability ``p = (goal + 2 sqrt(goal)) / (N a)``,
      else the one after with its own ``p``, and so on. So ``N a p`` clients are expected at each multiple, enough except for random variation.
    * in a large one, a time ``t`` with ``integral_now^t ds / a(s)`` exponential with mean ``N period / goal``: check-ins are a Poisson process of rate
      ``goal / period`` at every hour of the day, and no two coincide.

    Both are memoryless: the rule stores nothing about any client, and the rate is right from the first times given.

    Args:
        now: seconds on the clock.
        count: number of clients.
        rng: the random stream.
        population: ``N``.
        goal: check-ins wanted per period.
        period: length of a period in seconds.
        small: see the first case.
        day: see `activity`.

    Returns:
        Times on the clock, later than ``now``, shape ``(count,)``.
    """
    luck = rng.exponential(size=count)
    if population <= small * goal:
        return _rendezvous(now, luck, population / (goal + 2.0 * math.sqrt(goal)), period, day)
    return now + np.maximum(_spread(now, luck * population * period / goal, day), 1e-9)


def _rendezvous(
    now: float, luck: NDArray[np.float64], cycle: float, period: float, day: Sequence[float]
) -> NDArray[np.float64]:
    """Return multiples of the period: the first at which the accumulated hazard ``-log(1 - p)`` reaches each client's random draw."""
    first = math.floor(now / period + 1e-9) + 1
    least = min(1.0, 1.0 / (cycle * max(day, default=1.0)))
    most = 2 if least == 1.0 else math.ceil(float(luck.max(initial=0.0)) / -math.log1p(-least)) + 2
    slots = np.asarray((first + np.arange(most)) * period, dtype=np.float64)
    with np.errstate(divide="ignore"):
        hazard = -np.log1p(-np.minimum(1.0, 1.0 / (cycle * activity(slots, day))))
    return np.asarray(slots[np.searchsorted(np.cumsum(hazard), luck)], dtype=np.float64)


def _spread(now: float, wanted: NDArray[np.float64], day: Sequence[float]) -> NDArray[np.float64]:
    """Return the delays over which ``1 / a`` integrates to ``wanted``: whole days, plus part of a day."""
    if not len(day):
        return wanted
    slot = DAY / len(day)
    edges = np.concatenate([[now], (math.floor(now / slot) + 1 + np.arange(len(day))) * slot, [now + DAY]])
    middle = (edges[1:] + edges[:-1]) / 2
    passed = np.concatenate([[0.0], np.cumsum(np.diff(edges) / activity(middle, day))])
    days, rest = np.divmod(wanted, passed[-1])
    return np.asarray(days * DAY + np.interp(rest, passed, edges) - now, dtype=np.float64)
