"""Subqueries in expressions as lookups: a bit beside each row for EXISTS and IN, and a value for a subquery that stands for one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..column_codes import ColumnCode
from ..plan import split_conditions
from ..scopes import find_outermost
from .names import SelectNames, refuse
from .operators import (
    ChosenValue,
    Compared,
    Connected,
    Filtered,
    Fixed,
    Flag,
    GroupColumn,
    GroupedRows,
    Looked,
    MissingValue,
    Quotient,
    RowCondition,
    Stored,
    Value,
)
from .values import ValuePlanner

__all__ = ["LookupPlanner"]

_WHOLE = ColumnCode("whole", "BIGINT")


class LookupPlanner(ValuePlanner):
    """Subqueries in expressions."""

    # ------------------------------------------------------------------ subqueries in expressions

    def _correlated(self, query: Any, names: SelectNames) -> tuple[SelectNames, list[Any], list[Any], list[Any]]:
        """A subquery's rows without what relates them to the outer ones; pairs of equal expressions, and other conditions."""
        exp = self.exp
        select = query.unnest()
        scope = self.scope(query)
        if not isinstance(select, exp.Select) or scope is None:
            raise refuse(f"{type(select).__name__.upper()} in a subquery of a condition", "write one SELECT")
        limit = select.args.get("limit")
        cut = [name for name in ("having", "qualify", "offset") if select.args.get(name)]
        if limit is not None and limit.expression.name == "0":
            cut.append("limit")
        if cut:  # the first row is one of those that match, and only the parties know these
            raise refuse(f"{cut[0].upper()} in the subquery ({select.sql('duckdb')})", "write it as a join with a subquery in FROM")  # fmt: skip
        inner = SelectNames(select, scope, names)
        parts = split_conditions(exp, select.args.get("where"))
        own = [part for part in parts if not self.outer_aliases(part, inner)]
        links = [part for part in parts if self.outer_aliases(part, inner)]
        self.read_rows(inner, own)
        equal, rest = [], []
        for part in links:
            sides = [one.unnest() for one in (part.left, part.right)] if isinstance(part, exp.EQ) else []
            mine = [one for one in sides if self.aliases(one, inner) and not self.outer_aliases(one, inner)]
            other = [one for one in sides if self.outer_aliases(one, inner) and not self.aliases(one, inner)]
            if len(mine) == 1 and len(other) == 1:
                equal.append((mine[0], other[0]))
            else:
                rest.append(part)
        return inner, equal, rest, links

    def pair(self, mine: Any, inner: SelectNames, other: Any, outer: SelectNames) -> tuple[Value, Value]:
        """Expressions of a subquery and around it, as values that compare."""
        kinds = [self.kind(mine, inner), self.kind(other, outer)]
        common = self.common_type(kinds)
        code = self.code(common, mine.sql("duckdb"))
        found = []
        for node, names in ((mine, inner), (other, outer)):
            plain = self.leaf_of(node, names) is not None and node.sql("duckdb") not in names.values
            found.append(self.value(node, names, code.type if plain else ""))
        if len({one.code.kind for one in found}) > 1:
            raise refuse(f"{mine.sql('duckdb')} = {other.sql('duckdb')} are of types {' and '.join(kinds)}", "cast one of them inside its table")  # fmt: skip
        if any(one.arithmetic for one in found) or found[0].code.scale != found[1].code.scale:
            self.mark(found)
        return found[0], found[1]

    def _look(self, names: SelectNames, inner: SelectNames, pairs: Sequence[tuple[Any, Any]], rest: Sequence[Any], columns: Sequence[Stored], what: str, extra: Sequence[tuple[Value, Value]] = ()) -> Flag:  # fmt: skip
        """A bit beside each row that says whether a subquery has one that matches."""
        self._require_seen_link(names, inner, pairs, rest, what)
        made = [self.pair(mine, inner, other, names)[::-1] for mine, other in pairs] + [(b, a) for a, b in extra]
        condition = None
        if rest:
            condition = Connected(True, tuple(self.condition(part, self._joint(inner, names)) for part in rest))
        flag = self.new_name("f")
        most = [
            self.count_rows_of_key([mine for mine, _ in pairs], inner),
            self.count_rows_of_key([other for _, other in pairs], names),
        ]
        names.operator = Looked(names.operator, inner.operator, tuple(made), flag, tuple(columns), condition, most[1], most[0], what=what)  # fmt: skip
        return Flag(flag)

    def _require_seen_link(self, names: SelectNames, inner: SelectNames, pairs: Sequence[tuple[Any, Any]], rest: Sequence[Any], what: str) -> None:  # fmt: skip
        """Refuse what relates a subquery to the rows around it in a way that policies do not allow."""
        self.require_sites(f"the parties look up {what}")
        for mine, other in pairs:
            self.require_seen(mine, inner, also=True)
            self.require_seen(other, names, also=True)
        for part in rest:
            self.require_seen(part, inner, also=True)

    def _joint(self, inner: SelectNames, outer: SelectNames) -> SelectNames:
        """The names of a subquery and around it, for conditions on both."""
        made = SelectNames(inner.select, inner.scope, outer)
        made.sources = {**outer.sources, **inner.sources}
        made.values = {**outer.values, **inner.values}
        return made

    def look_up_rows(self, query: Any, names: SelectNames) -> RowCondition:
        """EXISTS: whether a subquery has a row."""
        select = query.unnest()
        if select.args.get("group") or select.args.get("having") or any(True for _ in find_outermost(select, (self.exp.AggFunc,), (self.exp.Query,))):  # fmt: skip
            raise refuse("EXISTS of a subquery with aggregates", "compare the aggregate with a value")
        inner, equal, rest, _ = self._correlated(query, names)
        if self.strict and not equal and not rest:
            raise refuse(f"EXISTS ({query.sql('duckdb')}) is the same for all rows, and min_count is {self.policy.min_count}", "relate it to the rows around it: WHERE inner.x = outer.y")  # fmt: skip
        return self._look(names, inner, equal, rest, (), f"EXISTS ({query.sql('duckdb')})")

    def look_up_member(self, node: Any, names: SelectNames, *, positive: bool, query: Any = None) -> RowCondition:
        """IN, of which NULL is a third value."""
        exp = self.exp
        query = query if query is not None else node.args.get("query")
        if query is None:
            tests = [exp.EQ(this=node.this.copy(), expression=one.copy()) for one in node.expressions]
            return Connected(False, tuple(self.condition(one, names, positive=positive) for one in tests))
        what = f"{node.this.sql('duckdb')} IN ({query.sql('duckdb')})"
        select = query.unnest()
        scope = self.scope(query)
        if scope is None:
            raise refuse(what, "write EXISTS")
        plain = isinstance(select, exp.Select) and not any(select.args.get(name) for name in ("group", "distinct", "limit", "offset", "having", "qualify")) and not any(True for _ in find_outermost(select, (exp.AggFunc, exp.Window), (exp.Query,)))  # fmt: skip
        if plain:
            inner, equal, rest, _ = self._correlated(query, names)
            mine = select.expressions[0].unalias()
            if positive:
                return self._look(names, inner, [(mine, node.this), *equal], rest, (), what)
            value, other = self.pair(mine, inner, node.this, names)
        else:
            inner = SelectNames(select, scope, names)
            inner.operator, outputs, _ = self.query(query, scope, names)
            mine, equal, rest = None, [], []
            value, other = outputs[0][1], self.value(node.this, names)
            if value.code.kind != other.code.kind:
                raise refuse(f"{what} compares types {other.code.type} and {value.code.type}", "cast one of them inside its table")  # fmt: skip
            if value.arithmetic or other.arithmetic or value.code.scale != other.code.scale:
                self.mark([value, other])
        extra = [(value, other)]
        found = self._look(names, inner, equal, rest, (), what, extra)
        if positive:
            return found
        # x IN (…) is NULL if it is not true, and x is NULL or one of the values is: but false of no values at all.
        some = self._look(names, inner, equal, rest, (), f"{what}: rows")
        kept = inner.operator
        inner.operator = Filtered(inner.operator, MissingValue(value), what=f"{what}: NULL")
        gaps = self._look(names, inner, equal, rest, (), f"{what}: NULL")
        inner.operator = kept
        unknown = Connected(False, (Connected(True, (some, MissingValue(other))), gaps))
        truth = ColumnCode("whole", "BOOLEAN")
        return Compared(True, ChosenValue(truth, cases=((found, Fixed(truth, value=1)), (unknown, Fixed(truth, value=None))), default=Fixed(truth, value=0)), Fixed(truth, value=1))  # fmt: skip

    def look_up_value(self, query: Any, names: SelectNames) -> Value:
        """A subquery that stands for one value."""
        exp = self.exp
        select, text = query.unnest(), query.sql("duckdb")
        key = f"scalar {text}"
        if key in names.values:
            return names.values[key]
        scope = self.scope(query)
        if not isinstance(select, exp.Select) or scope is None or len(select.expressions) != 1:
            raise refuse(f"({text}) in place of a value", "write one SELECT of one expression")
        outer = any(self.outer_aliases(part, SelectNames(select, scope, names)) for part in split_conditions(exp, select.args.get("where")))  # fmt: skip
        shown = select.expressions[0].unalias()
        if not outer:
            grouped = select.args.get("group") or not self._is_one_row(select)
            if self.strict and grouped:
                raise refuse(f"({text}) may be the value of one row, and min_count is {self.policy.min_count}", "write an aggregate over all rows of the subquery")  # fmt: skip
            operator, outputs, _ = self.query(query, scope, names)
            inner, value = SelectNames(select, scope, names), outputs[0][1]
            pair = [value.over, value.under] if isinstance(value, Quotient) else [value]
            inner.operator, found = self.store(operator, pair, text)
            self._look(names, inner, (), (), found, f"({text})")
            names.values[key] = Quotient(value.code, value.bases, over=found[0], under=found[1]) if isinstance(value, Quotient) else found[0]  # fmt: skip
            return names.values[key]
        inner, equal, rest, _ = self._correlated(query, names)
        nodes = list(dict.fromkeys(find_outermost(shown, (exp.Filter, exp.AggFunc), (exp.Query,), top=False)))
        if isinstance(shown, exp.AggFunc | exp.Filter):
            nodes = [shown]
        if not nodes or rest or select.args.get("group") or not equal:
            raise refuse(f"({text}) relates rows otherwise than by equal columns", "write it with an aggregate and WHERE inner.x = outer.y, or as a join")  # fmt: skip
        self._require_seen_link(names, inner, equal, (), f"({text})")
        pairs = [self.pair(mine, inner, other, names) for mine, other in equal]
        inner.operator, keys = self.store(inner.operator, [mine for mine, _ in pairs], "the keys of a subquery", words=True)  # fmt: skip
        columns, mapping = self.plan_aggregates(nodes, inner)
        inner.operator = GroupedRows(inner.operator, tuple(keys), tuple(columns), what=f"group the subquery ({text})")
        flag = self.new_name("f")
        copied = tuple(one.column for one in columns)
        names.operator = Looked(names.operator, inner.operator, tuple((other, mine) for mine, (_, other) in zip(keys, pairs, strict=True)), flag, copied, what=f"({text})")  # fmt: skip
        # Of no rows a count is 0, and every other aggregate NULL.
        place = SelectNames(select, scope, names)
        place.grouped = True
        for node, value in mapping.items():
            if isinstance(value, Stored) and self._is_count(value.name, columns):
                value = ChosenValue(value.code, value.bases, cases=((MissingValue(value), Fixed(value.code, value=0)),), default=value)  # fmt: skip
            place.values[node] = value
        names.values[key] = self.value(shown, place)
        return names.values[key]

    def _is_one_row(self, select: Any) -> bool:
        """Whether a subquery is one row of aggregates."""
        return any(True for one in select.expressions for _ in find_outermost(one, (self.exp.AggFunc,), (self.exp.Query,), top=False)) or any(isinstance(one.unalias(), self.exp.AggFunc) for one in select.expressions)  # fmt: skip

    @staticmethod
    def _is_count(name: str, columns: Sequence[GroupColumn]) -> bool:
        return any(one.column.name == name and one.operation == "count" for one in columns)
