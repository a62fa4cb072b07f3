"""Aggregates as sums of whole numbers: what each site adds, and what follows from the sums of all sites.

Every number is a whole number of some unit, split into words of 32 bits that add up without a carry, so that sums over sites are exact and depend on no order:

======================  ===========================================================  =================================
addend                  value at a site                                              unit
======================  ===========================================================  =================================
``count``               rows                                                         1
``whole``               the sum of integers or decimals                              10^-scale
``real``                the sum of finite doubles, and counts of NaN, ∞ and -∞       2^-1074: every double is a multiple
``square``              ``s^2 / n + M``: with the site's sum s and squared           2^-1074
                        distances M from its own mean, the sum of squares
``product``             ``s t / n + C``, likewise for two columns                    2^-1074
======================  ===========================================================  =================================

With ``N``, ``S`` and ``P`` the totals of n, s and squares, the squared distances of all rows from the common mean are ``P - S^2 / N`` (Chan, Golub and LeVeque 1983), computed exactly: nothing
cancels, however far the values lie from 0. A result is rounded once. What remains is the rounding of each site's own sum of doubles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import DataError

__all__ = ["ADDENDS", "Addend", "QueryAggregate", "join_words", "split_words"]

BITS = 32
UNIT = 1074
"""The smallest positive double is 2^-1074."""
_WIDE = 66
"""Words of a number below 2^1024 in units of 2^-1074, with a sign: 2,098 bits."""
ADDENDS = {"count": 1, "whole": 4, "real": 3 + _WIDE, "square": _WIDE, "product": _WIDE}
"""Kind of addend -> its words."""


@dataclass(frozen=True)
class Addend:
    """What a site adds for one cell.

    Attributes:
        kind: see above.
        columns: local SQL of what it is computed from.
        scale: digits after the point, of ``whole``.
    """

    kind: str
    columns: tuple[str, ...]
    scale: int = 0

    @property
    def words(self) -> int:
        """Its number of words."""
        return ADDENDS[self.kind]

    def encode(self, row: Sequence[Any]) -> list[int]:
        """The words of one cell.

        Args:
            row: the values of ``columns``.

        Raises:
            DataError: a number is too large.
        """
        if self.kind == "count":
            return [int(row[0] or 0)]
        if self.kind == "whole":
            return split_words(int(Fraction(row[0] or 0) * 10**self.scale), ADDENDS["whole"])
        if self.kind == "real":
            return [*(int(one or 0) for one in row[1:]), *split_words(_in_units(_fraction(row[0])), _WIDE)]
        n, *sums, spread = row
        if not n:
            return [0] * _WIDE
        first, last = _fraction(sums[0]), _fraction(sums[-1])
        return split_words(_in_units(first * last / n + _fraction(spread)), _WIDE)

    def decode(self, words: NDArray[np.int64]) -> Any:
        """The total of one cell: a number, or for ``real`` the sum and the counts of NaN, ∞ and -∞."""
        if self.kind == "count":
            return int(words[0])
        if self.kind == "whole":
            return Fraction(join_words(words), 10**self.scale)
        if self.kind == "real":
            return Fraction(join_words(words[3:]), 1 << UNIT), *(int(one) for one in words[:3])
        return Fraction(join_words(words), 1 << UNIT)


def _fraction(value: Any) -> Fraction:
    number = float(value or 0.0)
    if not math.isfinite(number):
        raise DataError("the sum of a column leaves the range of DOUBLE at this site", where="sums", remedy="scale the values down in the statement: SUM(x / 1e6)")  # fmt: skip
    return Fraction(number)


def _in_units(value: Fraction) -> int:
    return math.floor(value * (1 << UNIT))


def split_words(number: int, words: int) -> list[int]:
    """The words of a whole number, the lowest first, each with the number's sign.

    Args:
        number: the number.
        words: how many.

    Raises:
        DataError: it does not fit.
    """
    if abs(number).bit_length() > BITS * words:
        raise DataError("a sum leaves the range of its type at this site", where="sums", remedy="scale the values down in the statement: SUM(x / 1e6)")  # fmt: skip
    found = np.frombuffer(abs(number).to_bytes(words * BITS // 8, "little"), np.dtype("<u4")).astype(np.int64)
    return (found if number >= 0 else -found).tolist()  # type: ignore[no-any-return]


def join_words(words: NDArray[np.int64]) -> int:
    """The number of words that several sites have added up."""
    return sum(int(word) << (BITS * k) for k, word in enumerate(words))


@dataclass(frozen=True)
class QueryAggregate:
    """One aggregate of a statement.

    Attributes:
        name: ``count``, ``sum``, ``avg``, ``var_samp``, ``var_pop``, ``stddev_samp``, ``stddev_pop``, ``corr``, ``covar_samp`` or ``covar_pop``.
        text: as it stands in the statement.
        type: DuckDB's type of the result.
        addends: places of its addends among those of the plan; the first counts the rows with a value.
        supports: places of the conditions that must have enough units behind them, or none at all.
        rests: places of the conditions whose units must be many, or none, because the difference between two answers would show them.
        valued: whether it is computed from values, so that it needs enough rows with one.
    """

    name: str
    text: str
    type: str
    addends: tuple[int, ...]
    supports: tuple[int, ...] = ()
    rests: tuple[int, ...] = ()
    valued: bool = True

    def finish(self, totals: Sequence[Any]) -> str | None:
        """The result as text that DuckDB casts to ``type``; ``None`` for NULL.

        Args:
            totals: decoded totals of its addends.
        """
        n = totals[0]
        if self.name == "count":
            return str(n)
        if n == 0:
            return None
        if self.name in ("sum", "avg"):
            value, odd = _with_odd(totals[1])
            if odd is not None:
                return repr(odd)
            return _shown(value if self.name == "sum" else value / n, self.type)
        if self.name.startswith(("var", "stddev")):
            return self._spread(n, totals)
        return self._relation(n, totals)

    def _spread(self, n: int, totals: Sequence[Any]) -> str | None:
        least = 0 if self.name.endswith("pop") else 1
        if n <= least:
            return None
        total, odd = _with_odd(totals[1])
        if odd is not None:
            return "nan"
        found = max(Fraction(0), totals[2] - total * total / n) / (n - least)
        return repr(_root(found) if self.name.startswith("stddev") else float(found))

    def _relation(self, n: int, totals: Sequence[Any]) -> str | None:
        (x, odd), (y, other) = _with_odd(totals[1]), _with_odd(totals[2])
        least = 1 if self.name.endswith("samp") else 0
        if n <= least:
            return None
        if odd is not None or other is not None:
            return "nan"
        both = totals[3] - x * y / n
        if self.name.startswith("covar"):
            return repr(float(both / (n - least)))
        spread = (totals[4] - x * x / n) * (totals[5] - y * y / n)
        if spread <= 0:
            return "nan"
        ratio = both * both / spread
        return repr(math.copysign(min(1.0, _root(ratio)), both))


def _with_odd(total: Any) -> tuple[Fraction, float | None]:
    """A sum, and what it is instead if a value was not finite."""
    if isinstance(total, Fraction):
        return total, None
    value, missing, above, below = total
    if missing or (above and below):
        return value, math.nan
    return value, math.inf if above else -math.inf if below else None


def _root(value: Fraction) -> float:
    """The square root of a fraction, to a double's precision whatever its size."""
    if value == 0:
        return 0.0
    shift = 2 * ((value.numerator.bit_length() - value.denominator.bit_length()) // 2)
    return math.ldexp(math.sqrt(value / Fraction(2) ** shift), shift // 2)


def _shown(value: Fraction, kind: str) -> str:
    """A number as text of a type: exact for whole numbers and decimals, rounded once for DOUBLE."""
    if kind.startswith("DECIMAL"):
        digits = int(kind.rpartition(",")[2].rstrip(")"))
        whole = value * 10**digits
        text = f"{abs(int(whole)):0{digits + 1}d}"
        sign = "-" if whole < 0 else ""
        return f"{sign}{text[:-digits]}.{text[-digits:]}" if digits else f"{sign}{text}"
    return str(int(value)) if value.denominator == 1 and kind != "DOUBLE" else repr(_rounded(value))


def _rounded(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)
