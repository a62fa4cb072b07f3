"""The three tasks of Table 3.2: constants, clients' speeds and sizes, and their rows, models and metrics as parts of a configuration.

Task 1 takes the first 12 of Boston's 13 inputs and scales inputs and target to [0, 1] over the whole table; task 3
scales its 35 inputs likewise. Task 2 uses raw pixels 0 to 255 (all three as the author's program does). The first rows
train and the last test, clients are consecutive slices, and only the order of batches is shuffled.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.core.algebra.metric import Summary
from atoll.learn.metrics import ScoreMetric
from atoll.learn.metrics.base import ratio, rows_of

from .reference import Crashes, draw_crashes

if TYPE_CHECKING:
    from torch import nn

    from atoll.data import Dataset, Islands
    from atoll.devices import Fleet as Devices

__all__ = [
    "BOSTON",
    "COPY_SECONDS",
    "CRASHES",
    "FRACTIONS",
    "KDD",
    "LAG",
    "MNIST",
    "MODEL_BYTES",
    "SERVER_BITS",
    "SafaFleet",
    "SafaTask",
    "ScaledAccuracy",
    "TASKS",
    "TRANSFER_SECONDS",
    "cnn",
    "devices",
    "drawn",
    "fleet",
    "islands",
    "svm",
    "train_sizes",
    "warm_cnn",
]


# ------------------------------------------------------------------ the three tasks of Table 3.2, and what a round costs a client

Floats = NDArray[np.float64]

MODEL_BYTES = 10_000_000
"""By decree, for every task (line 2103)."""
CLIENT_BITS, SERVER_BITS = 1.4e6, 1.0e10
"""Bits a second, up as well as down (line 2070)."""
TRANSFER_SECONDS = 8 * MODEL_BYTES / CLIENT_BITS
"""Seconds to send one model to or from a client: 57.14 s."""
COPY_SECONDS = 8 * MODEL_BYTES / SERVER_BITS
"""The server's for one copy: 0.008 s."""
CRASHES = (0.1, 0.3, 0.5, 0.7)
FRACTIONS = (0.1, 0.3, 0.5, 0.7, 1.0)
LAG = 5
"""SAFA's tolerance in all tables (line 1946, and the author's program)."""


@dataclass(frozen=True)
class SafaTask:
    """A column block of Table 3.2.

    Attributes:
        name: short.
        number: in the thesis.
        rows: ``n``, training and test rows together.
        clients: ``N``.
        rounds: ``R``.
        limit: ``T_lim``, seconds.
        epochs: local epochs ``E``.
        batch_size: ``B``.
        lr: learning rate.
        train: share of the rows to train on.
        slowest: the least batches per second of a client (the author's program).
        speeds: batches per second of each client if the author's are known; drawn otherwise.
    """

    name: str
    number: int
    rows: int
    clients: int
    rounds: int
    limit: float
    epochs: int
    batch_size: int
    lr: float
    train: float
    slowest: float
    speeds: tuple[float, ...] = ()


BOSTON = SafaTask(
    "boston", 1, 506, 5, 100, 830.0, 3, 5, 1e-4, 0.7, 0.05, (2.0262, 0.0814, 0.2065, 0.3566, 2.5460)
)  # fmt: skip
MNIST = SafaTask("mnist", 2, 70_000, 100, 50, 5600.0, 5, 40, 1e-3, 6 / 7, 0.016)
KDD = SafaTask("kdd", 3, 186_479, 500, 100, 1620.0, 5, 100, 1e-2, 0.7, 0.012)
TASKS = {task.name: task for task in (BOSTON, MNIST, KDD)}


@dataclass(frozen=True)
class SafaFleet:
    """A task's clients.

    Attributes:
        sizes: rows of each, training and test together, ``(clients,)``.
        speeds: batches per second, ``(clients,)``.
        training: seconds of a round's training, ``n_k E / (B s_k)`` with fractional batches, ``(clients,)``.
    """

    sizes: NDArray[np.int64]
    speeds: Floats
    training: Floats

    @property
    def seconds(self) -> Floats:
        """Return response times: training, and a transfer each way."""
        return 2 * TRANSFER_SECONDS + self.training

    @property
    def forecast(self) -> Floats:
        """Return what FedCS compares with the limit: training and one transfer (the author's program)."""
        return TRANSFER_SECONDS + self.training


