"""Moments of columns, and sums for correlations: those of two sets of rows become those of their union.

For ``n`` values with mean ``m`` the centred sums are ``M_p = sum (x - m)^p``. Those of two sets ``a`` and ``b``, with ``d = m_b - m_a`` and ``n = n_a + n_b``,
merge without a pass over the values (Chan, Golub and LeVeque 1983; Pébay 2008, equations 1.4 to 1.6):

    m   = m_a + d n_b / n
    M_2 = M_2a + M_2b + d^2 n_a n_b / n
    M_3 = M_3a + M_3b + d^3 n_a n_b (n_a - n_b) / n^2 + 3 d (n_a M_2b - n_b M_2a) / n

Plain sums of squares lose all digits where a mean is large beside a deviation; these do not. Merging is associative and commutative up to rounding, and the
empty set is neutral: a commutative monoid.

For columns ``i`` and ``j``, over the rows that have both (as ``pandas.DataFrame.corr``), with values taken relative to the common means:

    cov_ij = (P_ij - S_ij S_ji / n_ij) / n_ij,   r_ij = cov_ij / sqrt(v_ij v_ji),   v_ij = (Q_ij - S_ij^2 / n_ij) / n_ij

``n_ij`` counts the rows with both, ``S_ij`` sums column ``i`` over them, ``Q_ij`` its squares, ``P_ij`` the products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["CentralMoments", "Relations"]

Numbers = NDArray[np.float64]
Counts = NDArray[np.int64]

_CHUNK = 1 << 15
"""Values that are looked at together: they stay in a processor's second cache."""


