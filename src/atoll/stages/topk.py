"""Only the largest entries: top-k, a threshold, and sparse ternary compression."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.requests.stage import Estimated

from .packed import Packed, index_width, pack, packed_bytes, unpack, wire_scale
from .rows import Groups, Per, template_of

__all__ = ["STC", "Threshold", "TopK", "at_places", "check_fraction", "kept_of", "largest"]


def check_fraction(fraction: float, where: str) -> None:
    """Refuse a fraction outside (0, 1].

    Raises:
        ConfigError: the fraction is outside (0, 1].
    """
    if not 0.0 < fraction <= 1.0:
        raise ConfigError(
            f"fraction={fraction}", where=where, remedy="use a share of the entries, above 0 and at most 1"
        )


def kept_of(size: int, fraction: float) -> int:
    """Number of entries kept in a group: ``max(1, floor(fraction size))``."""
    return min(size, max(1, int(fraction * size + 1e-9)))


def largest(rows: Any, groups: Groups, fraction: float) -> Any:
    """Indices of the largest entries by magnitude in each group, ascending, shape ``(clients, kept)``."""
    found = []
    for start, size in zip(groups.starts, groups.sizes.tolist(), strict=True):
        k, part = kept_of(size, fraction), np.abs(rows[:, start : start + size])
        order = (
            np.argpartition(part, size - k, axis=1)[:, size - k :]
            if k < size
            else np.tile(np.arange(size), (len(rows), 1))
        )
        found.append(start + np.sort(order, axis=1))
    return np.concatenate(found, axis=1)


def scatter(rows: int, size: int, index: Any, values: Any, dtype: Any) -> Any:
    """Vectors with these values at these indices, and zeros elsewhere."""
    found = np.zeros((rows, size), dtype=dtype)
    np.put_along_axis(found, index.astype(np.int64), values.astype(dtype), axis=1)
    return found


def at_places(parts: Mapping[str, Any], size: int, dtype: Any) -> Any:
    """Rows with packed indices and any number of values at their indices, zero elsewhere, ``(rows, size)``."""
    found = np.zeros((len(parts["values"]), size), dtype=dtype)
    for i, row in enumerate(found):
        values = parts["values"][i]
        row[unpack(parts["index"][i], index_width(size), len(values)).astype(np.int64)] = values
    return found


@dataclass(frozen=True)
class TopK(Packed, Estimated):
    """Send the largest entries by magnitude unchanged; the others become zero.

    A contraction: ``||C(x) - x||^2 <= (1 - k/n) ||x||^2``. Biased: use it inside ``ErrorFeedback``. Aji and Heafield 2017; Stich, Cordonnier,
    Jaggi 2018, "Sparsified SGD with Memory".

    On the wire: an entry's index (``ceil(log2 entries)`` bits) and its value, in the update's own precision (32 bits for float32).

    Attributes:
        fraction: share to keep of each group, at least one entry.
        per: where entries compete: in the whole ``"model"`` or in each ``"tensor"``.
    """

    fraction: float = 0.01
    per: Per = "model"
    unbiased: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_fraction(self.fraction, type(self).__name__)
        self._check_per()

    def pack(self, rows: Any, groups: Groups, public: Tree, keys: Any) -> dict[str, Any]:
        """Return indices and values."""
        del public, keys
        index = largest(rows, groups, self.fraction)
        return {"index": pack(index, index_width(groups.size)), "values": np.take_along_axis(rows, index, axis=1)}

    def unpack(self, parts: Mapping[str, Any], groups: Groups, dtype: Any, public: Tree) -> Any:
        """Put the values at their indices."""
        del public
        count = parts["values"].shape[1]
        index = unpack(parts["index"], index_width(groups.size), count)
        return scatter(len(parts["values"]), groups.size, index, parts["values"], dtype)

    def kept(self, value: Tree) -> int:
        """Number of entries sent for a value."""
        return sum(kept_of(n, self.fraction) for n in self.groups(template_of(value)).sizes.tolist())

    def wire_bits(self, value: Tree) -> int:
        """``k (value bits) + 8 ceil(k ceil(log2 entries) / 8)``."""
        k, like = self.kept(value), template_of(value)
        each = np.result_type(*[leaf.dtype for leaf in T.leaves(like)]).itemsize
        return 8 * (k * each + packed_bytes(k, index_width(self.groups(like).size)))

    def delta(self, value: Tree) -> float:
        """``k/n``, the smallest over all groups."""
        return float(min(kept_of(n, self.fraction) / n for n in self.groups(template_of(value)).sizes.tolist() if n))


@dataclass(frozen=True)
class STC(TopK):
    """Sparse ternary compression: send each of the largest entries as its sign times their mean magnitude.

    Sattler, Wiedemann, Müller, Samek 2019, "Robust and Communication-Efficient Federated Learning from Non-IID Data", algorithm 1. A contraction
    with ``delta >= 1/n``; biased: use it inside ``ErrorFeedback``, in both directions. The paper codes the distances between entries with
    Golomb's code; here an entry's index takes ``ceil(log2 entries)`` bits and its sign one.

    Attributes:
        fraction: share to keep of each group, at least one entry; the paper's 1/400 compresses 1050 times with Golomb's code.
        per: where entries compete.
    """

    fraction: float = 0.0025

    def pack(self, rows: Any, groups: Groups, public: Tree, keys: Any) -> dict[str, Any]:
        """Return indices, signs, and one magnitude a group."""
        del public, keys
        index = largest(rows, groups, self.fraction)
        values = np.take_along_axis(rows, index, axis=1)
        return {
            "scale": wire_scale(self._among(groups).reduce(np.add, np.abs(values)) / self._counts(groups)),
            "index": pack(index, index_width(groups.size)),
            "signs": pack(values < 0, 1),
        }

    def unpack(self, parts: Mapping[str, Any], groups: Groups, dtype: Any, public: Tree) -> Any:
        """Put plus or minus the magnitude at the indices."""
        del public
        count = int(self._counts(groups).sum())
        index = unpack(parts["index"], index_width(groups.size), count)
        below = unpack(parts["signs"], 1, count).astype(bool)
        scale = np.broadcast_to(self._among(groups).spread(parts["scale"], dtype), below.shape)
        return scatter(len(below), groups.size, index, np.where(below, -scale, scale), dtype)

    def _counts(self, groups: Groups) -> Any:
        return np.array([kept_of(n, self.fraction) for n in groups.sizes.tolist()], dtype=np.int64)

    def _among(self, groups: Groups) -> Groups:
        """The groups among the kept entries."""
        counts = self._counts(groups)
        return Groups(tuple((np.cumsum(counts) - counts).tolist()), int(counts.sum()))

    def wire_bits(self, value: Tree) -> int:
        """``32 groups + 8 ceil(k ceil(log2 entries) / 8) + 8 ceil(k / 8)``."""
        k, groups = self.kept(value), self.groups(template_of(value))
        return 32 * len(groups) + 8 * (packed_bytes(k, index_width(groups.size)) + packed_bytes(k, 1))

    def delta(self, value: Tree) -> float:
        """``1/n`` for the largest group: the kept entries hold at least ``k/n`` of the energy, and signs at least ``1/k`` of that."""
        return 1.0 / max(1, int(self.groups(template_of(value)).sizes.max(initial=0)))


@dataclass(frozen=True)
class Threshold(Packed, Estimated):
    """Send the entries with ``|x_i| > bound`` unchanged; the others become zero. Their number is not known beforehand.

    Biased: use it inside ``ErrorFeedback``, so that small entries are sent once they have grown. Strom 2015 and Dryden et al. 2016 send only
    large entries; to keep a fixed share, use ``TopK``.

    On the wire: an entry's index (``ceil(log2 entries)`` bits) and its value in the update's own precision.

    Attributes:
        bound: the magnitude that an entry must exceed.
    """

    bound: float = 1e-3
    unbiased: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not (self.bound >= 0 and math.isfinite(self.bound)):
            raise ConfigError(f"bound={self.bound}", where="Threshold", remedy="use a finite number of at least 0")

    @property
    def lossless(self) -> bool:
        """Whether only zeros are left out."""
        return self.bound == 0

    def pack(self, rows: Any, groups: Groups, public: Tree, keys: Any) -> dict[str, Any]:
        """Return indices and values, any number of them."""
        del public, keys
        found = [np.flatnonzero(row) for row in np.abs(rows) > self.bound]
        return {
            "index": T.Ragged([pack(index, index_width(groups.size)) for index in found]),
            "values": T.Ragged([row[index] for row, index in zip(rows, found, strict=True)]),
        }

    def unpack(self, parts: Mapping[str, Any], groups: Groups, dtype: Any, public: Tree) -> Any:
        """Put the values at their indices."""
        del public
        return at_places(parts, groups.size, dtype)

    def wire_bits(self, value: Tree) -> int:
        """``k (value bits) + 8 ceil(k ceil(log2 entries) / 8)``, where ``k`` entries exceed the bound."""
        k = sum(int((np.abs(np.asarray(leaf)) > self.bound).sum()) for leaf in T.leaves(value))
        like = template_of(value)
        each = np.result_type(*[leaf.dtype for leaf in T.leaves(like)]).itemsize
        return 8 * (k * each + packed_bytes(k, index_width(self.groups(like).size)))
