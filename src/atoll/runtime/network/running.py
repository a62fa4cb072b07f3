"""A running sum that owns its memory: summands are added in place, in cohort order, and their sources are freed along the way."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from atoll.core.algebra.running import add_into
from atoll.core.requests.request import PartialSum
from atoll.core.requests.wire import unpack_folded

from .totals import require_fit

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from atoll.core.algebra.aggregate import Totals

__all__ = ["Running"]


class Running:
    """The sum of the replies so far.

    Adding in place gives the same bits as adding into new arrays. A sum takes the memory of one summand, however many
    you add.

    Args:
        positions: the cohort, which gives the order.
    """

    def __init__(self, positions: NDArray[np.int64]) -> None:
        self._totals: Totals = {}
        self._parts = [PartialSum({}, positions[:0])]

    def add(self, frame: Any, like: Totals | None = None) -> None:
        """Add the next reply of the cohort, as its site sent it and `require_reply` accepted it.

        Args:
            frame: the reply.
            like: what it must fit besides those before it.

        Raises:
            MessageError: its form differs from those before it; the sum is unchanged.
        """
        if frame["op"] == "lost":
            self.reject(int(frame["party"]), str(frame.get("why", "the party was lost")))
            return
        part = unpack_folded(frame["folded"])
        require_fit(like or {}, part.totals)
        require_fit(self._totals, part.totals)
        add_into(self._totals, part.totals)
        part.totals = {}  # it is in the sum: its memory goes now
        self._parts.append(part)

    @property
    def begun(self) -> bool:
        """Tell whether a reply with values is in it."""
        return bool(self._totals)

    def reject(self, position: int, why: str) -> None:
        """Note that a party's reply is not in the sum."""
        self._parts.append(PartialSum({}, self._parts[0].senders, rejected={position: why}))

    def folded(self) -> PartialSum:
        """Return the sum and who is in it."""
        return replace(PartialSum.zero().merge(*self._parts), totals=self._totals)
