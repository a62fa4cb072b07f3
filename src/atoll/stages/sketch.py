"""Count sketches: a small table that is linear in the update and estimates its large entries."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.rng import Rng, mix64
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.requests.stage import Estimated

from .packed import Packed
from .rows import Groups, template_of

__all__ = ["CountSketch"]


@dataclass(frozen=True)
class CountSketch(Packed, Estimated):
    """``depth`` rows of ``columns`` counters: row ``r`` adds ``s_r(i) x_i`` to its counter ``h_r(i)``; the round's seed hashes signs and counters.

    Charikar, Chen, Farach-Colton 2002; Ivkin et al. 2019, "Communication-efficient Distributed SGD with Sketching". Sketches add up:
    ``S(a x + b y) = a S(x) + b S(y)``, so the server decodes the sum, also under a secure reducer. Entry ``i`` is estimated by the mean over rows
    of ``s_r(i) S_r(h_r(i))``, which is unbiased with error ``E ||C(x) - x||^2 = (n - 1)/(columns depth) ||x||^2``; or by their median, which is
    biased, and off by more than ``3 ||x||_2 / sqrt(columns)`` only with a probability that falls exponentially in ``depth``.

    On the wire: ``depth * columns`` numbers in the update's own precision, whatever the number of entries.

    Attributes:
        columns: number of counters a row.
        depth: number of rows.
        estimate: ``"mean"`` or ``"median"``.
    """

    columns: int = 1000
    depth: int = 5
    estimate: Literal["mean", "median"] = "mean"
    summable: ClassVar[bool] = True
    linear: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.columns < 1 or self.depth < 1:
            raise ConfigError(
                f"columns={self.columns}, depth={self.depth}", where="CountSketch", remedy="use at least 1 of each"
            )
        object.__setattr__(self, "unbiased", self.estimate == "mean")

    def public(self, rng: Rng) -> Tree:
        """Return the seed of the hashes."""
        return rng.key

    def _hashes(self, key: int, row: int, size: int) -> tuple[Any, Any]:
        """Counters and signs of all entries in one row of the table."""
        mixed = mix64(np.arange(size, dtype=np.uint64) ^ np.uint64(Rng(key).child("row", row).key))
        return (mixed >> np.uint64(1)) % np.uint64(self.columns), mixed & np.uint64(1)

    def pack(self, rows: Any, groups: Groups, public: Tree, keys: Any) -> dict[str, Any]:
        """Return the table."""
        del keys
        table = np.zeros((len(rows), self.depth, self.columns), dtype=np.float64)
        offset = np.arange(len(rows), dtype=np.int64)[:, None] * self.columns
        for r in range(self.depth):
            place, minus = self._hashes(public, r, groups.size)
            signed = np.where(minus, -rows, rows)
            flat = np.bincount(
                (offset + place.astype(np.int64)).ravel(), signed.ravel(), minlength=len(rows) * self.columns
            )
            table[:, r] = flat.reshape(len(rows), self.columns)
        return {"table": table.astype(rows.dtype)}

    def unpack(self, parts: Mapping[str, Any], groups: Groups, dtype: Any, public: Tree) -> Any:
        """Return the estimates."""
        table = parts["table"]
        found = np.empty((self.depth, len(table), groups.size), dtype=dtype)
        for r in range(self.depth):
            place, minus = self._hashes(public, r, groups.size)
            seen = table[:, r][:, place.astype(np.int64)]
            found[r] = np.where(minus, -seen, seen)
        return found.mean(axis=0) if self.estimate == "mean" else np.median(found, axis=0)

    def wire_bits(self, value: Tree) -> int:
        """``depth * columns * (value bits)``."""
        each = np.result_type(*[leaf.dtype for leaf in T.leaves(template_of(value))]).itemsize
        return 8 * each * self.depth * self.columns

    def omega(self, value: Tree) -> float | None:
        """``(n - 1)/(columns depth)``, over the seed; ``None`` for the median."""
        n = self.groups(template_of(value)).size
        return (n - 1) / (self.columns * self.depth) if self.estimate == "mean" else None

    @staticmethod
    def sized(entries: int, keep: int) -> CountSketch:
        """A sketch that estimates ``keep`` large entries of ``entries``: ``ceil(log2 entries)`` rows of ``4 keep`` counters, with the median."""
        return CountSketch(max(1, 4 * keep), max(1, math.ceil(math.log2(max(2, entries)))), "median")
