"""Devices in sessions: the duration of a role's work and messages, and when its device fails."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from atoll.core.requests.cost import Plan
from atoll.core.requests.party import Parties
from atoll.core.time.prospect import Prospect, Prospects

from .failures import crashes, unable
from .rules import Rules

__all__ = ["prospects_of"]


def prospects_of(fleet: Rules, parties: Parties, plans: Sequence[Plan], until: float) -> Prospects:
    """Return the prospects of the devices that play the roles of a session.

    * The work that a role's task declares takes the seconds of ``fleet.compute``.
    * A device that crashes in the turn does so at the point of its work that the trace draws, for any span of the trace: the duration of a session is
      not known beforehand.
    * A device that is absent, or lacks memory or energy for the work, is lost before its role begins. A device that leaves is lost at that moment.
      Absences are looked up until the deadline; without one, for as long as the declared work takes.
    * A message goes up the sender's link and down the receiver's, each with the fleet's latency. Between two servers it takes the backhaul.

    The energy of sessions is not counted.

    Args:
        fleet: the fleet.
        parties: parties of the roles, in their order.
        plans: plan of each role, in the same order.
        until: the time of the deadline, or ``math.inf``.
    """
    roles = [_prospect(fleet, parties[i : i + 1], plan, until) for i, plan in enumerate(plans)]
    wired = parties.positions >= len(parties.roster.names)
    up, down = _rates(fleet, parties, wired)
    names = parties.names

    def carry(source: int, target: int, nbytes: int) -> float:
        if wired[source] and wired[target]:
            return fleet.transfer(names[source], names[target], nbytes)
        size = float(fleet.charged(nbytes))
        sending = 0.0 if wired[source] else size / up[source] + fleet.latency
        receiving = 0.0 if wired[target] else size / down[target] + fleet.latency
        return float(sending + receiving)

    return Prospects(roles, carry)


def _rates(fleet: Rules, parties: Parties, wired: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bytes per second from and to each device."""
    population, places, _ = fleet.places(parties)
    traits = {name: fleet.column(name, population, places) for name in fleet.link.traits}
    down, up = fleet.link.rates(traits)
    return np.where(wired, np.inf, up), np.where(wired, np.inf, down)


def _prospect(fleet: Rules, party: Parties, plan: Plan, until: float) -> Prospect:
    population, positions, wired = fleet.places(party)
    if wired is not None:
        return Prospect()
    times = fleet.times(party, plan)
    work, moment, there = float(times.train[0]), math.inf, None
    if fleet.availability is not None:
        there = fleet.availability.there(population, positions, plan.now)
        last = np.array([plan.now + work if math.isinf(until) else until])
        moment = float(fleet.availability.leaves(population, positions, plan.now, last)[0])
    crashed, point = crashes(fleet, population, positions, plan)
    share = float(point[0]) if crashed[0] else math.inf
    if any(cannot[0] for _, cannot in unable(fleet, population, positions, plan, times, there)):
        share = 0.0
    return Prospect(work=work, share=share, moment=moment, notice=fleet.notice)
