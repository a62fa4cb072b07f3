"""Results of training a cohort: replies of blocks of clients, or sums over the cohort."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from atoll.core.algebra.aggregate import Totals
from atoll.core.algebra.tree import Tree
from atoll.core.requests.task import Batch

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["CohortSums", "TrainedBatch"]


@dataclass
class TrainedBatch(Batch):
    """A block of trained clients.

    Attributes:
        steps: local steps of each client, ``(clients,)``.
        losses: mean training loss of each client, ``(clients,)``.
    """

    steps: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    losses: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    @staticmethod
    def failed(errors: dict[int, Exception]) -> TrainedBatch:
        """Return a batch of no client, with the exceptions of some."""
        return TrainedBatch(np.zeros(0, np.int64), {}, errors=errors)


@dataclass
class CohortSums:
    """A cohort as sums.

    Attributes:
        totals: named sums over the kept clients.
        kept: positions in the sums, in order.
        rejected: position -> why a client was kept out.
        states: ``(positions, stacked states)`` of each block; empty when the algorithm keeps none.
        steps: local steps of each client of the cohort.
        losses: mean training loss of each client of the cohort.
        sizes: examples of each client of the cohort.
        rows: in place of ``totals``, the summands of single clients: ``(positions, totals with a leading client axis)``
            of each piece.
    """

    totals: Totals
    kept: NDArray[np.int64]
    rejected: dict[int, str]
    states: list[tuple[NDArray[np.int64], Tree]]
    steps: NDArray[np.int64]
    losses: NDArray[np.float64]
    sizes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    rows: list[tuple[NDArray[np.int64], Totals]] | None = None
