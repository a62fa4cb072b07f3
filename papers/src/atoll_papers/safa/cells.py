"""The trainings behind tables A.1, A.3 and A.5, as configurations that the lab runs, keeps and resumes.

As in the author's program: absent clients count with the current model (`KeepGlobal`) under FedAvg and FedCS; FedCS
compares training and one transfer with the limit. In task 2, where it matters, all clients first train for one epoch,
as in that program; the convex tasks start from 0. Unlike that program, batches are drawn in random order, and a round's
model goes into the next round even if it is worse on the test rows (the program keeps the best one so far, so test rows
choose the model). We report the best value over rounds, as in the tables.
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.rng import Rng
from atoll.reproduce import Lab
from atoll.runs import parse_config, to_job

from .data import drawn
from .grid import simulate
from .tasks import LAG, TRANSFER_SECONDS, SafaTask

__all__ = ["METRICS", "Score", "alone", "efforts", "pace", "score", "settings"]

Config = dict[str, Any]
_ROOM = "atoll.reproduce.safa.data"
METRICS = {"boston": "test/scaled_accuracy", "mnist": "test/accuracy", "kdd": "test/sign_accuracy"}
"""Table 3.3."""


@dataclass(frozen=True)
class Score:
    """The results of a cell.

    Attributes:
        best: the best accuracy over rounds.
        losses: the best test loss up to rounds 1, 10, 25 and the last; of fully local training only the last.
        rows: one record per round; none for fully local training.
        seconds: of computing.
    """

    best: float
    losses: tuple[float, ...]
    rows: list[dict[str, Any]]
    seconds: float


def pace(task: SafaTask, algorithm: str, fraction: float, lag: int = LAG) -> Config:
    """Return which clients train, when a round ends and what happens to the others: all that distinguishes FedAvg, FedCS and SAFA.

    Args:
        task: the task, with its limit.
        algorithm: ``"FedAvg"``, ``"FedCS"`` or ``"SAFA"``.
        fraction: ``C``.
        lag: SAFA's tolerance.
    """
    if algorithm == "SAFA":
        return {
            "selection": {"name": "CFCFM", "count": float(fraction)},
            "pacing": {
                "name": "SAFA", "lag_tolerance": lag, "deadline": task.limit, "resume": False, "published": True
            },
        }  # fmt: skip
    waits = {"name": "Synchronous", "deadline": task.limit, "quorum": 1, "on_failure": "skip"}
    chosen: Config = {"name": "Uniform", "count": float(fraction)}
    if algorithm == "FedCS":
        # Its forecast has training and two transfers; the program's has training and one.
        chosen = {"name": "FedCS", "count": float(fraction), "deadline": task.limit + TRANSFER_SECONDS}
    return {"selection": chosen, "pacing": waits, "aggregation": "KeepGlobal"}


def _learning(task: SafaTask) -> Config:
    """Return model, loss and metric."""
    known: dict[str, Config] = {
        "boston": {
            "model": {"name": "linear", "features": 12, "outputs": 1},
            "loss": "mse",
            "metric": {"name": f"{_ROOM}:ScaledAccuracy"},
            "engine": "inline",
        },
        "mnist": {"model": {"name": f"{_ROOM}:warm_cnn"}, "loss": "cross_entropy", "metric": None, "engine": "inline"},
        "kdd": {
            "model": {"name": f"{_ROOM}:svm"},
            "loss": "squared_hinge",
            "metric": {"name": "SignAccuracy"},
            "engine": "batched",
        },
    }
    return known[task.name]


def settings(
    task: SafaTask,
    algorithm: str,
    crash: float,
    fraction: float,
    seed: int = 0,
    *,
    rounds: int | None = None,
    device: str = "cpu",
    lag: int = LAG,
) -> Config:
    """Return a cell's configuration.

    Args:
        task: one of the three.
        algorithm: ``"FedAvg"``, ``"FedCS"`` or ``"SAFA"``; for fully local training see `alone`.
        crash: probability of a crash in a round.
        fraction: ``C``.
        seed: of all randomness: clients, crashes, model, ...
        rounds: replaces the task's number.
        device: cpu or cuda.
        lag: SAFA's tolerance.
    """
    learning = _learning(task)
    model = learning["model"] | ({"seed": seed} if task.name == "mnist" else {})
    evaluation: Config = {"every": 1}
    if learning["metric"] is not None:
        evaluation["metrics"] = [learning["metric"]]
    return {
        "name": f"safa-{task.name}-{algorithm}-{crash:g}-{fraction:g}".lower() + (f"-lag-{lag}" if lag != LAG else ""),
        "data": {"source": {"name": f"{_ROOM}:islands", "task": task.name, "seed": seed}},
        "model": model,
        "loss": learning["loss"],
        "algorithm": {"name": "FedAvg", "lr": task.lr, "epochs": task.epochs, "batch_size": task.batch_size},
        "devices": {"name": f"{_ROOM}:devices", "task": task.name, "crash": crash, "seed": seed},
        "engine": learning["engine"],
        "rounds": rounds or task.rounds,
        "evaluation": evaluation,
        "checkpoint_every": 25,
        "device": device,
        "seed": seed,
        **pace(task, algorithm, fraction, lag),
    }


def score(lab: Lab, config: Config) -> Score:
    """Run a cell, or read it back."""
    made = lab.train(config)
    metric = METRICS[config["data"]["source"]["task"]]
    losses = {int(row["round"]): float(row["test/loss"]) for row in made.rows if row.get("test/loss") is not None}
    at = [number for number in (1, 10, 25) if number < max(losses)] + [max(losses)]
    least = [min(loss for number, loss in losses.items() if number <= until) for until in at]
    return Score(made.best(metric), tuple(least), made.rows, made.seconds)


def efforts(task: SafaTask, crash: float, fraction: float, seed: int = 0, rounds: int | None = None) -> np.ndarray:
    """Return the rounds that each client finishes in fully local training, ``(clients,)``: those where it was drawn and did not crash."""
    members, crashes = drawn(task, crash, seed)
    made = simulate(task, "Fully local", fraction, members, crashes, seed)
    finished: np.ndarray = (made.asked & ~made.crashed)[:rounds].sum(axis=0)
    return finished


def alone(
    lab: Lab,
    task: SafaTask,
    crash: float,
    fraction: float,
    seed: int = 0,
    *,
    rounds: int | None = None,
    device: str = "cpu",
) -> Score:
    """Do fully local training: every client trains alone from the same start, with one average ``sum_k (n_k/n) w_k`` at the end.

    A client that finished m rounds has trained m E epochs. Clients with the same m form one training of one round,
    whose model is their weighted average; the averages of all m, and the start for m = 0, are combined.
    """
    base = settings(task, "FedAvg", crash, fraction, seed, rounds=1, device=device)
    for name in ("devices", "aggregation"):
        del base[name]
    base |= {"name": f"safa-{task.name}-alone-{crash:g}-{fraction:g}", "selection": "Everyone", "pacing": "Synchronous"}
    done = efforts(task, crash, fraction, seed, rounds)
    name = "-".join((base["name"], *([] if rounds is None else [str(rounds)]), parse_config(base).digest()))
    made = lab.scores(name, lambda: _alone(base, task, done))
    return Score(made[METRICS[task.name]], (made["test/loss"],), [], made["seconds"])


def _alone(base: Config, task: SafaTask, done: np.ndarray) -> dict[str, float]:
    import atoll
    from atoll.learn.learner import LearnerSettings, adapt

    began = time.perf_counter()
    made, islands = to_job(parse_config(base))
    job: Any = made
    learner = adapt(job.model, LearnerSettings(algorithm=job.algorithm, loss=job.loss), islands)
    shares = np.asarray(islands.sizes, dtype=np.float64) / sum(islands.sizes)
    parts = []
    for count in map(int, np.unique(done)):
        members = np.flatnonzero(done == count)
        params = learner.init(Rng(0))  # the model's own weights
        if count:
            longer = job.replace(compile="always", algorithm=replace(job.algorithm, epochs=count * task.epochs))
            alike = islands.subset(members).with_test(None)
            params = atoll.simulate(longer, alike, engine=base["engine"], seed=base["seed"], progress=False).params
        parts.append(T.scale(params, shares[members].sum()))
    found: dict[str, float] = job.evaluation.at_server(learner, functools.reduce(T.add, parts), islands.test)
    return {**found, "seconds": time.perf_counter() - began}
