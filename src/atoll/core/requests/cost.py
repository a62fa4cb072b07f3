"""What requests cost: a model of devices and links says when each reply arrives, or that it does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ..time.deadline import Risk

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .party import Parties
    from .task import Workload

__all__ = ["REASONS", "Cost", "Free", "Outcomes", "Plan", "Spending", "is_instant"]


@dataclass(frozen=True)
class Plan:
    """A request as the cost model sees it: sizes and work, never results.

    Attributes:
        request: path of the request.
        down: bytes sent to each party: one number for all, or, where they have mail, one each.
        up: bytes of each reply, 0 when unknown beforehand.
        now: seconds on the clock.
        key: random key of the request, for draws that depend on nothing else.
        work: called when the model wants it: the declared work of each party, as columns.
        turn: the number of the round in which the request is made: the first part of its label ``at=(turn, ...)`` where that is a whole number,
            else how many requests of the task came before. Draws by turn and party are the same for every program that has rounds.
        superstep: how many requests were made before under the same `Deadline`.
        risk: the part of the turn that the request stands for: of the crashes of the turn, those at a point in it fall on this request.
        lacking: called when the model wants it: joules that each party's battery lacks of being full: what it has spent on earlier requests, as the meters
            have it, less what it has taken in since with the model's ``recharge``, and never below 0. ``None`` is nothing.
    """

    request: str
    down: int | NDArray[np.int64]
    up: int
    now: float
    key: int
    work: Callable[[], Workload]
    turn: int = 0
    lacking: Callable[[], NDArray[np.float64]] | None = None
    superstep: int = 0
    risk: Risk = (0.0, 1.0)


REASONS = ("answered", "crashed", "left", "unavailable", "too little memory", "empty battery")
"""What the numbers in ``Outcomes.reason`` stand for."""


@dataclass(frozen=True)
class Spending:
    """What a device has spent by the moment at which it is called off: energy as a broken line over time.

    Attributes:
        moments: seconds from sending, ``(corners, devices)``, rising: whoever is called off then has come so far when the word reaches it.
        joules: spent by then, ``(corners, devices)``; 0 at the first corner.
        ends: seconds from sending after which nothing can be saved any more, ``(devices,)``: the device is done, or has failed.
    """

    moments: NDArray[np.float64]
    joules: NDArray[np.float64]
    ends: NDArray[np.float64]

    def by(self, seconds: float, which: NDArray[np.int64]) -> NDArray[np.float64]:
        """Joules that some devices have spent if they are called off so long after sending; ``inf`` where it is too late."""
        moments, joules = self.moments[:, which], self.joules[:, which]
        spans = np.diff(moments, axis=0)
        into = np.divide(seconds - moments[:-1], spans, out=(seconds >= moments[:-1]) * 1.0, where=spans > 0)
        spent = (np.clip(into, 0.0, 1.0) * np.diff(joules, axis=0)).sum(axis=0)
        return np.where(seconds >= self.ends[which], np.inf, spent)


@dataclass(frozen=True)
class Outcomes:
    """What becomes of a request, one entry a party.

    Attributes:
        seconds: from sending to the arrival of the reply; for a crash, until the link noticed it.
        done: whether a reply arrives at all.
        fraction: share of the work done, 1 when done.
        energy: joules that the device spends, ``None`` where the model knows nothing of energy.
        reason: why no reply arrives, as an index into ``REASONS``; ``None`` where the model does not say.
        spending: how ``energy`` is spent, for those that are called off before they are done; ``None`` charges them all of it.
    """

    seconds: NDArray[np.float64]
    done: NDArray[np.bool_]
    fraction: NDArray[np.float64]
    energy: NDArray[np.float64] | None = None
    reason: NDArray[np.int8] | None = None
    spending: Spending | None = None


class Cost(Protocol):
    """A model of devices and links. Pure: the same plan has the same outcome.

    It may offer ``forecast(parties, plan) -> seconds``, what each would take if nothing went wrong, and ``available(parties, now) -> mask``, who can be
    asked at all at a moment; see ``Federation.forecast`` and ``Federation.available``. And ``require_turns(parties, last)``, which refuses a run up to a
    turn that it could not plan, before anyone is contacted. Where it has a number ``recharge``, the batteries of all devices are filled with so many
    watts all the time; by default with none. Where ``instant`` is true, Atoll forecasts nothing and reports no losses; see `is_instant`.

    With ``session(parties, plans, until) -> Prospects | None`` it decides what becomes of the roles of a session, given the party and the plan of each, in
    the roles' order, and the moment of the deadline (``math.inf``: there is none). Without it, or for ``None``, only ``transfer`` takes time and nobody is lost.
    """

    def plan(self, parties: Parties, plan: Plan) -> Outcomes:
        """Decide when each party answers, or that it does not."""
        ...

    def transfer(self, source: str, target: str, nbytes: int) -> float:
        """Seconds to carry bytes from one party to another."""
        ...


class Free:
    """Everything is instantaneous and nobody fails."""

    def plan(self, parties: Parties, plan: Plan) -> Outcomes:
        """Every reply arrives at once."""
        del plan
        n = len(parties)
        return Outcomes(np.zeros(n), np.ones(n, dtype=bool), np.ones(n))

    def transfer(self, source: str, target: str, nbytes: int) -> float:
        """No time at all."""
        del source, target, nbytes
        return 0.0

    @property
    def instant(self) -> bool:
        """Yes, unless a subclass plans, transfers or decides about sessions in its own way."""
        kind = type(self)
        return kind.plan is Free.plan and kind.transfer is Free.transfer and not hasattr(kind, "session")


def is_instant(cost: Cost) -> bool:
    """Whether everything takes no time and nobody fails, so that there is nothing to forecast and no loss to report."""
    return bool(getattr(cost, "instant", False))
