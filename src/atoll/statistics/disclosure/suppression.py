"""Minimum counts: cells of a table of counts that may not be shown, and others that hide them.

A cell of 1 to ``least - 1`` rows would say something about few. If the total is known, a lone hidden cell follows from the others; so cells are hidden, smallest
first, until the hidden ones are at least two with at least ``least`` rows together (complementary suppression, Cox 1980).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["hidden", "shown"]


def hidden(counts: ArrayLike, least: int) -> NDArray[np.bool_]:
    """Which cells must not be shown, ``(cells,)``.

    Args:
        counts: rows of each cell.
        least: the minimum count.
    """
    rows = np.asarray(counts, dtype=np.int64)
    small = (rows > 0) & (rows < least)
    while small.any():
        if small.sum() >= 2 and rows[small].sum() >= least:
            break
        left = np.where(small | (rows == 0), np.iinfo(np.int64).max, rows)
        if left.min(initial=np.iinfo(np.int64).max) == np.iinfo(np.int64).max:
            break
        small[int(np.argmin(left))] = True
    return small


def shown(counts: ArrayLike, least: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The counts with 0 in the cells that must not be shown, and which these are."""
    rows = np.asarray(counts, dtype=np.int64)
    small = hidden(rows, least)
    return np.where(small, 0, rows), small
