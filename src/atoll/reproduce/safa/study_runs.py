"""The study's methods as configurations, and what a run of one of them comes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from atoll.devices.accounting import COMPAT, RoundLog
from atoll.learn.history import History
from atoll.learn.stop import StopRule

from ..entry import Lab
from .reference import quota_of
from .study_data import STUDIED
from .tasks import COPY_SECONDS, LAG, Task

__all__ = [
    "COMPAT_TIME",
    "METHODS",
    "SAME",
    "WINDOW",
    "Run",
    "Settled",
    "measured",
    "pace",
    "settings",
    "settled",
    "trained",
]

Config = dict[str, Any]
_ROOM = "atoll.reproduce.safa"
_LEARNING: Mapping[str, Config] = {
    "boston": {"model": {"name": "linear", "features": 12, "outputs": 1}, "loss": "mse"},
    "kdd-fifth": {"model": {"name": "linear", "features": 35, "outputs": 1}, "loss": "hinge"},
    "digits": {"model": {"name": "linear", "features": 64, "outputs": 10}, "loss": "cross_entropy"},
}
WINDOW = 5
"""Rounds over which a loss is averaged."""
COMPAT_TIME = "SAFA as published, the tables' time"
SAME = {COMPAT_TIME: "SAFA as published, strict"}
"""The same training with other seconds."""
METHODS: Mapping[str, str] = {
    "FedAvg, absent keep global": "random clients, deadline; whoever does not answer stands in with the old model, as in the author's program",
    "FedAvg": "random clients, deadline; the mean of those who answered",
    "FedAvg, 1.3 asked": "the same, asking 1.3 times as many and closing when the quota has answered",
    "FedCS": "random clients of whom the slow are not asked, deadline; the mean of those who answered",
    COMPAT_TIME: "every client begins afresh, all who would end before T_lim count, rounds that are short of their quota do not wait",
    "SAFA as published, strict": "the same under the clock, waiting as Algorithm 1 is written",
    "SAFA": "slow clients work on and count when they come; crashed ones go on from whole epochs",
    "SAFA, bounded": "and whoever still works when a round is full is called off, and goes on later",
    "SAFA, adaptive lag": "and each client's tolerance follows from how often it fails",
    "SAFA, by age": "and cache entries weigh (1 + age)^-1/2",
    "FedBuff": "everyone works; a step when the quota has answered, weights (1 + staleness)^-1/2",
    "FedAsync": "everyone works; a step at each arrival, alpha = 0.6 (1 + staleness)^-1/2; a round is the quota",
}
"""What is compared, each with the learning rate and the epochs of Table 3.2 and the defaults of its own settings."""
_OWN: Mapping[str, Config] = {
    "SAFA": {},
    "SAFA as published, strict": {"published": True, "resume": False},
    "SAFA, bounded": {"bounded": True},
    "SAFA, adaptive lag": {"lag_tolerance": {"loss": 0.01, "most": 10}},
    "SAFA, by age": {"staleness": {"name": "PolynomialStaleness", "a": 0.5}},
}


def pace(task: Task, method: str, fraction: float) -> Config:
    """Who trains, and when a round ends.

    Args:
        task: with its clients and limit.
        method: one of `METHODS`, except those in `SAME`.
        fraction: ``C``.
    """
    quota = quota_of(task.clients, fraction)
    if method in _OWN:
        own: Config = {"name": "SAFA", "lag_tolerance": LAG, "deadline": task.limit, **_OWN[method]}
        return {"selection": {"name": "CFCFM", "count": quota}, "pacing": own}
    everyone: Config = {"name": "Uniform", "count": task.clients}
    if method == "FedBuff":
        return {"selection": everyone, "pacing": {"name": "FedBuff", "buffer": quota}}
    if method == "FedAsync":
        mixing = {"name": "FedAsync", "arrivals": quota, "staleness": {"name": "PolynomialStaleness", "a": 0.5}}
        return {"selection": everyone, "pacing": mixing}
    waits: Config = {"name": "Synchronous", "deadline": task.limit, "quorum": 1, "on_failure": "skip"}
    chosen: Config = {"name": "Uniform", "count": quota}
    if method == "FedCS":
        chosen = {"name": "FedCS", "count": quota, "deadline": task.limit}
    if method == "FedAvg, 1.3 asked":
        waits["over_select"] = 1.3
    made: Config = {"selection": chosen, "pacing": waits}
    return {**made, "aggregation": "KeepGlobal"} if method == "FedAvg, absent keep global" else made


def settings(
    task: str,
    method: str,
    crash: float,
    fraction: float,
    seed: int,
    rounds: int,
    target: float | None = None,
    rate: float = 1.0,
) -> Config:
    """A run's configuration.

    Args:
        task: ``"boston"``, ``"kdd-fifth"`` or ``"digits"``.
        method: one of `METHODS`, except those in `SAME`.
        crash: probability of a crash, of each participation.
        fraction: ``C``.
        seed: of clients, crashes and everything else.
        rounds: how many at most.
        target: settled loss at which the run ends.
        rate: of Table 3.2 times this.
    """
    of, learning = STUDIED[task], _LEARNING[task]
    name = "-".join(("study", task, method.lower().replace(",", "").replace(" ", "-"), f"{crash:g}", f"{fraction:g}"))
    return {
        "name": f"{name}-{seed}" + ("" if rate == 1 else f"-rate-{rate:g}"),
        "data": {"source": {"name": f"{_ROOM}.study_data:islands", "task": task, "seed": seed}},
        "model": learning["model"],
        "loss": learning["loss"],
        "algorithm": {"name": "FedAvg", "lr": of.lr * rate, "epochs": of.epochs, "batch_size": of.batch_size},
        "devices": {"name": f"{_ROOM}.study_data:devices", "task": task, "crash": crash, "seed": seed},
        "engine": "inline",
        "rounds": rounds,
        "evaluation": {"every": 1},
        "checkpoint_every": 1_000,
        "stop": [] if target is None else [{"name": f"{_ROOM}.study_runs:Settled", "value": target}],
        "seed": seed,
        **pace(of, method, fraction),
    }


@dataclass(frozen=True)
class Settled(StopRule):
    """Stop when the mean loss of the last `WINDOW` rounds is at most a value: a single lucky round does not count.

    Attributes:
        value: of the loss.
    """

    value: float

    def reason(self, history: History) -> str | None:
        """The mean is there."""
        last = [row.get("test/loss") for row in history[-WINDOW:]]
        if len(last) < WINDOW or None in last:  # asked also before a round is evaluated
            return None
        mean = float(np.mean(last))
        return f"a mean loss of {mean:.4g} reached the target {self.value:g}" if mean <= self.value else None


def settled(losses: np.ndarray) -> np.ndarray:
    """The mean of the last `WINDOW` losses after each round; infinite before there are so many."""
    means: Any = np.convolve(losses, np.full(WINDOW, 1 / WINDOW), mode="valid") if len(losses) >= WINDOW else []
    return np.concatenate([np.full(min(WINDOW - 1, len(losses)), np.inf), means])


@dataclass(frozen=True)
class Run:
    """What a run's rounds did: columns of shape ``(rounds,)``.

    Attributes:
        clients: in the population.
        seconds: on the clock when each round ended.
        losses: the objective, all clients' training loss, after it.
        merged: replies in the round's model.
        copies: of the model, sent to clients.
        replies: that clients sent: those merged, and those kept for later.
        wasted: local updates thrown away.
        spread: variance of the versions that replies were trained from.
        late: replies that nobody waited for.
        computing: seconds of our own.
    """

    clients: int
    seconds: np.ndarray
    losses: np.ndarray
    merged: np.ndarray
    copies: np.ndarray
    replies: np.ndarray
    wasted: np.ndarray
    spread: np.ndarray
    late: np.ndarray
    computing: float

    def costs(self) -> dict[str, float]:
        """Means over rounds: ``length`` in seconds; ``EUR``, ``SR`` and ``up`` (replies) a client; ``VV``; ``waste``, of the work that was delivered or thrown away."""
        work = self.replies.sum() + self.wasted.sum()
        return {
            "length": float(self.seconds[-1] / len(self.seconds)),
            "EUR": float(self.merged.mean() / self.clients),
            "SR": float(self.copies.mean() / self.clients),
            "up": float(self.replies.mean() / self.clients),
            "VV": float(self.spread.mean()),
            "waste": float(self.wasted.sum() / work) if work else 0.0,
            "work": float(work / len(self.seconds) / self.clients),
        }

    def until(self, target: float) -> dict[str, float]:
        """What it took until the loss had settled at a target: ``rounds``, ``seconds``, ``down`` and ``up`` in models, ``work`` in local updates; infinite if it was never reached."""
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
        """The lowest settled loss by that time; infinite if there is none."""
        found = settled(self.losses)[self.seconds <= seconds]
        return float(found.min()) if len(found) else np.inf


def measured(rows: Sequence[Mapping[str, Any]], clients: int, computing: float = 0.0) -> Run:
    """A run's columns from its records."""

    def column(*names: str) -> np.ndarray:
        return np.array([sum(float(row.get(name) or 0.0) for name in names) for row in rows])

    merged = column("picked") if any("picked" in row for row in rows) else column("replied")
    return Run(
        clients,
        column("t_end"),
        np.array([float(row["test/loss"]) for row in rows]),
        merged,
        column("synchronised"),
        merged + column("undrafted"),
        column("wasted"),
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
    """Run a method, or read it back; those in `SAME` with their own seconds. Arguments as of `settings`."""
    of = STUDIED[task]
    made = lab.train(settings(task, SAME.get(method, method), crash, fraction, seed, rounds, target, rate))
    run = measured(made.rows, of.clients, made.seconds)
    if method not in SAME:
        return run
    log = RoundLog.of_rows(made.rows, of.clients, quota_of(of.clients, fraction))
    seconds = np.cumsum(COMPAT["SAFA"].lengths(log, COPY_SECONDS, of.limit))
    return Run(**{**vars(run), "seconds": seconds, "computing": 0.0})
