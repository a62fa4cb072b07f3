"""Randomised response on single entries of an update."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from atoll.core.errors import ConfigError
from atoll.core.event import Event
from atoll.privacy.events import RandomisedResponse

from .base import Randomiser, Rows, require_positive

__all__ = ["RandomisedSigns", "response"]


@dataclass(frozen=True)
class RandomisedSigns(Randomiser):
    """Each client reports the signs of ``entries`` entries, each by randomised response; where they are is drawn without looking at the value.

    An entry, clipped to ``[-limit, limit]``, becomes ``+1`` with probability ``1/2 + x / (2 limit)``, else ``-1``, and then flips with
    probability ``1 / (1 + e^(epsilon / entries))``. The server gets ``sign * limit * c * d / entries`` at that entry, with ``c = (e^a + 1) / (e^a - 1)``,
    ``a = epsilon / entries`` and ``d`` entries in all: its mean is the clipped value. Duchi, Jordan, Wainwright 2018, "Minimax Optimal Procedures for Locally
    Private Estimation"; Nguyên et al. 2016, "Collecting and Analyzing Data from Smart Device Users with Local Differential Privacy", algorithm 4.

    Attributes:
        limit: largest magnitude of an entry.
        epsilon: of one release, all its entries together.
        entries: how many are reported. A value with fewer reports all of them, each with ``epsilon / entries``: it costs less than the ledger says.
        unit: ``"user"`` or ``"island"``.
    """

    limit: float = 0.1
    epsilon: float = 1.0
    entries: int = 1
    unit: Literal["user", "island"] = "user"

    def __post_init__(self) -> None:
        require_positive(self, "limit", "epsilon")
        if self.entries < 1:
            raise ConfigError(f"entries={self.entries}", where="RandomisedSigns", remedy="report at least one entry")

    def randomise(self, rows: Rows, draws: list[np.random.Generator]) -> Rows:
        """Report the signs of random entries."""
        found = np.zeros_like(rows)
        size = rows.shape[1]
        count = min(self.entries, size)
        for row, out, draw in zip(rows, found, draws, strict=True):
            at = draw.choice(size, count, replace=False)
            out[at] = response(row[at], self.limit, self.epsilon / self.entries, draw) * (size / count)
        return found

    def events(self, sensitivity: float | None) -> tuple[Event, ...]:
        """Return one randomised response for each entry."""
        del sensitivity
        return (RandomisedResponse(unit=self.unit, epsilon=self.epsilon / self.entries, count=self.entries),)


def response(values: Rows, limit: float, epsilon: float, draw: np.random.Generator) -> Rows:
    """Report clipped numbers by one randomised bit each: ``+-limit (e^epsilon + 1) / (e^epsilon - 1)``, with the clipped numbers as means."""
    share = np.clip(np.nan_to_num(values, nan=0.0), -limit, limit) / limit
    up = draw.random(len(values)) < (1 + share) / 2
    told = up ^ (draw.random(len(values)) < 1 / (1 + math.exp(epsilon)))
    found: Rows = np.where(told, limit, -limit) / math.tanh(epsilon / 2)
    return found
