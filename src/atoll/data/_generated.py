"""Populations whose clients' data are made on demand from a key of (seed, client)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.rng import Rng, keyed, mix_key
from atoll.core.errors import AtollError, DataError

from ._cache import ByteCache
from ._supply import Supply
from .dataset import Dataset, Rows

Make = Callable[[int, np.random.Generator], Dataset | Mapping[str, Any]]
Sizes = int | NDArray[np.int64] | None


class GeneratedData(Supply):
    """Clients made on demand; a client's data depend on the key and its number, never on the order of calls."""

    def __init__(self, count: int, make: Make, sizes: Sizes, rng: Rng, cache_bytes: int, name: str) -> None:
        self.count = count
        self._make = make
        self._key = rng.child("client").key
        self._name = name
        self._cache = ByteCache(cache_bytes)
        self._sizes = _as_sizes(sizes, count, name)

    def sizes(self) -> NDArray[np.int64]:
        if self._sizes is None:
            self._sizes = np.array([len(self._source(i)) for i in range(self.count)], np.int64)
        if isinstance(self._sizes, int):
            return np.full(self.count, self._sizes, np.int64)
        return self._sizes

    def size_of(self, client: int) -> int:
        known = self._expected(client)
        return len(self._source(client)) if known is None else known

    def locate(self, client: int) -> tuple[Dataset, Rows]:
        source = self._source(client)
        return source, slice(0, len(source))

    def _source(self, client: int) -> Dataset:
        return self._cache.get(client, self._build)

    def _build(self, client: int) -> Dataset:
        where = f"client-{client} of {self._name!r}"
        try:
            made = self._make(client, keyed(mix_key(self._key, client)))
        except AtollError:
            raise
        except Exception as error:  # the generator is the user's own and may raise anything
            raise DataError(
                f"the generator raised {type(error).__name__}: {error}",
                where=where,
                remedy="correct it; it is called as make(client, rng)",
            ) from error
        if not isinstance(made, Dataset):
            if not isinstance(made, Mapping):
                raise DataError(
                    f"the generator returned {type(made).__name__}",
                    where=where,
                    remedy="return a Dataset, or a dict of columns",
                )
            made = Dataset(made, name=self._name)
        expected = self._expected(client)
        if expected is not None and len(made) != expected:
            raise DataError(
                f"the generator made {len(made)} rows, but sizes= says {expected}",
                where=where,
                remedy="make as many rows as announced, or leave sizes= out",
            )
        return made

    def _expected(self, client: int) -> int | None:
        if self._sizes is None or isinstance(self._sizes, int):
            return self._sizes
        return int(self._sizes[client])


def _as_sizes(sizes: Any, count: int, name: str) -> Sizes:
    if sizes is None or isinstance(sizes, int):
        if isinstance(sizes, int) and sizes < 0:
            raise DataError(f"sizes={sizes} is negative", where=f"population {name!r}", remedy="give 0 or more")
        return sizes
    array = np.asarray(sizes)
    if array.shape != (count,) or array.dtype.kind not in "iu" or (count and array.min() < 0):
        raise DataError(
            f"sizes of shape {array.shape} and dtype {array.dtype} for {count} clients",
            where=f"population {name!r}",
            remedy="give one whole number per client, or a single one for all",
        )
    return array.astype(np.int64)
