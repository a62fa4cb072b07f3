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

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import CompositionError, DataError

__all__ = [
    "ADDENDS",
    "Addend",
    "QueryAggregate",
    "conditions_inside",
    "covariates_of",
    "join_words",
    "measure_degree",
    "merges_rows",
    "merges_values",
    "read_aggregate",
    "require_degree",
    "require_same_values",
    "single_out",
    "split_words",
]

BITS = 32
UNIT = 1074
"""The smallest positive double is 2^-1074."""
_WIDE = 66
"""Words of a number below 2^1024 in units of 2^-1074, with a sign: 2,098 bits."""
ADDENDS = {"count": 1, "whole": 4, "wide": 6, "real": 3 + _WIDE, "square": _WIDE, "product": _WIDE}
"""Kind of addend -> its words."""


@dataclass(frozen=True)
class Addend:
    """What a site adds for one cell.

    Attributes:
        kind: see above.
        columns: local SQL of what it is computed from.
        scale: digits after the point, of ``whole`` and ``wide``.
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
        if self.kind == "wide":
            near, high, low = row
            return split_words(int(Fraction(near or 0) * 10**self.scale) + (int(high or 0) << 64) + int(low or 0), ADDENDS["wide"])  # fmt: skip
        if self.kind == "real":
            total, odd = float(row[0] or 0.0), [int(one or 0) for one in row[1:]]
            # The sum of finite values leaves the range: an error would tell of this site's own.
            if not math.isfinite(total):
                odd[0 if math.isnan(total) else 1 if total > 0 else 2] += 1
                total = 0.0
            return [*odd, *split_words(_in_units(Fraction(total)), _WIDE)]
        n, *sums, spread = row
        if not n:
            return [0] * _WIDE
        first, last = _fraction(sums[0]), _fraction(sums[-1])
        return split_words(_in_units(first * last / n + _fraction(spread)), _WIDE)

    def decode(self, words: NDArray[np.int64]) -> Any:
        """The total of one cell: a number, or for ``real`` the sum and the counts of NaN, ∞ and -∞."""
        if self.kind == "count":
            return int(words[0])
        if self.kind in ("whole", "wide"):
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
        factors: places of the conditions that what is multiplied with a value is not 0, which must have enough units behind them too.
    """

    name: str
    text: str
    type: str
    addends: tuple[int, ...]
    supports: tuple[int, ...] = ()
    rests: tuple[int, ...] = ()
    valued: bool = True
    factors: tuple[int, ...] = ()

    @property
    def needed(self) -> list[int]:
        """Places of all conditions that must have enough units behind them."""
        return [*self.supports, *self.factors]

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


# ---------------------------------------------------------------- what is added up

_DEGREE = 4
"""Most columns that may be multiplied in one aggregate: more would single out large values."""
_NAMES = {
    "Count": "count", "Sum": "sum", "Avg": "avg", "Variance": "var_samp", "VariancePop": "var_pop", "Stddev": "stddev_samp", "StddevSamp": "stddev_samp", "StddevPop": "stddev_pop", "Corr": "corr",
    "CovarSamp": "covar_samp", "CovarPop": "covar_pop", "Min": "min", "Max": "max",
}  # fmt: skip
Powers = dict[int, Any]
"""What each power of a column is multiplied with."""


def read_aggregate(exp: Any, node: Any) -> tuple[str, list[Any]]:
    """Name and arguments of an aggregate; no name if sums do not give it."""
    if isinstance(node, exp.CountIf):
        return "count", [exp.If(this=node.this.copy(), true=exp.Literal.number(1))]
    name = _NAMES.get(type(node).__name__, "")
    if name == "count" and isinstance(node.this, exp.Distinct) and len(node.this.expressions) == 1:
        return "count_distinct", list(node.this.expressions)
    args = [part for part in (node.this, node.args.get("expression")) if part is not None]
    if any(isinstance(part, exp.Distinct | exp.Order) for part in args) or node.args.get("expressions"):
        return "", args
    if name == "count" and isinstance(node.this, exp.Star | exp.Literal):
        return "count", []
    return name, args


