"""ALEX: a learned index with gaps for new keys."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from .registry import LARGEST, Floats, KeyIndex, Places, RowRuns, expand_spans, require_keys, search_within
from .rmi import RecursiveModelIndex

__all__ = ["AdaptiveIndex"]

_NODE, _LARGEST_NODE = 1024, 4096
_LOWER, _UPPER = 0.6, 0.8
"""Keys of a new node, and of the largest one; and which part of the slots has keys when a node is laid out, and at most (Ding et al. 2020, section 3.2)."""


class _Node:
    """A gapped array: keys lie where a line puts them, and gaps repeat the next key, so that the array ascends."""

    def __init__(self, keys: Floats, rows: Places, slots: int = 0) -> None:
        n = len(keys)
        count = slots or int(n / _LOWER) + 1
        self.first, run = keys[0], np.arange(n)
        width = keys[-1] - self.first
        self.width = width if width > 0 else 1.0
        self.pace = (count - 1) * (width > 0)
        # A line from the first to the last key; where it puts two keys into one slot, the later one moves on.
        wanted = ((keys - self.first) / self.width * self.pace).astype(np.int64)
        place = np.minimum(np.maximum.accumulate(wanted - run) + run, count - n + run)
        self.keys = np.append(keys, np.inf)[np.searchsorted(place, np.arange(count))]
        self.rows = np.full(count, -1, np.int64)
        self.rows[place] = rows

    @property
    def held(self) -> tuple[Floats, Places]:
        """Its keys and their rows."""
        used = self.rows >= 0
        return self.keys[used], self.rows[used]


class AdaptiveIndex(KeyIndex):
    """Nodes with linear models and gaps, in which new keys lie where the model looks for them (Ding et al. 2020, "ALEX: An Updatable Adaptive Learned Index").

    A lookup predicts a slot and searches from there in steps that double. A node that is too full is laid out anew with more slots, and one that is too large is divided. In the paper inner nodes are lines that a cost model
    chooses, and keys come one by one and shift others up to the next gap; here `RecursiveModelIndex` over the first keys of nodes finds a node, and the keys of a batch that belong to one node are laid out together.
    """

    name: ClassVar[str] = "alex"
    inserts: ClassVar[bool] = True

    def __init__(self, keys: Any) -> None:
        made = require_keys(keys, self.name)
        order = np.argsort(made, kind="stable").astype(np.int64)
        self._count = len(made)
        self._nodes = _cut(made[order], order)
        self._join()

    def __len__(self) -> int:
        return self._count

    def _join(self) -> None:
        """All nodes in one array, so that many lookups search at once."""
        nodes = self._nodes
        self._keys = np.concatenate([node.keys for node in nodes]) if nodes else np.zeros(0)
        self._slots = np.concatenate([node.rows for node in nodes]) if nodes else np.zeros(0, np.int64)
        self._first = np.cumsum([0, *(len(node.keys) for node in nodes)]).astype(np.int64)
        self._lines = np.array([[node.first, node.width, node.pace] for node in nodes]).reshape(len(nodes), 3)
        self._inner = RecursiveModelIndex(self._lines[:, 0])

    def insert(self, keys: Any) -> None:
        """Add rows, numbered on from the last.

        Args:
            keys: of each new row.
        """
        made = require_keys(keys, self.name)
        rows = self._count + np.argsort(made, kind="stable").astype(np.int64)
        made = made[rows - self._count]
        self._count += len(made)
        home = self._node_of(made) if self._nodes else np.zeros(len(made), np.int64)
        nodes: list[_Node] = []
        for k in range(max(1, len(self._nodes))):
            mine = slice(*np.searchsorted(home, [k, k + 1]))
            old = self._nodes[k : k + 1]
            if mine.start == mine.stop:
                nodes += old
                continue
            parts = [*(node.held for node in old), (made[mine], rows[mine])]
            together, theirs = (np.concatenate([part[j] for part in parts]) for j in (0, 1))
            order = np.argsort(together, kind="stable")
            together, theirs = together[order], theirs[order]
            if len(together) > _LARGEST_NODE:
                nodes += _cut(together, theirs)
            else:
                slots = len(old[0].keys) if old else 0
                nodes.append(_Node(together, theirs, slots if len(together) <= _UPPER * slots else 0))
        self._nodes = nodes
        self._join()

    def _node_of(self, asked: Floats) -> Places:
        found = self._inner.rank(np.nextafter(asked, np.inf)) - 1
        return np.maximum(0, found)

    def _slot(self, asked: Floats) -> Places:
        """The first slot whose key is not below what is asked."""
        if not self._nodes:
            return np.zeros(len(asked), np.int64)
        node = self._node_of(asked)
        begin, end = self._first[node], self._first[node + 1]
        first, width, pace = self._lines[node].T
        with np.errstate(over="ignore"):
            low = np.clip((asked - first) / width * pace + begin, begin, end - 1).astype(np.int64)
        high, step = low.copy(), 1
        while (far := (low > begin) & (self._keys[low - 1] >= asked)).any():
            low = np.where(far, np.maximum(begin, low - step), low)
            step *= 2
        step = 1
        while (far := (high < end) & (self._keys[np.minimum(high, len(self._keys) - 1)] < asked)).any():
            high = np.where(far, np.minimum(end, high + step), high)
            step *= 2
        return search_within(self._keys, asked, low, high)

    def lookup(self, low: Any, high: Any) -> RowRuns:
        """The rows of ranges, both ends included, those of the smallest keys first."""
        ends = np.stack([np.asarray(low, np.float64), np.nextafter(np.asarray(high, np.float64), np.inf)])
        first, last = self._slot(np.clip(ends, -2 * LARGEST, 2 * LARGEST).ravel()).reshape(ends.shape)
        places, question = expand_spans(first, last)
        rows = self._slots[places]
        used = rows >= 0
        counts = np.bincount(question[used], minlength=len(first))
        return RowRuns(rows[used], np.concatenate([[0], np.cumsum(counts)]))

    @property
    def bytes(self) -> int:
        """Bytes of its arrays."""
        return super().bytes + sum(node.keys.nbytes + node.rows.nbytes for node in self._nodes)


def _cut(keys: Floats, rows: Places) -> list[_Node]:
    """Nodes of ascending keys; equal ones are in one node."""
    ends = np.searchsorted(keys, keys[_NODE::_NODE])
    return [_Node(*part) for part in zip(np.split(keys, ends), np.split(rows, ends), strict=True) if len(part[0])]
