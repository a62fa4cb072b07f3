"""Meters: every byte on every link, in both directions, and the energy that devices spend."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Meter"]


_Column = tuple["NDArray[np.int64]", "NDArray[np.int64]", "NDArray[np.int64] | None"]
"""Positions, what was counted of each, and how often (``None``: once each)."""


class Meter:
    """Bytes and messages by link, and energy by device. A link is a hub and a party; ``down`` leads to the party.

    Totals are kept as they come; the single links of a cohort are kept as columns and added up when someone asks. Energy is kept in whole
    microjoules, so that sums do not depend on their order.
    """

    def __init__(self) -> None:
        self.bytes_down = 0
        self.bytes_up = 0
        self.messages_down = 0
        self.messages_up = 0
        self.bytes_between = 0
        self._columns: dict[tuple[str, str], list[_Column]] = defaultdict(list)
        self._microjoules: int | None = None

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

    def control(self, hub: str, direction: str, positions: NDArray[np.int64], nbytes: int, times: int = 1) -> None:
        """Messages of a protocol that are neither requests nor replies: a signal, a count. They are in the bytes, not in who was asked or answered.

        Args:
            hub: of the link.
            direction: ``"down"`` or ``"up"``.
            positions: the parties.
            nbytes: of each message.
            times: messages a party.
        """
        size, n = nbytes * times, len(positions)
        for name, value in ((f"bytes_{direction}", size * n), (f"messages_{direction}", times * n)):
            setattr(self, name, getattr(self, name) + value)
        self._add((hub, direction), positions, np.full(n, size, dtype=np.int64), np.zeros(n, dtype=np.int64))

    def energy(self, hub: str, positions: NDArray[np.int64], joules: NDArray[np.float64]) -> None:
        """What each of these devices spends on a request; negative where it is given back."""
        each = np.rint(joules * 1e6).astype(np.int64)
        self._microjoules = (self._microjoules or 0) + int(each.sum())
        self._add((hub, "energy"), positions, each)

    @property
    def joules(self) -> float | None:
        """What all devices have spent so far on requests of all hubs; ``None`` where nobody counts."""
        return None if self._microjoules is None else self._microjoules / 1e6

    def spent(self, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """Joules that each of these devices has spent so far, on requests of all hubs."""
        total = np.zeros(len(positions), dtype=np.int64)
        for (_, kind), columns in self._columns.items():
            if kind == "energy" and columns:
                columns[:] = [_compact(columns)]
                known, amount, _ = columns[0]
                place = np.minimum(np.searchsorted(known, positions), max(0, len(known) - 1))
                if len(known):
                    total += np.where(known[place] == positions, amount[place], 0)
        return total / 1e6

    def between(self, nbytes: int) -> None:
        """A message of a session passed from party to party."""
        self.bytes_between += nbytes

    def absorb(self, other: Meter) -> None:
        """Add another meter to this one: a nested program is over."""
        for name, value in other.totals().items():
            setattr(self, name, getattr(self, name) + value)
        for key, columns in other._columns.items():
            self._columns[key].extend(columns)
        if other._microjoules is not None:
            self._microjoules = (self._microjoules or 0) + other._microjoules

    def _add(
        self,
        key: tuple[str, str],
        positions: NDArray[np.int64],
        nbytes: NDArray[np.int64],
        times: NDArray[np.int64] | None = None,
    ) -> None:
        columns = self._columns[key]
        columns.append((np.asarray(positions), nbytes, times))
        if len(columns) > 1024:
            columns[:] = [_compact(columns)]

    def links(self, hub: str = "server", direction: str = "down") -> dict[int, int]:
        """Bytes by party position on one hub's links in one direction; for ``"energy"``, microjoules."""
        columns = self._columns.get((hub, direction), [])
        if not columns:
            return {}
        positions, nbytes, _ = _compact(columns)
        return dict(zip(positions.tolist(), nbytes.tolist(), strict=True))

    def devices(self, population: int, hub: str | None = None) -> dict[str, NDArray[Any]]:
        """What every device was asked and spent, as columns with one entry a position.

        Args:
            population: how many devices; parties at later positions are left out.
            hub: requests of this hub only; by default of all.

        Returns:
            ``asked`` and ``answered`` (requests), ``bytes_down``, ``bytes_up`` and ``energy`` (joules).
        """
        amount = {kind: np.zeros(population, dtype=np.int64) for kind in ("down", "up", "energy")}
        times = {kind: np.zeros(population, dtype=np.int64) for kind in ("down", "up", "energy")}
        for (at, kind), columns in self._columns.items():
            if columns and hub in (None, at):
                positions, total, often = _compact(columns)
                keep = positions < population
                amount[kind][positions[keep]] += total[keep]
                times[kind][positions[keep]] += often[keep]
        return {
            "asked": times["down"],
            "answered": times["up"],
            "bytes_down": amount["down"],
            "bytes_up": amount["up"],
            "energy": amount["energy"] / 1e6,
        }

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
            positions, nbytes, times = _compact(columns)
            link = {"hub": hub, "direction": direction, "positions": positions, "bytes": nbytes, "times": times}
            links.append(link)
        return {"totals": self.totals(), "links": links}

    @classmethod
    def load(cls, saved: dict[str, Any]) -> Meter:
        """Back from a checkpoint."""
        meter = cls()
        for name, value in saved["totals"].items():
            setattr(meter, name, int(value))
        for link in saved["links"]:
            key = (link["hub"], link["direction"])
            meter._columns[key] = [(np.array(link["positions"]), np.array(link["bytes"]), np.array(link["times"]))]
            if link["direction"] == "energy":
                meter._microjoules = (meter._microjoules or 0) + int(np.sum(link["bytes"]))
        return meter


def _compact(columns: list[_Column]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    if len(columns) == 1 and columns[0][2] is not None:
        return columns[0]  # type: ignore[return-value]
    positions = np.concatenate([c[0] for c in columns])
    nbytes = np.concatenate([c[1] for c in columns])
    times = np.concatenate([np.ones(len(c[0]), dtype=np.int64) if c[2] is None else c[2] for c in columns])
    unique, inverse = np.unique(positions, return_inverse=True)
    total, often = np.zeros(len(unique), dtype=np.int64), np.zeros(len(unique), dtype=np.int64)
    np.add.at(total, inverse, nbytes)
    np.add.at(often, inverse, times)
    return unique, total, often
