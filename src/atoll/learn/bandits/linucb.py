"""LinUCB: the arm with the highest optimistic reward under a linear model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError

__all__ = ["LinUCB"]

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class LinUCB:
    """Choose ``argmax <theta, x> + beta ||x||_{V^-1}`` with ``V = ridge I + sum x x^T`` and ``theta = V^-1 sum x y``.

    Li, Chu, Langford, Schapire 2010; Abbasi-Yadkori, Pál, Szepesvári 2011. All functions are pure; what they know is a Gram matrix of ``(x, y)``,
    ``(dim + 1, dim + 1)``: the sum of ``z z^T`` with ``z = (x, y)``.

    Attributes:
        dim: length of a context.
        ridge: positive.
        beta: width of the confidence set.
    """

    dim: int
    ridge: float = 1.0
    beta: float = 1.0

    def __post_init__(self) -> None:
        if self.dim < 1 or not (math.isfinite(self.ridge) and self.ridge > 0 and self.beta >= 0):
            raise ConfigError(
                f"dim={self.dim}, ridge={self.ridge}, beta={self.beta}",
                where="LinUCB",
                remedy="use at least one dimension, a ridge above 0 and a beta of at least 0",
            )

    def nothing(self) -> Array:
        """The Gram matrix before anything was seen."""
        return np.zeros((self.dim + 1, self.dim + 1))

    def seen(self, x: Any, y: float) -> Array:
        """The Gram matrix of one play."""
        z = np.append(np.asarray(x, np.float64), y)
        return np.outer(z, z)

    def design(self, gram: Array) -> Array:
        """``V``. Noise can leave directions with a negative weight; they count as never seen, which no more data are needed for."""
        inner = gram[: self.dim, : self.dim]
        values, turn = np.linalg.eigh((inner + inner.T) / 2)
        found: Array = (turn * (np.maximum(values, 0.0) + self.ridge)) @ turn.T
        return found

    def choose(self, gram: Array, arms: Any) -> int:
        """The arm to play, of contexts ``(arms, dim)``."""
        inverse = np.linalg.inv(self.design(gram))
        theta = inverse @ gram[: self.dim, self.dim]
        rows = np.asarray(arms, np.float64)
        width = np.sqrt(np.maximum(np.einsum("ad,de,ae->a", rows, inverse, rows), 0.0))
        return int(np.argmax(rows @ theta + self.beta * width))

    def novelty(self, gram: Array, synced: Array, plays: int) -> float:
        """``plays ln(det V / det V_synced)``: how much an agent learned since it last shared, times how long ago that was."""
        now, then = (np.linalg.slogdet(self.design(g))[1] for g in (gram, synced))
        return float(plays * (now - then))
