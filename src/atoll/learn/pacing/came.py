"""What came in a round of SAFA, and what of it is taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..selection.members import places_among

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.flight import Arrivals
    from atoll.core.party import Parties

__all__ = ["Came"]


@dataclass(frozen=True)
class Came:
    """The replies of a round.

    Attributes:
        arrived: all of them.
        taken: places in ``arrived`` of those that count in this round; the others count in the next.
    """

    arrived: Arrivals
    taken: NDArray[np.int64]

    @property
    def seconds(self) -> NDArray[np.float64]:
        """From sending to arrival, one a reply."""
        began = np.array([flight.sent for flight in self.arrived.flights])
        return self.arrived.time - began[self.arrived.flight_of] if len(self.arrived) else np.zeros(0)

    @property
    def slowest(self) -> float:
        """Seconds of the slowest that is taken; 0 without any."""
        return float(self.seconds[self.taken].max(initial=0.0))

    def picked(self, positions: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether the replies of these clients are taken."""
        return np.isin(positions, self.arrived.positions[self.taken])

    def places(self, senders: Parties) -> NDArray[np.int64]:
        """Where the replies of these clients are in ``arrived``."""
        return places_among(self.arrived.positions, senders.positions)
