"""FedAQ's trainings: tasks, methods, and the cost of reaching the target beside the paper's printed values. Protocol: `atoll_papers.fedaq`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.learn.metrics import HumanTime
from atoll.reproduce import Lab, TrainedRun

if TYPE_CHECKING:
    from torch import nn

    from atoll.data import Dataset

__all__ = [
    "BITS",
    "COLUMNS",
    "CONVEX",
    "FedAQCell",
    "FedAQMethod",
    "FedAQTask",
    "IMAGES",
    "IMAGES_QUICK",
    "METHODS",
    "MLP",
    "PaperColumn",
    "Printed",
    "QUICK",
    "cell",
    "first_round",
    "half_cnn",
    "mnist_normalised",
    "settings",
    "small_cifar",
    "small_cnn",
    "standard_cifar",
    "target_of",
]


# ------------------------------------------------------------------ three tasks: data, models, and the settings that the paper states

_HERE = "atoll.reproduce.fedaq.tasks"
_MEAN, _DEVIATION = np.array([0.4914, 0.4822, 0.4465]), np.array([0.2470, 0.2435, 0.2616])  # of CIFAR-10's channels


@dataclass(frozen=True)
class FedAQTask:
    """A column of the paper's table.

    Attributes:
        name: short.
        column: of the paper's table.
        source: data source of a configuration.
        model: of a configuration.
        parameters: of the model, ``d``.
        clients: number of clients, all of which take part in every round.
        rounds: ``K``.
        steps: local steps per round, ``tau``.
        lr: ``eta``.
        mu: of FedAC and FedAQ.
        target: test accuracy of the paper; ``None``: what FedAvg reaches in ``rounds`` with every seed.
        seeds: runs per cell.
        most: rounds that the others may take to a target of FedAvg's; 0 for ``rounds``.
        batch_size: of a local step.
        engine: the engine that runs it.
    """

    name: str
    column: str
    source: dict[str, Any]
    model: dict[str, Any]
    parameters: int
    clients: int
    rounds: int
    steps: int
    lr: float
    mu: float
    target: float | None
    seeds: int
    most: int = 0
    batch_size: int = 50
    engine: str = "batched"

    @property
    def limit(self) -> int:
        """Return the rounds after which a method has not reached the target."""
        return self.most or self.rounds

    @property
    def gamma(self) -> float:
        """Return the step of the main stream of FedAC and FedAQ: ``max(sqrt(eta / (mu tau)), eta)``."""
        return max(math.sqrt(self.lr / (self.mu * self.steps)), self.lr)


def mnist_normalised() -> Dataset:
    """MNIST, flat, as ``(x - 0.1307) / 0.3081``."""
    from atoll.data import mnist

    whole = mnist(flat=True)

    def normal(part: Dataset) -> Dataset:
        return part.with_columns({"x": ((np.asarray(part.x) - 0.1307) / 0.3081).astype(np.float32)})

    return normal(whole).with_test(normal(whole.test))  # type: ignore[arg-type]


def small_cifar() -> Dataset:
    """10,000 images of CIFAR-10, 2x2 pixels averaged to 16 x 16, and standardised channel by channel; tested on 1,000 others."""
    from atoll.data import cifar10_subset

    whole = cifar10_subset()

    def small(part: Dataset) -> Dataset:
        x = np.asarray(part.x, dtype=np.float32).reshape(-1, 3, 16, 2, 16, 2).mean(axis=(3, 5))
        scaled = (x - _MEAN[:, None, None]) / _DEVIATION[:, None, None]
        return part.with_columns({"x": scaled.astype(np.float32)})

    return small(whole).with_test(small(whole.test))  # type: ignore[arg-type]


def standard_cifar(rows: int = 0) -> Dataset:
    """10,000 images of CIFAR-10, 3 x 32 x 32, standardised channel by channel; tested on 2,000 others: the first 1,000 test images and 1,000 training images held out.

    Args:
        rows: of the training images, the first so many; 0 for all.
    """
    from atoll.data import Dataset, cifar10_subset

    whole, other = cifar10_subset(), cifar10_subset(holdout=True)
    tests = [part.test for part in (whole, other) if part.test is not None]
    x, y = (np.concatenate([part[name] for part in tests]) for name in ("x", "y"))

    def standard(x: np.ndarray) -> np.ndarray:
        made = (np.asarray(x) - _MEAN[:, None, None]) / _DEVIATION[:, None, None]
        return np.asarray(made, dtype=np.float32)

    train = whole.take(slice(rows or None))
    test = Dataset({"x": standard(x), "y": y}, labels=whole.about.labels)
    return train.with_columns({"x": standard(train.x)}).with_test(test)


def half_cnn() -> nn.Module:
    """The paper's CNN with half of its channels and a quarter of its hidden units: two 5x5 convolutions with 10 and 20 channels, each with 2x2 max-pooling, and 128 units: 71,198 parameters."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, 10, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(10, 20, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(500, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def small_cnn() -> nn.Module:
    """Two 3x3 convolutions with 12 and 24 channels, each with 2x2 max-pooling, and 64 units: 9,810 parameters."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, 12, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


CONVEX = FedAQTask(
    "convex", "convex", {"name": f"{_HERE}:mnist_normalised"}, {"name": "linear", "features": 784, "outputs": 10, "l2": 1e-4},
    7_850, 16, 300, 20, 0.002, 0.1, 0.9028, 3, engine="inline",
)  # fmt: skip
"""Multinomial logistic regression on MNIST."""
MLP = FedAQTask(
    "mlp", "mlp", {"name": f"{_HERE}:mnist_normalised"}, {"name": "mlp", "features": 784, "outputs": 10, "hidden": [200, 200]},
    199_210, 18, 50, 100, 0.1, 0.01, 0.976, 2,
)  # fmt: skip
"""Two hidden layers of 200 units on MNIST."""
IMAGES = FedAQTask(
    "cifar", "cifar", {"name": f"{_HERE}:standard_cifar"}, {"name": f"{_HERE}:half_cnn"},
    71_198, 8, 20, 100, 0.01, 0.2, None, 3, most=24,
)  # fmt: skip
"""Half of the paper's CNN on a part of CIFAR-10."""
IMAGES_QUICK = FedAQTask(
    "cifar-quick", "cifar", {"name": f"{_HERE}:standard_cifar", "rows": 800}, {"name": f"{_HERE}:half_cnn"},
    71_198, 4, 3, 10, 0.01, 0.2, None, 1, most=4,
)  # fmt: skip
"""A few rounds of it on few images."""
QUICK = FedAQTask(
    "digits", "convex", {"name": "digits"}, {"name": "linear", "features": 64, "outputs": 10, "l2": 1e-4},
    650, 16, 60, 20, 0.002, 0.1, None, 1, engine="inline",
)  # fmt: skip
"""Logistic regression on 1,797 small digits, with the convex task's settings."""


