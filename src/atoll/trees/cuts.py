"""Common bins: quantiles of all parties' rows, found by counting alone.

A single-precision number with its sign bit turned is a whole number that has the same order. Three contacts count its first 12, 18 and 24 bits,
the later two only inside those intervals that hold a wanted rank. So the cuts are right to ``2^-15`` of a value, whatever its distribution; the server sees
counts, never a value, and a secure reducer can add them up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .kernel import place_in_bins

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
    keys = ordered(x)
    shift = 32 - LEVELS[level]
    if level == 0:
        return np.stack([np.bincount(column >> shift, minlength=1 << LEVELS[0]) for column in keys.T]).astype(np.int64)
    made = np.zeros((keys.shape[1], prefixes.shape[1] << _STEP), np.int64)
    for f, column in enumerate(keys.T):
        asked = prefixes[f][prefixes[f] < 1 << LEVELS[level - 1]]
        place_of = np.full(1 << LEVELS[level - 1], -1)
        place_of[asked] = np.arange(len(asked))
        place = place_of[column >> (shift + _STEP)]
        inside = place >= 0
        rest = (column[inside] >> shift) & np.uint32((1 << _STEP) - 1)
        made[f] = np.bincount((place[inside] << _STEP) + rest, minlength=made.shape[1])
    return made


@dataclass
class Search:
    """The server's search for the cuts of all features.

    Attributes:
        ranks: wanted ranks, ``(bins - 1,)``: a cut comes after so many rows.
        found: for each feature, the prefixes that hold a rank, how many rows come before each of them, and how many ranks it holds.
    """

    ranks: NDArray[np.int64]
    found: list[tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.int64]]]

    @classmethod
    def among(cls, rows: int, bins: int) -> Search:
        """A search for ``bins`` bins with equally many of ``rows`` rows."""
        return cls(np.unique(np.arange(1, bins) * rows // bins), [])

    def asked(self) -> NDArray[np.uint32]:
        """The intervals to look into next, ``(features, intervals)``."""
        longest = max((len(prefixes) for prefixes, _, _ in self.found), default=0)
        made = np.full((len(self.found), longest), _NONE)
        for f, (prefixes, _, _) in enumerate(self.found):
            made[f, : len(prefixes)] = prefixes
        return made

    def narrow(self, counts: NDArray[np.int64], level: int) -> None:
        """Find the intervals of the next level that hold the ranks."""
        if level == 0:
            start = np.arange(counts.shape[1], dtype=np.uint32)
            self.found = [self._holding(start, row, np.cumsum(row) - row) for row in counts]
            return
        for f, (prefixes, before, _) in enumerate(self.found):
            table = counts[f, : len(prefixes) << _STEP].reshape(len(prefixes), -1)
            inner = (before[:, None] + np.cumsum(table, axis=1) - table).ravel()
            ends = np.arange(1 << _STEP, dtype=np.uint32)
            names: NDArray[np.uint32] = np.bitwise_or(prefixes[:, None] << np.uint32(_STEP), ends, dtype=np.uint32)
            self.found[f] = self._holding(names.ravel(), table.ravel(), inner)

    def _holding(
        self, names: NDArray[np.uint32], counts: NDArray[np.int64], before: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.int64]]:
        # An interval holds the rows at the places [before, before + count); a rank is the place of a row.
        ranks = np.searchsorted(self.ranks, before + counts) - np.searchsorted(self.ranks, before)
        held = ranks > 0
        return names[held], before[held], ranks[held]

    def cuts(self, most: int) -> list[NDArray[np.float32]]:
        """At most ``most`` cuts of each feature, ascending.

        They are the upper ends of the intervals that were found. Where there is room, the lower ends of those with the most rows come too: a
        common value has a bin of its own.
        """
        made = []
        for prefixes, _, ranks in self.found:
            upper, lower = _end(prefixes + np.uint32(1)), _end(prefixes)
            known = np.unique(upper)
            for start in lower[np.argsort(-ranks, kind="stable")]:
                if len(known) < most:
                    known = np.union1d(known, start)
            made.append(known[np.isfinite(known)].astype(np.float32))
        return made


def _end(prefixes: NDArray[np.uint32]) -> NDArray[np.float32]:
    """The lowest number of each interval of the last level; infinity or NaN beyond the largest."""
    with np.errstate(invalid="ignore"):
        return value_of(prefixes << np.uint32(32 - LEVELS[-1]))


def binned(x: NDArray[Any], cuts: list[NDArray[np.float32]]) -> NDArray[np.uint8]:
    """The bin of each value, ``(rows, features)``: the number of cuts that are not above it."""
    made = np.empty(x.shape, np.uint8)
    for f, mine in enumerate(cuts):
        place_in_bins(x[:, f].astype(np.float32), mine, made, f)
    return made
