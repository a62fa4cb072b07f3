"""The three tasks: data, models, and the settings that the paper states."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import nn

    from atoll.data import Dataset

__all__ = ["CONVEX", "IMAGES", "MLP", "QUICK", "FedAQTask", "mnist_normalised", "small_cifar", "small_cnn"]

_HERE = "atoll.reproduce.fedaq.tasks"


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
        target: test accuracy of the paper; ``None``: FedAvg's after its last round, first seed.
        seeds: runs per cell.
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
    batch_size: int = 50
    engine: str = "batched"

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
    mean, std = np.array([0.4914, 0.4822, 0.4465]), np.array([0.2470, 0.2435, 0.2616])  # of CIFAR-10's channels

    def small(part: Dataset) -> Dataset:
        x = np.asarray(part.x, dtype=np.float32).reshape(-1, 3, 16, 2, 16, 2).mean(axis=(3, 5))
        scaled = (x - mean[:, None, None]) / std[:, None, None]
        return part.with_columns({"x": scaled.astype(np.float32)})

    return small(whole).with_test(small(whole.test))  # type: ignore[arg-type]


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
    "cifar", "cifar", {"name": f"{_HERE}:small_cifar"}, {"name": f"{_HERE}:small_cnn"},
    9_810, 8, 15, 100, 0.01, 0.2, None, 1,
)  # fmt: skip
"""A small CNN on a part of CIFAR-10."""
QUICK = FedAQTask(
    "digits", "convex", {"name": "digits"}, {"name": "linear", "features": 64, "outputs": 10, "l2": 1e-4},
    650, 16, 60, 20, 0.002, 0.1, None, 1, engine="inline",
)  # fmt: skip
"""Logistic regression on 1,797 small digits, with the convex task's settings."""
