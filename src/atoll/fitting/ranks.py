"""Quantiles of columns from counts that add up: each contact counts the next bits of the values around a rank.

A value's key (`atoll.statistics.sketch`) is a whole number in the order of the values. Of each wanted rank the leading bits are known; the parties count how
many of their values with these bits have which next ones. After 64 bits one number is left, a value of the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.statistics.sketch import BITS, between, keys_of, middle_of, number_of, positions_of

__all__ = ["RankSearch", "rank_counts"]

_STEP = 8


def rank_counts(columns: Sequence[NDArray[np.float64]], message: Mapping[str, Any]) -> NDArray[np.int64]:
    """How many values have which next bits, ``(targets, 2^bits)``, at one party.

    Args:
        columns: values of each column; what is not finite is left out.
        message: what `RankSearch.asked` asks.
    """
    known, bits = int(message["known"]), int(message["bits"])
    made = np.zeros((len(message["targets"]), 1 << bits), np.int64)
    for k, (column, prefix) in enumerate(message["targets"]):
        values = columns[int(column)]
        keys = keys_of(values[np.isfinite(values)])
        if known:
            keys = keys[(keys >> (BITS - known)) == int(prefix)]
            places = (keys >> (BITS - known - bits)) & ((1 << bits) - 1)
        else:
            places = (keys >> (BITS - bits)) + (1 << (bits - 1))
        made[k] = np.bincount(places, minlength=1 << bits)
    return made


class RankSearch:
    """The server's search.

    Args:
        columns: number of columns.
        shares: quantiles of each, from 0 to 1.
        most: bits that are found; with fewer than 64 a value errs by at most ``2^-(most - 11)``, relative.
    """

    def __init__(self, columns: int, shares: Sequence[float], most: int = BITS) -> None:
        self._columns, self._shares, self._most = columns, tuple(shares), most
        self._known = 0
        self._wanted: list[tuple[int, int]] = []
        self._prefix: dict[tuple[int, int], int] = {}
        self._below: dict[tuple[int, int], int] = {}
        self.sizes: NDArray[np.int64] = np.zeros(columns, np.int64)

    @property
    def open(self) -> bool:
        """Whether bits are left to find."""
        return self._known < self._most

    def _targets(self) -> list[tuple[int, int]]:
        if not self._known:
            return [(c, 0) for c in range(self._columns)]
        return sorted({(c, self._prefix[c, rank]) for c, rank in self._wanted})

    def asked(self) -> dict[str, Any]:
        """The next message: ``targets`` (column and known bits), how many bits are ``known``, and how many are counted."""
        bits = min(_STEP, self._most - self._known)
        return {"targets": [list(target) for target in self._targets()], "known": self._known, "bits": bits}

    def take(self, counts: NDArray[Any]) -> None:
        """Narrow the search by the sums of all parties' counts, ``(targets, 2^bits)``."""
        bits = min(_STEP, self._most - self._known)
        rows = dict(zip(self._targets(), np.rint(counts).astype(np.int64), strict=True))
        if not self._known:
            self._begin(counts.sum(axis=1))
        for c, rank in self._wanted:
            row = rows[c, self._prefix[c, rank] if self._known else 0]
            cumulative = self._below[c, rank] + np.cumsum(row)
            place = int(np.searchsorted(cumulative, rank, side="right"))
            self._below[c, rank] = int(cumulative[place] - row[place])
            before = self._prefix[c, rank] << bits if self._known else -(1 << (bits - 1))
            self._prefix[c, rank] = before + place
        self._known += bits

    def _begin(self, sizes: NDArray[Any]) -> None:
        self.sizes = np.rint(sizes).astype(np.int64)
        self._wanted = [
            (c, rank)
            for c, n in enumerate(self.sizes.tolist())
            for rank in sorted({r for share in self._shares for r in positions_of(share, n)[:2]} if n else ())
        ]
        self._below, self._prefix = dict.fromkeys(self._wanted, 0), dict.fromkeys(self._wanted, 0)

    def quantiles(self) -> NDArray[np.float64]:
        """The quantiles, interpolated as `numpy.quantile` does, ``(columns, shares)``; NaN of a column without values."""
        left = BITS - self._most
        value = {
            key: number_of(prefix) if not left else middle_of(prefix, left) for key, prefix in self._prefix.items()
        }
        made = np.full((self._columns, len(self._shares)), np.nan)
        for c, n in enumerate(self.sizes.tolist()):
            for k, share in enumerate(self._shares if n else ()):
                low, high, weight = positions_of(share, n)
                made[c, k] = between(value[c, low], value[c, high], weight)
        return made
