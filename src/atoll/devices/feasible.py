"""Questions to a fleet before a run: plans without a federation, and whether a deadline can be met."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError
from atoll.core.requests.cost import Plan
from atoll.core.requests.party import Parties, Roster
from atoll.core.requests.task import Workload

from .fleet import Fleet

__all__ = ["planned", "require_feasible"]


@checked_call
def planned(
    examples: float | Sequence[float] | NDArray[np.float64],
    *,
    epochs: float = 1.0,
    batch: int | None = None,
    down: int = 0,
    up: int = 0,
    turn: int = 0,
    now: float = 0.0,
) -> Plan:
    """A request as a fleet sees it, for questions without a run.

    Args:
        examples: number of examples of each device.
        epochs: passes over the examples.
        batch: examples of a mini-batch; the last batch of an epoch may be smaller. ``None`` is one batch an epoch.
        down: bytes to each device.
        up: bytes of the reply, 0 for unknown.
        turn: number of the round.
        now: seconds on the clock.
    """
    rows = np.atleast_1d(np.asarray(examples, dtype=np.float64))
    steps = np.ones(len(rows)) if batch is None else np.ceil(rows / batch)
    work = Workload(rows, steps * epochs, np.full(len(rows), float(epochs)))
    return Plan(f"plan/{turn}", down, up, now, 0, lambda: work, turn)


@checked_call
def require_feasible(
    fleet: Fleet, parties: Parties | int, plan: Plan, deadline: float, *, replies: int = 1
) -> NDArray[np.float64]:
    """Refuse a deadline that too few devices could meet even without failures.

    Args:
        fleet: the devices.
        parties: the parties to ask, or the number of devices.
        plan: the request.
        deadline: seconds after sending.
        replies: number of devices that must be able to meet it.

    Returns:
        The seconds of each device, including those for sending the copies.

    Raises:
            ConfigError: names the fastest device, and when its reply arrives.
    """
    asked = Roster(parties).all() if isinstance(parties, int) else parties
    times = fleet.times(asked, plan)
    seconds = times.wait + times.response
    made = int((seconds <= deadline).sum())
    if made >= replies:
        return seconds
    order = np.argsort(seconds, kind="stable")
    needed = min(replies, len(order))
    fastest = (
        f"the fastest, {asked[int(order[0])].name}, after {seconds[order[0]]:.4g} s" if len(order) else "no device is"
    )
    enough = "" if needed < 2 else f"; {needed} of them after {seconds[order[needed - 1]]:.4g} s"
    raise ConfigError(
        f"deadline={deadline:g} s is met by {made} of {len(asked)} devices, but {replies} must meet it; {fastest}{enough}",
        where="devices",
        remedy="lengthen the deadline, give less work, or ask faster devices",
    )
