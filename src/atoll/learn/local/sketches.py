"""Sketches of updates: a few numbers that preserve inner products and distances on average, so that updates can be compared without sending them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate
from atoll.core.algebra.rng import mix_keys
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError

__all__ = ["sketch", "sketches", "update_of"]


def sketch(update: Tree, size: int, key: int = 0) -> NDArray[np.float64]:
    """Return the count sketch of an update, ``s_b = sum_{i: h(i) = b} g(i) x_i`` with hashed buckets ``h`` and signs ``g``, ``(size,)``.

    Linear in the update. Over keys ``E <s, t> = <x, y>``, with variance at most ``2 |x|^2 |y|^2 / size`` (Charikar, Chen and Farach-Colton 2002; Weinberger
    et al. 2009). Sketches with the same key and size are comparable, whichever client made them and when.

    Args:
        update: arrays by name.
        size: number of buckets.
        key: key of the hash.
    """
    found: NDArray[np.float64] = sketches(T.map(lambda leaf: np.asarray(leaf)[None], update), size, key)[0]
    return found


def sketches(updates: Tree, size: int, key: int = 0) -> NDArray[np.float64]:
    """Return sketches of a block of updates with a leading axis of clients in each array: ``(clients, size)``; see `sketch`."""
    leaves = [np.asarray(leaf, dtype=np.float64) for leaf in T.leaves(updates)]
    rows = np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)
    bits = mix_keys(key, np.arange(rows.shape[1], dtype=np.uint64))
    bucket = ((bits >> np.uint64(1)) % np.uint64(size)).astype(np.int64)
    signed = rows * np.where(bits & np.uint64(1), 1.0, -1.0)
    return np.stack([np.bincount(bucket, row, size) for row in signed]) if len(signed) else np.zeros((0, size))


def update_of(reply: dict[str, Aggregate], algorithm: object) -> Tree:
    """Return the update of the model in a reply.

    Raises:
        CompositionError: there is no such update.
    """
    if "update" not in reply:
        raise CompositionError(
            f"replies of {type(algorithm).__name__} contain no update of the model",
            where='report "sketch"',
            remedy="use an algorithm such as FedAvg or Scaffold",
        )
    update: Tree = reply["update"].value
    return update
