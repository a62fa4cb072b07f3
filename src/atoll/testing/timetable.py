"""A cost model that is a table: who answers when, and who does not."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from atoll.core.clock import Outcomes, Plan
from atoll.core.party import Parties

__all__ = ["Timetable"]


@dataclass(frozen=True)
class Timetable:
    """Every reply takes its party's seconds; some never come.

    Attributes:
        seconds: name of a party -> seconds of each of its replies; others take ``default``.
        default: seconds of everybody else.
        lost: text of a request's path, such as a task's name -> names of parties whose reply to it is lost, noticed after half the time.
        latency: seconds of every message between two parties.
    """

    seconds: Mapping[str, float] = field(default_factory=dict)
    default: float = 1.0
    lost: Mapping[str, Collection[str]] = field(default_factory=dict)
    latency: float = 0.0

    def plan(self, parties: Parties, plan: Plan) -> Outcomes:
        """Look it up."""
        gone = {name for text, names in self.lost.items() if text in plan.request for name in names}
        done = np.array([name not in gone for name in parties.names], dtype=bool)
        took = np.array([self.seconds.get(name, self.default) for name in parties.names], dtype=np.float64)
        fraction = np.where(done, 1.0, 0.5)
        return Outcomes(took * fraction, done, fraction)

    def transfer(self, source: str, target: str, nbytes: int) -> float:
        """The latency."""
        del source, target, nbytes
        return self.latency
