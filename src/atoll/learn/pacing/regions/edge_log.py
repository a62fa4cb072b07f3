"""An edge's knowledge of its region's reliability: an estimate, and rounds with late completions still to count. Pure functions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.tree import Tree

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .slack import SlackEstimator

__all__ = ["Seats", "fresh", "learned", "noted"]


def fresh(estimator: SlackEstimator) -> Tree:
    """Return an empty log: the estimator's state, and the rounds that it has not learned from yet."""
    return {"state": estimator.init(), "pending": []}


def noted(log: Tree, counts: dict[str, Any], ready: float) -> Tree:
    """Return the log with a round's counts, arguments of ``SlackEstimator.update``, to learn from at time ``ready``."""
    return {**log, "pending": [*log["pending"], {"ready": float(ready), "counts": counts}]}


def learned(estimator: SlackEstimator, log: Tree, now: float) -> Tree:
    """Return the log after learning from rounds with complete counts, in the order of the rounds."""
    state = log["state"]
    for entry in log["pending"]:
        if entry["ready"] <= now:
            state = estimator.update(state, **entry["counts"])
    return {"state": state, "pending": [entry for entry in log["pending"] if entry["ready"] > now]}


@dataclass(frozen=True)
class Seats:
    """Numbers of clients that regions invite, and of submissions that they may fill.

    Attributes:
        estimator: estimates the slack factors.
        share: ``C``, submissions wanted divided by clients.
        clients: ``N_r``, ``(regions,)``.
    """

    estimator: SlackEstimator
    share: float
    clients: NDArray[np.int64]

    @property
    def wanted(self) -> NDArray[np.float64]:
        """``C N_r``."""
        return np.asarray(self.share * self.clients, dtype=np.float64)

    def thetas(self, logs: list[Tree]) -> NDArray[np.float64]:
        """Return the factor of each region."""
        return np.array([float(self.estimator.theta(log["state"])) for log in logs])

    def invited(self, logs: list[Tree], joint: bool) -> NDArray[np.int64]:
        """Return how many clients each region invites.

        Args:
            logs: the edges' logs.
            joint: whether the cloud sizes all regions, or every edge its own.
        """
        if joint:
            states = [log["state"] for log in logs]
            together = {name: np.array([state[name] for state in states]) for name in states[0]}
            return self.estimator.counts(together, self.share, self.clients)
        pairs = zip(logs, self.clients.tolist(), strict=True)
        return np.array([int(self.estimator.counts(log["state"], self.share, n)) for log, n in pairs], dtype=np.int64)

    def most(self, factor: float | None) -> list[int | None]:
        """Return how many submissions each region may fill."""
        return [None if factor is None else math.ceil(factor * n - 1e-9) for n in self.wanted.tolist()]
