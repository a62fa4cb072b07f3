"""LIPP: a learned index that never searches."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from .registry import Floats, KeyIndex, Places, require_keys

__all__ = ["PreciseIndex"]

_SLOTS = 2
"""Slots for each key of a node."""
_SMALLEST = 5e-324


class PreciseIndex(KeyIndex):
    """A tree whose nodes put each key into a slot by a line; keys that meet in a slot become a node below it, so that a key is where its lines say (Wu et al. 2021, "Updatable Learned Index with Precise Positions", LIPP).

    A line is the one under which few keys meet: the paper looks for the smallest number by trying 1, 2, 3, … (FMCD); here 1, 2, 3, 4, 6, 8, 12, … of all nodes of a level at once. Each slot also has the number of keys before it, so that
    a number between keys has a rank without a search. New keys go to free slots or become nodes; a tree that has doubled is built anew, where the paper does so for the part below a node. The rows of keys lie in one array, which an insert copies.
    """

    name: ClassVar[str] = "lipp"
    inserts: ClassVar[bool] = True

    def __init__(self, keys: Any) -> None:
        self._all = require_keys(keys, self.name)
        super().__init__(self._all)

    def build(self, keys: Floats) -> None:
        """Build the tree."""
        self._built = len(keys)
        self._lines, self._first = np.zeros((0, 3)), np.zeros(0, np.int64)
        """Of each node the middle of its line, the width of a slot and the number of slots; and its first slot."""
        self._above, self._depths = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._keys, self._child = np.zeros(0), np.zeros(0, np.int64)
        """Of each slot its key, NaN for none, and its node, -1 for none."""
        if len(keys):
            self._grow(keys, np.array([0, len(keys)]), np.array([-1]), np.zeros(1, np.int64))
        self._count_keys()

    def _grow(self, keys: Floats, bounds: Places, above: Places, depths: Places) -> None:
        """Make nodes of segments of ascending keys, and all nodes below them.

        Args:
            keys: the keys.
            bounds: where segments begin, and the end.
            above: the slot above each, -1 for none.
            depths: of each.
        """
        while len(above):
            counts = np.diff(bounds)
            lines = _fit_lines(keys, bounds)
            node = len(self._lines) + np.arange(len(above))
            sizes = lines[:, 2].astype(np.int64)
            first = len(self._keys) + np.cumsum(sizes) - sizes
            self._child[above[above >= 0]] = node[above >= 0]
            self._lines, self._first = np.concatenate([self._lines, lines]), np.append(self._first, first)
            self._above, self._depths = np.append(self._above, above), np.append(self._depths, depths)
            self._keys = np.append(self._keys, np.full(sizes.sum(), np.nan))
            self._child = np.append(self._child, np.full(sizes.sum(), -1, np.int64))
            home = np.repeat(np.arange(len(above)), counts)
            slot = first[home] + _slots_of(lines[home], keys)
            begins = np.flatnonzero(np.diff(slot, prepend=-1))
            runs = np.diff(begins, append=len(slot))
            single, several = begins[runs == 1], runs > 1
            self._keys[slot[single]] = keys[single]
            above, depths = slot[begins[several]], depths[home[begins[several]]] + 1
            taken = np.repeat(several, runs)
            keys, bounds = keys[taken], np.concatenate([[0], np.cumsum(runs[several])])

    def _count_keys(self) -> None:
        """How many keys are before each slot: sums from the lowest nodes up, then from the root down."""
        counts = (~np.isnan(self._keys)).astype(np.int64)
        nodes = np.argsort(self._depths, kind="stable")
        levels = np.split(nodes, np.flatnonzero(np.diff(self._depths[nodes])) + 1) if len(nodes) else []
        sizes = self._lines[:, 2].astype(np.int64)
        for level in levels[:0:-1]:
            running = np.concatenate([[0], np.cumsum(counts)])
            counts[self._above[level]] = running[self._first[level] + sizes[level]] - running[self._first[level]]
        running = np.concatenate([[0], np.cumsum(counts)])
        base = np.zeros(len(sizes), np.int64)
        self._before = np.zeros(len(counts), np.int64)
        for level in levels:
            inner = level[self._above[level] >= 0]
            base[inner] = self._before[self._above[inner]]
            slots = np.repeat(self._first[level] - np.cumsum(sizes[level]) + sizes[level], sizes[level]) + np.arange(sizes[level].sum())  # fmt: skip
            home = np.repeat(level, sizes[level])
            self._before[slots] = base[home] + running[slots] - running[self._first[home]]

    def _descend(self, asked: Floats) -> Places:
        """The slot in which each number ends; -1 in an empty tree."""
        found = np.full(len(asked), -1, np.int64)
        node, open_ = np.zeros(len(asked), np.int64), np.arange(len(asked) if len(self._lines) else 0)
        while len(open_):
            at = self._first[node[open_]] + _slots_of(self._lines[node[open_]], asked[open_])
            found[open_] = at
            node[open_] = self._child[at]
            open_ = open_[self._child[at] >= 0]
        return found

    def rank(self, asked: Floats) -> Places:
        """Descend: no search."""
        slot = self._descend(asked)
        if not len(self._lines):
            return np.zeros(len(asked), np.int64)
        made: Places = self._before[slot] + (self._keys[slot] < asked)  # no key is NaN, which is below nothing
        return made

    def insert(self, keys: Any) -> None:
        """Add rows, numbered on from the last.

        Args:
            keys: of each new row.
        """
        made = require_keys(keys, self.name)
        known = self._all[self._rows[self._starts[:-1]]]
        self._all = np.concatenate([self._all, made])
        self._rows = np.argsort(self._all, kind="stable").astype(np.int64)
        unique, first = np.unique(self._all[self._rows], return_index=True)
        self._starts = np.append(first, len(self._all)).astype(np.int64)
        if len(unique) > 2 * self._built:
            self.build(unique)
            return
        new = np.setdiff1d(made, known, assume_unique=False)
        slot = self._descend(new)
        held = np.unique(slot[~np.isnan(self._keys[slot])])
        keys, slot = np.concatenate([new, self._keys[held]]), np.concatenate([slot, held])
        order = np.lexsort((keys, slot))
        keys, slot = keys[order], slot[order]
        begins = np.flatnonzero(np.diff(slot, prepend=-1))
        runs = np.diff(begins, append=len(slot))
        self._keys[slot[begins]] = np.where(runs == 1, keys[begins], np.nan)
        several = runs > 1
        home = np.searchsorted(self._first, slot[begins[several]], side="right") - 1
        taken = np.repeat(several, runs)
        self._grow(keys[taken], np.concatenate([[0], np.cumsum(runs[several])]), slot[begins[several]], self._depths[home] + 1)  # fmt: skip
        self._count_keys()


def _slots_of(lines: Floats, keys: Floats) -> Places:
    with np.errstate(over="ignore"):
        made = np.floor((keys - lines[:, 0]) / lines[:, 1] + lines[:, 2] / 2)
    return np.clip(made, 0, lines[:, 2] - 1).astype(np.int64)


def _fit_lines(keys: Floats, bounds: Places) -> Floats:
    """Of each segment the middle of its line, the width of a slot and the number of slots: ``slot = (key - middle) / width + slots / 2``.

    If no ``T`` keys in a row lie closer than the width ``(k[-1-T] - k[T]) / (slots - 2)``, no slot gets more than ``T`` (Wu et al. 2021, section 4). The line through the ends divides every segment.
    """
    low, high = bounds[:-1], bounds[1:]
    counts = high - low
    slots = np.maximum(_SLOTS * counts, 4)
    ends = keys[high - 1] - keys[low]
    made = np.stack([keys[low] / 2 + keys[high - 1] / 2, np.maximum(ends / (slots - 1), _SMALLEST), slots], axis=1)
    waiting, most = np.flatnonzero(counts > 3), 1
    while len(waiting := waiting[counts[waiting] > 3 * most]):
        a, b = low[waiting], high[waiting]
        width = (keys[b - 1 - most] - keys[a + most]) / (slots[waiting] - 2)
        gaps = np.append(keys[most:] - keys[:-most], np.inf)
        least = np.minimum.reduceat(gaps, np.stack([a, b - most], axis=1).ravel())[::2]
        fits = (least >= width) & (width > 0)
        done = waiting[fits]
        made[done, 0] = (keys[a + most] / 2 + keys[b - 1 - most] / 2)[fits]
        made[done, 1] = width[fits]
        waiting = waiting[~fits]
        most = most + 1 if most < 4 else most + most // 2 if most & (most - 1) == 0 else most + most // 3
    home = np.repeat(np.arange(len(counts)), counts)
    place = _slots_of(made[home], keys)
    stuck = (place[low] == place[high - 1]) & (counts > 1)
    made[stuck, 0] = keys[low[stuck]]
    made[stuck, 1] = np.maximum(ends[stuck] / (slots[stuck] / 2 - 1), _SMALLEST)
    return made
