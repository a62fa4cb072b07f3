"""A running sum that owns its memory: summands are added in place, in cohort order, and their sources are freed along the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atoll.core.algebra.aggregate import add_into
from atoll.core.requests.request import PartialSum, RunningSum
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
        self._none = positions[:0]
        self._sum = RunningSum(_add_in_place)

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
        require_fit(self._sum.totals, part.totals)
        self._sum.add(part)

    @property
    def begun(self) -> bool:
        """Tell whether a reply with values is in it."""
        return bool(self._sum.totals)

    def reject(self, position: int, why: str) -> None:
        """Note that a party's reply is not in the sum."""
        self._sum.add(PartialSum({}, self._none, rejected={position: why}))

    def fold_sum(self) -> PartialSum:
        """Return the sum and who is in it."""
        return self._sum.result()


def _add_in_place(totals: Totals, more: Totals) -> Totals:
    add_into(totals, more)
    return totals
