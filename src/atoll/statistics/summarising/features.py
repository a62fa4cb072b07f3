"""Random Fourier features: a random hash of rows whose products are a Gaussian kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.rng import Rng
from atoll.core.errors import ConfigError

__all__ = ["RandomFeatures"]

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class RandomFeatures:
    """``phi(x) = sqrt(2 / D) cos(W x + b)`` with ``W ~ N(0, width^-2 I)`` and ``b ~ U[0, 2 pi]``.

    ``E <phi(x), phi(y)> = exp(-||x - y||^2 / (2 width^2))``, with an error of order ``D^(-1/2)``. Rahimi, Recht 2007, "Random Features for Large-Scale Kernel
    Machines". The hash is public: it follows from the seed. It hides nothing by itself; noise on sums of it does.

    Attributes:
        count: number of features, ``D``.
        width: width of the kernel, in units of the rows.
        seed: draws the hash.
    """

    count: int = 200
    width: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < 1 or not (math.isfinite(self.width) and self.width > 0):
            raise ConfigError(
                f"count={self.count}, width={self.width}",
                where="RandomFeatures",
                remedy="use at least one feature, and a finite width above 0",
            )

    @property
    def length(self) -> float:
        """Largest L2 norm of a row's features."""
        return math.sqrt(2.0)

    def of(self, rows: Any) -> Array:
        """Features of rows, ``(rows, count)``, from rows of any shape."""
        flat = np.asarray(rows, np.float64).reshape(len(rows), -1)
        draw = Rng(self.seed).child("random features").generator()
        turns = draw.normal(0.0, 1 / self.width, (flat.shape[1], self.count))
        found: Array = math.sqrt(2 / self.count) * np.cos(flat @ turns + draw.uniform(0, 2 * math.pi, self.count))
        return found
