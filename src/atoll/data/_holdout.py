"""Splitting each client's rows into a training and a test part."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.rng import mix64, mix_keys

from ._supply import Pooled, Supply, offsets_of
from .dataset import Dataset, Rows

Part = Literal["train", "test"]


def train_sizes(sizes: NDArray[np.int64], fraction: float) -> NDArray[np.int64]:
    """Return ``floor((1 - fraction) * size)``, but at least one row if there is one."""
    kept = np.floor((1.0 - fraction) * sizes + 1e-9).astype(np.int64)
    return np.asarray(np.maximum(kept, np.minimum(sizes, 1)))


def chosen(key: int, clients: NDArray[np.int64], sizes: NDArray[np.int64], fraction: float) -> NDArray[np.bool_]:
    """Mark the training rows, client after client, shape ``(sum(sizes),)``.

    Each row has a 64-bit hash of (key, client, position); the rows with the smallest hashes of a client train. So
    a client's split depends only on its number and its size, for a given key.
    """
    keys = np.repeat(mix_keys(key, clients.astype(np.uint64)), sizes)
    starts = offsets_of(sizes)[:-1]
    position = np.arange(int(sizes.sum())) - np.repeat(starts, sizes)
    noise = mix64(keys ^ mix64(position.astype(np.uint64)))
    owner = np.repeat(np.arange(len(sizes)), sizes)
    # The rows are sorted by client, then by hash: the rank within the client follows from the position.
    by_hash = np.lexsort((noise, owner))
    rank = np.empty(len(by_hash), np.int64)
    rank[by_hash] = position
    return rank < np.repeat(train_sizes(sizes, fraction), sizes)


def hold_out(base: Supply, fraction: float, key: int, part: Part) -> Supply:
    """Return the training or the test part of each client."""
    if not isinstance(base, Pooled):
        return HeldOut(base, fraction, key, part)
    sizes = base.sizes()
    mask = chosen(key, np.arange(base.count), sizes, fraction)
    kept = train_sizes(sizes, fraction)
    if part == "test":
        mask, kept = ~mask, sizes - kept
    return Pooled(base.pool, offsets_of(kept), base.order[mask])


class HeldOut(Supply):
    """One part of each client of a population whose rows are not in one pool."""

    def __init__(self, base: Supply, fraction: float, key: int, part: Part) -> None:
        self.count = base.count
        self._base, self._fraction, self._key, self._part = base, fraction, key, part

    def sizes(self) -> NDArray[np.int64]:
        sizes = self._base.sizes()
        kept = train_sizes(sizes, self._fraction)
        return kept if self._part == "train" else sizes - kept

    def size_of(self, client: int) -> int:
        size = self._base.size_of(client)
        kept = int(train_sizes(np.array([size]), self._fraction)[0])
        return kept if self._part == "train" else size - kept

    def locate(self, client: int) -> tuple[Dataset, Rows]:
        source, rows = self._base.locate(client)
        index = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        mask = chosen(self._key, np.array([client]), np.array([len(index)]), self._fraction)
        return source, index[mask if self._part == "train" else ~mask]

    def sample(self) -> Dataset:
        return self._base.sample()
