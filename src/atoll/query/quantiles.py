"""Medians and other quantiles, written with ranks: parties sort and compare, and need no aggregate of their own.

``SELECT g, median(x) FROM p GROUP BY g`` becomes::

    SELECT g, max(x) FILTER (2 r <= n + 1) + (min(x) FILTER (2 r >= n + 1) - max(x) FILTER (2 r <= n + 1)) / 2
    FROM (SELECT g, x, row_number() OVER (PARTITION BY g ORDER BY x NULLS LAST) AS r, count(x) OVER (PARTITION BY g) AS n FROM p) GROUP BY g

So it shows a value of a row, as MIN and MAX do, and a policy allows it where it allows them: of private columns nowhere, and nowhere under a ``min_count``.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from .scopes import find_outermost, group_keys

__all__ = ["quantile_kinds", "write_out_quantiles"]

_ALLOWED = ("with_", "from_", "joins", "expressions", "where", "group", "having", "order", "limit", "offset", "distinct", "kind", "hint")  # fmt: skip
_MOST = 10_000
"""Largest denominator of a quantile: ranks are multiplied by it."""
_WHOLE = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER")
"""Types of whole numbers that fit the parties' own."""
_ROWS, _RANKED = "@rows", "@ranked"


def write_out_quantiles(tree: Any, type_of: Callable[[Any, Any], str]) -> Any:
    """The tree with ``median``, ``quantile_cont`` and ``quantile_disc`` written out, where that gives DuckDB's value; others stay.

    With n values in a group and r their ranks from 1, the discrete quantile q is the value with ``r = max(1, ceil(q n))``. The continuous one lies between the values around ``r = 1 + q (n - 1)``, and of decimals is
    cut off after their last place. NULL counts for neither. ``PERCENTILE_CONT(q) WITHIN GROUP (ORDER BY x DESC)`` is the quantile 1 - q.

    Parties hold a quotient by a constant as a fraction, which they compare and show, and add to nothing. So inside a subquery a continuous quantile p / s of whole numbers is ``(s L + (H - L) f) / s``, with L and H the
    values around it and ``f = p (n - 1) - s (rank of L - 1)``; of other numbers it stays. Changes the tree.

    Args:
        tree: the statement, with the table of every column.
        type_of: DuckDB's type of an expression, of a SELECT and the expression.
    """
    from sqlglot import exp

    for select in list(tree.find_all(exp.Select)):
        _write_out(exp, select, type_of, inside=select is not tree)
    return tree


def _write_out(exp: Any, select: Any, type_of: Callable[[Any, Any], str], *, inside: bool) -> None:
    parts = [*select.expressions, *(select.args[name] for name in ("having", "order") if select.args.get(name))]
    found = [node for part in parts for node in _own_quantiles(exp, part)]
    more = any(value for name, value in select.args.items() if name not in _ALLOWED)
    if not found or more or any(part.find(exp.Query, exp.Window) for part in parts) or _reads_around(exp, select):
        return
    read = [one for node in found if (one := _read(exp, node)) is not None]
    keys, grouped = group_keys(exp, select), select.args.get("group") is not None
    if len(read) < len(found) or (grouped and not keys):
        return
    rows, made = _RankedRows(exp, keys), []
    for node, (value, share, smooth) in zip(found, read, strict=True):
        kind = type_of(select, node)
        if smooth and (type_of(select, value) not in _WHOLE if inside else not kind.startswith(("DOUBLE", "DECIMAL", "FLOAT"))):  # fmt: skip
            return
        made.append(rows.fraction(value, share) if smooth and inside else rows.quantile(value, share, smooth, kind))
    for node, one in zip(found, made, strict=True):
        node.replace(exp.paren(one, copy=False))
    for name in ("expressions", "having", "order"):
        value = select.args.get(name)
        if value:
            select.set(name, [rows.outside(one) for one in value] if isinstance(value, list) else rows.outside(value))
    if grouped:
        select.set("group", exp.Group(expressions=[rows.outside(key) for key in keys]))
    source = rows.source(select)
    for name in ("joins", "where"):
        select.set(name, None)
    select.set("from_", exp.From(this=source))


def _reads_around(exp: Any, select: Any) -> bool:
    """Whether a SELECT reads columns of a statement around it: a table of ranked rows could not."""
    own = {one.alias_or_name for one in select.find_all(exp.Table, exp.Subquery)}
    return any(column.table not in own for column in select.find_all(exp.Column) if column.table)


def quantile_kinds(exp: Any) -> tuple[type, ...]:
    """Return the nodes that sqlglot has for quantiles."""
    return (exp.Median, exp.PercentileCont, exp.PercentileDisc, exp.Quantile)