def fleet(task: SafaTask, rng: np.random.Generator, speeds: Floats | None = None) -> SafaFleet:
    """Draw sizes from ``N(mu, (0.3 mu)^2)`` and speeds from ``Exp(1)``, again until none is too small (the author's program).

    Args:
        task: the task.
        rng: random numbers.
        speeds: replaces the task's own.
    """
    sizes = _sizes(task, rng)
    given = np.asarray(task.speeds if speeds is None else speeds, dtype=np.float64)
    while not len(given) or given.min() < task.slowest:
        given = rng.exponential(1.0, task.clients)
    return SafaFleet(sizes, given, sizes * task.epochs / (task.batch_size * given))


def _sizes(task: SafaTask, rng: np.random.Generator) -> NDArray[np.int64]:
    mean = task.rows / task.clients
    while True:
        drawn = rng.normal(mean, 0.3 * mean, task.clients)
        scaled: Floats = drawn * task.rows / drawn.sum()
        if scaled.min() >= max(20, task.batch_size):
            whole = np.floor(scaled).astype(np.int64)
            whole[: task.rows - whole.sum()] += 1
            return whole


# ------------------------------------------------------------------ rows, clients, models and metrics, as parts of a configuration


def drawn(task: SafaTask, crash: float, seed: int) -> tuple[SafaFleet, Crashes]:
    """Return the clients and crashes of a seed, the same as in the grid of costs."""
    rng = np.random.default_rng([seed, 0])
    members = fleet(task, rng)
    return members, draw_crashes(task.rounds, task.clients, crash, rng)


def train_sizes(sizes: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    """Return the training rows of each client: in proportion to all its rows, summing to ``rows``.

    Args:
        sizes: rows of each, training and test together, ``(clients,)``.
        rows: training rows in all.
    """
    ends = np.rint(np.cumsum(sizes) * (rows / sizes.sum())).astype(np.int64)
    made: NDArray[np.int64] = np.diff(ends, prepend=0)
    return made


def islands(task: str, seed: int = 0) -> Islands:
    """Return a task's clients, with the test rows at the server.

    Args:
        task: ``"boston"``, ``"mnist"`` or ``"kdd"``.
        seed: of the clients' sizes.

    Raises:
        DataError: no data folder, or files missing from it.
    """
    from atoll.data import Islands

    of = TASKS[task]
    whole = _rows(task)
    sizes = train_sizes(drawn(of, 0.0, seed)[0].sizes, len(whole))
    owner = np.repeat(np.arange(of.clients), sizes)
    return Islands.from_owner(whole, owner, of.clients, scheme="N(mu, (0.3 mu)^2)")


@functools.lru_cache(maxsize=3)
def _rows(task: str) -> Dataset:
    from atoll.data import boston_housing, kddcup99_tcp, mnist

    if task == BOSTON.name:
        return _split(boston_housing(test=0.0), BOSTON, inputs=12, target=True)
    if task == KDD.name:
        return _split(kddcup99_tcp(test=0.0), KDD, inputs=35, target=False)
    return _raw(mnist(flat=False))


def _split(whole: Dataset, task: SafaTask, *, inputs: int, target: bool) -> Dataset:
    x, y = (_unit(np.asarray(whole.x, np.float64)[:, :inputs]), np.asarray(whole.y))
    scaled = whole.with_columns(
        {"x": x.astype(np.float32), "y": _unit(y.reshape(-1, 1)).astype(np.float32)[:, 0] if target else y}
    )
    train = int(len(whole) * task.train)
    return scaled.take(np.arange(train)).with_test(scaled.take(np.arange(train, len(whole))))


def _unit(columns: NDArray[Any]) -> NDArray[Any]:
    low, high = columns.min(axis=0), columns.max(axis=0)
    made: NDArray[Any] = (columns - low) / (high - low)
    return made


def _raw(digits: Dataset) -> Dataset:
    """Return the pixels as in the file, 0 to 255; the reader scales them to [0, 1]."""

    def scaled(part: Dataset) -> Dataset:
        return part.with_columns({"x": np.rint(np.asarray(part.x, np.float32) * 255.0)})

    return scaled(digits).with_test(scaled(digits.test))  # type: ignore[arg-type]


def devices(task: str, crash: float = 0.1, seed: int = 0) -> Devices:
    """Return the clients of `drawn` as a model of devices: their seconds of training, links of 1.4 Mbit/s, a server of 10 Gbit/s, models of 10 MB and the trace.

    As in the tables, every message counts as a model, even the message to a client that continues with its own.

    Args:
        task: ``"boston"``, ``"mnist"`` or ``"kdd"``.
        crash: probability of a crash in a round.
        seed: of sizes, speeds and crashes.
    """
    from atoll.devices import BatchRate, GivenTraits, Recorded, Throughput
    from atoll.devices import Fleet as Devices

    of = TASKS[task]
    members, crashes = drawn(of, crash, seed)
    train = train_sizes(members.sizes, _train_rows(of))
    # A client's batches per second, so that its training rows take as long as its training and test rows together.
    speed = train * of.epochs / of.batch_size / members.training
    calm = np.zeros((1, of.clients))
    trace = Recorded(np.vstack([calm.astype(bool), crashes.crashed]), np.vstack([calm, np.where(crashes.crashed, crashes.point, 0.0)]))  # fmt: skip
    return Devices(
        BatchRate(GivenTraits(speed.tolist()), batch=of.batch_size),
        Throughput(MODEL_BYTES / TRANSFER_SECONDS),
        trace,
        egress=SERVER_BITS / 8,
        model_bytes=float(MODEL_BYTES),
        seed=seed,
    )


def _train_rows(task: SafaTask) -> int:
    return 60_000 if task is MNIST else int(task.rows * task.train)


def svm() -> nn.Module:
    """Return a linear machine with one score, from 0."""
    from torch import nn

    made = nn.Linear(35, 1)
    nn.init.zeros_(made.weight)
    nn.init.zeros_(made.bias)
    return made


def cnn() -> nn.Module:
    """Return 5x5 convolutions with 20 and 50 channels, each with 2x2 max-pooling, and 500 units: 431,080 parameters (line 2075, and the author's program)."""
    from torch import nn

    first, second = nn.Conv2d(1, 20, 5), nn.Conv2d(20, 50, 5)
    for layer in (first, second):
        nn.init.xavier_uniform_(layer.weight)
    return nn.Sequential(
        first, nn.ReLU(), nn.MaxPool2d(2), second, nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10),
    )  # fmt: skip


