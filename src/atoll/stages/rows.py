"""Updates as rows: compressors work on one vector a client, split into groups with a scale each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError, DataError

__all__ = ["Groups", "Per", "check_per", "lay_out", "numpy_leaf", "put_back", "template", "template_of", "uniforms"]

Array = np.ndarray[Any, np.dtype[Any]]
Per = Literal["tensor", "model"] | int
"""Which entries share a scale: those of one tensor, all entries, or this many neighbouring entries (a bucket)."""


@dataclass(frozen=True)
class Groups:
    """Where the groups of a vector begin.

    Attributes:
        starts: index of the first entry of each group, ascending from 0.
        size: number of entries of the vector.
    """

    starts: tuple[int, ...]
    size: int

    @classmethod
    def of(cls, like: Tree, per: Per) -> Groups:
        """The groups of a value.

        Args:
            like: the template of one client's value: arrays without entries, ``(0, *shape)``.
            per: which entries share a scale.
        """
        sizes = [math.prod(leaf.shape[1:]) for leaf in T.leaves(like)]
        total = sum(sizes)
        if per == "model":
            starts = [0]
        elif per == "tensor":
            starts = [int(s) for s, n in zip(np.cumsum([0, *sizes[:-1]]), sizes, strict=True) if n] if sizes else [0]
        else:
            starts = list(range(0, total, int(per)))
        return cls(tuple(starts) or (0,), total)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def sizes(self) -> Array:
        """Number of entries of each group."""
        return np.diff([*self.starts, self.size])

    def reduce(self, ufunc: np.ufunc, rows: Array) -> Array:
        """Reduce each group of each row, shape ``(clients, groups)``; sums are computed in float64."""
        if not self.size:
            return np.zeros((len(rows), len(self)))
        if len(self) <= 64:
            kind: dict[str, Any] = {"dtype": np.float64} if ufunc is np.add else {}
            ends = [*self.starts[1:], self.size]
            columns = [ufunc.reduce(rows[:, a:b], axis=1, **kind) for a, b in zip(self.starts, ends, strict=True)]
            return np.stack(columns, axis=1)
        whole = rows.astype(np.float64) if ufunc is np.add else rows
        return np.asarray(ufunc.reduceat(whole, self.starts, axis=1))

    def spread(self, scales: Array, dtype: Any) -> Array:
        """Repeat each group's number at its entries, shape ``(clients, size)``, or ``(clients, 1)`` for one group."""
        scales = scales.astype(dtype)
        return scales if len(self) == 1 else np.repeat(scales, self.sizes, axis=1)

    def norms(self, rows: Array) -> Array:
        """The Euclidean norm of each group in float64, computed without overflow of the squares."""
        peak = (
            self.reduce(np.maximum, np.abs(rows)).astype(np.float64) if self.size else np.zeros((len(rows), len(self)))
        )
        safe = np.where((peak > 0) & np.isfinite(peak), peak, 1.0)
        part = rows / self.spread(safe, np.float64)
        return np.asarray(safe * np.sqrt(self.reduce(np.add, part * part)))


def check_per(per: Any, where: str) -> None:
    """Refuse a value that names no grouping.

    Raises:
        ConfigError: it is neither ``"tensor"``, ``"model"`` nor a positive whole number.
    """
    if per not in ("tensor", "model") and not (isinstance(per, int) and not isinstance(per, bool) and per >= 1):
        raise ConfigError(f"per={per!r}", where=where, remedy="use 'tensor', 'model' or entries a bucket, at least 1")


def numpy_leaf(leaf: Any) -> Array:
    """A leaf as a NumPy array of floats.

    Raises:
        DataError: the leaf has entries that are not real numbers.
    """
    array = leaf.detach().cpu().numpy() if type(leaf).__module__.partition(".")[0] == "torch" else np.asarray(leaf)
    if array.dtype.kind != "f":
        raise DataError(
            f"an update with entries of dtype {array.dtype} cannot be compressed",
            where="uplink",
            remedy="compress updates of floating-point numbers only",
        )
    return array


def template(value: Tree) -> Tree:
    """Shapes and dtypes of a block, as arrays without entries, ``(clients, 0, *shape)``, which are free to send, stack and add."""
    return T.map(lambda leaf: np.zeros((len(leaf), 0, *leaf.shape[1:]), dtype=leaf.dtype), value)


def template_of(value: Tree) -> Tree:
    """The template of one client's value."""
    return T.map(lambda leaf: np.zeros((0, *np.shape(leaf)), dtype=numpy_leaf(leaf).dtype), value)


def lay_out(block: Tree) -> tuple[Array, Tree]:
    """Lay out a block of values as one row a client, ``(clients, entries)``; also return the block's template."""
    arrays = T.map(numpy_leaf, block)
    leaves = T.leaves(arrays)
    flat = [leaf.reshape(len(leaf), -1) for leaf in leaves]
    rows = flat[0] if len(flat) == 1 else np.concatenate(flat, axis=1)
    return rows, template(arrays)


def put_back(rows: Array, like: Tree) -> Tree:
    """The inverse of ``lay_out``, in the template's dtypes."""
    leaves, at = [], 0
    for leaf in T.leaves(like):
        shape = leaf.shape[2:]
        size = math.prod(shape)
        part = rows[:, at : at + size].reshape(len(rows), *shape)
        with np.errstate(over="ignore"):  # a value too large for the dtype becomes infinite, and is rejected
            leaves.append(part.astype(leaf.dtype))
        at += size
    return T.rebuild(like, leaves)


def uniforms(keys: Array, count: int, dtype: Any = np.float32) -> Array:
    """Uniform numbers in [0, 1), shape ``(clients, count)``; a client's numbers depend on its own key alone."""
    found = np.empty((len(keys), count), dtype=dtype)
    for row, key in zip(found, keys.tolist(), strict=True):
        Rng(int(key)).generator().random(out=row, dtype=dtype)
    return found