def require_degree(degree: int, inner: Any, where: str) -> None:
    """Refuse an aggregate that multiplies so many columns that one large value stands out.

    Raises:
        CompositionError: names the aggregate.
    """
    if degree > _DEGREE:
        raise CompositionError(f"{inner.sql('duckdb')} multiplies {degree} columns, which would single out large values", where=where, remedy=f"multiply at most {_DEGREE}")  # fmt: skip


def merges_values(node: Any, inner: Any, where: str, least: int) -> CompositionError:
    """The error of DISTINCT over what is more than a column: by which values become equal, or by what is left of a sum, it tells the values of one or two rows."""
    return CompositionError(f"{node.sql('duckdb')} inside {inner.sql('duckdb')} could tell the value of a row by those that are equal, and min_count is {least}", where=where, remedy="use COUNT(DISTINCT …) of a column, a part of a date, or CASE WHEN … THEN column END")  # fmt: skip


def merges_rows(node: Any, key: Any, where: str, least: int) -> CompositionError:
    """The error of groups of a subquery by more than a column: by how many there are they tell the value of one row."""
    said = "" if node.sql("duckdb") == key.sql("duckdb") else f", of which {key.sql('duckdb')} is made,"
    return CompositionError(f"groups of a subquery by {node.sql('duckdb')}{said} could tell the value of a row by those that are equal, and min_count is {least}", where=where, remedy="let subqueries group by columns and parts of dates, and the outermost SELECT by expressions")  # fmt: skip


def require_same_values(exp: Any, node: Any, refused: Callable[[Any], Exception], other: Callable[[Any], None], *, gaps: bool = False) -> None:  # fmt: skip
    """Refuse to count different values of anything but a column as it is: of ``(pay - 103) * icu``, where one person has ``icu = 1``, there is one value or there are two by what that person is paid.

    Args:
        exp: sqlglot's expressions.
        node: what is counted.
        refused: the error of a part.
        other: looks at a column itself.
        gaps: whether NULL counts as a value, as in a key: then a condition of a CASE tells whether it holds for one row.

    Raises:
        CompositionError: names the part.
    """
    if isinstance(node, exp.Column):
        other(node)
    elif isinstance(node, exp.Paren | exp.Cast | exp.TryCast | exp.Alias | exp.Year | exp.Month | exp.Day):
        require_same_values(exp, node.this, refused, other, gaps=gaps)
    elif isinstance(node, exp.Extract):
        require_same_values(exp, node.expression, refused, other, gaps=gaps)
    elif isinstance(node, exp.DateTrunc | exp.TimestampTrunc):
        require_same_values(exp, node.this, refused, other, gaps=gaps)
    elif isinstance(node, exp.Case | exp.If):
        ways = [one for one in _summands(exp, node) if not isinstance(one, exp.Null)]
        # A constant beside a column tells whether a row has it.
        if gaps or len({one.sql("duckdb") for one in ways}) != 1:
            raise refused(node)
        require_same_values(exp, ways[0], refused, other)
    else:
        raise refused(node)


def single_out(node: Any, inner: Any, where: str, least: int) -> CompositionError:
    """The error of an expression inside an aggregate that could be large for one row alone."""
    return CompositionError(f"{node.sql('duckdb')} inside {inner.sql('duckdb')} could single out a row, and min_count is {least}", where=where, remedy="use + - * of columns, CASE, and division by constants")  # fmt: skip


