"""Arrivals that a program keeps until it uses them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.federation.flight import Handle

__all__ = ["WaitingReplies", "positions_of"]


class WaitingReplies(Sequence["Handle"]):
    """Arrivals in order of time; simultaneous ones in the order of their requests.

    They are not part of the state: unused arrivals arrive again in a resumed run.
    """

    def __init__(self) -> None:
        self._handles: list[Handle] = []

    def __len__(self) -> int:
        return len(self._handles)

    def __getitem__(self, i: Any) -> Any:
        return self._handles[i]

    @property
    def positions(self) -> NDArray[np.int64]:
        """Positions of the senders."""
        return positions_of(self._handles)

    def add(self, arrived: Iterable[Handle]) -> None:
        """Add arrivals."""
        self._handles = sorted([*self._handles, *arrived], key=_order)

    def let_go(self, handles: Iterable[Handle]) -> None:
        """Remove arrivals."""
        gone = set(map(id, handles))
        self._handles = [handle for handle in self._handles if id(handle) not in gone]


def positions_of(handles: Iterable[Handle]) -> NDArray[np.int64]:
    """Return the positions of the senders of arrivals."""
    return np.array([handle.party.position for handle in handles], dtype=np.int64)


def _order(handle: Handle) -> tuple[float, int, int]:
    return float(handle.flight.arrives[handle.index]), handle.flight.request.turn, handle.party.position
