"""Where columns hold a client: they may be one edge's, whose members are some of the roster's positions, or a round's, in the order of its replies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.requests.party import Parties

__all__ = ["members", "places_among", "places_of"]


def members(parties: Parties) -> NDArray[np.int64]:
    """The positions of those that a rule was begun with, in rising order: its columns have one entry for each, in this order."""
    return np.sort(np.asarray(parties.positions, dtype=np.int64))


def places_of(who: Any, positions: Any) -> NDArray[np.int64]:
    """The places of some of them in the columns.

    Args:
        who: from `members`.
        positions: in the roster.
    """
    return np.searchsorted(who, np.asarray(positions, dtype=np.int64))


def places_among(who: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """The places of some of those in columns that are in any order, each of them there once."""
    order = np.argsort(who, kind="stable")
    return np.asarray(order[np.searchsorted(who, positions, sorter=order)])