def measure_degree(exp: Any, node: Any, refused: Callable[[Any], Exception], other: Callable[[Any], int | None] = lambda _: None) -> int:  # fmt: skip
    """Columns that are multiplied in an expression that is a polynomial of columns, piece by piece.

    Args:
        exp: sqlglot's expressions.
        node: the expression.
        refused: the error of a part that makes it none.
        other: the degree of a node, if the caller knows it better: of a column of a subquery, say.
    """
    known = other(node)
    if known is not None:
        return known
    if node.find(exp.Column) is None or isinstance(node, exp.Predicate | exp.Connector | exp.Not):
        return 0
    if isinstance(node, exp.Column | exp.Year | exp.Month | exp.Day | exp.Extract | exp.DateDiff):
        return 1
    if isinstance(node, exp.Mul):
        return measure_degree(exp, node.left, refused, other) + measure_degree(exp, node.right, refused, other)
    parts = _summands(exp, node)
    if not parts:
        raise refused(node)
    return max(measure_degree(exp, part, refused, other) for part in parts)


def _summands(exp: Any, node: Any) -> list[Any]:
    """The parts of which a value is one, or the sum; none if it is neither."""
    if isinstance(node, exp.Paren | exp.Neg | exp.Cast | exp.TryCast | exp.Alias | exp.Nullif):
        return [node.this]
    if isinstance(node, exp.Add | exp.Sub):
        return [node.left, node.right]
    if isinstance(node, exp.Div) and node.right.find(exp.Column) is None:
        return [node.left]
    if isinstance(node, exp.Coalesce):
        return [node.this, *node.expressions]
    if isinstance(node, exp.Case):
        return [part for part in (*(one.args["true"] for one in node.args["ifs"]), node.args.get("default")) if part is not None]  # fmt: skip
    if isinstance(node, exp.If):
        return [part for part in (node.args.get("true"), node.args.get("false")) if part is not None]
    return []


def covariates_of(exp: Any, name: str, args: Sequence[Any]) -> Iterator[tuple[Any, Any, Any]]:
    """Columns of an aggregate, values that are added up in it, and what the column is multiplied with in these, if that differs from row to row.

    Of ``sum(pay * age)`` these are ``pay`` with ``age`` and ``age`` with ``pay``; of ``corr(pay, age)`` the same; of ``sum(pay)`` and ``var_samp(pay)`` there are none.

    Args:
        exp: sqlglot's expressions.
        name: the aggregate.
        args: its arguments.
    """
    if name.startswith("count"):
        return
    values = list(args)
    if name not in ("sum", "avg"):
        pairs = itertools.combinations_with_replacement(args, 2) if name == "corr" or len(args) == 1 else [args]
        values += [exp.Mul(this=exp.paren(a.copy()), expression=exp.paren(b.copy())) for a, b in pairs]
    for value in values:
        for column in dict.fromkeys(value.find_all(exp.Column)):
            for power, factor in _coefficients(exp, value, column).items():
                if power and factor.find(exp.Column) is not None:
                    yield column, value, factor


def _coefficients(exp: Any, node: Any, column: Any) -> Powers:
    """What each power of a column is multiplied with in a polynomial of columns, piece by piece."""
    if node == column or (isinstance(node, exp.Year | exp.Month | exp.Day | exp.Extract | exp.DateDiff) and column in node.find_all(exp.Column)):  # fmt: skip
        return {1: exp.Literal.number(1)}
    if column not in node.find_all(exp.Column) or isinstance(node, exp.Predicate | exp.Connector | exp.Not):
        return {0: node.copy()}
    if isinstance(node, exp.Mul):
        found: Powers = {}
        sides = [_coefficients(exp, one, column).items() for one in (node.left, node.right)]
        for (i, a), (j, b) in itertools.product(*sides):
            made = exp.Mul(this=exp.paren(a.copy()), expression=exp.paren(b.copy()))
            found[i + j] = exp.Add(this=found[i + j], expression=made) if i + j in found else made
        return found
    if isinstance(node, exp.Case | exp.If | exp.Coalesce):
        return _coefficients_of_cases(exp, node, column)
    parts = [_coefficients(exp, one, column) for one in _summands(exp, node)]
    if isinstance(node, exp.Add | exp.Sub):
        return _combine(exp, parts, lambda a, b: type(node)(this=exp.paren(a), expression=exp.paren(b)))
    if isinstance(node, exp.Div) and parts:
        return _combine(exp, parts, lambda a: exp.Div(**{**node.args, "this": exp.paren(a), "expression": node.right.copy()}))  # fmt: skip
    return parts[0] if parts else {0: node.copy()}


