"""Discounted UCB: a bandit whose arms change with time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError

__all__ = ["DiscountedUCB"]

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class DiscountedUCB:
    """Choose ``argmax_i X_i + 2 sqrt(width log(n) / N_i)`` with discounted counts and means.

    ``N_i = sum_s g^(t-s) 1{i played at s}``, ``X_i = sum_s g^(t-s) r_s 1{i played at s} / N_i`` and ``n = sum_i N_i``, for rewards in ``[0, 1]``. An arm that was not
    played for long is tried again. With ``discount=1`` it is UCB1's index.

    Source: Garivier and Moulines 2011, "On Upper-Confidence Bound Policies for Switching Bandit Problems", with ``B = 1`` and ``xi = width``.
    All functions are pure; what they know is ``(2, arms)``: counts and sums of rewards, both discounted.

    Attributes:
        arms: number of arms.
        discount: ``g`` in (0, 1].
        width: ``xi``, at least 0; 0 exploits only, after one play of each arm.
    """

    arms: int
    discount: float = 0.95
    width: float = 0.1

    def __post_init__(self) -> None:
        if self.arms < 1 or not 0 < self.discount <= 1 or not (self.width >= 0 and math.isfinite(self.width)):
            raise ConfigError(
                f"arms={self.arms}, discount={self.discount}, width={self.width}",
                where="DiscountedUCB",
                remedy="use at least one arm, a discount above 0 and at most 1, and a width of at least 0",
            )

    def nothing(self) -> Array:
        """Return what is known before the first play."""
        return np.zeros((2, self.arms))

    def indices(self, known: Any) -> Array:
        """Return each arm's optimistic reward, ``(arms,)``; infinity for an arm that was never played."""
        counts, sums = np.asarray(known, np.float64)
        total = max(counts.sum(), 1.0)
        played = np.where(counts > 0, counts, 1.0)
        found: Array = np.where(
            counts > 0, sums / played + 2.0 * np.sqrt(self.width * math.log(total) / played), math.inf
        )
        return found

    def choose(self, known: Any) -> int:
        """Return the arm with the largest index; the first of equals."""
        return int(np.argmax(self.indices(known)))

    def seen(self, known: Any, arm: int, reward: float) -> Array:
        """Return what is known after a play.

        Raises:
            ConfigError: a reward outside ``[0, 1]``.
        """
        if not 0.0 <= reward <= 1.0:
            raise ConfigError(f"reward={reward}", where="DiscountedUCB", remedy="scale rewards to [0, 1]")
        after: Array = np.asarray(known, np.float64) * self.discount
        after[:, arm] += (1.0, reward)
        return after