# ------------------------------------------------------------------ methods

Config = dict[str, Any]


@dataclass(frozen=True)
class FedAQMethod:
    """A row of the table.

    Attributes:
        name: the name in tables.
        bits: for an entry of the model, up (and down), as the paper counts.
        algorithm: configuration for a task and a learning rate.
        streams: models sent each way.
        fast: runs at ``lr = gamma`` instead of ``eta``: a control.
        unbiased: QSGD on the uplink and nothing on the downlink, as in Algorithm 7, instead of the authors' quantiser
            in both directions.
    """

    name: str
    bits: int
    algorithm: Callable[[FedAQTask, float], Config]
    streams: int = 1
    fast: bool = False
    unbiased: bool = False

    @property
    def base(self) -> str:
        """Return the base method of a control or a variant, as the paper names it."""
        return self.name.partition(",")[0]

    @property
    def each(self) -> int:
        """Return the bits per number."""
        return self.bits // self.streams


def _plain(name: str) -> Callable[[FedAQTask, float], Config]:
    return lambda task, lr: {"name": name, "lr": lr, "steps": task.steps, "batch_size": task.batch_size}


def _pair(name: str, **more: Any) -> Callable[[FedAQTask, float], Config]:
    def make(task: FedAQTask, lr: float) -> Config:
        return {**_plain(name)(task, lr), "mu": task.mu, "variant": "I", "eval_point": "w", **more}

    return make


METHODS = {
    made.name: made
    for made in (
        FedAQMethod("FedAvg", 32, _plain("FedAvg")),
        FedAQMethod("FedPAQ 8b", 8, _plain("FedPAQ")),
        FedAQMethod("FedCOMGATE 8b", 8, _plain("FedCOMGATE")),
        FedAQMethod("FedAC-I", 64, _pair("FedAC"), 2),
        FedAQMethod("FedAQ-I 8b", 16, _pair("FedAQ"), 2),
        FedAQMethod("FedAQ-II 8b", 16, _pair("FedAQ", variant="II"), 2),
        FedAQMethod("FedAQ-I 4b", 8, _pair("FedAQ"), 2),
        FedAQMethod("FedAvg, lr = gamma", 32, _plain("FedAvg"), fast=True),
        FedAQMethod("FedPAQ 8b, lr = gamma", 8, _plain("FedPAQ"), fast=True),
        FedAQMethod("FedAQ-I 8b, QSGD up only", 16, _pair("FedAQ"), 2, unbiased=True),
        FedAQMethod("FedAQ-I 8b, model is w_ag", 16, _pair("FedAQ", eval_point="ag"), 2),
    )
}
"""By name: the seven of the paper, the two controls at the same main step, and two variants of FedAQ-I."""


