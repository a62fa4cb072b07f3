"""Between which values an expression lies, by interval arithmetic, and how long its text may be: from policies and types alone, and no row."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from atoll.core.errors import CompositionError

from ...column_codes import LONGEST, ColumnCode
from ...policy import ColumnPolicy
from ..operators import ColumnBound

__all__ = ["CAPS", "BoundReader", "count_over", "longest_text", "text_columns"]

CAPS = ((1 << 40) - 1, (1 << 24) - 1)
"""Largest coded number of a column of a table without a range, where few rows must not show.

Whichever of the two comes first so that no number of the statement leaves 64 bits holds. Below 2^40, ten thousand millions with two digits after the point, sums of the 2^21 rows that parties hold fit.
Below 2^24, or 167,772.15 with two digits, squares and products of two columns of 2^13 rows do, so that VAR and CORR of everyday columns need no range.
"""
_DAYS, _MICROS = (1 << 22) - 1, 1 << 58
"""Caps of dates and of timestamps: some 9,000 years around 1970, which hold all that people write."""
_TEXT_OF_NUMBER = 48
"""Bytes of a number or a date as text: of HUGEINT it has 40, of a timestamp fewer."""


@dataclass(frozen=True)
class _Span:
    """Between which two values an expression lies.

    Attributes:
        low: the least.
        high: the largest.
        unit: ``"DATE"`` for days, ``"TIMESTAMP"`` for microseconds; empty for numbers.
        real: whether doubles are computed with, which round.
    """

    low: Fraction
    high: Fraction
    unit: str = ""
    real: bool = False

    @property
    def most(self) -> Fraction:
        return max(abs(self.low), abs(self.high))

    def within(self, other: _Span) -> _Span:
        """What of it lies in another one."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        return replace(self, low=min(low, high), high=max(low, high))

    def rounded(self, step: Fraction) -> _Span:
        """With its ends moved outwards to multiples of a step."""
        return replace(self, low=math.floor(self.low / step) * step, high=math.ceil(self.high / step) * step)

    def convert(self, unit: str) -> _Span:
        """In another unit: a date becomes a timestamp, and the reverse."""
        if self.unit == unit:
            return self
        if not self.unit or not unit:
            raise _UnboundedError
        day = Fraction(86_400_000_000)
        made = (self.low * day, self.high * day) if unit == "TIMESTAMP" else (self.low / day, self.high / day)
        return replace(self, low=made[0], high=made[1], unit=unit).rounded(Fraction(1))


class _UnboundedError(Exception):
    """Nothing bounds a part of an expression."""

    def __init__(self, node: Any = None) -> None:
        super().__init__()
        self.node = node


_BITS = {"TINYINT": 7, "SMALLINT": 15, "INTEGER": 31, "BIGINT": 63, "HUGEINT": 127, "UTINYINT": 8, "USMALLINT": 16, "UINTEGER": 32, "UBIGINT": 64, "UHUGEINT": 128}  # fmt: skip
_PARTS = {"YEAR": 6_000_000, "QUARTER": 4, "MONTH": 12, "WEEK": 53, "DAY": 31, "DOY": 366, "DAYOFYEAR": 366, "DOW": 7, "DAYOFWEEK": 7, "ISODOW": 7, "HOUR": 24, "MINUTE": 60, "SECOND": 60}  # fmt: skip
_INTERVALS = {"YEAR": 366 * 86_400_000_000, "MONTH": 31 * 86_400_000_000, "WEEK": 7 * 86_400_000_000, "DAY": 86_400_000_000, "HOUR": 3_600_000_000, "MINUTE": 60_000_000, "SECOND": 1_000_000, "MILLISECOND": 1000, "MICROSECOND": 1}  # fmt: skip
_BOTH = (Fraction(0), Fraction(1))