def _coefficients_of_cases(exp: Any, node: Any, column: Any) -> Powers:
    """The same where conditions choose among polynomials."""
    if isinstance(node, exp.Coalesce):
        ways = [(exp.Not(this=exp.Is(this=exp.paren(one.copy()), expression=exp.Null())), one) for one in (node.this, *node.expressions)]  # fmt: skip
        last = None
    elif isinstance(node, exp.If):
        ways, last = [(node.this, node.args.get("true"))], node.args.get("false")
    else:
        ways = [(one.this if node.this is None else exp.EQ(this=node.this.copy(), expression=one.this.copy()), one.args["true"]) for one in node.args["ifs"]]  # fmt: skip
        last = node.args.get("default")
    parts = [{0: exp.Literal.number(0)} if one is None else _coefficients(exp, one, column) for one in (*(one for _, one in ways), last)]  # fmt: skip
    whens = [when for when, _ in ways]

    def choose(*found: Any) -> Any:
        return exp.Case(ifs=[exp.If(this=when.copy(), true=one) for when, one in zip(whens, found[:-1], strict=True)], default=found[-1])  # fmt: skip

    return _combine(exp, parts, choose)


def _combine(exp: Any, parts: Sequence[Powers], put: Callable[..., Any]) -> Powers:
    """What is made of the same powers of several polynomials; 0 where one lacks it."""
    powers = sorted({power for part in parts for power in part})
    return {power: put(*(part.get(power, exp.Literal.number(0)) for part in parts)) for power in powers}


def conditions_inside(exp: Any, arg: Any, name: str, guard: Callable[[Any], Any] = lambda node: node) -> Iterator[Any]:  # fmt: skip
    """Conditions inside an argument of an aggregate: they divide a group as a FILTER does.

    Args:
        exp: sqlglot's expressions.
        arg: the argument.
        name: the aggregate.
        guard: makes the argument NULL where it fails. Without it DuckDB takes ``x * 1000 IS NOT NULL`` for ``x IS NOT NULL``, and never sees it fail.
    """
    if isinstance(arg, exp.Column):
        return
    for node in arg.walk():
        if isinstance(node, exp.Case):
            for one in node.args["ifs"]:
                yield exp.EQ(this=node.this.copy(), expression=one.this.copy()) if node.this is not None else one.this.copy()  # fmt: skip
        elif isinstance(node, exp.If) and not isinstance(node.parent, exp.Case):
            yield node.this.copy()
        elif isinstance(node, exp.Nullif):
            yield exp.EQ(this=exp.paren(node.this.copy()), expression=exp.paren(node.expression.copy()))
        elif isinstance(node, exp.Coalesce) and not (isinstance(node.this, exp.Column) and not any(one.find(exp.Column) for one in node.expressions)):  # fmt: skip
            yield exp.Is(this=exp.paren(node.this.copy()), expression=exp.Null())
        elif isinstance(node, exp.Predicate | exp.Connector | exp.Not) and not _in_condition(exp, node, arg):
            yield node.copy()
    if name == "count" or arg.find(exp.Nullif, exp.Case, exp.If, exp.TryCast) or len(list(arg.find_all(exp.Column))) > 1:  # fmt: skip
        yield exp.Not(this=exp.Is(this=exp.paren(guard(arg.copy())), expression=exp.Null()))


def _in_condition(exp: Any, node: Any, top: Any) -> bool:
    """Whether a node is a part of a condition that is counted already."""
    at = node
    while at is not top and at.parent is not None:
        parent = at.parent
        if isinstance(parent, exp.Predicate | exp.Connector | exp.Not):
            return True
        if isinstance(parent, exp.If) and at is parent.this:
            return True
        at = parent
    return False
