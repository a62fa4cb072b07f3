"""The three tasks of Table 3.2: their constants, their clients' speeds and sizes, and the cost of a round for a client."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
    "TASKS",
    "TRANSFER_SECONDS",
    "SafaFleet",
    "SafaTask",
    "fleet",
]

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
