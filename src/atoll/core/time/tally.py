"""Tallies: counts by party, kept as columns and added up on request."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Key", "Tally"]

Key = tuple[str, str]
"""A hub, and the kind of count on its links."""

_Column = tuple["NDArray[np.int64]", "NDArray[np.int64]", "NDArray[np.int64] | None"]
"""Positions, the amount of each, and how often it was counted (``None``: once each)."""

_MOST = 1024
"""Maximum number of columns of one key before they are added up, so that memory grows with the parties, not with the requests."""


class Tally:
    """Integers by key and party: amounts, and how often something was counted."""

    def __init__(self) -> None:
        self._columns: dict[Key, list[_Column]] = defaultdict(list)

    def add(
        self,
        key: Key,
        positions: NDArray[np.int64],
        amounts: NDArray[np.int64],
        times: NDArray[np.int64] | None = None,
    ) -> None:
        """Count.

        Args:
            key: hub and kind.
            positions: positions of the parties; a position that occurs twice counts twice.
            amounts: the amount of each.
            times: how often each is counted; ``None`` is once.
        """
        columns = self._columns[key]
        columns.append((np.asarray(positions), amounts, times))
        if len(columns) > _MOST:
            columns[:] = [_compact(columns)]

    def of(self, key: Key) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The parties, ascending, with the sum of their amounts and how often they were counted, ``(parties,)`` each."""
        columns = self._columns.get(key)
        if not columns:
            none = np.zeros(0, dtype=np.int64)
            return none, none, none
        columns[:] = [_compact(columns)]
        return _compact(columns)

    def keys(self, kind: str, hub: str | None = None) -> list[Key]:
        """Keys of a kind with at least one count, of one hub or of all."""
        return [key for key, columns in self._columns.items() if columns and key[1] == kind and hub in (None, key[0])]

    def absorb(self, other: Tally) -> None:
        """Add another tally to this one."""
        for key, columns in other._columns.items():
            self._columns[key].extend(columns)

    def items(self) -> Iterator[tuple[Key, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
        """Each key with the result of `of`."""
        for key in list(self._columns):
            yield key, *self.of(key)

    def save(self) -> list[dict[str, Any]]:
        """The tally as trees, for a checkpoint."""
        return [
            {"hub": hub, "direction": kind, "positions": positions, "bytes": amounts, "times": times}
            for (hub, kind), positions, amounts, times in self.items()
        ]

    @classmethod
    def load(cls, saved: list[dict[str, Any]]) -> Tally:
        """Rebuild the tally from a checkpoint."""
        tally = cls()
        for link in saved:
            column = (np.array(link["positions"]), np.array(link["bytes"]), np.array(link["times"]))
            tally._columns[link["hub"], link["direction"]] = [column]
        return tally


def _compact(columns: list[_Column]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    if len(columns) == 1 and columns[0][2] is not None and (np.diff(columns[0][0]) > 0).all():
        return columns[0]  # type: ignore[return-value]
    positions = np.concatenate([c[0] for c in columns])
    amounts = np.concatenate([c[1] for c in columns])
    times = np.concatenate([np.ones(len(c[0]), dtype=np.int64) if c[2] is None else c[2] for c in columns])
    unique, inverse = np.unique(positions, return_inverse=True)
    total, often = np.zeros(len(unique), dtype=np.int64), np.zeros(len(unique), dtype=np.int64)
    np.add.at(total, inverse, amounts)
    np.add.at(often, inverse, times)
    return unique, total, often
