"""The contract of a learning algorithm: pure functions over trees.

A round has one or more *phases*; each phase is broadcast → local update → fold. All functions are pure, written with Python operators and
`atoll.core.tree`, so that the same text runs on NumPy and PyTorch, one client at a time or a thousand at once, eager or compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.core import tree as T
from atoll.core.aggregate import Aggregate, Mean
from atoll.core.errors import ConfigError
from atoll.core.tree import Tree

__all__ = ["Algorithm", "Gradient", "LocalWork", "RoundInfo"]

Gradient = Callable[[Tree], Tree]
"""``grad(params)``: the gradient of the mean loss over the current mini-batch, at any point."""


@dataclass(frozen=True)
class LocalWork:
    """What a client did in one local update.

    Attributes:
        examples: number of training examples ``n_k`` (may be an array element inside a vectorised update).
        steps: number of mini-batch steps taken.
    """

    examples: Any
    steps: Any


@dataclass(frozen=True)
class RoundInfo:
    """What a fold may know about its round.

    Attributes:
        round: 1-based number of the round.
        selected: clients asked.
        replied: clients whose replies are in the sums.
        population: clients in the federation.
        weight: examples of the whole population, when known.
    """

    round: int
    selected: int
    replied: int
    population: int
    weight: float | None = None


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """Base of all algorithms: local SGD whose update is averaged by examples.

    Attributes:
        lr: learning rate of the local steps.
        epochs: local passes over the data.
        batch_size: mini-batch size; ``None`` is the full local data.
        steps: local steps; overrides ``epochs`` when given.
    """

    lr: float = 0.1
    epochs: int = 1
    batch_size: int | None = 10
    steps: int | None = None
    phases: ClassVar[tuple[str, ...]] = ("train",)
    citation: ClassVar[str] = ""

    def __post_init__(self) -> None:
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise ConfigError(f"lr={self.lr}", where=type(self).__name__, remedy="use a positive, finite learning rate")
        if self.epochs < 1 or (self.steps is not None and self.steps < 1):
            raise ConfigError(
                f"epochs={self.epochs}, steps={self.steps}", where=type(self).__name__, remedy="use at least 1"
            )
        if self.batch_size is not None and self.batch_size < 1:
            raise ConfigError(
                f"batch_size={self.batch_size}",
                where=type(self).__name__,
                remedy="use at least 1, or None for the full data",
            )

    def init(self, params: Tree) -> Tree:
        """The server's state at the start; must hold ``"params"``."""
        return {"params": params}

    def client_init(self, params: Tree) -> Tree:
        """A client's private state before its first round; ``None`` when there is none."""
        del params
        return None

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """What every client of the cohort receives; must hold ``"params"``. Scalars may ride along."""
        del phase
        return {"params": state["params"], "lr": self.lr}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """The local state before the first step: a dict with at least ``"params"``."""
        del client
        return {"params": broadcast["params"]}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """One local step: ``w <- w - lr * grad(w)``."""
        gradient = grad(local["params"])
        return {**local, "params": T.sub(local["params"], T.scale(gradient, broadcast["lr"]))}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """The reply (named aggregates) and the client's new private state."""
        update = T.sub(local["params"], broadcast["params"])
        return {"update": Mean(update, examples=work.examples)}, client

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """The server's next state from the combined replies: ``w <- w + mean update``."""
        del info, phase
        return {**state, "params": T.add(state["params"], sums["update"])}