@functools.lru_cache(maxsize=4)
def _warm(seed: int) -> Any:
    import atoll

    job = atoll.Training(
        model=cnn,
        algorithm=atoll.FedAvg(lr=MNIST.lr, epochs=1, batch_size=MNIST.batch_size),
        selection=atoll.Everyone(),
        loss="cross_entropy",
        evaluation=atoll.Evaluation(server=False),
        rounds=1,
    )
    return atoll.simulate(job, islands("mnist", seed), engine="batched", seed=seed).params


def warm_cnn(seed: int = 0) -> nn.Module:
    """Return `cnn` after one epoch at every client and their average, where the author's program starts.

    Args:
        seed: of the weights, the clients' sizes and their batches.
    """
    import torch

    made = cnn()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            parameter.copy_(torch.as_tensor(_warm(seed)[name]))
    return made


@dataclass(frozen=True)
class ScaledAccuracy(ScoreMetric):
    """Table 3.3's accuracy of a regression, ``1 - (1/n) sum_i |(y_i - z_i) / max(y_i, z_i)|``, for targets scaled to [0, 1].

    The smallest target is then 0, where the fraction is 1 for a guess above 0 and undefined below. Such a row counts as
    an error of 1, and another row counts as more than a guess of 0 would only if its guess is negative.
    """

    declared: ClassVar[str] = "atoll.reproduce.safa.data:ScaledAccuracy"

    def zero(self) -> Summary:
        """No rows."""
        return {"n": 0.0, "sum": 0.0}

    def of(self, scores: ArrayLike, targets: ArrayLike) -> Summary:
        """Numbers compared, and the sum of relative errors."""
        z, y = rows_of(scores, targets, "ScaledAccuracy")
        larger = np.maximum(y, z)
        errors = np.ones_like(y)
        np.divide(np.abs(y - z), larger, out=errors, where=larger > 0)
        return {"n": float(z.size), "sum": float(errors.sum())}

    def result(self, summary: Summary) -> dict[str, float]:
        """Return the accuracy."""
        return {"scaled_accuracy": 1.0 - ratio(summary["sum"], summary["n"])}