def _own_quantiles(exp: Any, part: Any) -> list[Any]:
    """The quantiles of a part of a SELECT, with their FILTER, outside of other aggregates and subqueries."""
    found = find_outermost(part, (exp.Filter, exp.WithinGroup, exp.AggFunc), (exp.Query, exp.Window), top=False)
    return [node for node in found if isinstance(_called(exp, node), quantile_kinds(exp))]


def _called(exp: Any, node: Any) -> Any:
    """The function itself, of one with FILTER or WITHIN GROUP."""
    return _called(exp, node.this) if isinstance(node, exp.Filter | exp.WithinGroup) else node


def _read(exp: Any, node: Any) -> tuple[Any, Fraction, bool] | None:
    """The values of a quantile, its share of them, and whether it lies between two; ``None`` if it is not one number."""
    inner, condition = (node.this, node.expression.this) if isinstance(node, exp.Filter) else (node, None)
    share, order = Fraction(1, 2), None
    if isinstance(inner, exp.WithinGroup):
        order, inner = inner.expression.expressions, inner.this
        if len(order) != 1 or inner.args.get("expression") is not None:
            return None
    if not isinstance(inner, exp.Median):
        given = inner.this if order else inner.args.get("quantile") or inner.args.get("expression")
        if not isinstance(given, exp.Literal) or given.is_string:
            return None
        share = Fraction(given.this)
    value, smooth = inner.this if order is None else order[0].this, isinstance(inner, exp.Median | exp.PercentileCont)
    if order is not None and order[0].args.get("desc"):
        if not smooth:  # of two values that are as near, it is the other one
            return None
        share = 1 - share
    if not 0 <= share <= 1 or share.denominator > _MOST or isinstance(value, exp.Distinct | exp.Order):
        return None
    if condition is not None:
        value = exp.Case(ifs=[exp.If(this=condition.copy(), true=value.copy())])
    return value, share, smooth


