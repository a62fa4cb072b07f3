"""Where a cohort's rows come from: fetched together, or left where they are stored for native code to read one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .native_orders import readable
from .pool import Form, Place, Pool, columns_of, pool_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.cohort import Cohort

    from .network import Network

__all__ = ["Rows", "Source", "StoredPool", "rows_of"]


class Source:
    """Where a cohort's rows come from.

    Args:
        shards: one a client, or a function ``positions -> (x, y, offsets)`` that stacks many at once; it may have a method ``locate`` that
            says of positions where their rows are (`atoll.data.Islands.located`).
        count: clients.
    """

    def __init__(self, shards: Any, count: int) -> None:
        self._shards = shards
        self.count = count

    def pool(self, positions: NDArray[np.int64], network: Network) -> Pool:
        """The rows of some clients; left where they are if they can be read there."""
        locate = getattr(self._shards, "locate", None)
        found = None if locate is None or network.device.type != "cpu" else locate(positions)
        if found is None or not _ready(found.columns, network.dtype):
            return self._fetched(positions, network)
        x, y = found.columns
        return StoredPool(
            Place(x, y, found.first, found.order), found.sizes, y, lambda: self._fetched(positions, network)
        )

    def _fetched(self, positions: NDArray[np.int64], network: Network) -> Pool:
        if callable(self._shards):
            x, y, offsets = self._shards(positions)
            return pool_of(x, y, np.asarray(offsets, dtype=np.int64), network.device, network.dtype)
        columns = [columns_of(self._shards[int(p)]) for p in positions]
        offsets = np.zeros(len(columns) + 1, dtype=np.int64)
        np.cumsum([len(x) for x, _ in columns], out=offsets[1:])
        return pool_of([x for x, _ in columns], [y for _, y in columns], offsets, network.device, network.dtype)


def rows_of(cohort: Cohort) -> Callable[..., Any] | list[Any]:
    """How to fetch the cohort's rows: in one call where the population can, else shard by shard."""
    if not hasattr(cohort.population, "gather"):
        return [cohort.shard(i) for i in range(len(cohort))]
    return Rows(cohort.population, cohort.positions)


class Rows:
    """Rows of some clients of a population."""

    def __init__(self, population: Any, positions: NDArray[np.int64]) -> None:
        self._population, self._positions = population, positions

    def __call__(self, which: NDArray[np.int64]) -> Any:
        """Fetched together."""
        return self._population.gather(self._positions[which], "x", "y")

    def locate(self, which: NDArray[np.int64]) -> Any:
        """Where they are; ``None`` where nobody can say."""
        ask = getattr(self._population, "located", None)
        return None if ask is None else ask(self._positions[which], "x", "y")


class StoredPool(Pool):
    """Rows that stay where they are until somebody wants them together: native code reads them one by one.

    Args:
        place: where they are, whole columns.
        sizes: rows of each client.
        labels: the targets at the place.
        gather: makes a pool of them.
    """

    def __init__(
        self, place: Place, sizes: NDArray[np.int64], labels: NDArray[Any], gather: Callable[[], Pool]
    ) -> None:
        self.epochs = None
        self._sizes = sizes
        self.stored = labels
        self._place = place
        self._gather = gather

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Rows of each client."""
        return self._sizes

    @cached_property
    def offsets(self) -> NDArray[np.int64]:  # type: ignore[override]
        """Where each client's rows begin once they are fetched."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self._sizes)])

    @cached_property
    def _pool(self) -> Pool:
        return self._gather()

    @cached_property
    def x(self) -> torch.Tensor:  # type: ignore[override]
        """Inputs, fetched."""
        return self._pool.x

    @cached_property
    def y(self) -> torch.Tensor:  # type: ignore[override]
        """Targets, fetched."""
        return self._pool.y

    @cached_property
    def labels(self) -> NDArray[Any]:  # type: ignore[override]
        """Targets as NumPy, fetched."""
        return self._pool.labels

    @property
    def form(self) -> Form:
        """Of a row."""
        columns = (self._place.x, self._place.y)
        return tuple((tuple(column.shape[1:]), _DTYPES[np.dtype(column.dtype)]) for column in columns)

    @property
    def place(self) -> Place:
        """Where the rows are."""
        return self._place


_DTYPES: dict[Any, torch.dtype] = {np.dtype(np.float32): torch.float32, np.dtype(np.int64): torch.int64}


def _ready(columns: Sequence[NDArray[Any]], dtype: torch.dtype) -> bool:
    """Whether stored columns are what a model with parameters of a type takes, so that they can be read as they lie."""
    return dtype == torch.float32 and all(readable(column) for column in columns)
