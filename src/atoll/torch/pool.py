"""The rows of many clients as one pool of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from atoll.core.errors import DataError
from atoll.learn.partial import quota

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.learn.algorithm import Algorithm
    from atoll.learn.partial import Counted

__all__ = ["Form", "Place", "Pool", "columns_of", "pool_of"]

Form: TypeAlias = "tuple[tuple[tuple[int, ...], torch.dtype], ...]"
"""Shape and type of a row of the inputs and of the targets."""


@dataclass(frozen=True)
class Place:
    """Where rows are, for those who read them one by one.

    Attributes:
        x: inputs, a contiguous tensor or array; of the pool's clients alone, or of many others too.
        y: targets, likewise.
        first: number of each client's first row.
        order: where the row of each number is, int32 or int64; ``None`` in the order of their numbers.
    """

    x: Any
    y: Any
    first: NDArray[np.int64]
    order: NDArray[Any] | None


@dataclass
class Pool:
    """Rows of several clients, client after client.

    Attributes:
        x: inputs, ``(rows, ...)``; floating point in the model's dtype, whole numbers (token ids) in int64.
        y: targets, ``(rows, ...)``.
        labels: the targets as NumPy, for checks.
        offsets: client ``c`` has the rows ``offsets[c]:offsets[c + 1]``.
        epochs: (or steps) that are asked of the clients; ``None`` for the algorithm's own.
    """

    x: torch.Tensor
    y: torch.Tensor
    labels: NDArray[Any]
    offsets: NDArray[np.int64]
    epochs: int | None = None

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Rows of each client."""
        return np.diff(self.offsets)

    @property
    def form(self) -> Form:
        """Of a row."""
        return tuple((tuple(column.shape[1:]), column.dtype) for column in (self.x, self.y))

    @property
    def place(self) -> Place:
        """Where the rows are."""
        return Place(self.x.contiguous(), self.y.contiguous(), np.ascontiguousarray(self.offsets[:-1], np.int64), None)

    def part(self, clients: NDArray[np.int64]) -> Pool:
        """The rows of some clients."""
        rows = np.concatenate([np.arange(self.offsets[c], self.offsets[c + 1]) for c in clients])
        return self.take(rows, self.sizes[clients])

    def take(self, rows: NDArray[np.int64], sizes: NDArray[np.int64]) -> Pool:
        """Some rows, of clients with so many each."""
        index = torch.from_numpy(rows).to(self.x.device)
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        return Pool(self.x[index], self.y[index], self.labels[rows], offsets, self.epochs)

    def work(self, algorithm: Algorithm) -> Counted:
        """How an algorithm goes through these rows: as often as is asked."""
        return quota(algorithm, self.epochs)


def columns_of(shard: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """The inputs and targets of one client.

    Args:
        shard: anything with columns ``x`` and ``y`` (a `Shard`, a `Dataset`, a dict), or a pair ``(x, y)``.

    Raises:
        DataError: no such columns, or columns of different lengths.
    """
    try:
        x, y = (shard[0], shard[1]) if isinstance(shard, tuple | list) else (shard["x"], shard["y"])
    except (KeyError, TypeError, IndexError) as error:
        raise DataError(
            f"a shard of type {type(shard).__name__} has no columns 'x' and 'y'",
            remedy="give a data set with the columns x (inputs) and y (targets), or a pair (x, y)",
        ) from error
    x, y = np.asarray(x), np.asarray(y)
    if len(x) != len(y):
        raise DataError(f"{len(x)} inputs and {len(y)} targets", remedy="give every example one target")
    return x, y


def pool_of(
    x: Sequence[NDArray[Any]] | NDArray[Any],
    y: Sequence[NDArray[Any]] | NDArray[Any],
    offsets: NDArray[np.int64],
    device: torch.device,
    dtype: torch.dtype,
) -> Pool:
    """Make a pool of stacked columns, or of one pair of columns a client."""
    inputs = x if isinstance(x, np.ndarray) else np.concatenate(list(x))
    labels = y if isinstance(y, np.ndarray) else np.concatenate(list(y))
    return Pool(_input(inputs, device, dtype), _target(labels, device, dtype), labels, offsets)


def _input(array: NDArray[Any], device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Inputs: bytes and booleans are measurements (pixels), wider integers are ids."""
    tensor = _shared(array)
    ids = not tensor.is_floating_point() and tensor.dtype not in (torch.uint8, torch.bool)
    return tensor.to(device=device, dtype=torch.int64 if ids else dtype)


def _target(array: NDArray[Any], device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    tensor = _shared(array)
    return tensor.to(device=device, dtype=dtype if tensor.is_floating_point() else torch.int64)


def _shared(array: NDArray[Any]) -> torch.Tensor:
    if array.dtype.kind not in "fiub":
        raise DataError(
            f"a column of type {array.dtype} cannot become a tensor",
            remedy="encode it as numbers first",
        )
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    if array.dtype.byteorder not in "=|" or not array.flags.writeable:
        array = array.astype(array.dtype.newbyteorder("="), copy=True)
    return torch.from_numpy(np.ascontiguousarray(array))
