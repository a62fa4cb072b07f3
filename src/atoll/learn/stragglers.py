"""Clients that do only a part of their local work."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from atoll.core.errors import ConfigError
from atoll.core.rng import Rng

__all__ = ["Stragglers"]


@dataclass(frozen=True)
class Stragglers:
    """Each client of a cohort is a straggler with a probability, and then does ``1 .. E-1`` of its ``E`` epochs, each as likely.

    The draw follows the client's key in the request, so that algorithms that are compared meet the same stragglers. Li et al. 2020,
    "Federated Optimization in Heterogeneous Networks", section 5.2.

    Attributes:
        probability: of being a straggler, in [0, 1].
    """

    probability: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.probability <= 1.0:
            raise ConfigError(f"probability={self.probability}", where="Stragglers", remedy="use a number from 0 to 1")

    def done(self, full: int, key: int) -> int:
        """Epochs (or steps) that a client does of ``full``."""
        draw = Rng(int(key)).child("straggler").generator()
        late = draw.random() < self.probability
        return int(draw.integers(1, full)) if late and full > 1 else full

    def done_many(self, full: int, keys: np.ndarray) -> np.ndarray:
        """The same for many clients, ``(clients,)``."""
        return np.array([self.done(full, int(key)) for key in keys], dtype=np.int64)
