"""Pace steering: clients check in, and the server tells them when to come back (Bonawitz et al. 2019, section 2.3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.capability import FIXED_COHORT, Capability
from atoll.core.errors import CompositionError, ConfigError, QuorumError
from atoll.core.validation import numbers

from ..checks import require_count, require_positive
from ..round.rounds import ServerRounds, server_round
from ..round.state import weigh_population
from ..selection.base import places_of
from .asynchronous import MOST_LOOKS
from .synchronous import Synchronous

if TYPE_CHECKING:
    from atoll.core.algebra.tree import Tree
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.party import Parties
    from atoll.rounds.loop import Course

    from ..context import Context

__all__ = ["DAY", "PaceSteering", "activity", "return_times"]


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


# ---------------------------------------------------------------- pace steering


@dataclass(frozen=True, kw_only=True)
class PaceSteering(Synchronous):
    """Synchronous rounds among clients that check in by themselves. The server tells clients that it does not need, or that are done, when to come back.

    A round starts with a selection phase: clients that check in wait until there are ``goal`` of them or a period is over. The selection rule chooses among
    them, and the round continues as in ``Synchronous`` (deadline, over-selection, quorum). A client that checks in during a round, or was not chosen,
    gets another time from `return_times`: small populations rendezvous, large ones spread, and the time of day counts. A client that
    misses its check-in (``devices`` with availability) tries again at the next time from the same rule.

    Rows have ``checked_in`` (check-ins since the last round ended), ``turned_away`` (check-ins not chosen), ``missed`` (clients that were away) and
    ``gathering`` (seconds of the selection phase). Evaluation's observer does not check in.

    Bonawitz et al. 2019, "Towards Federated Learning at Scale: System Design", MLSys, sections 2.2 and 2.3, which print no formula; the rule is Atoll's.

    Attributes:
        goal: check-ins wanted per period, and for a round; ``None`` is what ``Synchronous`` would invite.
        period: length of a period in seconds.
        small: a population of at most ``small * goal`` rendezvouses.
        day: shares of the clients available in equal parts of a day from time 0; empty means all clients, always.
    """

    goal: int | None = None
    period: float = 600.0
    small: float = 10.0
    day: Sequence[float] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.goal is not None:
            require_count("PaceSteering", goal=self.goal)
        require_positive("PaceSteering", period=self.period)
        if not self.small >= 0:
            raise ConfigError(f"small={self.small}", where="PaceSteering", remedy="use a ratio of 0 or more")
        day = numbers("PaceSteering", "day", self.day)
        if day.ndim != 1 or not ((day > 0) & (day <= 1)).all():
            raise ConfigError(
                f"day={self.day!r}", where="PaceSteering", remedy="use shares of clients in (0, 1], or an empty tuple"
            )

    def wanted(self, cohort: int) -> int:
        """Return how many check-ins a round waits for."""
        return self.invited(cohort) if self.goal is None else self.goal

    @property
    def offers(self) -> frozenset[Capability]:
        """The base's capabilities except a fixed cohort: a round's clients are known only when they check in."""
        return super().offers - {FIXED_COHORT}

    def check(self, context: Context) -> None:
        """Refuse a goal below the cohort or above the population."""
        super().check(context)
        cohort = context.cohort
        goal = self.wanted(cohort)
        if not cohort <= goal <= len(context.clients):
            raise CompositionError(
                f"PaceSteering: goal={goal} check-ins for a cohort of {cohort} out of {len(context.clients)} clients",
                where="Training.pacing",
                remedy="use a goal from the cohort's size to the population's",
            )

    def course(self, context: Context) -> Course:
        """Return rounds among the clients that check in."""
        return _Steered(self, context)


class _Steered(ServerRounds):
    """The rounds of ``PaceSteering``. Their state also has each client's next check-in, ``"due"``, and how often times were given, ``"told"``."""

    def __init__(self, pacing: PaceSteering, context: Context) -> None:
        super().__init__(context)
        self.pacing = pacing

    def initial(self, fed: Federation) -> Tree:
        """Start with a first check-in time for each client."""
        state = {**super().initial(fed), "due": np.zeros(len(fed.parties)), "told": 0}
        return self._schedule_checkins(fed, state, np.arange(len(fed.parties)), 0.0)

    def _goal(self, fed: Federation) -> int:
        return self.pacing.wanted(self.context.selection.cohort_size(len(fed.parties)))

    def _schedule_checkins(self, fed: Federation, state: Tree, who: NDArray[np.int64], now: float) -> Tree:
        """Give these clients their next check-in times."""
        pacing, due = self.pacing, state["due"].copy()
        due[who] = return_times(
            now,
            len(who),
            fed.rng.child("steering", state["told"]).generator(),
            population=len(fed.parties),
            goal=self._goal(fed),
            period=pacing.period,
            small=pacing.small,
            day=pacing.day,
        )
        return {**state, "due": due, "told": state["told"] + 1}

    async def round(self, fed: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Gather clients, run the round, and tell all clients that checked in when to come back."""
        if not self.context.algorithm.plan(state["server"]):
            return await server_round(fed, self.context, state, number)
        begun = fed.clock.now()
        state, waiting, missed = await self._gather_checkins(fed, state, begun)
        gathered = fed.clock.now()
        state = await weigh_population(fed, self.context, state)
        state, row = await server_round(fed, self.context, state, number, among=fed.parties[waiting])
        ended = fed.clock.now()
        during = np.flatnonzero((state["due"] > gathered) & (state["due"] <= ended))
        state = self._schedule_checkins(fed, state, np.union1d(waiting, during), ended)
        there = len(self._there(fed, during))
        checked, missed = len(waiting) + there, missed + len(during) - there
        steering = {
            "checked_in": checked,
            "turned_away": checked - row["selected"],
            "missed": missed,
            "gathering": gathered - begun,
        }
        return state, {**row, **steering}

    async def _gather_checkins(self, fed: Federation, state: Tree, begun: float) -> tuple[Tree, NDArray[np.int64], int]:
        """Return the state, the positions of the waiting clients, and how many missed their check-in.

        Raises:
            QuorumError: no client ever comes.
        """
        goal, waiting, missed = self._goal(fed), np.zeros(0, dtype=np.int64), 0
        limit, seen = begun + self.pacing.period, begun
        for _ in range(MOST_LOOKS):
            coming = np.sort(state["due"][state["due"] > seen])
            lacking = goal - len(waiting)
            moment = float(coming[min(lacking, len(coming)) - 1]) if len(coming) else math.inf
            if len(waiting) or moment <= limit:
                moment = min(moment, limit)
            await fed.clock.sleep_until(moment if math.isfinite(moment) else limit)
            now = fed.clock.now()
            came = np.flatnonzero((state["due"] > seen) & (state["due"] <= now))
            here = np.union1d(waiting, came)
            waiting, seen = self._there(fed, here), now
            absent = np.setdiff1d(here, waiting)
            missed += len(absent)
            if len(absent):
                state = self._schedule_checkins(fed, state, absent, now)
            if len(waiting) >= goal or (len(waiting) and now >= limit):
                return state, waiting, missed
        raise QuorumError(
            f"{len(waiting)} of {goal} clients checked in",
            where=f"contact {state['contacts'] + 1}",
            remedy="use devices that are available more often, or a longer period",
        )

    @staticmethod
    def _there(fed: Federation, places: NDArray[np.int64]) -> NDArray[np.int64]:
        found: Parties = fed.available(fed.parties[places])
        return places_of(fed.parties.positions, found.positions)
