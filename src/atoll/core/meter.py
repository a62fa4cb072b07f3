"""Meters: every byte on every link, in both directions."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Meter"]


class Meter:
    """Bytes and messages by link. A link is a hub and a party; ``down`` leads to the party.

    Totals are kept as they come; the single links of a cohort are kept as columns and added up when someone asks.
    """

    def __init__(self) -> None:
        self.bytes_down = 0
        self.bytes_up = 0
        self.messages_down = 0
        self.messages_up = 0
        self.bytes_between = 0
        self._columns: dict[tuple[str, str], list[tuple[NDArray[np.int64], NDArray[np.int64]]]] = defaultdict(list)

    def down(self, hub: str, positions: NDArray[np.int64], nbytes: int | NDArray[np.int64]) -> None:
        """A message went to each of these parties: the same, or of one size each."""
        if isinstance(nbytes, np.ndarray):
            each, total = nbytes, int(nbytes.sum())
        else:
            each, total = np.full(len(positions), nbytes, dtype=np.int64), nbytes * len(positions)
        self.bytes_down += total
        self.messages_down += len(positions)
        self._add((hub, "down"), positions, each)

    def up(self, hub: str, positions: NDArray[np.int64], nbytes: NDArray[np.int64]) -> None:
        """A reply came from each of these parties."""
        self.bytes_up += int(nbytes.sum())
        self.messages_up += len(positions)
        self._add((hub, "up"), positions, nbytes)

    def between(self, nbytes: int) -> None:
        """A message of a session passed from party to party."""
        self.bytes_between += nbytes

    def absorb(self, other: Meter) -> None:
        """Add another meter to this one: a nested program is over."""
        for name, value in other.totals().items():
            setattr(self, name, getattr(self, name) + value)
        for key, columns in other._columns.items():
            self._columns[key].extend(columns)

    def _add(self, key: tuple[str, str], positions: NDArray[np.int64], nbytes: NDArray[np.int64]) -> None:
        columns = self._columns[key]
        columns.append((np.asarray(positions), nbytes))
        if len(columns) > 1024:
            columns[:] = [_compact(columns)]

    def links(self, hub: str = "server", direction: str = "down") -> dict[int, int]:
        """Bytes by party position on one hub's links in one direction."""
        columns = self._columns.get((hub, direction), [])
        if not columns:
            return {}
        positions, nbytes = _compact(columns)
        return dict(zip(positions.tolist(), nbytes.tolist(), strict=True))

    def totals(self) -> dict[str, int]:
        """The totals by name."""
        return {
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
            "bytes_between": self.bytes_between,
            "messages_down": self.messages_down,
            "messages_up": self.messages_up,
        }

    def save(self) -> dict[str, Any]:
        """Everything as a tree, for a checkpoint."""
        links = []
        for (hub, direction), columns in self._columns.items():
            positions, nbytes = _compact(columns)
            links.append({"hub": hub, "direction": direction, "positions": positions, "bytes": nbytes})
        return {"totals": self.totals(), "links": links}

    @classmethod
    def load(cls, saved: dict[str, Any]) -> Meter:
        """Back from a checkpoint."""
        meter = cls()
        for name, value in saved["totals"].items():
            setattr(meter, name, int(value))
        for link in saved["links"]:
            key = (link["hub"], link["direction"])
            meter._columns[key] = [(np.array(link["positions"]), np.array(link["bytes"]))]
        return meter


def _compact(
    columns: list[tuple[NDArray[np.int64], NDArray[np.int64]]],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    positions = np.concatenate([c[0] for c in columns])
    nbytes = np.concatenate([c[1] for c in columns])
    unique, inverse = np.unique(positions, return_inverse=True)
    total = np.zeros(len(unique), dtype=np.int64)
    np.add.at(total, inverse, nbytes)
    return unique, total
