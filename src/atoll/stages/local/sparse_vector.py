"""The sparse vector technique: a few large entries of an update, with the budget that it really costs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from atoll.core.errors import ConfigError
from atoll.core.event import Event
from atoll.privacy.discrete import LaplaceLattice, words_of
from atoll.privacy.events import RandomisedResponse

from .base import Randomiser, Rows, require_positive

__all__ = ["SparseVector"]


@dataclass(frozen=True)
class SparseVector(Randomiser):
    """Report at most ``entries`` entries whose magnitude passes a noisy threshold, with noise; the others are zero.

    Entries are clipped to ``[-limit, limit]``, so magnitudes of any two updates are at most ``limit`` apart, entry by entry, and entries at most ``2 limit``. With
    ``c = entries`` and ``epsilon = e1 + e2 + e3``:

    1. the threshold gets ``Lap(limit / e1)``, once;
    2. entries, in an order drawn without looking at them, are compared with it once each: ``|x| + Lap(2 c limit / e2) >= threshold``;
    3. the first ``c`` that pass end it; their values get ``Lap(2 c limit / e3)``.

    Steps 1 and 2 are ``e1 + e2``-private for any number of entries that do not pass (Lyu, Su, Li 2017, "Understanding the Sparse Vector Technique for Differential
    Privacy", theorem 4), with their best split ``e2 = e1 (2 c)^(2/3)``; step 3 adds ``e3``. The whole budget counts, also if fewer entries pass. The ledger has one
    randomised response of ``epsilon``, whose loss dominates that of every ``epsilon``-private release (Kairouz, Oh, Viswanath 2015).

    All noise is discrete Laplace on lattices of powers of two, the same for threshold and comparisons; entries are rounded to them towards zero (`atoll.privacy.discrete.additive`).

    NVIDIA FLARE's SVTPrivacy is not this mechanism: it asks again, with new noise, until enough entries have passed, and gives each of ``c`` values noise for one, so values alone cost
    ``c e3`` where it counts ``e3``.

    Attributes:
        limit: largest magnitude of an entry.
        epsilon: of one release.
        entries: how many are reported at most.
        threshold: magnitude that an entry should pass, as a share of ``limit``.
        values: share of epsilon for the values.
        unit: ``"user"`` or ``"island"``.
    """

    limit: float = 0.1
    epsilon: float = 1.0
    entries: int = 1
    threshold: float = 0.5
    values: float = 0.5
    unit: Literal["user", "island"] = "user"

    def __post_init__(self) -> None:
        require_positive(self, "limit", "epsilon")
        if self.entries < 1:
            raise ConfigError(f"entries={self.entries}", where="SparseVector", remedy="report at least one entry")
        if not (0 < self.values < 1 and math.isfinite(self.threshold) and self.threshold >= 0):
            raise ConfigError(
                f"values={self.values}, threshold={self.threshold}",
                where="SparseVector",
                remedy="use a share of epsilon between 0 and 1, and a threshold of at least 0",
            )

    @property
    def budgets(self) -> tuple[float, float, float]:
        """Epsilon of the threshold, of the comparisons and of the values; they add up to ``epsilon``."""
        asking = self.epsilon * (1 - self.values)
        first = asking / (1 + (2 * self.entries) ** (2 / 3))
        return first, asking - first, self.epsilon * self.values

    def randomise(self, rows: Rows, draws: list[np.random.Generator]) -> Rows:
        """Report the entries that pass."""
        found = np.zeros_like(rows)
        clipped = np.clip(np.nan_to_num(rows, nan=0.0), -self.limit, self.limit)
        told = LaplaceLattice(2 * self.entries * self.limit / self.budgets[2])
        for row, out, draw in zip(clipped, found, draws, strict=True):
            order = draw.permutation(len(row))
            passed = self.passed(np.abs(row[order]), draw)
            at = order[passed]
            out[at] = np.clip(told.add(row[at], words_of(draw)), -self.limit, self.limit)
        return found

    def passed(self, sizes: Rows, draw: np.random.Generator) -> np.ndarray:
        """The places of the first entries that pass, in the order of the comparisons.

        Args:
            sizes: magnitudes of the clipped entries, ``(entries,)``.
            draw: the client's secret stream.
        """
        first, asking, _ = self.budgets
        of_threshold = LaplaceLattice(self.limit / first)
        of_size = LaplaceLattice(2 * self.entries * self.limit / asking, of_threshold.step)
        least = of_threshold.add(np.array([self.threshold * self.limit]), words_of(draw))
        return np.flatnonzero(of_size.add(sizes, words_of(draw)) >= least)[: self.entries]

    def events(self, sensitivity: float | None) -> tuple[Event, ...]:
        """Return one release of the whole budget."""
        del sensitivity
        return (RandomisedResponse(unit=self.unit, epsilon=self.epsilon),)