class _RankedRows:
    """The rows of a SELECT as a derived table, with the rank of each value in its group and the number of values."""

    def __init__(self, exp: Any, keys: list[Any]) -> None:
        self.exp, self.keys = exp, keys
        self.columns: dict[str, tuple[str, Any]] = {}
        self.texts = {key.sql("duckdb") for key in keys}
        self.ranked: list[str] = []
        for key in keys:
            self.column(key)

    def column(self, node: Any) -> Any:
        """An expression of the rows as a column of the table."""
        name, _ = self.columns.setdefault(node.sql("duckdb"), (f"c{len(self.columns)}", node.copy()))
        return self._at(name)

    def outside(self, node: Any) -> Any:
        """A part of the SELECT, with keys and columns of the rows as those of the table."""
        exp = self.exp

        def put(one: Any) -> Any:
            if isinstance(one, exp.Column) and one.table == _RANKED:
                return one
            return self.column(one) if one.sql("duckdb") in self.texts or (isinstance(one, exp.Column) and one.table) else one  # fmt: skip

        return node.transform(put)

    def quantile(self, value: Any, share: Fraction, smooth: bool, kind: str) -> Any:
        """A quantile of values of the rows.

        Args:
            value: of a row.
            share: q, from 0 to 1.
            smooth: whether it lies between two values.
            kind: its type.
        """
        exp, column = self.exp, self.column(value)
        name = column.name
        if name not in self.ranked:
            self.ranked.append(name)
        p, s = share.numerator, share.denominator
        if not smooth:
            return self._bound(column, exp.Min, exp.GTE, share, 0) if 2 * p <= s else self._bound(column, exp.Max, exp.LT, share, s)  # fmt: skip
        low, high = self._around(column, share)
        part: Any = exp.Literal.number("0.5")
        if share != Fraction(1, 2):
            before = exp.paren(
                exp.Sub(this=exp.Count(this=column.copy()), expression=exp.Literal.number(1)), copy=False
            )
            rest = exp.Mod(this=self._times(before, p), expression=exp.Literal.number(s))
            part = exp.Div(this=exp.cast(exp.paren(rest, copy=False), "DOUBLE"), expression=exp.Literal.number(s))
        way = exp.paren(exp.Sub(this=high, expression=low.copy()), copy=False)
        part = exp.paren(part, copy=False)
        if not kind.startswith("DECIMAL"):
            return exp.cast(exp.Add(this=low, expression=exp.Mul(this=way, expression=part)), kind, dialect="duckdb")
        # DuckDB computes with doubles in units of the last place, and cuts off what is left.
        scale = int(kind.rstrip(")").partition(",")[2])
        units = [exp.cast(exp.paren(self._times(one, 10**scale), copy=False), "DOUBLE") for one in (low.copy(), way)]
        whole = exp.func("trunc", exp.Add(this=units[0], expression=exp.Mul(this=units[1], expression=part)))
        unit = exp.cast(exp.Literal.number(f"{10.0**-scale:.{scale}f}"), f"DECIMAL(18, {scale})")
        return exp.cast(exp.Mul(this=exp.cast(whole, "DECIMAL(18, 0)"), expression=unit), kind, dialect="duckdb")

    def fraction(self, value: Any, share: Fraction) -> Any:
        """A continuous quantile of whole numbers, as one whole number by another.

        Args:
            value: of a row.
            share: q, from 0 to 1.
        """
        exp, column = self.exp, self.column(value)
        if column.name not in self.ranked:
            self.ranked.append(column.name)
        p, s = share.numerator, share.denominator
        low, high = self._around(column, share)
        if s <= 2:  # between two values it is in the middle
            over: Any = exp.Add(this=low, expression=high) if s == 2 else low
            return exp.Div(this=exp.paren(over, copy=False), expression=exp.Literal.number(s), typed=False)
        one = exp.Literal.number(1)
        before = exp.paren(exp.Sub(this=exp.Count(this=column.copy()), expression=one), copy=False)
        first = self._bound(self._at(f"r_{column.name}"), exp.Max, exp.LTE, share, s - p, ranks=column.name)
        rank = exp.paren(exp.Sub(this=first, expression=one.copy()), copy=False)
        part = exp.paren(exp.Sub(this=self._times(before, p), expression=self._times(rank, s)), copy=False)
        way = exp.paren(exp.Sub(this=high, expression=low.copy()), copy=False)
        over = exp.paren(exp.Add(this=self._times(low, s), expression=exp.Mul(this=way, expression=part)), copy=False)
        return exp.Div(this=over, expression=exp.Literal.number(s), typed=False)

    def _around(self, column: Any, share: Fraction) -> tuple[Any, Any]:
        """The values around a continuous quantile."""
        exp, rest = self.exp, share.denominator - share.numerator
        return self._bound(column, exp.Max, exp.LTE, share, rest), self._bound(column, exp.Min, exp.GTE, share, rest)

    def _bound(self, column: Any, kind: Any, compare: Any, share: Fraction, more: int, ranks: str = "") -> Any:
        """The least or largest of a column where its rank, or that of another one, is so near to a share of the number of values."""
        exp, name = self.exp, ranks or column.name
        rank, count = self._times(self._at(f"r_{name}"), share.denominator), self._times(self._at(f"n_{name}"), share.numerator)  # fmt: skip
        end = exp.Add(this=count, expression=exp.Literal.number(more)) if more else count
        return exp.Filter(this=kind(this=column.copy()), expression=exp.Where(this=compare(this=rank, expression=end)))

    def source(self, select: Any) -> Any:
        """The table: the rows, and around them the ranks."""
        exp = self.exp
        named = [exp.alias_(node, name, quoted=True) for name, node in self.columns.values()]
        inner = exp.Select(expressions=named, from_=select.args["from_"], joins=select.args.get("joins") or [], where=select.args.get("where"))  # fmt: skip
        keys = [exp.column(self.columns[key.sql("duckdb")][0], table=_ROWS, quoted=True) for key in self.keys]

        def over(made: Any, order: Any = None) -> Any:
            return exp.Window(this=made, partition_by=[key.copy() for key in keys], order=order)

        shown = [exp.alias_(exp.column(name, table=_ROWS, quoted=True), name, quoted=True) for name, _ in self.columns.values()]  # fmt: skip
        for name in self.ranked:
            value = exp.column(name, table=_ROWS, quoted=True)
            order = exp.Order(expressions=[exp.Ordered(this=value.copy(), nulls_first=False)])
            shown.append(exp.alias_(over(exp.RowNumber(), order), f"r_{name}", quoted=True))
            shown.append(exp.alias_(over(exp.Count(this=value.copy())), f"n_{name}", quoted=True))
        ranks = exp.Select(expressions=shown, from_=exp.From(this=self._named(inner, _ROWS)))
        return self._named(ranks, _RANKED)

    def _at(self, name: str) -> Any:
        return self.exp.column(name, table=_RANKED, quoted=True)

    def _named(self, select: Any, name: str) -> Any:
        alias = self.exp.TableAlias(this=self.exp.to_identifier(name, quoted=True))
        return self.exp.Subquery(this=select, alias=alias)

    def _times(self, node: Any, factor: int) -> Any:
        return node if factor == 1 else self.exp.Mul(this=node, expression=self.exp.Literal.number(factor))
