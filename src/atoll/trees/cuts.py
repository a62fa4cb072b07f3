"""Common bins: quantiles of all parties' rows, found by counting alone; features that are missing are not counted.

A single-precision number with its sign bit turned is a whole number that has the same order. Three contacts count its first 12, 18 and 24 bits,
the later two only inside those intervals that hold a wanted rank. So the cuts are right to ``2^-15`` of a value, whatever its distribution; the server sees
counts, never a value, and a secure reducer can add them up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .kernel import place_in_bins

__all__ = ["LEVELS", "Search", "binned", "count_prefixes", "ordered"]

LEVELS = (12, 18, 24)
_STEP = 6
_NONE = np.uint32(0xFFFFFFFF)
"""Fills up rows of prefixes; no prefix of 18 bits is so large."""


def ordered(x: NDArray[Any]) -> NDArray[np.uint32]:
    """Whole numbers in the order of single-precision ``x``; zeros of both signs are one."""
    bits = (x.astype(np.float32) + np.float32(0.0)).view(np.uint32)
    return np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))


def value_of(key: NDArray[np.uint32]) -> NDArray[np.float32]:
    """The number whose place in the order is ``key``."""
    bits = np.where(key >> 31, key & np.uint32(0x7FFFFFFF), ~key)
    return bits.astype(np.uint32).view(np.float32)


def count_prefixes(x: NDArray[Any], level: int, prefixes: NDArray[np.uint32]) -> NDArray[np.int64]:
    """How many values of each feature begin with which bits.

    Args:
        x: ``(rows, features)``.
        level: 0, 1 or 2.
        prefixes: the intervals to look into, ``(features, intervals)``, sorted; not used at level 0.

    Returns:
        ``(features, 4096)``, or ``(features, intervals * 64)`` at the later levels.
    """
    shift = 32 - LEVELS[level]
    known = (ordered(column[~np.isnan(column)]) for column in x.astype(np.float32, copy=False).T)
    if level == 0:
        return np.stack([np.bincount(column >> shift, minlength=1 << LEVELS[0]) for column in known]).astype(np.int64)
    made = np.zeros((x.shape[1], prefixes.shape[1] << _STEP), np.int64)
    for f, column in enumerate(known):
        asked = prefixes[f][prefixes[f] < 1 << LEVELS[level - 1]]
        place_of = np.full(1 << LEVELS[level - 1], -1)
        place_of[asked] = np.arange(len(asked))
        place = place_of[column >> (shift + _STEP)]
        inside = place >= 0
        rest = (column[inside] >> shift) & np.uint32((1 << _STEP) - 1)
        made[f] = np.bincount((place[inside] << _STEP) + rest, minlength=made.shape[1])
    return made


_Found = tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]


@dataclass
class Search:
    """The server's search for the cuts of all features.

    Attributes:
        bins: bins that should have equally many of the rows with the feature.
        rows: how many rows have each feature.
        ranks: of each feature the wanted ranks: a cut comes after so many rows.
        found: for each feature, the prefixes that hold a rank, how many rows come before each of them, how many ranks it holds, and whether no row comes after.
    """

    bins: int
    rows: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    ranks: list[NDArray[np.int64]] = field(default_factory=list)
    found: list[_Found] = field(default_factory=list)

    def asked(self) -> NDArray[np.uint32]:
        """The intervals to look into next, ``(features, intervals)``."""
        longest = max((len(prefixes) for prefixes, *_ in self.found), default=0)
        made = np.full((len(self.found), longest), _NONE)
        for f, (prefixes, *_) in enumerate(self.found):
            made[f, : len(prefixes)] = prefixes
        return made

    def narrow(self, counts: NDArray[np.int64], level: int) -> None:
        """Find the intervals of the next level that hold the ranks."""
        if level == 0:
            start = np.arange(counts.shape[1], dtype=np.uint32)
            self.rows = counts.sum(axis=1)
            self.ranks = [np.unique(np.arange(1, self.bins) * rows // self.bins) for rows in self.rows]
            self.found = [self._holding(f, start, row, np.cumsum(row) - row) for f, row in enumerate(counts)]
            return
        for f, (prefixes, before, *_) in enumerate(self.found):
            table = counts[f, : len(prefixes) << _STEP].reshape(len(prefixes), 1 << _STEP)
            inner = (before[:, None] + np.cumsum(table, axis=1) - table).ravel()
            ends = np.arange(1 << _STEP, dtype=np.uint32)
            names: NDArray[np.uint32] = np.bitwise_or(prefixes[:, None] << np.uint32(_STEP), ends, dtype=np.uint32)
            self.found[f] = self._holding(f, names.ravel(), table.ravel(), inner)

    def _holding(
        self, f: int, names: NDArray[np.uint32], counts: NDArray[np.int64], before: NDArray[np.int64]
    ) -> _Found:
        # An interval holds the rows at the places [before, before + count); a rank is the place of a row.
        ranks = np.searchsorted(self.ranks[f], before + counts) - np.searchsorted(self.ranks[f], before)
        held = ranks > 0
        return names[held], before[held], ranks[held], (before + counts >= self.rows[f])[held]

    def cuts(self, most: int) -> list[NDArray[np.float32]]:
        """At most ``most`` cuts of each feature, ascending.

        They are the upper ends of the intervals that were found, where rows come after them. Where there is room, the lower ends of those with the
        most rows come too: a common value has a bin of its own.
        """
        made = []
        for prefixes, _, ranks, last in self.found:
            upper, lower = _end(prefixes + np.uint32(1)), _end(prefixes)
            known = np.unique(upper[~last])
            for start in lower[np.argsort(-ranks, kind="stable")]:
                if len(known) < most:
                    known = np.union1d(known, start)
            made.append(known[np.isfinite(known)].astype(np.float32))
        return made


def _end(prefixes: NDArray[np.uint32]) -> NDArray[np.float32]:
    """The lowest number of each interval of the last level; infinity or NaN beyond the largest."""
    with np.errstate(invalid="ignore"):
        return value_of(prefixes << np.uint32(32 - LEVELS[-1]))


def binned(x: NDArray[Any], cuts: list[NDArray[np.float32]], missing: int = -1) -> Any:
    """The bin of each value, ``(rows, features)``: the number of cuts that are not above it, or ``missing`` for NaN."""
    made = np.empty(x.shape, np.uint8 if missing < 256 else np.uint16)
    for f, mine in enumerate(cuts):
        place_in_bins(x[:, f].astype(np.float32), mine, made, f, missing)
    return made