def settings(
    method: FedAQMethod, task: FedAQTask, seed: int, *, whole: bool = False, target: float | None = None
) -> Config:
    """Return a run's configuration: every client in every round.

    Args:
        method: the row.
        task: the column.
        seed: of the partition, the model and everything else.
        whole: all rounds, also beyond the target.
        target: what FedAvg reached, of a task without one of the paper's. FedAvg itself runs all rounds.
    """
    algorithm = method.algorithm(task, task.gamma if method.fast else task.lr)
    made: Config = {}
    if method.each < 32:
        stage: Config = {"name": "MinMaxAffine", "bits_each": method.each}
        algorithm["compressor"] = {"name": "QSGD", "levels": (1 << (method.each - 1)) - 1} if method.unbiased else stage
        made = {} if method.unbiased else {"downlink": stage}
    stop: Config = {}
    yardstick = task.target is None and (target is None or method.name == "FedAvg")
    if not whole and not yardstick:
        value = target if task.target is None else task.target
        stop = {"stop": [{"name": "Target", "metric": "test/accuracy", "value": value}]}
    return {
        "name": f"fedaq-{task.name}",
        "data": {"source": task.source, "partition": {"name": "iid", "parties": task.clients, "seed": seed}},
        "model": task.model,
        "algorithm": algorithm,
        "selection": "Everyone",
        "engine": task.engine,
        "rounds": task.rounds if yardstick else task.limit,
        "checkpoint_every": 10,
        "seed": seed,
        **made,
        **stop,
    }


# ------------------------------------------------------------------ printed values, and what follows from the paper's rules for sizes and times

BITS: Mapping[str, int] = {
    "FedAvg": 32,
    "FedPAQ 8b": 8,
    "FedCOMGATE 8b": 8,
    "FedAC-I": 64,
    "FedAQ-I 8b": 16,
    "FedAQ-II 8b": 16,
    "FedAQ-I 4b": 8,
}
"""Bits that a client sends per entry of the model; the paper's times count as many on the downlink."""


@dataclass(frozen=True)
class Printed:
    """A cell of the paper's table.

    Attributes:
        rounds: until the target.
        bits: bits that one client has sent by then, to two digits.
        seconds: human time.
    """

    rounds: int
    bits: float
    seconds: float


@dataclass(frozen=True)
class PaperColumn:
    """A column of the paper's table.

    Attributes:
        parameters: of the model, as the bits count them.
        devices: the number of devices in the text.
        fits: the number of devices for which the printed times agree.
        cells: by method.
    """

    parameters: int
    devices: int
    fits: int
    cells: Mapping[str, Printed]

    def bits(self, method: str, rounds: int | None = None) -> int:
        """Return the bits that one client sends: rounds times bits per entry times entries.

        Args:
            method: a row.
            rounds: the paper's if ``None``.
        """
        return (self.cells[method].rounds if rounds is None else rounds) * BITS[method] * self.parameters

    def residual(self, method: str, devices: int | None = None) -> float:
        """Return the seconds of a printed round that neither the links nor the constant explain: ``R_comp T_sim``.

        Args:
            method: a row.
            devices: devices that share the links; the text's number if ``None``.
        """
        cell, model, size = self.cells[method], HumanTime(), self._bytes(method, devices)
        return model.ratio * model.simulated_in(cell.seconds / cell.rounds, size, size)

    def computing(self, devices: int | None = None) -> float:
        """Return the mean residual of all rows: one constant for the column."""
        return sum(self.residual(name, devices) for name in self.cells) / len(self.cells)

    def seconds(
        self, method: str, rounds: int | None = None, devices: int | None = None, computing: float | None = None
    ) -> float:
        """Return the human time from sizes.

        Args:
            method: a row.
            rounds: the paper's if ``None``.
            devices: devices that share the links; the text's number if ``None``.
            computing: ``R_comp T_sim`` of a round; the column's constant if ``None``.
        """
        size, model = self._bytes(method, devices), HumanTime()
        each = self.computing(devices) if computing is None else computing
        return (self.cells[method].rounds if rounds is None else rounds) * model.seconds(size, size, each / model.ratio)

    def _bytes(self, method: str, devices: int | None) -> float:
        return (self.devices if devices is None else devices) * self.parameters * BITS[method] / 8


