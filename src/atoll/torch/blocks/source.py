"""Where a cohort's rows come from: fetched together, or left in storage for native code to read one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from atoll.learn.local.own_loss import LABELLED

from ..native.orders import readable
from .pool import Form, Pool, PoolPlace, columns_of, names_of, number_rows, pool_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.requests.cohort import Cohort

    from ..losses import Objective
    from ..network import FunctionalModule

__all__ = ["RowSource", "Rows", "StoredPool", "rows_of"]


class RowSource:
    """Where a cohort's rows come from.

    Args:
        shards: one for each client, or `Rows`, which stack many at once.
        count: clients.
    """

    def __init__(self, shards: Any, count: int) -> None:
        self._shards = shards
        self.count = count

    def pool(self, positions: NDArray[np.int64], network: FunctionalModule, objective: Objective | None = None) -> Pool:
        """Return the rows of some clients, with the columns that a loss asks for (by default the network's); they stay in storage if they can be read there."""
        extra = (network if objective is None else objective).signature.wants(self._names)
        locate = getattr(self._shards, "locate", None)
        made_here = "index" in extra or LABELLED in extra
        found = None
        if locate is not None and network.device.type == "cpu" and not made_here:
            found = locate(positions, extra)
        if found is None or not _ready(found.columns, network.dtype):
            return self._fetch_pool(positions, network, extra)
        place = PoolPlace(tuple(found.columns), found.first, found.order)
        names = ("x", "y", *extra)
        return StoredPool(names, place, found.sizes, lambda: self._fetch_pool(positions, network, extra))

    @property
    def _names(self) -> tuple[str, ...]:
        """Names of the columns."""
        if callable(self._shards):
            return tuple(getattr(self._shards, "names", ("x", "y")))
        if not self.count:
            return ("x", "y")
        first = names_of(self._shards[0])
        hidden = LABELLED not in first and any(LABELLED in names_of(self._shards[i]) for i in range(self.count))
        return (*first, LABELLED) if hidden else first

    def _fetch_pool(self, positions: NDArray[np.int64], network: FunctionalModule, extra: tuple[str, ...]) -> Pool:
        wanted = tuple(name for name in extra if name != "index")
        if callable(self._shards):
            *stacked, offsets = self._shards(positions, *((wanted,) if wanted else ()))
            offsets = np.asarray(offsets, dtype=np.int64)
            columns = dict(zip(("x", "y", *wanted), stacked, strict=True))
        else:
            each = [columns_of(self._shards[int(p)], wanted) for p in positions]
            offsets = np.zeros(len(each) + 1, dtype=np.int64)
            np.cumsum([len(own["x"]) for own in each], out=offsets[1:])
            columns = {name: np.concatenate([own[name] for own in each]) for name in ("x", "y", *wanted)}
        if "index" in extra:
            columns["index"] = number_rows(offsets)
        columns = {name: columns[name] for name in ("x", "y", *extra)}
        return pool_of(columns, offsets, network.device, network.dtype)


def rows_of(cohort: Cohort) -> Callable[..., Any] | list[Any]:
    """Return how to fetch the cohort's rows: in one call if the population can and all are its clients, else shard by shard."""
    further = bool((cohort.positions >= len(cohort.population)).any())
    if further or not hasattr(cohort.population, "gather"):
        return [cohort.shard(i) for i in range(len(cohort))]
    return Rows(cohort.population, cohort.positions)


class Rows:
    """Rows of some clients of a population."""

    def __init__(self, population: Any, positions: NDArray[np.int64]) -> None:
        self._population, self._positions = population, positions

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(getattr(self._population, "columns", ("x", "y")))

    def __call__(self, which: NDArray[np.int64], extra: Sequence[str] = ()) -> Any:
        """Fetch rows together."""
        return self._population.gather(self._positions[which], "x", "y", *extra)

    def locate(self, which: NDArray[np.int64], extra: Sequence[str] = ()) -> Any:
        """Return where the rows are; ``None`` if that is unknown."""
        ask = getattr(self._population, "located", None)
        return None if ask is None else ask(self._positions[which], "x", "y", *extra)


class StoredPool(Pool):
    """Rows that stay in storage until they are needed together; native code reads them one by one.

    Args:
        names: the columns' names.
        place: where they are, whole columns.
        sizes: rows of each client.
        gather: makes a pool of them.
    """

    def __init__(
        self, names: tuple[str, ...], place: PoolPlace, sizes: NDArray[np.int64], gather: Callable[[], Pool]
    ) -> None:
        self.epochs = None
        self.secrets = None
        self._names = names
        self._sizes = sizes
        self.stored = place.columns[1]
        self._place = place
        self._gather = gather

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Return the rows of each client."""
        return self._sizes

    @cached_property
    def offsets(self) -> NDArray[np.int64]:  # type: ignore[override]
        """Return where each client's rows begin once they are fetched."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self._sizes)])

    @cached_property
    def _pool(self) -> Pool:
        return self._gather()

    @cached_property
    def columns(self) -> dict[str, torch.Tensor]:  # type: ignore[override]
        """Fetch the columns."""
        return self._pool.columns

    @cached_property
    def labels(self) -> NDArray[Any]:  # type: ignore[override]
        """Fetch the targets as NumPy."""
        return self._pool.labels

    @property
    def form(self) -> Form:
        """Return the form of a row."""
        pairs = zip(self._names, self._place.columns, strict=True)
        return tuple((name, tuple(column.shape[1:]), _DTYPES[np.dtype(column.dtype)]) for name, column in pairs)

    @property
    def place(self) -> PoolPlace:
        """Return where the rows are."""
        return self._place


_DTYPES: dict[Any, torch.dtype] = {np.dtype(np.float32): torch.float32, np.dtype(np.int64): torch.int64}


def _ready(columns: Sequence[NDArray[Any]], dtype: torch.dtype) -> bool:
    """Tell whether stored columns have the type that a model with such parameters takes, so that they can be read in place."""
    return dtype == torch.float32 and all(readable(column) for column in columns)
