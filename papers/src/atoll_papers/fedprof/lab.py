"""Trainings of chapter 5: one configuration per method, run with several seeds and reduced to medians."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from atoll.core.errors import ConfigError
from atoll.reproduce import Lab, NotKept, TrainedRun

from .found import FedProfFound
from .paper import GROUPS, Key
from .tasks import BATCH, METRIC, model, setting_of

__all__ = ["SMALL", "FedProfProtocol", "cells", "found_of", "kept", "runs", "seeds_of", "selection", "settings"]

_FLEETS = {"gasturbine": "gas-turbine", "images": "digits", "cifar10": "digits"}
_NO_MODEL = 2048
"""Bytes; a message of at most this size is not a model. A profile has ``8 q`` and an envelope: 704 for 64 units, 1,216 for 128, and (5.30) charges just these. The smallest message
with a model, the perceptron's, has 11 kB. At 0, profiles sent alone, as before the first round, would each be charged as a model of 5 or 10 MB."""


@dataclass(frozen=True)
class FedProfProtocol:
    """How much is run; zeros stand for the thesis's numbers.

    Attributes:
        task: ``"gasturbine"``, ``"images"`` or ``"cifar10"``.
        rounds: most rounds.
        rows: training rows in all.
        clients: number of clients.
        tests: test rows, of the digits.
        seeds: runs per cell; each also draws its own partition and devices.
        shares: ``C``.
        lengths: rounds of each group, before ``rounds``.
    """

    task: str
    rounds: int = 0
    rows: int = 0
    clients: int = 0
    tests: int = 0
    seeds: int = 10
    shares: tuple[float, ...] = ()

    lengths: Mapping[str, int] = field(default_factory=dict)

    def population(self) -> int:
        """Return the number of clients."""
        return self.clients or (100 if self.task == "cifar10" else setting_of(self.task).clients)

    def length(self, group: str) -> int:
        """Return the rounds of a group."""
        return self.lengths.get(group) or self.rounds or setting_of(self.task).rounds[group]

    def cohort(self, share: float) -> int:
        """Return ``K = C N``."""
        return max(1, round(share * self.population()))


SMALL = FedProfProtocol(
    "images", rows=12_000, clients=50, tests=2000, shares=(0.1,), lengths={"full": 76, "partial": 12}
)
"""The trained part of the L-Task: 50 clients in place of 1,000, with the thesis's 240 digits each, five of them a round. Each group trains for as many rounds as
FedAvg and FedAvg-RP need to 0.90 in the thesis's Table 5.4 at ``C = 0.1``."""


def selection(method: str, count: int, alpha: float = 10.0) -> dict[str, Any]:
    """Return the selection rule of a method, as in Table 5.1: the one place where rules are plugged in.

    CFCFM takes the first replies to arrive, so it needs a model of devices. FedProf draws without replacement, which
    the thesis's energies show.

    Raises:
        ConfigError: an unknown method.
    """
    rules: dict[str, dict[str, Any]] = {
        "FedAvg": {"name": "Uniform"},
        "FedAvg-RP": {"name": "Uniform"},
        "FedAdam": {"name": "Uniform"},
        "FedProx": {"name": "SizeProportional", "replace": True},
        "CFCFM": {"name": "CFCFM"},
        "AFL": {"name": "AFL"},
        "FedProf": {"name": "FedProf", "alpha": alpha},
    }
    if method not in rules:
        raise ConfigError(f"method={method!r}", where="selection", remedy=f"use one of {', '.join(rules)}")
    return {**rules[method], "count": count}


def _aggregation(group: str, method: str) -> str:
    """Return a method's aggregation: full aggregation keeps the global model for clients that were not selected (2.46); partial is Scheme II or the plain mean."""
    if group == "full":
        return "KeepGlobal"
    return "Rescaled" if method == "FedAvg-RP" else "EqualWeights"