def _span_of_type(kind: str) -> _Span | None:
    """What a type holds; ``None`` of doubles, and of what is no number."""
    if kind == "BOOLEAN":
        return _Span(*_BOTH)
    if kind in _BITS:
        most = Fraction(1 << _BITS[kind])
        return _Span(Fraction(0) if kind.startswith("U") else -most, most - 1)
    if kind.startswith("DECIMAL("):
        digits, scale = (int(part) for part in kind[len("DECIMAL(") : -1].split(","))
        most = Fraction(10**digits - 1, 10**scale)
        return _Span(-most, most)
    if kind == "DATE":
        return _Span(Fraction(-(1 << 31)), Fraction(1 << 31), "DATE")
    if kind.startswith("TIMESTAMP") and not kind.endswith("ZONE"):
        return _Span(Fraction(-(1 << 63)), Fraction(1 << 63), "TIMESTAMP")
    return None


def _cap_of(kind: str, policy: ColumnPolicy, place: int) -> Fraction:
    """The cap of a column of a type, in its values."""
    if kind == "DATE":
        return Fraction(_DAYS)
    if kind.startswith("TIMESTAMP"):
        return Fraction(_MICROS)
    digits = int(kind.rpartition(",")[2].rstrip(")")) if kind.startswith("DECIMAL(") else 0
    if kind in ("DOUBLE", "FLOAT") and policy.scale:
        digits = max(0, math.ceil(-math.log10(policy.scale)))
    return Fraction(CAPS[place], 10**digits)


def _is_number(kind: str) -> bool:
    return kind in ("DOUBLE", "FLOAT") or _span_of_type(kind) is not None


def _is_capped(kind: str, policy: ColumnPolicy) -> bool:
    """Whether a column may have larger values than the smaller of its caps, so that a site looks for them."""
    span = _span_of_type(kind)
    ranged = policy.low is not None and policy.high is not None and kind not in ("DATE", "BOOLEAN") and not kind.startswith("TIMESTAMP")  # fmt: skip
    return not ranged and (span is None or span.most > _cap_of(kind, policy, len(CAPS) - 1))


def count_over(table: str, column: str, kind: str, policy: ColumnPolicy) -> str:
    """Local SQL of how many of `CAPS`, from the last on, a value of a whole table passes.

    Args:
        table: SQL of the table.
        column: SQL of the column.
        kind: its type.
        policy: its policy.
    """

    def ends(place: int) -> str:
        cap = _cap_of(kind, policy, place)
        if kind == "DATE":
            return f"DATE '1970-01-01' - {int(cap)} AND DATE '1970-01-01' + {int(cap)}"
        if kind.startswith("TIMESTAMP"):
            return f"make_timestamp({-int(cap)}) AND make_timestamp({int(cap)})"
        text = f"{math.floor(cap)}.{CAPS[place] % cap.denominator:0{len(str(cap.denominator)) - 1}d}" if cap.denominator > 1 else str(cap)  # fmt: skip
        return f"-{text} AND {text}"

    tests = " + ".join(f"CAST(max(CAST({column} NOT BETWEEN {ends(place)} AS INTEGER)) AS INTEGER)" for place in range(len(CAPS)))  # fmt: skip
    return f"SELECT coalesce({tests}, 0) FROM {table}"


