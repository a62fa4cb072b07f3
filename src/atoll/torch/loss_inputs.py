"""The inputs of a loss at one mini-batch, by the names of `atoll.learn.local.own_loss.LossSignature`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.learn.local.own_loss import LABELLED

from .tracing.keyed import Keyed, row_keys, uniform

__all__ = ["LossInputs", "StepDraws"]

Tensor = torch.Tensor


class StepDraws:
    """Random numbers of one client at one step: a function of (client, round, step, number of the call, position), on every engine.

    Give the rows as the first axis of a shape: padding then changes no number.

    Args:
        mode: counts the calls, together with the masks of the model's dropout.
        dtype: of the floating-point numbers.
    """

    def __init__(self, mode: Keyed, dtype: torch.dtype) -> None:
        self._mode = mode
        self._dtype = dtype

    def _bits(self, shape: tuple[int, ...]) -> Tensor:
        drawn = uniform(self._mode.seed, self._mode.calls, shape)
        self._mode.calls += 1
        return drawn

    def uniform(self, *shape: int) -> Tensor:
        """Uniform in ``[0, 1)``, multiples of ``2^-24``."""
        return (self._bits(shape) >> 8).to(self._dtype) * 2.0**-24

    def normal(self, *shape: int) -> Tensor:
        """Standard normal, by the transform of Box and Muller 1958."""
        radius = torch.sqrt(-2.0 * torch.log(1.0 - self.uniform(*shape)))
        return radius * torch.cos(2.0 * math.pi * self.uniform(*shape))

    def bernoulli(self, p: float, *shape: int) -> Tensor:
        """Booleans, true with probability ``p``."""
        return self._bits(shape) < int(p * 2**32)

    def integers(self, high: int, *shape: int) -> Tensor:
        """Whole numbers ``0 .. high - 1``, int64."""
        return (self._bits(shape) * high) >> 32


@dataclass(frozen=True)
class LossInputs:
    """One mini-batch.

    Attributes:
        model: ``(x, params=None, *, training=True) -> outputs``; ``params`` may be some of the names.
        columns: ``x``, ``y`` and further columns that the loss asks for, one row for each example.
        weights: 1 for a row, 0 for padding, ``(rows,)``; ``None`` if nothing is padded.
        broadcast: what the server sent; ``None`` outside training.
        mode: keys the random numbers; ``None`` outside training.
        dtype: of the model.
    """

    model: Callable[..., Tensor]
    columns: Mapping[str, Tensor]
    weights: Tensor | None
    broadcast: Tree
    mode: Keyed | None
    dtype: torch.dtype

    @property
    def labelled(self) -> Tensor | None:
        """Return which labels exist, as booleans; ``None`` if all do."""
        column = self.columns.get(LABELLED)
        return None if column is None else column != 0

    def of(self, name: str) -> Any:
        """Return the value for a name that a loss asks for."""
        if name in ("output", "model"):
            return self.model if name == "model" else self.model(self.columns["x"])
        if name in ("rng", "keys", "round", "broadcast"):
            return self._of_training(name)
        column = "y" if name == "target" else name
        if column in self.columns and name != LABELLED:
            return self.columns[column]
        x = self.columns["x"]
        if name == "real":
            return torch.ones(len(x), dtype=self.dtype, device=x.device) if self.weights is None else self.weights
        there = self.labelled
        return torch.ones(len(x), dtype=torch.bool, device=x.device) if there is None else there

    def _of_training(self, name: str) -> Any:
        if name == "rng":
            assert self.mode is not None  # noqa: S101 - a loss that asks for it is not evaluated
            return StepDraws(self.mode, self.dtype)
        if name == "keys":
            assert self.mode is not None  # noqa: S101 - as above
            return row_keys(self.mode.seed, self.columns["index"])
        sent = _Sent(self.broadcast)
        return sent["round"] if name == "round" else sent


class _Sent(dict[str, Any]):
    """A broadcast whose error for a missing name lists what it has."""

    def __missing__(self, name: str) -> Any:
        raise ConfigError(
            f"the loss asks the broadcast for {name!r}, but the server sends {', '.join(self)}",
            where="Training.loss",
            remedy="override `broadcast(state, phase)` of the algorithm to send it, or ask for what is sent",
        )
