"""Clients that do only part of their local work."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from atoll.core.algebra.rng import hash64, mix64
from atoll.core.errors import ConfigError

__all__ = ["Stragglers"]

_PLACE = np.uint64(hash64("straggler"))


@dataclass(frozen=True)
class Stragglers:
    """Makes each client of a cohort a straggler with a given probability. A straggler does ``1 .. E-1`` of its ``E`` epochs, all equally likely.

    The draw follows the client's key in the request, so that compared algorithms have the same stragglers. Li et al. 2020,
    "Federated Optimization in Heterogeneous Networks", section 5.2.

    Attributes:
        probability: probability of being a straggler, in [0, 1].
    """

    probability: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.probability <= 1.0:
            raise ConfigError(f"probability={self.probability}", where="Stragglers", remedy="use a number from 0 to 1")

    def done(self, full: int, key: int) -> int:
        """Return epochs (or steps) that a client does of ``full``."""
        return int(self.done_many(full, np.array([key], dtype=np.uint64))[0])

    def done_many(self, full: int, keys: np.ndarray) -> np.ndarray:
        """Return the same for many clients, ``(clients,)``."""
        draw = mix64(np.asarray(keys, dtype=np.uint64) ^ _PLACE)
        late = _uniform(draw) < self.probability
        part = 1 + np.floor(_uniform(mix64(draw)) * (full - 1)).astype(np.int64)
        return np.where(late & (full > 1), part, full)


def _uniform(bits: np.ndarray) -> np.ndarray:
    """Return numbers in [0, 1) with 53 random bits."""
    return np.asarray((bits >> np.uint64(11)) * 2.0**-53)
