"""What requests cost: a model of devices and links says when each reply arrives, or that it does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

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
        down: bytes sent to each party: one number for all, or one each if parties have mail.
        up: bytes of each reply, 0 if unknown beforehand.
        now: seconds on the clock.
        key: random key of the request, for draws that depend on nothing else.
        work: a function that returns the declared work of each party, as columns.
        turn: the number of the round of the request: the first part of its label ``at=(turn, ...)`` if that is a whole number,
            else the number of earlier requests of the task. Draws by turn and party are the same for all programs with rounds.
        superstep: number of earlier requests under the same `Deadline`.
        risk: the part of the turn that the request stands for: crashes of the turn at a point in this part hit this request.
        lacking: a function that returns the joules that each party's battery lacks of being full: what it has spent on earlier requests, according to
            the meters, minus what it has recharged since with the model's ``recharge``, and never below 0. ``None`` means that nothing is lacking.
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
"""The meanings of the numbers in ``Outcomes.reason``."""


@dataclass(frozen=True)
class Spending:
    """What a device has spent by the moment at which it is called off: energy as a piecewise linear function of time.

    Attributes:
        moments: seconds from sending, ``(corners, devices)``, ascending: the progress of a device when the message to stop reaches it.
        joules: energy spent by then, ``(corners, devices)``; 0 at the first corner.
        ends: seconds from sending after which nothing can be saved, ``(devices,)``: the device is done, or has failed.
    """

    moments: NDArray[np.float64]
    joules: NDArray[np.float64]
    ends: NDArray[np.float64]

    def by(self, seconds: float, which: NDArray[np.int64]) -> NDArray[np.float64]:
        """Joules that some devices have spent if they are called off this long after sending; ``inf`` if it is too late."""
        moments, joules = self.moments[:, which], self.joules[:, which]
        spans = np.diff(moments, axis=0)
        into = np.divide(seconds - moments[:-1], spans, out=(seconds >= moments[:-1]) * 1.0, where=spans > 0)
        spent = (np.clip(into, 0.0, 1.0) * np.diff(joules, axis=0)).sum(axis=0)
        return np.where(seconds >= self.ends[which], np.inf, spent)


@dataclass(frozen=True)
class Outcomes:
    """The outcomes of a request, one entry a party.

    Attributes:
        seconds: seconds from sending until the reply arrives; for a crash, until the link notices it.
        done: whether a reply arrives.
        fraction: share of the work done, 1 when done.
        energy: joules that the device spends, ``None`` if the model does not count energy.
        reason: why no reply arrives, as an index into ``REASONS``; ``None`` if the model does not say.
        spending: how ``energy`` is spent, for devices that are called off before they are done; ``None`` charges them all of it.
    """

    seconds: NDArray[np.float64]
    done: NDArray[np.bool_]
    fraction: NDArray[np.float64]
    energy: NDArray[np.float64] | None = None
    reason: NDArray[np.int8] | None = None
    spending: Spending | None = None


class Cost(Protocol):
    """A model of devices and links. It is pure: the same plan has the same outcomes.

    It may offer ``forecast(parties, plan) -> seconds``, the time of each party without failures, and ``available(parties, now) -> mask``, the parties
    that can be asked at a moment; see ``Federation.forecast`` and ``Federation.available``. It may offer ``require_turns(parties, last)``, which refuses
    a run up to a turn that it could not plan, before any party is contacted. A number ``recharge`` recharges the batteries of all devices with
    this many watts all the time; the default is none. If ``instant`` is true, Atoll forecasts nothing and reports no losses; see `is_instant`.

    ``session(parties, plans, until) -> Prospects | None`` decides the outcomes of the roles of a session, given the party and the plan of each, in
    the roles' order, and the time of the deadline (``math.inf`` for none). Without it, or if it returns ``None``, only ``transfer`` takes time and no party is lost.
    """

    def plan(self, parties: Parties, plan: Plan) -> Outcomes:
        """Decide when each party replies, or that it does not."""
        ...

    def transfer(self, source: str, target: str, nbytes: int) -> float:
        """Seconds to carry bytes from one party to another."""
        ...


class Free:
    """A cost model in which everything is instantaneous and no party fails.

    Attributes:
        instant: whether a class plans, transfers and decides about sessions without delay: true, unless a subclass overrides one of them.
    """

    instant = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "instant" not in vars(cls):
            cls.instant = cls.plan is Free.plan and cls.transfer is Free.transfer and not hasattr(cls, "session")

    def plan(self, parties: Parties, plan: Plan) -> Outcomes:
        """Let every reply arrive at once."""
        del plan
        n = len(parties)
        return Outcomes(np.zeros(n), np.ones(n, dtype=bool), np.ones(n))

    def transfer(self, source: str, target: str, nbytes: int) -> float:
        """Return 0: transfers take no time."""
        del source, target, nbytes
        return 0.0


def is_instant(cost: Cost) -> bool:
    """Whether everything is instantaneous and no party fails, so that there is nothing to forecast and no loss to report."""
    return bool(getattr(cost, "instant", False))
