"""The result of a run of one of the study's methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from atoll.devices.accounting import COMPAT, RoundAccount
from atoll.reproduce import Lab
from atoll.rounds.history import History
from atoll.rounds.stop import StopRule

from .reference import quota_of
from .study_data import STUDIED
from .study_methods import SAME, settings
from .tasks import COPY_SECONDS

__all__ = ["WINDOW", "Run", "Settled", "measured", "settled", "trained"]

WINDOW = 5
"""Rounds over which a loss is averaged."""


@dataclass(frozen=True)
class Settled(StopRule):
    """Stop when the mean loss of the last `WINDOW` rounds is at most a value: a single lucky round does not count.

    Attributes:
        value: of the loss.
    """

    value: float

    def reason(self, history: History) -> str | None:
        """Return a reason once the mean is reached."""
        last = [row.get("test/loss") for row in history[-WINDOW:]]
        if len(last) < WINDOW or None in last:  # also called before a round is evaluated
            return None
        mean = float(np.mean(last))
        return f"a mean loss of {mean:.4g} reached the target {self.value:g}" if mean <= self.value else None


def settled(losses: np.ndarray) -> np.ndarray:
    """Return the mean of the last `WINDOW` losses after each round; infinite before there are enough."""
    means: Any = np.convolve(losses, np.full(WINDOW, 1 / WINDOW), mode="valid") if len(losses) >= WINDOW else []
    return np.concatenate([np.full(min(WINDOW - 1, len(losses)), np.inf), means])


@dataclass(frozen=True)
class Run:
    """What happened in a run's rounds: columns of shape ``(rounds,)``.

    Attributes:
        clients: in the population.
        seconds: on the clock when each round ended.
        losses: the objective, all clients' training loss, after it.
        merged: replies in the round's model.
        copies: of the model, sent to clients.
        replies: replies that clients sent: merged ones, and those kept for later.
        wasted: local updates thrown away.
        begun: local updates started.
        spread: variance of the versions that replies were trained from.
        late: replies that no round waited for.
        computing: seconds of our own.
    """

    clients: int
    seconds: np.ndarray
    losses: np.ndarray
    merged: np.ndarray
    copies: np.ndarray
    replies: np.ndarray
    wasted: np.ndarray
    begun: np.ndarray
    spread: np.ndarray
    late: np.ndarray
    computing: float

    def costs(self) -> dict[str, float]:
        """Return means over rounds: ``length`` in seconds; ``EUR``, ``SR`` and ``up`` (replies) a client; ``VV``; ``waste``, futility: a share of the started updates."""
        work, begun = self.replies.sum() + self.wasted.sum(), self.begun.sum()
        return {
            "length": float(self.seconds[-1] / len(self.seconds)),
            "EUR": float(self.merged.mean() / self.clients),
            "SR": float(self.copies.mean() / self.clients),
            "up": float(self.replies.mean() / self.clients),
            "VV": float(self.spread.mean()),
            "waste": float(self.wasted.sum() / begun) if begun else 0.0,
            "work": float(work / len(self.seconds) / self.clients),
        }

    def until(self, target: float) -> dict[str, float]:
        """Return the cost until the loss settled at a target: ``rounds``, ``seconds``, ``down`` and ``up`` in models, ``work`` in local updates; infinite if it was never reached."""
        met = np.flatnonzero(settled(self.losses) <= target)
        if not len(met):
            return dict.fromkeys(("rounds", "seconds", "down", "up", "work"), np.inf)
        end = int(met[0]) + 1
        return {
            "rounds": float(end),
            "seconds": float(self.seconds[end - 1]),
            "down": float(self.copies[:end].sum()),
            "up": float(self.replies[:end].sum()),
            "work": float(self.replies[:end].sum() + self.wasted[:end].sum()),
        }

    def after(self, seconds: float) -> float:
        """Return the lowest settled loss by that time; infinite if there is none."""
        found = settled(self.losses)[self.seconds <= seconds]
        return float(found.min()) if len(found) else np.inf


def measured(rows: Sequence[Mapping[str, Any]], clients: int, computing: float = 0.0) -> Run:
    """Return a run's columns from its records."""

    def column(name: str) -> np.ndarray:
        return np.array([float(row.get(name) or 0.0) for row in rows])

    merged = column("picked") if any("picked" in row for row in rows) else column("replied")
    return Run(
        clients,
        column("t_end"),
        np.array([float(row["test/loss"]) for row in rows]),
        merged,
        column("synchronised"),
        merged + column("undrafted"),
        column("wasted"),
        np.array([float(row.get("begun", row.get("selected")) or 0.0) for row in rows]),
        column("version_variance"),
        column("late"),
        computing,
    )


def trained(
    lab: Lab,
    task: str,
    method: str,
    crash: float,
    fraction: float,
    seed: int,
    rounds: int,
    target: float | None = None,
    rate: float = 1.0,
) -> Run:
    """Run a method, or read it back; methods in `SAME` use their own seconds. See `settings` for the arguments."""
    of = STUDIED[task]
    made = lab.train(settings(task, SAME.get(method, method), crash, fraction, seed, rounds, target, rate))
    run = measured(made.rows, of.clients, made.seconds)
    if method not in SAME:
        return run
    log = RoundAccount.of_rows(made.rows, of.clients, quota_of(of.clients, fraction))
    seconds = np.cumsum(COMPAT["SAFA"].lengths(log, COPY_SECONDS, of.limit))
    return Run(**{**vars(run), "seconds": seconds, "computing": 0.0})
