"""The study's tasks and methods as configurations, and what a run of one of them gives. Protocol: `atoll_papers.safa.study`."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.devices.accounting import COMPAT, RoundAccount
from atoll.reproduce import Lab
from atoll.rounds.history import History
from atoll.rounds.loop import StopRule

from .reference import quota_of
from .tasks import (
    BOSTON,
    COPY_SECONDS,
    KDD,
    LAG,
    MODEL_BYTES,
    SERVER_BITS,
    TRANSFER_SECONDS,
    SafaFleet,
    SafaTask,
    _rows,
    fleet,
    train_sizes,
)

if TYPE_CHECKING:
    from atoll.data import Dataset, Islands
    from atoll.devices import Fleet as Devices

__all__ = [
    "COMPAT_TIME",
    "DIGITS",
    "FIFTH",
    "METHODS",
    "PUBLISHED",
    "Run",
    "SAME",
    "STUDIED",
    "Settled",
    "WINDOW",
    "devices",
    "islands",
    "measured",
    "members",
    "pace",
    "settings",
    "settled",
    "trained",
]


# ------------------------------------------------------------------ three convex tasks, with endless draws of crashes: rivals of SAFA contact clients in any number of turns

FIFTH = SafaTask("kdd-fifth", 3, 37_296, 100, 50, KDD.limit, 5, 100, 1e-2, 0.7, KDD.slowest)
"""Every fifth row of task 3 over a fifth of its clients: as much work for each, half of the rounds."""
DIGITS = SafaTask("digits", 0, 1_797, 20, 20, KDD.limit, 5, 24, 5e-2, 0.7, KDD.slowest)
"""Softmax on small digits, which need no download: for ``--quick``. Batches are such that clients work as long as those of task 3."""
STUDIED = {task.name: task for task in (BOSTON, FIFTH, DIGITS)}


def members(task: str, seed: int) -> SafaFleet:
    """Return the clients of a seed: sizes and speeds."""
    return fleet(STUDIED[task], np.random.default_rng([seed, 0]))


def islands(task: str, seed: int = 0) -> Islands:
    """Return a task's clients. The server has the study's evaluation data: all their training rows, since it measures how fast the objective falls; no test row is used.

    Args:
        task: ``"boston"``, ``"kdd-fifth"`` or ``"digits"``.
        seed: of the clients' sizes.
    """
    from atoll.data import Islands

    of, whole = STUDIED[task], _table(task)
    sizes = train_sizes(members(task, seed).sizes, len(whole))
    return Islands.from_owner(whole, np.repeat(np.arange(of.clients), sizes), of.clients, scheme="N(mu, (0.3 mu)^2)")


@functools.lru_cache(maxsize=3)
def _table(task: str) -> Dataset:
    from atoll.data import digits

    if task == DIGITS.name:
        whole = digits(test=0.0)
        train = whole.take(np.arange(int(len(whole) * DIGITS.train)))
    else:
        train = _rows(task.removesuffix("-fifth"))
    if task == FIFTH.name:  # of rows scaled over the whole table, as some inputs are constant in a part of it
        train = train.take(np.arange(0, len(train), 5))
    return train.with_test(train)


def devices(task: str, crash: float = 0.3, seed: int = 0, model_over: int = 0) -> Devices:
    """Return the clients as a model of devices; see `atoll_papers.safa.tasks.devices`. The difference: endless crashes.

    A crashed device is back at once, as in the thesis, where it continues in the next round. Asynchronous servers
    notice and can ask it again; synchronous ones, and SAFA while its quota is unmet, wait until ``T_lim`` all the same.

    Args:
        task: ``"boston"``, ``"kdd-fifth"`` or ``"digits"``.
        crash: probability of a crash, of each participation.
        seed: of sizes, speeds and crashes.
        model_over: messages of at most this many bytes contain no model.
    """
    from atoll.devices import BatchRate, GeneratedTrace, GivenTraits, Throughput
    from atoll.devices import Fleet as Devices

    of, drawn = STUDIED[task], members(task, seed)
    rows = train_sizes(drawn.sizes, int(of.rows * of.train))
    return Devices(
        BatchRate(GivenTraits((rows * of.epochs / of.batch_size / drawn.training).tolist()), batch=of.batch_size),
        Throughput(MODEL_BYTES / TRANSFER_SECONDS),
        GeneratedTrace(crash, point="uniform", seed=seed),
        egress=SERVER_BITS / 8,
        model_bytes=float(MODEL_BYTES),
        model_over=model_over,
        seed=seed,
    )


# ------------------------------------------------------------------ methods

Config = dict[str, Any]
PUBLISHED = "SAFA as published, strict"
_ROOM = "atoll.reproduce.safa"
_LEARNING: Mapping[str, Config] = {
    "boston": {"model": {"name": "linear", "features": 12, "outputs": 1}, "loss": "mse"},
    "kdd-fifth": {"model": {"name": "linear", "features": 35, "outputs": 1}, "loss": "hinge"},
    "digits": {"model": {"name": "linear", "features": 64, "outputs": 10}, "loss": "cross_entropy"},
}
COMPAT_TIME = "SAFA as published, the tables' time"
SAME = {COMPAT_TIME: PUBLISHED}
"""The same training with other seconds."""
METHODS: Mapping[str, str] = {
    "FedAvg, absent keep global": "random clients, deadline; whoever does not answer stands in with the old model, as in the author's program",
    "FedAvg": "random clients, deadline; the mean of those who answered",
    "FedAvg, 1.3 asked": "the same, asking 1.3 times as many and closing when the quota has answered",
    "FedCS": "random clients of whom the slow are not asked, deadline; the mean of those who answered",
    COMPAT_TIME: "every client begins afresh, all who would end before T_lim count, rounds that are short of their quota do not wait",
    PUBLISHED: "the same under the clock, waiting as Algorithm 1 is written",
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
    PUBLISHED: {"published": True, "resume": False},
    "SAFA, bounded": {"bounded": True},
    "SAFA, adaptive lag": {"lag_tolerance": {"loss": 0.01, "most": 10}},
    "SAFA, by age": {"staleness": {"name": "PolynomialStaleness", "a": 0.5}},
}
_NOTE = 256
"""Bytes of a message without a model: a note to go on takes about 65, the smallest model of these tasks 384."""


def pace(task: SafaTask, method: str, fraction: float) -> Config:
    """Return which clients train, and when a round ends.

    Args:
        task: the task, with its clients and limit.
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
    """Return a run's configuration.

    Args:
        task: ``"boston"``, ``"kdd-fifth"`` or ``"digits"``.
        method: one of `METHODS`, except those in `SAME`.
        crash: probability of a crash, of each participation.
        fraction: ``C``.
        seed: of all randomness: clients, crashes, ...
        rounds: the most rounds.
        target: settled loss at which the run ends.
        rate: factor on the rate of Table 3.2.
    """
    of, learning = STUDIED[task], _LEARNING[task]
    # As published, every client is charged for one model each way, whether or not it gets one.
    notes = {"model_over": _NOTE} if method in _OWN and method != PUBLISHED else {}
    name = "-".join(("study", task, method.lower().replace(",", "").replace(" ", "-"), f"{crash:g}", f"{fraction:g}"))
    return {
        "name": f"{name}-{seed}" + ("" if rate == 1 else f"-rate-{rate:g}"),
        "data": {"source": {"name": f"{_ROOM}.study_data:islands", "task": task, "seed": seed}},
        "model": learning["model"],
        "loss": learning["loss"],
        "algorithm": {"name": "FedAvg", "lr": of.lr * rate, "epochs": of.epochs, "batch_size": of.batch_size},
        "devices": {"name": f"{_ROOM}.study_data:devices", "task": task, "crash": crash, "seed": seed, **notes},
        "engine": "inline",
        "rounds": rounds,
        "evaluation": {"every": 1},
        "checkpoint_every": 1_000,
        "stop": [] if target is None else [{"name": f"{_ROOM}.study_runs:Settled", "value": target}],
        "seed": seed,
        **pace(of, method, fraction),
    }


# ------------------------------------------------------------------ runs

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
