"""Stand-in rows: few rows that have what a transformer looks at in all parties' rows.

Each block fills its columns for any number of rows from its least on, so that blocks of one step agree on one number: odd, and one more than a multiple of 4, where
quartiles fall on rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["StandInBlock", "listed", "principal", "quartered", "spread", "stand_in_rows"]

Rows = NDArray[np.float64]


@dataclass(frozen=True)
class StandInBlock:
    """What some columns must have.

    Attributes:
        columns: their places.
        least: fewest rows.
        fill: number of rows -> the columns, ``(rows, columns)``.
    """

    columns: tuple[int, ...]
    least: int
    fill: Callable[[int], Rows]


def listed(column: int, values: Rows) -> StandInBlock:
    """A column with these values and no others."""
    return StandInBlock((column,), len(values), lambda rows: np.resize(values, rows)[:, None])


def spread(column: int, mean: float, std: float) -> StandInBlock:
    """A column with this mean and this standard deviation."""
    return _pairs((column,), np.array([mean]), np.array([[std]]), lambda rows: rows)


def principal(columns: tuple[int, ...], mean: Rows, covariance: Rows) -> StandInBlock:
    """Columns with these means and this sample covariance: pairs along its eigenvectors."""
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    return _pairs(columns, mean, (vectors * np.sqrt(np.maximum(values, 0.0))).T, lambda rows: rows - 1)


def _pairs(columns: tuple[int, ...], mean: Rows, directions: Rows, share: Callable[[int], int]) -> StandInBlock:
    """Rows at the mean, and a pair at ``mean +- direction sqrt(share / 2)`` for each direction."""

    def fill(rows: int) -> Rows:
        made = np.tile(mean, (rows, 1))
        away = directions * np.sqrt(share(rows) / 2)
        made[: len(away)] += away
        made[len(away) : 2 * len(away)] -= away
        return made

    return StandInBlock(columns, 2 * len(directions) + 1, fill)


def quartered(column: int, quartiles: Rows) -> StandInBlock:
    """A column with these three quartiles, where there are ``4 k + 1`` rows."""

    def fill(rows: int) -> Rows:
        ranks = np.arange(rows) / (rows - 1)
        return np.asarray(quartiles[np.searchsorted([0.375, 0.625], ranks)])[:, None]

    return StandInBlock((column,), 5, fill)


def stand_in_rows(blocks: Sequence[StandInBlock], width: int) -> Rows:
    """The rows, ``(4 k + 1, width)``; columns of no block are 0."""
    most = max((block.least for block in blocks), default=1)
    rows = most + (1 - most) % 4
    made = np.zeros((rows, width))
    for block in blocks:
        made[:, list(block.columns)] = block.fill(rows)
    return made
