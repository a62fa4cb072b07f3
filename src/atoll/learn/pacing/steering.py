"""Pace steering: clients check in, and the server tells them when to come back (Bonawitz et al. 2019, section 2.3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.capability import FIXED_COHORT, Capability
from atoll.core.errors import CompositionError, ConfigError, QuorumError
from atoll.core.validation import numbers

from ..checks import require_count, require_positive
from ..counts import weighed
from ..selection.members import places_of
from ..server.rounds import ServerRounds, server_round
from .returning import return_times
from .synchronous import Synchronous
from .versions.in_flight import MOST_LOOKS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.algebra.tree import Tree
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.party import Parties
    from atoll.rounds.loop import Course

    from ..context import Context

__all__ = ["PaceSteering"]


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
        return self._told(fed, state, np.arange(len(fed.parties)), 0.0)

    def _goal(self, fed: Federation) -> int:
        return self.pacing.wanted(self.context.selection.cohort_size(len(fed.parties)))

    def _told(self, fed: Federation, state: Tree, who: NDArray[np.int64], now: float) -> Tree:
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
        state, waiting, missed = await self._gathered(fed, state, begun)
        gathered = fed.clock.now()
        state = await weighed(fed, self.context, state)
        state, row = await server_round(fed, self.context, state, number, among=fed.parties[waiting])
        ended = fed.clock.now()
        during = np.flatnonzero((state["due"] > gathered) & (state["due"] <= ended))
        state = self._told(fed, state, np.union1d(waiting, during), ended)
        there = len(self._there(fed, during))
        checked, missed = len(waiting) + there, missed + len(during) - there
        steering = {
            "checked_in": checked,
            "turned_away": checked - row["selected"],
            "missed": missed,
            "gathering": gathered - begun,
        }
        return state, {**row, **steering}

    async def _gathered(self, fed: Federation, state: Tree, begun: float) -> tuple[Tree, NDArray[np.int64], int]:
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
                state = self._told(fed, state, absent, now)
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
