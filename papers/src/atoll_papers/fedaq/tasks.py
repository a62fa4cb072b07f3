"""The three tasks: data, models, and the settings that the paper states."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import nn

    from atoll.data import Dataset

__all__ = [
    "CONVEX",
    "IMAGES",
    "IMAGES_QUICK",
    "MLP",
    "QUICK",
    "FedAQTask",
    "half_cnn",
    "mnist_normalised",
    "small_cifar",
    "small_cnn",
    "standard_cifar",
]

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
