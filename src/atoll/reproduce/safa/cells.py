"""The trainings behind tables A.1, A.3 and A.5, as configurations that the lab runs, keeps and resumes.

As in the author's program: absent clients count with the current model (`KeepGlobal`) under FedAvg and FedCS; FedCS
compares training and one transfer with the limit. In task 2, where it matters, all clients first train for one epoch,
as in that program; the convex tasks start from 0. Unlike that program, batches are drawn in random order, and a round's
model goes into the next round even if it is worse on the test rows (the program keeps the best one so far, so test rows
choose the model). We report the best value over rounds, as in the tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..entry import Lab
from .data import drawn
from .grid import simulate
from .tasks import LAG, TRANSFER_SECONDS, SafaTask

__all__ = ["METRICS", "Scale", "Score", "alone", "efforts", "pace", "score", "settings"]

Config = dict[str, Any]
_ROOM = "atoll.reproduce.safa.data"
METRICS = {"boston": "test/scaled_accuracy", "mnist": "test/accuracy", "kdd": "test/sign_accuracy"}
"""Table 3.3."""


@dataclass(frozen=True)
class Scale:
    """A smaller version of a task. Devices take as long as with the whole task, so rounds last as long and the same clients are in time.

    Attributes:
        rows: training rows, the first ones, divided among all clients in the same proportions; ``None`` for all.
        tests: test rows, the first ones.
        rounds: ``None`` for the task's.
    """

    rows: int | None = None
    tests: int | None = None
    rounds: int | None = None

    @property
    def whole(self) -> bool:
        """Tell whether nothing is reduced."""
        return self == Scale()

    def told(self, task: SafaTask) -> str:
        """Describe it in words."""
        rounds = task.rounds if self.rounds is None else self.rounds
        return f"scaled down to {self.rows} training and {self.tests} test rows and {rounds} rounds"


_WHOLE = Scale()


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
        "mnist": {"model": {"name": f"{_ROOM}:warm_cnn"}, "loss": "cross_entropy", "metric": None, "engine": "batched"},
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
    scale: Scale = _WHOLE,
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
        scale: of the task.
        device: cpu or cuda.
        lag: SAFA's tolerance.
    """
    learning = _learning(task)
    rows = {} if scale.rows is None else {"rows": scale.rows}
    tests = {} if scale.tests is None else {"tests": scale.tests}
    model = learning["model"] | ({"seed": seed, **rows} if task.name == "mnist" else {})
    # Blocks of clients pay if clients have much to compute; on a few rows they cost more than they save (53 s : 39 s
    # measured on 6,000 images).
    engine = "inline" if rows else learning["engine"]
    rounds = rounds or scale.rounds or task.rounds
    evaluation: Config = {"every": 1}
    if learning["metric"] is not None:
        evaluation["metrics"] = [learning["metric"]]
    return {
        "name": f"safa-{task.name}-{algorithm}-{crash:g}-{fraction:g}".lower() + (f"-lag-{lag}" if lag != LAG else ""),
        "data": {"source": {"name": f"{_ROOM}:islands", "task": task.name, "seed": seed, **rows, **tests}},
        "model": model,
        "loss": learning["loss"],
        "algorithm": {"name": "FedAvg", "lr": task.lr, "epochs": task.epochs, "batch_size": task.batch_size},
        "devices": {"name": f"{_ROOM}:devices", "task": task.name, "crash": crash, "seed": seed, **rows},
        "engine": engine,
        "rounds": rounds,
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
    scale: Scale = _WHOLE,
    device: str = "cpu",
) -> Score:
    """Do fully local training: every client trains alone from the same start, with one average ``sum_k (n_k/n) w_k`` at the end.

    A client that finished m rounds has trained m E epochs. Clients with the same m form one training of one round,
    whose model is their weighted average; the averages of all m, and the start for m = 0, are combined.
    """
    from atoll.runs import parse_config, to_job
    from atoll.runs.model import read_model

    base = settings(task, "FedAvg", crash, fraction, seed, rounds=1, scale=scale, device=device)
    for name in ("devices", "aggregation"):
        del base[name]
    base |= {"selection": "Everyone", "pacing": "Synchronous"}
    job, islands = to_job(parse_config(base))
    done, sizes = (
        efforts(task, crash, fraction, seed, rounds or scale.rounds),
        np.asarray(islands.sizes, dtype=np.float64),
    )
    total: dict[str, np.ndarray] = {}
    seconds = 0.0
    for count in map(int, np.unique(done)):
        members = np.flatnonzero(done == count)
        made = lab.train(_group(base, task, members.tolist(), count))
        seconds += made.seconds
        for name, value in read_model(made.folder.path / "model.safetensors").items():
            total[name] = total.get(name, 0.0) + value * (sizes[members].sum() / sizes.sum())
    found = _evaluated(job, islands, total)
    metric = METRICS[task.name]
    return Score(found[metric], (found["test/loss"],), [], seconds)


def _group(base: Config, task: SafaTask, members: Iterable[int], count: int) -> Config:
    """Return the settings of the clients that finish ``count`` rounds. Clients that finish none keep the start: their step is too small to change a number."""
    source = {**base["data"]["source"], "only": list(members)}
    algorithm = {**base["algorithm"], "epochs": max(1, count * task.epochs)}
    if count == 0:
        algorithm["lr"] = 1e-30
    return {**base, "name": f"safa-{task.name}-alone-{count}", "data": {"source": source}, "algorithm": algorithm}


def _evaluated(job: Any, islands: Any, params: dict[str, np.ndarray]) -> dict[str, float]:
    from atoll.learn.learner import LearnerSettings, adapt

    learner = adapt(job.model, LearnerSettings(algorithm=job.algorithm, loss=job.loss), islands)
    found: dict[str, float] = job.evaluation.at_server(learner, params, islands.test)
    return found
