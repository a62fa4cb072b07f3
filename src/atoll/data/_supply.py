"""The source of the clients' rows. A supply knows sizes and rows; `Islands` adds names, tags and a test set."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._checks import Array
from .dataset import Dataset, Rows
from .join import concatenate

# A least-recently-used cache of data sets, bounded in bytes.


class ByteCache:
    """Keep the data sets used last, at most ``limit`` bytes of them. Safe to use from several threads."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held: OrderedDict[int, tuple[Dataset, int]] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    @property
    def nbytes(self) -> int:
        """Bytes in the cache now."""
        return self._bytes

    def get(self, key: int, make: Callable[[int], Dataset]) -> Dataset:
        """Return the data set of a key; make it if it is not in the cache."""
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
                return found[0]
        made = make(key)
        size = made.nbytes
        with self._lock:
            if key not in self._held and size <= self.limit:
                self._held[key] = made, size
                self._bytes += size
                while self._bytes > self.limit:
                    self._bytes -= self._held.popitem(last=False)[1][1]
        return made

    # Another process starts with an empty cache, since its contents can be made again.
    def __getstate__(self) -> dict[str, Any]:
        return {"limit": self.limit}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["limit"])  # type: ignore[misc]


Ids = NDArray[np.int64]

_SAMPLED_CLIENTS = 32


@dataclass(frozen=True)
class Located:
    """The location of some clients' rows: client ``c`` has the rows ``order[first[c]:first[c] + sizes[c]]``.

    Attributes:
        columns: whole columns, of all clients.
        order: row numbers, int32 or int64; ``None`` if rows are in the order of their numbers.
        first: the start of each client in ``order``.
        sizes: number of rows of each client.
    """

    columns: list[Array]
    order: NDArray[Any] | None
    first: NDArray[np.int64]
    sizes: NDArray[np.int64]


class Supply(ABC):
    """A population of clients, numbered ``0..count-1``."""

    count: int

    @abstractmethod
    def sizes(self) -> NDArray[np.int64]:
        """Number of rows of each client, shape ``(count,)``."""

    @abstractmethod
    def locate(self, client: int) -> tuple[Dataset, Rows]:
        """The data set with a client's rows, and the row numbers."""

    def gather(self, clients: Ids, columns: Sequence[str]) -> tuple[list[Array], NDArray[np.int64]]:
        """Stack columns of several clients in the given order as new arrays, and return them with the clients' sizes."""
        if not len(clients):
            empty = self.schema()
            return [np.array(empty[column][:0]) for column in columns], np.zeros(0, np.int64)
        found = [self.locate(int(client)) for client in clients]
        stacked = [np.concatenate([source[column][rows] for source, rows in found]) for column in columns]
        return stacked, np.array([span(rows) for _, rows in found], np.int64)

    def size_of(self, client: int) -> int:
        """Number of rows of one client."""
        return span(self.locate(client)[1])

    def schema(self) -> Dataset:
        """A data set with the population's columns."""
        return self.locate(0)[0]

    def sample(self) -> Dataset:
        """Rows that represent the population: their columns, dtypes and ranges."""
        clients = np.unique(np.linspace(0, self.count - 1, min(self.count, _SAMPLED_CLIENTS)).astype(np.int64))
        parts = [source._view(rows) for source, rows in (self.locate(int(c)) for c in clients)]
        return concatenate([p for p in parts if len(p)] or parts[:1])


class Pooled(Supply):
    """Clients that partition the rows of one data set.

    The partition is one permutation of the row numbers and one array of offsets, for any number of clients.
    Without a permutation the clients are consecutive slices, and a client's columns are views.
    """

    def __init__(self, pool: Dataset, offsets: NDArray[np.int64], order: NDArray[np.int64] | None) -> None:
        self.pool = pool
        self.count = len(offsets) - 1
        self._offsets = offsets
        small = order is not None and len(pool) <= np.iinfo(np.int32).max
        self._order = order.astype(np.int32) if small and order is not None else order

    def sizes(self) -> NDArray[np.int64]:
        return np.diff(self._offsets)

    def size_of(self, client: int) -> int:
        return int(self._offsets[client + 1] - self._offsets[client])

    def locate(self, client: int) -> tuple[Dataset, Rows]:
        where = slice(int(self._offsets[client]), int(self._offsets[client + 1]))
        return self.pool, where if self._order is None else self._order[where].astype(np.int64)

    def gather(self, clients: Ids, columns: Sequence[str]) -> tuple[list[Array], NDArray[np.int64]]:
        starts = self._offsets[clients]
        sizes = self._offsets[clients + 1] - starts
        positions = ranges(starts, sizes)
        rows = positions if self._order is None else self._order[positions]
        return [self.pool[column].take(rows, axis=0) for column in columns], sizes

    def located(self, clients: Ids, columns: Sequence[str]) -> Located:
        """The location of columns of several clients."""
        starts = self._offsets[clients]
        sizes = self._offsets[clients + 1] - starts
        return Located([self.pool[column] for column in columns], self._order, starts, sizes)

    def sample(self) -> Dataset:
        return self.pool

    @property
    def order(self) -> NDArray[np.int64]:
        """Row numbers of the pool, ordered by client."""
        return np.arange(self._offsets[-1]) if self._order is None else self._order.astype(np.int64)

    @property
    def offsets(self) -> NDArray[np.int64]:
        """The start of each client in ``order``, shape ``(count + 1,)``."""
        return self._offsets


def span(rows: Rows) -> int:
    """Return the number of rows that an index selects; slices here have plain bounds."""
    return int(rows.stop - rows.start) if isinstance(rows, slice) else len(rows)


def ranges(starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Concatenate ``arange(start, start + size)`` of each pair."""
    before = np.cumsum(sizes) - sizes
    return np.asarray(np.arange(int(sizes.sum())) + np.repeat(starts - before, sizes))


def offsets_of(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return ``[0, s_0, s_0 + s_1, ...]``."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])
