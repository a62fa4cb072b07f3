"""Models that people bring, with clients of unequal sizes: the works of `benchmarks/real.py`, the same arrays for every peer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

SEED = 7
SPREAD = 0.6  # standard deviation of the logarithm of a client's size
CLIENTS = 60


@dataclass(frozen=True)
class Work:
    """One job: FedAvg with SGD at the clients, weights by examples.

    Attributes:
        title: what the table shows.
        build: makes the model.
        inputs: makes the inputs of many examples, given their number and a generator.
        classes: of the targets; the model gives a score for each.
        median: examples of the median client.
        cohort, batch, epochs, lr: of the training.
        rounds: rounds that are timed.
        target: the ratio to bare PyTorch that Atoll must reach.
    """

    title: str
    build: Callable[[], nn.Module]
    inputs: Callable[[int, np.random.Generator], NDArray[np.generic]]
    classes: int
    median: int
    cohort: int
    batch: int
    epochs: int
    lr: float
    rounds: int
    target: float


class Residual(nn.Module):
    """Two convolutions with group normalisation, and a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm = nn.GroupNorm(4, after)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(4, after)
        self.short = nn.Conv2d(before, after, 1, stride, bias=False) if before != after else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        y = torch.relu(self.norm(self.first(x)))
        return torch.relu(self.norm2(self.second(y)) + self.short(x))


def resnet() -> nn.Module:
    """A small ResNet for 3 x 32 x 32, with group normalisation as federated training needs it."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        Residual(16, 16, 1),
        Residual(16, 32, 2),
        Residual(32, 64, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


class Recurrent(nn.Module):
    """LEAF's Shakespeare model: embedding 8, two recurrent layers of 128, the next character."""

    def __init__(self, cell: type[nn.LSTM | nn.GRU]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(80, 8)
        self.cells = cell(8, 128, num_layers=2, batch_first=True)
        self.head = nn.Linear(128, 80)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores of the next character."""
        return self.head(self.cells(self.embedding(x))[0][:, -1])


class Encoder(nn.Module):
    """A Transformer: width 64, two layers, four heads, 32 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(80, 64)
        self.position = nn.Parameter(torch.randn(32, 64) * 0.02)
        layer = nn.TransformerEncoderLayer(
            64, 4, 128, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores of the classes."""
        return self.head(self.layers(self.embedding(x) + self.position).mean(dim=1))


def _normal(*shape: int) -> Callable[[int, np.random.Generator], NDArray[np.generic]]:
    return lambda n, rng: rng.standard_normal((n, *shape), dtype=np.float32)


def _tokens(length: int) -> Callable[[int, np.random.Generator], NDArray[np.generic]]:
    return lambda n, rng: rng.integers(0, 80, (n, length))


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(100, 128),
        nn.LayerNorm(128),
        nn.GELU(),
        nn.Linear(128, 64),
        nn.LayerNorm(64),
        nn.GELU(),
        nn.Linear(64, 7),
    )


WORKS = {
    "lr": Work("LR 37-3, cohort 7, batch 3, 3 epochs", lambda: nn.Linear(37, 3), _normal(37), 3, 40, 7, 3, 3, 0.05, 400, 20.0),
    "mlp": Work("MLP 100-128-64-7, LayerNorm, GELU, cohort 15, batch 8, 3 epochs", _mlp, _normal(100), 7, 50, 15, 8, 3, 0.05, 200, 5.0),
    "resnet": Work("ResNet, GroupNorm, 3x32x32, cohort 8, batch 16", resnet, _normal(3, 32, 32), 10, 50, 8, 16, 1, 0.05, 10, 1.3),
    "lstm": Work("LSTM, embedding 8, 2 x 128, 80 steps, cohort 10, batch 10", lambda: Recurrent(nn.LSTM), _tokens(80), 80, 40, 10, 10, 1, 0.3, 20, 1.3),
    "gru": Work("GRU, embedding 8, 2 x 128, 80 steps, cohort 10, batch 10", lambda: Recurrent(nn.GRU), _tokens(80), 80, 40, 10, 10, 1, 0.3, 20, 1.3),
    "transformer": Work("Transformer, d = 64, 2 layers, 4 heads, 32 tokens, cohort 10, batch 8", Encoder, _tokens(32), 10, 40, 10, 8, 1, 0.05, 100, 1.5),
}  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """The arrays of a work: rows of all clients one after another, and who takes part when."""

    x: NDArray[np.generic]
    y: NDArray[np.int64]
    offsets: NDArray[np.int64]
    cohorts: list[list[int]]


def plan_of(work: Work, rounds: int) -> Plan:
    """Draw the plan; the same for every peer."""
    rng = np.random.Generator(np.random.Philox(SEED))
    sizes = np.maximum(2, np.exp(rng.normal(np.log(work.median), SPREAD, CLIENTS))).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    x = work.inputs(int(offsets[-1]), rng)
    flat = x.reshape(len(x), -1).astype(np.float64)
    scores = flat @ rng.normal(size=(flat.shape[1], work.classes))  # targets that can be learnt
    cohorts = [rng.choice(CLIENTS, work.cohort, replace=False).tolist() for _ in range(rounds)]
    return Plan(x, scores.argmax(1).astype(np.int64), offsets, cohorts)


def model_of(work: Work) -> nn.Module:
    """Build the model with the weights that every peer starts from."""
    torch.manual_seed(SEED)
    return work.build()
