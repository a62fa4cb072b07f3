"""Work that ran ahead of its arrival: one block split into single replies, which are merged when they are used."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..algebra.aggregate import rejoined
from ..requests.request import PartialSum

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["singly"]


def singly(block: PartialSum, positions: NDArray[np.int64]) -> list[PartialSum]:
    """The replies of each of these parties, from a block whose request kept replies ``apart``."""
    bytes_of = dict(zip(block.senders.tolist(), block.nbytes.tolist(), strict=True))
    replies: dict[int, PartialSum] = {}
    for p in positions.tolist():
        there = [p] if p in bytes_of else []
        sizes = [bytes_of[p]] if there else []
        replies[p] = PartialSum({}, np.array(there, dtype=np.int64), np.array(sizes, dtype=np.int64))
        if p in block.rejected:
            replies[p].rejected[p] = block.rejected[p]
        if p in block.errors:
            replies[p].errors[p] = block.errors[p]
    for name, total in block.totals.items():
        for part in total.value:
            replies[part.sender].totals[name] = rejoined(replace(total, value=[part], weight=part.weight, n=1))
    return [replies[p] for p in positions.tolist()]
