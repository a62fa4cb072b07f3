"""Parts that a user could have written, named in configurations as ``tests.support.parts_of_mine:Name``."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from atoll.algorithms import FedAvg
from atoll.core.errors import ConfigError
from atoll.core.federation.reducer import Reducer
from atoll.core.requests.results import Outcomes
from atoll.core.requests.stage import Stage
from atoll.data import Dataset, Islands
from atoll.learn.wrapped import Wrapped
from atoll.models.linear_model import Linear


@dataclass(frozen=True, kw_only=True)
class Halved(FedAvg):
    """FedAvg that takes a share of the mean update."""

    share: float = 0.5
    citation: ClassVar[str] = "Nobody, Halving, 2020."

    def fold(self, state: Any, sums: Any, info: Any, phase: str) -> Any:
        halved = {k: self.share * v for k, v in sums["update"].items()}
        return super().fold(state, {**sums, "update": halved}, info, phase)


@dataclass(frozen=True, kw_only=True)
class Mixed(Wrapped):
    """An algorithm around another, with settings of every kind that a configuration can say."""

    betas: tuple[float, float] = (0.9, 0.99)
    mode: Literal["fast", "slow"] = "fast"
    weights: Sequence[float] = ()
    table: Mapping[str, float] | None = None
    count: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.count is not None and self.count < 0:
            raise ConfigError(f"count={self.count}", remedy="use at least 0")


def layers() -> Any:
    """A small network for four features and three classes."""
    from torch import nn

    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def halving(share: float = 0.5) -> FedAvg:
    """A function that makes an algorithm."""
    if share > 1.0:
        raise ConfigError(f"share={share}", remedy="use at most 1")
    return Halved(share=share)


def by_row(output: Any, target: Any, *, index: Any, labelled: Any) -> Any:
    """A loss that asks for more."""
    return (1.0 + 0.01 * index) * labelled * -output.log_softmax(1)[:, 0] * (target >= 0)


def twice(outputs: Any, targets: Any) -> Any:
    """A loss."""
    return ((outputs - targets) ** 2).mean() * 2.0


@dataclass(frozen=True, kw_only=True)
class Faulty(FedAvg):
    """Raises in its first local step."""

    def step(self, local: Any, grad: Any, broadcast: Any) -> Any:
        raise ZeroDivisionError("a client divided by zero")


@dataclass(frozen=True)
class Blind(Reducer):
    """A reducer that claims to see sums only."""

    secure: ClassVar[bool] = True


@dataclass(frozen=True)
class Unsummable(Stage):
    """A stage whose encodings cannot be added up."""

    summable: ClassVar[bool] = False


class Never:
    """Devices that never answer."""

    def plan(self, parties: Any, plan: Any) -> Outcomes:
        n = len(parties)
        return Outcomes(np.full(n, 3600.0), np.ones(n, dtype=bool), np.ones(n))

    def transfer(self, source: str, target: str, nbytes: int) -> float:
        return 0.0


class Interrupting:
    """A tracker that presses Ctrl-C (or sends another signal) after a round."""

    def __init__(self, after: int, number: int = int(signal.SIGINT)) -> None:
        self.after = after
        self.number = number

    def __call__(self, row: dict[str, Any]) -> None:
        if row["round"] == self.after:
            os.kill(os.getpid(), self.number)


def one_wild_client(clients: int = 4) -> Islands:
    """Clients with clean data, and a last one whose features overflow."""
    rng = np.random.default_rng(0)
    parts = []
    for k in range(clients):
        x = rng.standard_normal((20, 3)) * (1e200 if k == clients - 1 else 1.0)
        parts.append(Dataset({"x": x, "y": (x[:, 0] > 0).astype(int)}, task="classification", classes=2, name="wild"))
    test = Dataset({"x": rng.standard_normal((50, 3)), "y": np.arange(50) % 2}, task="classification", classes=2)
    return Islands.from_datasets(parts, test=test)


class Learning(Linear):
    """A model with a learner of its own."""
