"""A cost model that is a table: which party answers when, and which does not."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from atoll.core.requests.party import Parties
from atoll.core.requests.results import Outcomes, Plan
from atoll.core.time.deadline import Prospect, Prospects

__all__ = ["Timetable"]


@dataclass(frozen=True)
class Timetable:
    """Gives every reply its party's seconds; some replies never arrive.

    Attributes:
        seconds: name of a party -> seconds of each of its replies; others take ``default``.
        default: seconds of every other party.
        lost: text of a request's path, such as a task's name -> names of parties whose reply to it is lost, noticed
            after half the time.
        leaves: name of a party -> the number of the superstep, from 0, where it is lost for good, under a `Deadline`
            that several share.
        latency: seconds of every message between two parties.
        work: name of a party -> seconds of all the work of its role in a session; the work of other parties takes none.
        words: name of a party -> how many messages of a session it sends and takes before it is lost.
        notice: seconds until the others of a session learn of a loss.

    In a session, ``lost`` names parties that are lost when half the work of their role is done. A party in ``seconds`` takes them for each
    step of its role: until a checkpoint, and from the last one to its end. ``default`` does not count there.
    """

    seconds: Mapping[str, float] = field(default_factory=dict)
    default: float = 1.0
    lost: Mapping[str, Collection[str]] = field(default_factory=dict)
    latency: float = 0.0
    leaves: Mapping[str, int] = field(default_factory=dict)
    work: Mapping[str, float] = field(default_factory=dict)
    words: Mapping[str, int] = field(default_factory=dict)
    notice: float = 0.0

    def plan(self, parties: Parties, plan: Plan) -> Outcomes:
        """Look up the outcomes."""
        gone = self._find_lost(plan) | self._find_left(plan)
        done = np.array([name not in gone for name in parties.names], dtype=bool)
        took = np.array([self.seconds.get(name, self.default) for name in parties.names], dtype=np.float64)
        fraction = np.where(done, 1.0, 0.5)
        return Outcomes(took * fraction, done, fraction)

    def _find_lost(self, plan: Plan) -> set[str]:
        return {name for text, names in self.lost.items() if text in plan.request for name in names}

    def _find_left(self, plan: Plan) -> set[str]:
        return {name for name, number in self.leaves.items() if plan.superstep >= number}

    def session(self, parties: Parties, plans: Sequence[Plan], until: float) -> Prospects | None:
        """Look up the roles; ``None`` if the table does not mention them."""
        del until
        names, found = parties.names, []
        for name, plan in zip(names, plans, strict=True):
            share = 0.0 if name in self._find_left(plan) else 0.5 if name in self._find_lost(plan) else np.inf
            words = self.words.get(name, np.inf)
            notice = self.notice if min(share, words) < np.inf else 0.0
            step = self.seconds.get(name, 0.0)
            work = self.work.get(name, 0.0)
            found.append(Prospect(work=work, share=share, words=words, notice=notice, step=step))
        if all(one == Prospect() for one in found):
            return None
        return Prospects(found, lambda i, j, nbytes: self.transfer(names[i], names[j], nbytes))

    def transfer(self, source: str, target: str, nbytes: int) -> float:
        """Return the latency."""
        del source, target, nbytes
        return self.latency
