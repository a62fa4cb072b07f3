"""The rows of clients in columns: of one edge, whose members have some of the roster's positions, or of a round, in the order of replies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.requests.party import Parties

__all__ = ["members", "places_among", "places_found", "places_of"]


def members(parties: Parties) -> NDArray[np.int64]:
    """Return the positions of the clients that a rule started with, ascending: its columns have one entry for each, in this order."""
    return np.sort(np.asarray(parties.positions, dtype=np.int64))


def places_of(who: Any, positions: Any) -> NDArray[np.int64]:
    """Return the rows of some clients in the columns.

    Args:
        who: from `members`.
        positions: positions in the roster.
    """
    return np.searchsorted(who, np.asarray(positions, dtype=np.int64))


def places_among(who: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows of some clients in columns of any order; each client must occur once."""
    order = np.argsort(who, kind="stable")
    return np.asarray(order[np.searchsorted(who, positions, sorter=order)])


def places_found(who: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return `places_among` of the clients that are in ``who``; the others are left out."""
    if not len(who) or not len(positions):
        return np.zeros(0, dtype=np.int64)
    place = np.full(max(int(who.max()), int(positions.max())) + 1, -1, dtype=np.int64)
    place[who] = np.arange(len(who))
    found = place[positions]
    return found[found >= 0]
