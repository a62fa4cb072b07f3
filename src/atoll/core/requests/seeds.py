"""Secret seeds of parties, which stages draw from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..algebra.rng import child_keys

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Seeds", "seeded"]


@dataclass(frozen=True, eq=False)
class Seeds:
    """A secret seed of each party for one request.

    Attributes:
        positions: positions of the parties, sorted.
        rows: their seeds, ``(parties, SEED_BYTES)``, uint8.
    """

    positions: NDArray[np.int64]
    rows: NDArray[np.uint8]

    def of(self, positions: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The seeds of these parties, one row each."""
        found: NDArray[np.uint8] = self.rows[np.searchsorted(self.positions, positions)]
        return found

    def packed(self) -> dict[str, Any]:
        """The seeds as a message."""
        return {"positions": self.positions, "rows": self.rows}

    @classmethod
    def unpack(cls, packed: Any) -> Seeds:
        """The inverse of ``packed``."""
        return cls(np.asarray(packed["positions"]), np.asarray(packed["rows"]))


def seeded(keys: NDArray[np.uint64], seed: int) -> NDArray[np.uint8]:
    """Seeds derived from the parties' keys and a number, ``(parties, 32)``: for reproducible simulations, whose guarantees are void."""
    words = np.stack([child_keys(keys, "uplink", seed, i) for i in range(4)], axis=1)
    return words.astype("<u8").view(np.uint8)