COLUMNS: Mapping[str, PaperColumn] = {
    "convex": PaperColumn(
        7_840,
        16,
        16,
        {
            "FedAvg": Printed(217, 5.4e7, 3220),
            "FedPAQ 8b": Printed(216, 1.4e7, 2760),
            "FedCOMGATE 8b": Printed(260, 1.6e7, 3336),
            "FedAC-I": Printed(28, 1.4e7, 484),
            "FedAQ-I 8b": Printed(26, 3.3e6, 344),
            "FedAQ-II 8b": Printed(99, 1.2e7, 1323),
        },
    ),
    "mlp": PaperColumn(
        199_210,
        18,
        18,
        {
            "FedAvg": Printed(23, 1.5e8, 2424),
            "FedPAQ 8b": Printed(48, 7.6e7, 2311),
            "FedCOMGATE 8b": Printed(38, 6.1e7, 1834),
            "FedAC-I": Printed(18, 2.3e8, 3327),
            "FedAQ-I 8b": Printed(18, 5.7e7, 1248),
            "FedAQ-I 4b": Printed(16, 2.5e7, 805),
        },
    ),
    "cifar": PaperColumn(
        672_212,
        8,
        18,
        {
            "FedAvg": Printed(98, 2.1e9, 31798),
            "FedPAQ 8b": Printed(89, 4.8e8, 11526),
            "FedCOMGATE 8b": Printed(95, 5.1e8, 12240),
            "FedAC-I": Printed(49, 2.1e9, 28720),
            "FedAQ-I 8b": Printed(50, 5.4e8, 9902),
            "FedAQ-I 4b": Printed(48, 2.6e8, 6464),
        },
    ),
}
"""The table's columns: rounds, uplink bits of one client and human time to the target."""


# ------------------------------------------------------------------ cells: a method on a task, over seeds

_METRIC = "test/accuracy"


@dataclass(frozen=True)
class FedAQCell:
    """A method on a task.

    Attributes:
        method: the row.
        task: the column.
        rounds: until the target, for each seed; ``None`` if it was not reached.
        best: the best accuracy of each seed until then.
        measured: bytes up of one client until then, mean of the seeds that reached it.
    """

    method: FedAQMethod
    task: FedAQTask
    rounds: tuple[int | None, ...]
    best: tuple[float, ...]
    measured: float

    @property
    def reached(self) -> list[int]:
        """Return the rounds of the seeds that reached the target."""
        return [found for found in self.rounds if found is not None]

    @property
    def mean(self) -> float:
        """Return the mean rounds; infinite if a seed did not reach the target."""
        return float(np.mean(self.reached)) if len(self.reached) == len(self.rounds) else float("inf")

    @property
    def bits(self) -> float:
        """Return the uplink bits of one client until the target, as the paper counts: no headers, 32 bits for a number that is not quantised."""
        return self.mean * self.method.bits * self.task.parameters

    def seconds(self, devices: int | None = None) -> float:
        """Return the human time with the paper's sizes and computing at our rounds; a control computes as long as its base method.

        Args:
            devices: devices that share the links; the number in the paper's text if ``None``.
        """
        column, base = COLUMNS[self.task.column], self.method.base
        row = base if base in column.cells else next(name for name in column.cells if BITS[name] == BITS[base])
        fits = column.fits
        each = column.seconds(row, 1, devices or column.devices, column.residual(row, fits))
        return self.mean * each

    def __str__(self) -> str:
        if not self.reached:
            return f"not in {self.task.limit}"
        spread = f" ± {np.std(self.reached, ddof=1):.1f}" if len(self.reached) > 1 else ""
        missed = len(self.rounds) - len(self.reached)
        return (
            f"{np.mean(self.reached):.1f}".removesuffix(".0")
            + spread
            + (f" ({missed} not in {self.task.limit})" if missed else "")
        )


def first_round(run: TrainedRun, target: float) -> int | None:
    """Return the first round that meets the target."""
    met = [int(row["round"]) for row in run.rows if row.get(_METRIC) is not None and row[_METRIC] >= target]
    return met[0] if met else None


def target_of(lab: Lab, task: FedAQTask) -> float:
    """Return the task's target: the paper's, or the best accuracy that FedAvg reaches with every seed in ``task.rounds`` rounds."""
    if task.target is not None:
        return task.target
    return min(lab.train(settings(METHODS["FedAvg"], task, seed)).best() for seed in range(task.seeds))


def cell(
    lab: Lab, method: FedAQMethod, task: FedAQTask, target: float, seeds: Iterable[int] | None = None
) -> FedAQCell:
    """Run a cell, or read it back."""
    rounds, best, sent = [], [], []
    for seed in range(task.seeds) if seeds is None else seeds:
        run = lab.train(settings(method, task, seed, target=target))
        met = first_round(run, target)
        until = [row for row in run.rows if met is None or row["round"] <= met]
        rounds.append(met)
        best.append(max(float(row[_METRIC]) for row in until))
        sent.append(sum(int(row["bytes_up"]) for row in until) / task.clients)
    return FedAQCell(method, task, tuple(rounds), tuple(best), float(np.mean(sent)))