@dataclass
class BoundReader:
    """Reads from expressions how large their values may be, whatever rows there are.

    Args:
        exp: sqlglot's expressions.
        scopes: where names lead.
        tables: table -> column -> its type, in lower case.
        evaluate: the value of a constant, from its SQL.
        kind_of: the type of a part of the expression.
    """

    exp: Any
    scopes: Any
    tables: Mapping[str, Mapping[str, str]]
    evaluate: Callable[[str], Any]
    kind_of: Callable[[Any], str]
    place: int = 0
    unranged: dict[tuple[str, str], bool] = field(default_factory=dict)

    def read_bound(self, node: Any, scope: Any, code: ColumnCode) -> ColumnBound:
        """The bound of a column that has an expression.

        Args:
            node: the expression.
            scope: where it stands.
            code: how it is coded.
        """
        text = node.sql("duckdb")
        try:
            if code.kind == "text":
                return ColumnBound(length=self._length(node, scope), text=text)
            unit = "DATE" if code.type == "DATE" else "TIMESTAMP" if code.type.startswith("TIMESTAMP") else ""
            most = []
            for self.place in range(len(CAPS)):
                span = self._span(node, scope).convert(unit)
                large = math.ceil(span.most * 10**code.scale)
                most.append(large + 1 + (large >> 22) if span.real else large)
        except _UnboundedError as part:
            return ColumnBound(unknown=text if part.node is None else part.node.sql("duckdb"), text=text)
        capped = tuple(base for base, found in self.unranged.items() if found)
        return ColumnBound(tuple(most), None, tuple(self.unranged), capped, text=text)

    # ------------------------------------------------------------------ numbers

    def _span(self, node: Any, scope: Any) -> _Span:
        exp = self.exp
        if node.find(exp.Column, exp.Query, exp.AggFunc, exp.Window) is None:
            return self._of_constant(node)
        makers: list[tuple[Any, Callable[[Any, Any], _Span]]] = [
            (exp.Column, self._of_column),
            ((exp.Paren, exp.Alias, exp.Nullif), lambda one, at: self._span(one.this, at)),
            (exp.Neg, self._of_negative),
            ((exp.Add, exp.Sub, exp.Mul), self._of_sum),
            ((exp.Div, exp.IntDiv, exp.Mod), self._of_quotient),
            ((exp.Case, exp.If, exp.Coalesce, exp.Greatest, exp.Least), lambda one, at: self._hull([self._span(part, at) for part in _ways(exp, one)], one)),
            ((exp.Cast, exp.TryCast), self._of_cast),
            ((exp.Predicate, exp.Connector, exp.Not), lambda one, at: _Span(*_BOTH)),
            ((exp.Year, exp.Month, exp.Day, exp.Quarter, exp.Week, exp.Extract), self._of_part),
            (exp.DateDiff, self._of_days),
            ((exp.Abs, exp.Round, exp.Floor, exp.Ceil), self._of_rounding),
            ((exp.Count, exp.Length), lambda one, at: _Span(Fraction(0), Fraction(CAPS[0]))),
            ((exp.Min, exp.Max, exp.Avg, exp.DateTrunc, exp.TimestampTrunc), self._of_average),
        ]  # fmt: skip
        make = next((found for kinds, found in makers if isinstance(node, kinds)), None)
        if make is None:
            return self._of_kind(node)
        try:
            return make(node, scope)
        except _UnboundedError as part:
            raise _UnboundedError(part.node or node) from None

    def _of_kind(self, node: Any) -> _Span:
        """What the type of an expression holds that is not looked into."""
        try:
            span = _span_of_type(self.kind_of(node))
        except CompositionError:
            span = None
        if span is None or span.most > CAPS[0]:
            raise _UnboundedError(node)
        return span

    def _of_constant(self, node: Any) -> _Span:
        text = node.sql("duckdb")
        found = self.evaluate(f"SELECT CASE WHEN typeof({text}) = 'DATE' THEN 'DATE' WHEN typeof({text}) LIKE 'TIMESTAMP%' THEN 'TIMESTAMP' ELSE '' END, CASE WHEN typeof({text}) = 'DATE' THEN date_diff('day', DATE '1970-01-01', TRY_CAST(CAST({text} AS VARCHAR) AS DATE))::VARCHAR WHEN typeof({text}) LIKE 'TIMESTAMP%' THEN epoch_us(TRY_CAST(CAST({text} AS VARCHAR) AS TIMESTAMP))::VARCHAR WHEN typeof({text}) = 'BOOLEAN' THEN CAST({text} AS VARCHAR) ELSE CAST({text} AS VARCHAR) END")  # fmt: skip
        if found is None:
            raise _UnboundedError(node)
        unit, value = found
        if value is None:
            return _Span(Fraction(0), Fraction(0), unit)
        try:
            number = Fraction({"true": 1, "false": 0}.get(value, value))
        except ValueError:
            raise _UnboundedError(node) from None
        return _Span(number, number, unit)

    def _of_column(self, node: Any, scope: Any) -> _Span:
        scopes = self.scopes
        source, _ = scopes.source_of(node, scopes.scope_of(node) or scope)
        if not isinstance(source, self.exp.Table):
            found = scopes.projections_of(source, node.name)
            if not found:
                raise _UnboundedError(node)
            return self._hull([self._span(one, source) for one in found], node)
        base = (source.name.lower(), node.name.lower())
        kind, policy = self.tables.get(base[0], {}).get(base[1], ""), scopes.column_policy(base)
        if not _is_number(kind):
            raise _UnboundedError(node)
        known, capped = _span_of_type(kind), _is_capped(kind, policy)
        unit, real = ("", True) if known is None else (known.unit, False)
        if policy.low is not None and policy.high is not None and not unit and kind != "BOOLEAN":
            span = _Span(Fraction(policy.low), Fraction(policy.high), real=real)
            return span if known is None else span.within(known)
        if kind != "BOOLEAN":
            self.unranged[base] = capped
        cap = _cap_of(kind, policy, self.place)
        span = _Span(-cap, cap, unit, real)
        return span if known is None else span.within(known)

    def _of_negative(self, node: Any, scope: Any) -> _Span:
        one = self._span(node.this, scope)
        return replace(one, low=-one.high, high=-one.low)

    def _of_sum(self, node: Any, scope: Any) -> _Span:
        """A sum, a difference or a product; of a date, and days or an interval too."""
        exp = self.exp
        if isinstance(node.right, exp.Interval) or isinstance(node.left, exp.Interval):
            return self._shifted(node, scope)
        a, b = self._span(node.left, scope), self._span(node.right, scope)
        real = a.real or b.real
        if isinstance(node, exp.Mul):
            if a.unit or b.unit:
                raise _UnboundedError(node)
            corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
            return _Span(min(corners), max(corners), "", real)
        if isinstance(node, exp.Add):
            if a.unit and b.unit:
                raise _UnboundedError(node)
            return _Span(a.low + b.low, a.high + b.high, a.unit or b.unit, real)
        if (b.unit and a.unit != b.unit) or a.unit == "TIMESTAMP":
            raise _UnboundedError(node)
        return _Span(a.low - b.high, a.high - b.low, "" if b.unit else a.unit, real)

    def _shifted(self, node: Any, scope: Any) -> _Span:
        moved, by = (node.left, node.right) if isinstance(node.right, self.exp.Interval) else (node.right, node.left)
        unit, count = str(by.args.get("unit") or "").upper().removesuffix("S"), str(by.this.name if by.this is not None else "")  # fmt: skip
        if unit not in _INTERVALS or not count.lstrip("-").isdigit():
            raise _UnboundedError(node)
        span, most = self._span(moved, scope).convert("TIMESTAMP"), abs(int(count)) * _INTERVALS[unit]
        return replace(span, low=span.low - most, high=span.high + most)

    def _of_quotient(self, node: Any, scope: Any) -> _Span:
        """A quotient by what is never between -1 and 1 is no larger; by another constant it is so many times larger."""
        a, b = self._span(node.left, scope), self._span(node.right, scope)
        if a.unit or b.unit or b.low <= 0 <= b.high:
            raise _UnboundedError(node)
        if isinstance(node, self.exp.Mod):
            return _Span(-a.most, a.most, "", a.real or b.real).within(_Span(-b.most, b.most))
        corners = [x / y for x in (a.low, a.high) for y in (b.low, b.high)]
        span = _Span(min(corners), max(corners), "", True)
        return span.rounded(Fraction(1)) if isinstance(node, self.exp.IntDiv) else span

    def _of_cast(self, node: Any, scope: Any) -> _Span:
        kind = node.args["to"].sql("duckdb").upper().replace(" ", "")
        kind = {"INT": "INTEGER", "DECIMAL": "DECIMAL(18,3)", "FLOAT": "DOUBLE", "REAL": "DOUBLE"}.get(kind, kind)
        held = _span_of_type(kind)
        try:
            inner = self._span(node.this, scope)
        except _UnboundedError:
            if held is None:
                raise
            return held
        if held is None:
            if kind == "DOUBLE" and not inner.unit:
                return replace(inner, real=True)
            raise _UnboundedError(node)
        if held.unit != inner.unit:
            return held if not inner.unit or not held.unit else inner.convert(held.unit).within(held)
        scale = int(kind.rpartition(",")[2].rstrip(")")) if kind.startswith("DECIMAL(") else 0
        return inner.rounded(Fraction(1, 10**scale)).within(held)

    def _of_part(self, node: Any, scope: Any) -> _Span:
        name = (node.this.name if isinstance(node, self.exp.Extract) else type(node).__name__).upper()
        if name not in _PARTS:
            raise _UnboundedError(node)
        most = Fraction(_PARTS[name])
        return _Span(-most if name == "YEAR" else Fraction(0), most)

    def _of_days(self, node: Any, scope: Any) -> _Span:
        unit = str(node.args.get("unit") or "DAY").upper().strip("'")
        ends = [self._span(one, scope).convert("TIMESTAMP") for one in (node.this, node.expression)]
        if unit not in _INTERVALS:
            raise _UnboundedError(node)
        step = _INTERVALS["DAY"] if _INTERVALS[unit] > _INTERVALS["DAY"] else _INTERVALS[unit]
        most = Fraction(math.ceil((ends[0].most + ends[1].most) / step) + 1)
        return _Span(-most, most)

    def _of_rounding(self, node: Any, scope: Any) -> _Span:
        span = self._span(node.this, scope)
        if isinstance(node, self.exp.Abs):
            return replace(span, low=Fraction(0), high=span.most)
        if node.args.get("decimals") is not None:  # to tens, say: no further than what is rounded
            return replace(span, low=2 * span.low - 1 if span.low < 0 else span.low, high=2 * span.high + 1)
        return span.rounded(Fraction(1))

    def _of_average(self, node: Any, scope: Any) -> _Span:
        """What lies between the values that it is made of."""
        span = self._span(node.this, scope)
        if isinstance(node, self.exp.DateTrunc | self.exp.TimestampTrunc):
            return replace(span, low=span.low - (_INTERVALS["YEAR"] * 1000 if span.unit == "TIMESTAMP" else 366_000))
        return replace(span, real=True) if isinstance(node, self.exp.Avg) else span

    def _hull(self, spans: Sequence[_Span], node: Any) -> _Span:
        units = {one.unit for one in spans if one.low or one.high or one.unit}
        if len(units) > 1:
            if "" in units:
                raise _UnboundedError(node)
            units = {"TIMESTAMP"}
        unit = units.pop() if units else ""
        alike = [one.convert(unit) if one.unit else replace(one, unit=unit) for one in spans]
        return _Span(min(one.low for one in alike), max(one.high for one in alike), unit, any(one.real for one in alike))  # fmt: skip

    # ------------------------------------------------------------------ texts

    def _length(self, node: Any, scope: Any) -> Any:
        """The longest text, in bytes: a number, a column of a table, or a pair of ``sum``, ``max`` or ``min`` and such terms."""
        exp = self.exp
        if node.find(exp.Column, exp.Query, exp.AggFunc, exp.Window) is None:
            found = self.evaluate(f"SELECT CAST({node.sql('duckdb')} AS VARCHAR), ''")
            return _refuse_part(node) if found is None else len((found[0] or "").encode())
        makers: list[tuple[Any, Callable[[Any, Any], Any]]] = [
            (exp.Column, self._length_of_column),
            ((exp.Paren, exp.Alias, exp.Nullif, exp.Trim, exp.Min, exp.Max), lambda one, at: self._length(one.this, at)),
            # A letter of two bytes may become one of three.
            ((exp.Upper, exp.Lower), lambda one, at: ("sum", (self._length(one.this, at),) * 2)),
            ((exp.Left, exp.Right, exp.Substring), self._length_of_part),
            (exp.DPipe, lambda one, at: ("sum", (self._length(one.left, at), self._length(one.right, at)))),
            (exp.Concat, lambda one, at: ("sum", tuple(self._length(part, at) for part in one.expressions))),
            ((exp.Case, exp.If, exp.Coalesce, exp.Greatest, exp.Least), lambda one, at: ("max", tuple(self._length(part, at) for part in _ways(exp, one)))),
        ]  # fmt: skip
        make = next((found for kinds, found in makers if isinstance(node, kinds)), self._length_of_number)
        return make(node, scope)

    def _length_of_number(self, node: Any, scope: Any) -> Any:
        """A number or a date as text; a text that is cast to text."""
        exp = self.exp
        cast = isinstance(node, exp.Cast | exp.TryCast)
        try:
            kind = self.kind_of(node.this if cast else node)
        except CompositionError:
            raise _UnboundedError(node) from None
        if isinstance(node, exp.TimeToStr) and isinstance(node.args.get("format"), exp.Literal):
            return 10 * len(node.args["format"].name)  # September has 9
        if kind.strip('"') == "NULL":
            return 0
        if _is_number(kind):
            return _TEXT_OF_NUMBER
        return self._length(node.this, scope) if cast and kind == "VARCHAR" else _refuse_part(node)

    def _length_of_column(self, node: Any, scope: Any) -> Any:
        scopes = self.scopes
        source, _ = scopes.source_of(node, scopes.scope_of(node) or scope)
        if isinstance(source, self.exp.Table):
            base = (source.name.lower(), node.name.lower())
            kind = self.tables.get(base[0], {}).get(base[1], "")
            return base if kind == "VARCHAR" else _TEXT_OF_NUMBER if _is_number(kind) else _refuse_part(node)
        found = scopes.projections_of(source, node.name)
        return "max", tuple(self._length(one, source) for one in found) if found else _refuse_part(node)

    def _length_of_part(self, node: Any, scope: Any) -> Any:
        """A letter has 4 bytes at most."""
        count = node.args.get("length") if isinstance(node, self.exp.Substring) else node.expression
        most = 4 * int(count.name) if isinstance(count, self.exp.Literal) and count.name.isdigit() else None
        try:
            whole = self._length(node.this, scope)
        except _UnboundedError:
            if most is None or most > 8 * LONGEST:
                raise
            return most
        return whole if most is None else ("min", (most, whole))


