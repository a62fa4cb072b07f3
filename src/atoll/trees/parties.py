"""What parties do for trees that all of them grow together: count labels, count prefixes of values, and add up gradients."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from atoll.core.algebra.aggregate import Sum
from atoll.core.requests.task import task
from atoll.data.missing import known_rows, require_single_precision

from . import columns as C
from .kernel import gradient_histogram, split_rows
from .objectives import TreeLoss
from .sketch import binned, count_parts

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["BinnedRows", "PartyCache", "add_gradients", "count_labels", "count_values", "features_of"]


# What a process keeps of a party's rows between requests: all of it can be made again.


Value = TypeVar("Value")


class PartyCache(Generic[Value]):
    """The values of the parties used last.

    The rows of a shard are known by their origin, other data by a digest.

    Args:
        most: how many parties are kept.
    """

    def __init__(self, most: int = 64) -> None:
        self._most = most
        self._values: OrderedDict[Hashable, Value] = OrderedDict()

    def get(self, data: Any, fits: Callable[[Value], bool], make: Callable[[], Value]) -> Value:
        """Return what is kept for some rows if it ``fits``; else make it and keep it."""
        key = _identify(data)
        found = self._values.get(key)
        if found is not None and fits(found):
            self._values.move_to_end(key)
            return found
        made = make()
        self._values[key] = made
        self._values.move_to_end(key)
        while len(self._values) > self._most:
            self._values.popitem(last=False)
        return made


def _identify(data: Any) -> Hashable:
    origin: Hashable = getattr(data, "origin", None)
    if origin is not None:
        return origin
    digest = hashlib.blake2b(digest_size=16)
    for name in ("x", "y"):
        column = np.ascontiguousarray(data[name])
        digest.update(f"{column.dtype}{column.shape}".encode())
        digest.update(column.data.cast("B") if column.size else b"")
    return digest.digest()


def features_of(rows: Any) -> NDArray[Any]:
    """The features of a party's rows, ``(rows, features)``, which trees compare in single precision.

    Raises:
        DataError: single precision confuses the values of a feature, see `require_single_precision`.
    """
    x = np.asarray(rows["x"])
    names = tuple(rows.about.features) if hasattr(rows, "about") else ()
    for f in range(x.shape[1]):
        require_single_precision(x[:, f], names[f] if names else f"x{f}", "trees")
    return x


@task
def count_labels(island: Any, message: dict[str, Any]) -> dict[str, Sum]:
    """The number of rows, and what the first guess is made of, see `TreeLoss.label_sums`."""
    y = np.asarray(known_rows(island.data, "trees")["y"])
    objective = TreeLoss(message["objective"], message["outputs"])
    return {"rows": Sum(np.float64(len(y))), "labels": Sum(objective.label_sums(y))}


@task
def count_values(island: Any, message: dict[str, Any]) -> dict[str, Sum]:
    """How many values of each feature that is asked for lie in which intervals, see `cuts.count_parts`."""
    x = features_of(known_rows(island.data, "trees"))[:, np.asarray(message["features"])]
    return {"counts": Sum(count_parts(x, starts=np.asarray(message["starts"]), bits=np.asarray(message["bits"])))}


@task
def add_gradients(island: Any, message: dict[str, Any]) -> dict[str, Sum]:
    """Sums of gradients and second derivatives, by node, feature and bin.

    The message says all that the reply depends on: the cuts, the finished trees and the tree in growth, whose splits are bins. A party keeps nothing between
    requests; binned rows and margins that are still in memory are used again.
    """
    rows = _rows_of(island.data, message)
    rows.grow(message)
    growing = message["growing"]
    at = rows.places(growing)
    pairs = rows.pairs[int(growing["group"])]
    made = [gradient_histogram(rows.bins, pairs, at[int(node)], int(message["width"])) for node in message["build"]]
    return {"histograms": Sum(np.stack(made))}


@dataclass
class BinnedRows:
    """One party's rows, binned, with what follows from the trees so far.

    Attributes:
        bins: ``(rows, features)``.
        absent: the bin of features that are missing; -1 if none may be.
        targets: ``(rows,)``.
        objective: the loss.
        margin: ``(rows, outputs)``.
        facts: cuts and first guess that they follow from.
        trees: how many trees the margins hold.
        digest: of these trees.
        pairs: gradient and second derivative of each output at the beginning of the round, ``(outputs, rows, 2)``; ``None`` before the first.
    """

    bins: Any
    absent: int
    targets: NDArray[np.float64]
    objective: TreeLoss
    margin: NDArray[np.float32]
    facts: bytes
    trees: int = 0
    pairs: Any = None
    digest: bytes = b""
    _split: dict[int, tuple[int, int, bool]] = field(default_factory=dict)
    _group: tuple[int, int] = (-1, -1)
    _at: dict[int, NDArray[np.int32]] = field(default_factory=dict)

    def grow(self, message: dict[str, Any]) -> None:
        """Bring margins and gradients to the round of the message."""
        done = message["trees"]
        starts = np.asarray(done["starts"])
        whole = len(starts) - 1
        start = whole - whole % self.objective.outputs  # all trees of a round use the gradients of its beginning
        for t in range(self.trees, start):
            nodes = {
                name: np.asarray(done[name])[starts[t] : starts[t + 1]]
                for name in ("feature", "cut", "left", "value", "default_left")
            }
            self.margin[:, t % self.objective.outputs] += nodes["value"][self._leaves(nodes)]
        if self.trees != start or self.pairs is None:
            self.trees, self.digest = start, C.digest(done, start)
            g, h = self.objective.gradients(self.margin, self.targets)
            self.pairs = np.ascontiguousarray(np.stack([g.T, h.T], axis=-1))

    def places(self, growing: dict[str, Any]) -> dict[int, NDArray[np.int32]]:
        """The rows at each leaf of the tree in growth."""
        left, splits = np.asarray(growing["left"]), self._splits(growing)
        group = (self.trees, int(growing["group"]))
        if (
            self._group != group or not self._split.items() <= splits.items()
        ):  # another tree, or one that was begun again
            self._group, self._split, self._at = group, {}, {0: np.arange(len(self.bins), dtype=np.int32)}
        for node in sorted(splits.keys() - self._split.keys()):
            child = int(left[node])
            self._at[child], self._at[child + 1] = self._sides(*splits[node], self._at.pop(node))
        self._split = splits
        return self._at

    def _splits(self, nodes: dict[str, Any]) -> dict[int, tuple[int, int, bool]]:
        """Feature, cut and default direction of each inner node."""
        feature, cut, default = (np.asarray(nodes[name]) for name in ("feature", "cut", "default_left"))
        inner = np.flatnonzero(feature >= 0).tolist()
        return {node: (int(feature[node]), int(cut[node]), bool(default[node])) for node in inner}

    def _sides(
        self, feature: int, cut: int, default_left: bool, rows: NDArray[np.int32]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        return split_rows(self.bins, feature, cut, rows, self.absent if default_left else -1)

    def _leaves(self, nodes: dict[str, NDArray[Any]]) -> NDArray[np.int64]:
        at = np.zeros(len(self.bins), np.int64)
        stack, splits = [(0, np.arange(len(self.bins), dtype=np.int32))], self._splits(nodes)
        while stack:
            node, rows = stack.pop()
            if node not in splits:
                at[rows] = node
                continue
            left, right = self._sides(*splits[node], rows)
            child = int(nodes["left"][node])
            stack += [(child, left), (child + 1, right)]
        return at


_KEPT: PartyCache[BinnedRows] = PartyCache()


def _rows_of(data: Any, message: dict[str, Any]) -> BinnedRows:
    """Binned rows of a party: those that are kept, if all that they follow from is the message's; else new ones."""
    cuts, counts, base = (np.asarray(message[name]) for name in ("cuts", "counts", "base"))
    objective = TreeLoss(message["objective"], int(message["outputs"]))
    absent = int(message["width"]) - 1 if message["missing"] else -1
    facts = b"|".join((cuts.tobytes(), counts.tobytes(), base.tobytes(), str(absent).encode()))

    def fits(rows: BinnedRows) -> bool:
        same = rows.facts == facts and rows.objective == objective and rows.trees <= C.count(message["trees"])
        return same and rows.digest == C.digest(message["trees"], rows.trees)

    def make() -> BinnedRows:
        rows = known_rows(data, "trees")
        x, y = features_of(rows), np.asarray(rows["y"])
        margin = np.tile(base.astype(np.float32), (len(x), 1))
        bins = binned(x, np.split(cuts, np.cumsum(counts)[:-1]), absent)
        return BinnedRows(
            bins, absent, objective.targets(y), objective, margin, facts, digest=C.digest(message["trees"], 0)
        )

    return _KEPT.get(data, fits, make)
