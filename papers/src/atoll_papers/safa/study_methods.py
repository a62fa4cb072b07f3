"""The study's methods, as configurations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .reference import quota_of
from .study_data import STUDIED
from .tasks import LAG, SafaTask

__all__ = ["COMPAT_TIME", "METHODS", "PUBLISHED", "SAME", "pace", "settings"]

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
