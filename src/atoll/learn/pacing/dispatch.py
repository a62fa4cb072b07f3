"""How a round of clients of several versions begins: who is sent the model, who goes on, who still works."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.flight import Flight

__all__ = ["Dispatch", "dispatched"]


@dataclass(frozen=True)
class Dispatch:
    """The beginning of a round, and what it came to: columns over the population.

    Attributes:
        asked: invited.
        fresh: they are sent the model, being up to date or deprecated.
        deprecated: they have lagged too far.
        going: they go on with the model they have.
        busy: they still work on an earlier round's.
        crashed: they do not answer.
        saved: whole epochs that those who do not answer had done in this round.
        fraction: share of a local update that each had done.
    """

    asked: NDArray[np.bool_]
    fresh: NDArray[np.bool_]
    deprecated: NDArray[np.bool_]
    going: NDArray[np.bool_]
    busy: NDArray[np.bool_]
    crashed: NDArray[np.bool_]
    saved: NDArray[np.int64]
    fraction: NDArray[np.float64]

    @property
    def begin(self) -> NDArray[np.bool_]:
        """Who begins to train."""
        return self.fresh | self.going

    @property
    def working(self) -> int:
        """Clients that may answer in this round."""
        return int((self.begin | self.busy).sum())

    def groups(
        self, version: NDArray[np.int64], progress: NDArray[np.int64]
    ) -> list[tuple[int, int, NDArray[np.int64]]]:
        """Who is asked alike: ``(base version, whole epochs done before, places)``."""
        begins = np.flatnonzero(self.begin)
        pairs = np.stack([version[begins], progress[begins]], axis=1)
        kinds, which = np.unique(pairs, axis=0, return_inverse=True)
        return [(int(v), int(p), begins[which.ravel() == i]) for i, (v, p) in enumerate(kinds)]

    def learning(self, places: NDArray[np.int64], flight: Flight, epochs: int) -> Dispatch:
        """The same, knowing who crashes in a request of so many epochs, and where."""
        lost = ~np.isfinite(flight.arrives)
        crashed, saved, fraction = self.crashed.copy(), self.saved.copy(), self.fraction.copy()
        crashed[places], fraction[places] = lost, flight.fraction
        saved[places] = np.where(lost, np.floor(flight.fraction * epochs), 0).astype(np.int64)
        return replace(self, crashed=crashed, saved=saved, fraction=fraction)

    def called_off(self, places: NDArray[np.int64], flight: Flight, now: float, epochs: int) -> Dispatch:
        """The same, with those of a request who still work told to stop: they keep the whole epochs that they have done."""
        took = flight.arrives - flight.sent
        done = np.where(flight.open, (now - flight.sent) / np.where(flight.open & (took > 0), took, 1.0), 0.0)
        saved = self.saved.copy()
        saved[places] += np.floor(done * epochs).astype(np.int64)
        return replace(self, saved=saved)


def dispatched(
    asked: NDArray[np.bool_], busy: NDArray[np.bool_], lag: NDArray[np.int64], old: NDArray[np.bool_]
) -> Dispatch:
    """Lag-tolerant distribution (Eq. 3.7): who is up to date or too old gets the model, unless it was not invited.

    Args:
        asked: who is invited.
        busy: who still works.
        lag: of each client's model.
        old: whose lag is beyond the tolerance.
    """
    deprecated = asked & old
    fresh = deprecated | (asked & (lag == 0))
    none = np.zeros(len(asked))
    return Dispatch(
        asked,
        fresh,
        deprecated,
        asked & ~fresh & ~busy,
        busy & ~deprecated,
        none.astype(bool),
        none.astype(np.int64),
        none,
    )
