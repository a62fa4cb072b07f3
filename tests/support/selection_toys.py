"""Candidates, rounds seen and devices of the tests of selection."""

from __future__ import annotations

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.requests.party import Roster
from atoll.core.requests.results import Outcomes
from atoll.selection import Candidates, Seen


class Devices:
    """Client i answers after ``seconds[i]``; who is lost crashes half-way; who is away cannot be asked."""

    def __init__(self, seconds, lost=(), away=()):
        self.seconds, self.lost, self.away = np.asarray(seconds, dtype=float), set(lost), set(away)
        self.plans = []

    def plan(self, parties, plan):
        self.plans.append(plan)
        done = np.array([int(p) not in self.lost for p in parties.positions])
        seconds = self.seconds[parties.positions]
        return Outcomes(np.where(done, seconds, seconds / 2), done, np.where(done, 1.0, 0.5))

    def forecast(self, parties, plan):
        return self.seconds[parties.positions]

    def available(self, parties, now):
        return np.array([int(p) not in self.away for p in parties.positions])

    def transfer(self, source, target, nbytes):
        return 0.0


def candidates(n, number=1, sizes=None, seconds=None, seed=0):
    forecast = None if seconds is None else np.asarray(seconds, dtype=float)
    return Candidates(Roster(n).all(), number, Rng.of(seed).child(number), lambda: sizes, lambda: forecast)


def seen(n, number, who, losses, examples=None, seconds=None):
    """A round in which ``who`` replied with these losses."""
    there = Roster(n).all()[np.asarray(who)]
    spent = np.zeros(len(who)) if seconds is None else np.asarray(seconds, dtype=float)
    rows = np.ones(len(who)) if examples is None else np.asarray(examples, dtype=float)
    return Seen(number, there, there, spent, {"loss": [np.float64(v) for v in losses]}, examples=rows)
