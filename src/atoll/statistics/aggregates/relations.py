"""Correlations from sums that add up.

For columns ``i`` and ``j``, over the rows that have both (as ``pandas.DataFrame.corr``), with values taken relative to the common means:

    cov_ij = (P_ij - S_ij S_ji / n_ij) / n_ij,   r_ij = cov_ij / sqrt(v_ij v_ji),   v_ij = (Q_ij - S_ij^2 / n_ij) / n_ij

``n_ij`` counts the rows with both, ``S_ij`` sums column ``i`` over them, ``Q_ij`` its squares, ``P_ij`` the products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Relations"]

Matrix = NDArray[np.float64]
_CHUNK = 1 << 13


@dataclass(frozen=True)
class Relations:
    """Sums over pairs of columns, each ``(columns, columns)``.

    Attributes:
        both: rows that have both.
        sums: of the first column, over the rows that have both.
        squares: of the first column, over the rows that have both.
        products: of both.
    """

    both: Matrix
    sums: Matrix
    squares: Matrix
    products: Matrix

    @classmethod
    def of(cls, columns: Sequence[NDArray[Any]], means: Sequence[float], scales: Sequence[float] = ()) -> Relations:
        """The sums of one party.

        Args:
            columns: numbers, ``(rows,)`` each.
            means: what values are taken relative to.
            scales: what they are divided by; by default 1.
        """
        k = len(columns)
        made = [np.zeros((k, k)) for _ in range(4)]
        factors = np.ones(k) if not len(scales) else 1.0 / np.asarray(scales)
        for start in range(0, len(columns[0]) if k else 0, _CHUNK):
            x = np.stack([np.asarray(one[start : start + _CHUNK], dtype=np.float64) for one in columns])
            there = np.isfinite(x)
            x = np.where(there, (np.where(there, x, 0.0) - np.asarray(means)[:, None]) * factors[:, None], 0.0)
            mask = there.astype(np.float64)
            for total, part in zip(made, (mask @ mask.T, x @ mask.T, (x * x) @ mask.T, x @ x.T), strict=True):
                total += part
        return cls(*made)

    def merge(self, other: Relations) -> Relations:
        """The sums over both sets of rows."""
        return Relations(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def hiding(self, least: int) -> Relations:
        """The same without pairs that fewer than ``least`` rows have, and without pairs that lack only so few of the rows that have one of them.

        Sums over the rows with both columns, and over those with one, differ by the rows between.
        """
        alone = np.diag(self.both)
        lacks = np.minimum(*(np.where(gap > 0, gap, np.inf) for gap in (alone[:, None] - self.both, alone - self.both)))
        keep = (self.both >= least) & (lacks >= least)
        return Relations(*(np.where(keep, getattr(self, f.name), 0.0) for f in fields(self)))

    def correlations(self) -> Matrix:
        """Pearson's correlations, ``(columns, columns)``; NaN where fewer than two rows have both or a column is constant."""
        n = np.maximum(self.both, 1.0)
        covariance = self.products - self.sums * self.sums.T / n
        variance = self.squares - self.sums**2 / n
        rounding = 1e-13 * np.maximum(self.squares, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            found = covariance / np.sqrt(variance * variance.T)
        flat = (self.both < 2) | (variance <= rounding) | (variance.T <= rounding.T)
        return np.where(flat, np.nan, np.clip(found, -1.0, 1.0))

    def packed(self) -> dict[str, Any]:
        """The sums as a message."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def unpacked(cls, message: Any) -> Relations:
        """The inverse of `packed`."""
        return cls(**{f.name: np.asarray(message[f.name]) for f in fields(cls)})
