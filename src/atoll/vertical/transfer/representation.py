"""A party's representation of its rows: one layer from its own columns to the common space, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..model import ColumnScales

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Descent", "NetSettings", "Representation", "begin_net"]

Rows = Any
"""An array of float64 numbers."""


class NetSettings(Protocol):
    """What a party's network and its descent read of a model's settings."""

    @property
    def width(self) -> int: ...  # noqa: D102
    @property
    def rate(self) -> float: ...  # noqa: D102
    @property
    def momentum(self) -> float: ...  # noqa: D102
    @property
    def seed(self) -> int: ...  # noqa: D102


@dataclass
class Representation:
    """``u = tanh([x, 1] W)`` for scaled columns x, and the columns back from it: ``x' = [u, 1] V``.

    Attributes:
        scales: how the party reads its own columns.
        encode: W, ``(columns + 1, width)``.
        decode: V, ``(width + 1, columns)``.
    """

    scales: ColumnScales
    encode: NDArray[np.float64]
    decode: NDArray[np.float64]

    @classmethod
    def begin(cls, scales: ColumnScales, width: int, rng: np.random.Generator) -> Representation:
        """Random weights: those of W have the deviation ``1 / sqrt(columns)``, those of V ``1 / sqrt(width)``; without offsets."""
        columns = len(scales.mean)
        encode, decode = np.zeros((columns + 1, width)), np.zeros((width + 1, columns))
        encode[:-1] = rng.normal(size=(columns, width)) / np.sqrt(max(1, columns))
        decode[:-1] = rng.normal(size=(width, columns)) / np.sqrt(width)
        return cls(scales, encode, decode)

    def read(self, x: NDArray[Any]) -> Rows:
        """Scaled columns and a 1: ``(rows, columns + 1)``."""
        return np.column_stack([self.scales.apply(x), np.ones(len(x))])

    def represent(self, rows: Rows) -> Rows:
        """``u`` of rows that `read` returned, ``(rows, width)``."""
        return np.tanh(rows @ self.encode)

    def backward(self, rows: Rows, u: Rows, gradient: Rows) -> Rows:
        """The gradient by W, from that by ``u``."""
        return rows.T @ (gradient * (1 - u**2))

    def restore_gradients(self, rows: Rows, u: Rows) -> tuple[Rows, Rows]:
        """The gradients by W and V of how badly the columns come back: the mean of ``(x - x')^2`` over rows and columns."""
        if rows.size == len(rows) or not len(rows):
            return np.zeros_like(self.encode), np.zeros_like(self.decode)
        more = np.column_stack([u, np.ones(len(u))])
        error = 2 * (more @ self.decode - rows[:, :-1]) / rows[:, :-1].size
        return self.backward(rows, u, error @ self.decode[:-1].T), more.T @ error

    def packed(self) -> dict[str, Any]:
        """The representation as a message."""
        return {"scales": self.scales.packed(), "encode": self.encode, "decode": self.decode}

    @classmethod
    def unpacked(cls, message: Mapping[str, Any]) -> Representation:
        """The inverse of `packed`."""
        arrays = (np.array(message[name], np.float64) for name in ("encode", "decode"))
        return cls(ColumnScales.unpacked(message["scales"]), *arrays)


@dataclass
class Descent:
    """Gradient descent with momentum: ``v <- momentum v + g``, ``W <- W - rate v``.

    It is linear in the gradients, so that rounding them in fixed point costs no more than that in the weights.

    Attributes:
        rate: the learning rate.
        momentum: the share of the last step that goes on.
        speed: ``v`` of W and of V; none before the first step.
    """

    rate: float
    momentum: float
    speed: list[Rows] = field(default_factory=list)

    def step(self, net: Representation, encode: Rows, decode: Rows) -> None:
        """Move the weights against their gradients."""
        before = self.speed or [np.zeros_like(encode), np.zeros_like(decode)]
        self.speed = [self.momentum * v + g for v, g in zip(before, (encode, decode), strict=True)]
        net.encode = net.encode - self.rate * self.speed[0]
        net.decode = net.decode - self.rate * self.speed[1]


def begin_net(model: NetSettings, rows: NDArray[Any], party: int, state: Any) -> tuple[Representation, Descent]:
    """A party's network and its descent: new ones, or as a checkpoint has them (``net``, ``speed``)."""
    if state is not None:
        speed = [np.array(one) for one in state["speed"]]
        return Representation.unpacked(state["net"]), Descent(model.rate, model.momentum, speed)
    rng = np.random.default_rng([model.seed, party])
    return Representation.begin(ColumnScales.of(rows), model.width, rng), Descent(model.rate, model.momentum)