def _algorithm(task: str, method: str) -> dict[str, Any]:
    """Return local SGD with the rate of Table 5.2; settings that the thesis leaves out (mu, the server's rate) are the methods' defaults."""
    setting = setting_of(task)
    local: dict[str, Any] = {"lr": setting.lr, "epochs": setting.epochs, "batch_size": BATCH[task]}
    if method == "FedAdam":
        return {"name": "FedAdam", **local}
    return {"name": "FedProx" if method == "FedProx" else "FedAvg", "decay": setting.decay, **local}


def settings(protocol: FedProfProtocol, group: str, method: str, share: float, seed: int) -> dict[str, Any]:
    """Return a run's configuration."""
    task, setting = protocol.task, setting_of(protocol.task)
    room = "atoll.reproduce.fedprof.tasks"
    where = {"task": task, "draw": seed, "rows": protocol.rows, "clients": protocol.clients}
    if protocol.tests:
        where["tests"] = protocol.tests
    path, made = model(task)
    metrics = ["RelativeAccuracy"] if task == "gasturbine" else []
    return {
        "name": f"{task}-{group}-{method}-{share:g}".lower(),
        "data": {"source": {"name": f"{room}:islands", **where}},
        "model": {"name": path, **made},
        "algorithm": _algorithm(task, method),
        "selection": selection(method, protocol.cohort(share), setting.alpha),
        "aggregation": _aggregation(group, method),
        "devices": {"name": "mec", "task": _FLEETS[task], "regions": 1, "model_over": _NO_MODEL, "seed": seed},
        "compile": "always" if task == "gasturbine" else "auto",
        "evaluation": {"every": 1, "metrics": metrics, "participants": True},
        "rounds": protocol.length(group),
        "checkpoint_every": protocol.length(group),
        "seed": seed,
    }


def found_of(task: str, run: TrainedRun, target: float) -> FedProfFound:
    """Return a run's best accuracy, and rounds, seconds and energy to the first round that reaches the target."""
    metric = METRIC[task]
    spent = 0.0
    for row in run.rows:
        spent += float(row.get("energy_wh", np.nan))
        if row.get(metric) is not None and float(row[metric]) >= target:
            energy = spent if np.isfinite(spent) else None
            return FedProfFound(run.best(metric), int(row["round"]), float(row["t_end"]), energy)
    return FedProfFound(run.best(metric))


def runs(
    lab: Lab, protocol: FedProfProtocol, groups: Mapping[str, Sequence[str]] = GROUPS
) -> dict[Key, list[TrainedRun]]:
    """Train every method of some groups at every share, one training for each seed. If nothing may be trained, cells without a training are left out.

    Args:
        lab: runs and keeps trainings.
        protocol: how much is run.
        groups: group -> methods.
    """
    made = {
        (group, method, share): kept(
            lab, (settings(protocol, group, method, share, seed) for seed in range(protocol.seeds))
        )
        for group, methods in groups.items()
        for method in methods
        for share in protocol.shares or setting_of(protocol.task).shares
    }
    return {key: some for key, some in made.items() if some}


def kept(lab: Lab, seeds: Iterable[dict[str, Any]]) -> list[TrainedRun]:
    """Train one configuration for each seed; if nothing may be trained, return those before the first seed that is not kept."""
    made: list[TrainedRun] = []
    with contextlib.suppress(NotKept):
        for one in seeds:
            made.append(lab.train(one))  # noqa: PERF401 - what was made before an exception stays
    return made


def seeds_of(trained: Mapping[Key, Sequence[TrainedRun]]) -> str:
    """Return how many seeds each cell has, in words."""
    counts = sorted({len(runs) for runs in trained.values()})
    return " or ".join(map(str, counts)) or "none"


def cells(
    task: str, trained: Mapping[Key, Sequence[TrainedRun]], target: float | None = None
) -> dict[Key, FedProfFound]:
    """Return medians over seeds.

    Args:
        task: as in `FedProfProtocol`.
        trained: what `runs` made.
        target: accuracy; the thesis's by default.
    """
    goal = setting_of(task).target if target is None else target
    return {key: FedProfFound.median([found_of(task, run, goal) for run in made]) for key, made in trained.items()}