def _refuse_part(node: Any) -> Any:
    raise _UnboundedError(node)


def _ways(exp: Any, node: Any) -> Iterator[Any]:
    """The values of which an expression is one."""
    if isinstance(node, exp.Coalesce | exp.Greatest | exp.Least):
        parts = [node.this, *node.expressions]
    elif isinstance(node, exp.Case):
        parts = [*(one.args["true"] for one in node.args["ifs"]), node.args.get("default")]
    else:
        parts = [node.args.get("true"), node.args.get("false")]
    yield from (one for one in parts if one is not None)


def longest_text(length: Any, longest: Mapping[tuple[str, str], int]) -> int:
    """Bytes of the longest text of a shared column.

    Args:
        length: what `ColumnBound` says.
        longest: column of a table -> bytes of its longest text.
    """
    if isinstance(length, int):
        return length
    name, parts = length
    if isinstance(parts, str):
        return longest[length]
    return {"sum": sum, "max": max, "min": min}[name](longest_text(one, longest) for one in parts)  # type: ignore[operator,no-any-return]


def text_columns(length: Any) -> Iterator[tuple[str, str]]:
    """The columns of tables in what `ColumnBound` says of a text's length."""
    if isinstance(length, tuple):
        if isinstance(length[1], str):
            yield length
        else:
            for one in length[1]:
                yield from text_columns(one)
