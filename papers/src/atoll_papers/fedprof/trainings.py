"""Trainings of chapter 5, reduced to medians; which clients take part (Figures 5.11 and 5.12), and how far their profiles are from the server's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError
from atoll.learn.profiles import divergence
from atoll.reproduce import Claim, Lab, NotKept, TrainedRun
from atoll.rounds.history import participation

from . import tasks
from .tasks import BATCH, GROUPS, IMAGES, METRIC, FedProfSetting, Key, model, setting_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "SMALL",
    "FedProfFound",
    "FedProfProtocol",
    "cells",
    "divergences",
    "found_of",
    "judge_divergences",
    "judge_participation",
    "kept",
    "runs",
    "seeds_of",
    "selection",
    "settings",
    "taken_part",
]


# ------------------------------------------------------------------ a cell of the tables: the medians of its runs, and their spread


@dataclass(frozen=True)
class FedProfFound:
    """Our results for a cell, as medians over seeds; ``None`` if the target was not reached.

    Attributes:
        best: best accuracy in all rounds.
        rounds: to the target accuracy.
        seconds: to the target.
        watt_hours: of all clients together to the target.
        runs: the runs behind the medians; none for a single run.
    """

    best: float
    rounds: float | None = None
    seconds: float | None = None
    watt_hours: float | None = None
    runs: tuple[FedProfFound, ...] = field(default=(), compare=False, repr=False)

    @classmethod
    def median(cls, runs: Sequence[FedProfFound]) -> FedProfFound:
        """Return the median of runs; a run that never reached the target is later than all others.

        If the median run did not reach it, the median is ``None``.
        """

        def middle(of: str) -> float | None:
            made = float(np.median(_values(runs, of)))
            return made if np.isfinite(made) else None

        best = float(np.median([run.best for run in runs]))
        return cls(best, middle("rounds"), middle("seconds"), middle("watt_hours"), tuple(runs))

    def told(self, of: str, form: str = "g") -> str:
        """Return a figure in words, with the least and the most of its runs if there are several.

        Args:
            of: ``"best"``, ``"rounds"``, ``"seconds"`` or ``"watt_hours"``.
            form: of a number, as in ``format``.
        """
        value = getattr(self, of)
        said = _said(np.inf if value is None else value, form)
        if len(self.runs) < 2:
            return said
        each = _values(self.runs, of)
        return f"{said} ({_said(min(each), form)} to {_said(max(each), form)})"


def _values(runs: Sequence[FedProfFound], of: str) -> list[float]:
    return [np.inf if (value := getattr(run, of)) is None else float(value) for run in runs]


def _said(value: float, form: str) -> str:
    return format(value, form) if np.isfinite(value) else "never"


# ------------------------------------------------------------------ trainings of chapter 5: one configuration per method, several seeds

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


# ------------------------------------------------------------------ who takes part, and how far a profile is from the server's


def taken_part(protocol: FedProfProtocol, trained: Sequence[TrainedRun]) -> dict[str, float]:
    """Return the mean number of rounds with a client of each quality, over clients and seeds; ``""`` is good data.

    FedProf's survey of all clients before its first round does not count.

    Args:
        protocol: of the trainings.
        trained: the trainings of a cell, one for each seed.
    """
    means: dict[str, list[float]] = {}
    for seed, run in enumerate(trained):
        made = tasks.islands(protocol.task, seed, protocol.rows, protocol.clients, protocol.tests)
        tags = [made.tags[i] for i in range(len(made))]
        for tag, found in participation(run.rows, len(made)).by_group(tags).items():
            means.setdefault(tag, []).append(found["replied"])
    return {tag: float(np.mean(found)) for tag, found in sorted(means.items())}


def judge_participation(setting: FedProfSetting, counts: Mapping[str, float], rounds: int) -> list[Claim]:
    """Judge Figures 5.11 and 5.12: how often clients of each data quality were selected.

    Args:
        setting: the task.
        counts: kind of data (``""`` for good) -> mean number of selections of such a client.
        rounds: of the run; the figures' are 100 for the S-Task.
    """
    good = counts[""]
    shown = ", ".join(f"{kind or 'good'} {count:.1f}" for kind, count in counts.items())
    if setting.name == "gasturbine":
        scale = rounds / 100
        bad = max(counts[kind] for kind in ("fake", "noise"))
        return [
            Claim(
                "gasturbine, C=0.2: clients with useless or noisy data are selected less than 10 times in 100 rounds",
                "< 10",
                shown,
                bad < 10 * scale and bad < good,
                f"mean selections of a client in {rounds} rounds",
            )
        ]
    excluded = max(counts[kind] for kind in ("irrelevant", "blur"))
    return [
        Claim(
            f"{setting.name}: irrelevant and blurred clients are practically excluded",
            None,
            shown,
            excluded < 0.1 * good,
            f"mean selections in {rounds} rounds; excluded: less than a tenth of a good client's",
        ),
        Claim(
            f"{setting.name}: clients with salt and pepper are selected less often than good ones, and more often than the others",
            None,
            shown,
            excluded < counts["salt_and_pepper"] < good,
            f"mean selections in {rounds} rounds",
        ),
    ]


def divergences(
    protocol: FedProfProtocol, draw: int, params: Mapping[str, NDArray[Any]] | None = None
) -> dict[str, float]:
    """Return the median divergence from the server's profile, by quality of the data; ``""`` is good data.

    Args:
        protocol: the protocol of the clients, which hold images.
        draw: seed of the partition and, without ``params``, of the model.
        params: of a trained model; by default of the model before training.
    """
    import torch

    from atoll.torch import FunctionalModule, params_of, profile
    from atoll.torch.learner import seeded

    made = tasks.islands(protocol.task, draw, protocol.rows, protocol.clients, protocol.tests)
    module = seeded(tasks.lenet(**tasks.model(protocol.task)[1]), draw)
    network = FunctionalModule(module, "cross_entropy", torch.device("cpu"), torch.float32)
    seen = params_of(module) if params is None else params
    own = profile(network, seen, made.test)
    found: dict[str, list[float]] = {}
    for client in range(len(made)):
        found.setdefault(made.tags[client], []).append(divergence(profile(network, seen, made.shard(client)), own))
    return {tag: float(np.median(each)) for tag, each in sorted(found.items())}


def judge_divergences(found: Sequence[Mapping[str, float]], model: str, setting: FedProfSetting = IMAGES) -> Claim:
    """Judge whether profiles place clients with salt and pepper between good ones and all others, as Figure 5.12 does with selections.

    Args:
        found: the results of `divergences`, one for each seed.
        model: the model that made the profiles, in words.
        setting: the task.
    """
    middle = {tag: float(np.median([each[tag] for each in found])) for tag in found[0]}
    odds = np.exp(-setting.alpha * (middle["salt_and_pepper"] - middle[""]))
    others = [min(each["irrelevant"], each["blur"]) for each in found]
    between = sum(each[""] < each["salt_and_pepper"] < other for each, other in zip(found, others, strict=True))
    return Claim(
        f"{setting.name}: seen by {model}, clients with salt and pepper are nearer to the server's data than irrelevant and blurred ones, and farther than good ones",
        None,
        ", ".join(f"{tag or 'good'} {value:.2f}" for tag, value in middle.items()),
        2 * between > len(found),
        f"median divergences, medians of {len(found)} seeds; so in {between} of them. One with salt and pepper is drawn {odds:.1g} times as often as a good one",
    )
