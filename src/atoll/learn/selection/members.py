"""Where a rule's columns hold a client: a rule may be one edge's, whose members are some of the roster's positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.party import Parties

__all__ = ["members", "places_of"]


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