@dataclass(frozen=True)
class CentralMoments:
    """The moments of some columns over the same rows.

    Attributes:
        count: values that are there, ``(columns,)``.
        missing: values that are not, NaN and infinities, ``(columns,)``.
        mean: 0 for a column without values, ``(columns,)``.
        second: ``sum (x - mean)^2``, ``(columns,)``.
        third: ``sum (x - mean)^3``, ``(columns,)``.
        low: the smallest value, infinity without values, ``(columns,)``.
        high: the largest value, minus infinity without values, ``(columns,)``.
    """

    count: Counts
    missing: Counts
    mean: Numbers
    second: Numbers
    third: Numbers
    low: Numbers
    high: Numbers

    @classmethod
    def none(cls, columns: int) -> CentralMoments:
        """The moments of no rows."""
        zero, nothing = np.zeros(columns, np.int64), np.zeros(columns)
        infinite = np.full(columns, np.inf)
        return cls(zero, zero, nothing, nothing, nothing, infinite, -infinite)

    @classmethod
    def of(cls, columns: Sequence[NDArray[Any]]) -> CentralMoments:
        """The moments of columns, in one pass.

        Args:
            columns: numbers or truth values of any dtype, ``(rows,)`` each; lengths may differ.
        """
        if not columns:
            return cls.none(0)
        made = [_of_column(values) for values in columns]
        return cls(*(np.concatenate([getattr(one, f.name) for one in made]) for f in fields(cls)))

    def merge(self, other: CentralMoments) -> CentralMoments:
        """The moments of the union of two disjoint sets of rows."""
        na, nb = self.count.astype(np.float64), other.count.astype(np.float64)
        n = np.maximum(na + nb, 1.0)
        apart = np.where((na > 0) & (nb > 0), other.mean - self.mean, 0.0)
        share = nb / n
        with np.errstate(over="ignore", invalid="ignore"):  # of magnitudes above 1e100 the third moment is infinite
            mean = np.where(na > 0, self.mean + apart * share, other.mean)
            cross = apart * apart * na * share
            second = self.second + other.second + cross
            third = self.third + other.third + apart * cross * (na - nb) / n
            third = third + 3.0 * apart * (na * other.second - nb * self.second) / n
        return CentralMoments(
            self.count + other.count,
            self.missing + other.missing,
            mean,
            second,
            third,
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
        )

    @classmethod
    def union(cls, parts: Sequence[CentralMoments], columns: int = 0) -> CentralMoments:
        """The moments of all parts, merged in pairs, so that rounding grows with the logarithm of their number."""
        level = list(parts) or [cls.none(columns)]
        while len(level) > 1:
            pairs = [level[i].merge(level[i + 1]) for i in range(0, len(level) - 1, 2)]
            level = pairs + level[len(level) - len(level) % 2 :]
        return level[0]

    def take(self, columns: NDArray[np.int64]) -> CentralMoments:
        """The moments of some of the columns."""
        return CentralMoments(*(getattr(self, f.name)[columns] for f in fields(self)))

    def without_ends(self, which: Sequence[bool] | None = None) -> CentralMoments:
        """The same without the smallest and the largest value.

        Args:
            which: of which columns, ``(columns,)``; by default of all.
        """
        none = CentralMoments.none(len(self.count))
        hide = np.ones(len(self.count), bool) if which is None else np.array(which, bool)
        return replace(self, low=np.where(hide, none.low, self.low), high=np.where(hide, none.high, self.high))

    # ------------------------------------------------------------------ what people read

    @property
    def total(self) -> Numbers:
        """The sum of the values."""
        return self.mean * self.count

    @property
    def variance(self) -> Numbers:
        """``M_2 / n``, as `numpy.var`; NaN without values."""
        return _ratio(self.second, self.count)

    @property
    def std(self) -> Numbers:
        """The root of the variance, as `numpy.std`."""
        return np.sqrt(self.variance)

    @property
    def sample_std(self) -> Numbers:
        """``sqrt(M_2 / (n - 1))``, as ``pandas.Series.std``; NaN with fewer than two values."""
        return np.sqrt(_ratio(self.second, self.count - 1))

    @property
    def skewness(self) -> Numbers:
        """``sqrt(n) M_3 / M_2^1.5``, as ``scipy.stats.skew``; NaN if all values are equal."""
        flat = self.second <= (np.finfo(np.float64).eps * self.mean) ** 2 * self.count
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            found = np.sqrt(self.count) * self.third / self.second**1.5
        return np.where(flat, np.nan, found)

    # ------------------------------------------------------------------ on the wire

    def pack(self) -> dict[str, Any]:
        """The moments as a message."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def unpack(cls, message: Any) -> CentralMoments:
        """The inverse of `pack`."""
        return cls(**{f.name: np.asarray(message[f.name]) for f in fields(cls)})


def _ratio(above: Numbers, below: Any) -> Numbers:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(below > 0, above / np.maximum(below, 1), np.nan)


def _of_column(values: NDArray[Any]) -> CentralMoments:
    """The moments of one column: those of its chunks side by side, then merged in pairs."""
    flat = values.reshape(-1)
    size = len(flat)
    chunks = max(1, -(-size // _CHUNK))
    made = np.zeros((5, chunks))
    ends = np.full((2, chunks), np.inf)
    counts = np.zeros((2, chunks), np.int64)
    buffer = np.empty(min(size, _CHUNK))
    for k in range(chunks):
        part = flat[k * _CHUNK : (k + 1) * _CHUNK]
        _chunk(part, buffer[: len(part)], made[:, k], ends[:, k], counts[:, k])
    whole = CentralMoments(counts[0], counts[1], made[0], made[1], made[2], ends[0], -ends[1])
    while chunks > 1:
        half = chunks // 2
        first, second = whole.take(np.arange(half)), whole.take(np.arange(half, 2 * half))
        merged = first.merge(second)
        if chunks % 2:
            last = whole.take(np.array([chunks - 1]))
            whole = CentralMoments(
                *(np.append(getattr(merged, f.name), getattr(last, f.name)) for f in fields(CentralMoments))
            )
        else:
            whole = merged
        chunks = half + chunks % 2
    return whole


def _chunk(part: NDArray[Any], x: Numbers, made: Numbers, ends: Numbers, counts: Counts) -> None:
    """Write mean and centred sums, smallest and (negative) largest value, and counts of one chunk."""
    if not len(part):
        return
    np.copyto(x, part, casting="unsafe")
    low, high = x.min(), x.max()  # a NaN anywhere is the result of both
    if not (np.isfinite(low) and np.isfinite(high)):
        kept = x[np.isfinite(x)]
        counts[1] = len(x) - len(kept)
        if not len(kept):
            return
        x, low, high = kept, kept.min(), kept.max()
    counts[0] = n = len(x)
    ends[0], ends[1] = low, -high
    mean = float(np.add.reduce(x / n if high - low > 1e300 else x)) / (1 if high - low > 1e300 else n)
    with np.errstate(over="ignore", invalid="ignore"):
        x -= mean
        rest = float(np.add.reduce(x)) / n  # what rounding left of the mean, so that the sums below are centred
        squares = x * x
        second = float(np.add.reduce(squares))
        squares *= x
        third = float(np.add.reduce(squares))  # a product by BLAS would start threads for every chunk
        made[0] = mean + rest
        made[1] = max(0.0, second - n * rest * rest)
        made[2] = third - 3.0 * rest * second + 2.0 * n * rest**3


# ---------------------------------------------------------------- correlations from sums that add up

Matrix = NDArray[np.float64]
_ROWS = 1 << 13


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
        for start in range(0, len(columns[0]) if k else 0, _ROWS):
            x = np.stack([np.asarray(one[start : start + _ROWS], dtype=np.float64) for one in columns])
            there = np.isfinite(x)
            x = np.where(there, (np.where(there, x, 0.0) - np.asarray(means)[:, None]) * factors[:, None], 0.0)
            mask = there.astype(np.float64)
            for total, part in zip(made, (mask @ mask.T, x @ mask.T, (x * x) @ mask.T, x @ x.T), strict=True):
                total += part
        return cls(*made)

    def merge(self, other: Relations) -> Relations:
        """The sums over both sets of rows."""
        return Relations(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def visible(self, least: int) -> NDArray[np.bool_]:
        """The pairs that ``least`` rows have, without those that lack only fewer of the rows that have one of them.

        Sums over the rows with both columns, and over those with one, differ by the rows between.
        """
        alone = np.diag(self.both)
        lacks = np.minimum(*(np.where(gap > 0, gap, np.inf) for gap in (alone[:, None] - self.both, alone - self.both)))
        return np.asarray((self.both >= least) & (lacks >= least))

    def keeping(self, pairs: NDArray[np.bool_]) -> Relations:
        """The same with zeros for all other pairs.

        Args:
            pairs: which are kept, ``(columns, columns)``.
        """
        return Relations(*(np.where(pairs, getattr(self, f.name), 0.0) for f in fields(self)))

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

    def pack(self) -> dict[str, Any]:
        """The sums as a message."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def unpack(cls, message: Any) -> Relations:
        """The inverse of `pack`."""
        return cls(**{f.name: np.asarray(message[f.name]) for f in fields(cls)})
