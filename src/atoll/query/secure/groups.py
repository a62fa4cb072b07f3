"""Queries inside a statement: GROUP BY, aggregates, DISTINCT, LIMIT and set operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from ..aggregates import read_aggregate
from ..column_codes import ColumnCode
from ..plan import split_conditions
from ..quantiles import quantile_kinds
from ..scopes import group_keys
from .names import NamePlanner, SelectNames, refuse
from .operators import (
    ChosenValue,
    Compared,
    Computed,
    Connected,
    Filtered,
    Fixed,
    Flag,
    GroupColumn,
    GroupedRows,
    Limited,
    MissingValue,
    Negated,
    Operator,
    Quotient,
    Ranked,
    RowCondition,
    Stacked,
    Stored,
    TruthValue,
    Value,
    WindowColumn,
)
from .windows import WindowPlanner

__all__ = ["GroupPlanner"]

_WHOLE = ColumnCode("whole", "BIGINT")
_TRUTH = ColumnCode("whole", "BOOLEAN")

_KNOWN = ("count", "sum", "avg", "min", "max", "var_samp", "var_pop", "stddev_samp", "stddev_pop", "corr", "covar_samp", "covar_pop")  # fmt: skip


class _Columns:
    """The columns of a group, each once.

    Args:
        planner: what gives them names.
        known: those that there are.
        condition: which rows take part.
        distinct: whether equal values count once.
    """

    def __init__(self, planner: NamePlanner, known: dict[Any, GroupColumn], condition: RowCondition | None, distinct: bool) -> None:  # fmt: skip
        self._planner, self._known, self._condition, self._distinct = planner, known, condition, distinct

    def require(self, condition: RowCondition) -> None:
        """Have only rows take part for which a further condition holds."""
        self._condition = condition if self._condition is None else Connected(True, (self._condition, condition))

    def add(self, operation: str, value: Value | None, code: ColumnCode, bases: frozenset[tuple[str, str]] = frozenset()) -> Stored:  # fmt: skip
        """The column of an operation on a value."""
        key = (operation, value, self._condition, self._distinct)
        if key not in self._known:
            made = Stored(code, bases, self._planner.new_name("g"), operation in ("count", "sum"))
            if operation in ("min", "max") and value is not None:
                self._planner.origins[made.name] = value
            self._known[key] = GroupColumn(made, operation, value, self._condition, self._distinct)
        return self._known[key].column


class GroupPlanner(WindowPlanner):
    """Groups and set operations."""

    # ------------------------------------------------------------------ queries

    def query(self, node: Any, scope: Any, outer: SelectNames | None) -> tuple[Operator, list[tuple[str, Value]], frozenset[Value] | None]:  # fmt: skip
        """A query: its rows, the names and values of its columns, and the columns of which no two rows have equal values."""
        exp = self.exp
        node = node.unnest()
        if isinstance(node, exp.SetOperation):
            return self._set(node, scope)
        names = SelectNames(node, scope, outer)
        if node.args.get("distinct") and node.args["distinct"].args.get("on"):
            raise refuse("DISTINCT ON in a subquery", "keep the first rows with QUALIFY row_number() OVER (PARTITION BY … ORDER BY …) = 1")  # fmt: skip
        self._read(names)
        operator, shown = names.operator, [(one.alias_or_name, one.unalias()) for one in node.expressions]
        outputs = [(name, self.value(one, names)) for name, one in shown]
        operator = names.operator
        unique: frozenset[Value] | None = None
        if names.grouped:
            keys = [names.values[one.sql("duckdb")] for one in self._key_nodes(names)]
            unique = frozenset(keys) if keys and all(key in [value for _, value in outputs] for key in keys) else None
        units = self.unit_columns(names) if self.strict else []
        if node.args.get("distinct"):
            self.require_keys([one for _, one in shown], scope)
            operator, columns = self.store(operator, [value for _, value in outputs], "DISTINCT", words=True)
            made = self.represent_units(units)
            operator, units = GroupedRows(operator, tuple(columns), tuple(made), what="DISTINCT"), [one.column for one in made]  # fmt: skip
            outputs = [(name, column) for (name, _), column in zip(outputs, columns, strict=True)]
            unique = frozenset(columns)
        if node.args.get("limit") or node.args.get("offset"):
            order = self._order(node, names, dict(outputs))
            rows, skip = self._limits(node)
            operator, columns = self.store(names.operator if not node.args.get("distinct") else operator, [value for value, _, _ in order], "ORDER BY")  # fmt: skip
            operator = Limited(operator, tuple((column, down, first) for column, (_, down, first) in zip(columns, order, strict=True)), rows, skip, what=f"LIMIT {rows}")  # fmt: skip
        self.query_units[id(node)] = units
        return operator, outputs, unique

    def _limits(self, node: Any) -> tuple[int, int]:
        """LIMIT and OFFSET, which are whole numbers in a statement that is read.

        Raises:
            CompositionError: OFFSET stands alone, and how many rows are left depends on the rows.
        """
        skip = int(node.args["offset"].expression.name) if node.args.get("offset") else 0
        if node.args.get("limit") is None:
            raise refuse("OFFSET without LIMIT in a subquery", "write LIMIT too")
        return int(node.args["limit"].expression.name), skip

    def _order(self, node: Any, names: SelectNames, aliases: dict[str, Value]) -> list[tuple[Value, bool, bool]]:
        """What ORDER BY sorts by."""
        exp, found = self.exp, []
        for one in node.args["order"].expressions if node.args.get("order") else ():
            at = one.this
            if isinstance(at, exp.Literal) and not at.is_string:
                at = node.expressions[int(at.name) - 1].unalias()
            if isinstance(at, exp.Column) and not at.table and at.name in aliases:
                value = aliases[at.name]
            else:
                value = self.value(at, names)
            if isinstance(value, Quotient):
                raise refuse(f"ORDER BY {at.sql('duckdb')} of averages", "order by sums or counts")
            found.append((value, bool(one.args.get("desc")), bool(one.args.get("nulls_first"))))
        return found

    def _read(self, names: SelectNames) -> None:
        """FROM, WHERE, GROUP BY, HAVING, windows and QUALIFY of a SELECT that is not the outermost."""
        select = names.select
        self.read_rows(names, split_conditions(self.exp, select.args.get("where")))
        nodes = self._aggregate_nodes(select)
        if nodes or select.args.get("group"):
            self._group(names, nodes)
        if select.args.get("having"):
            self.filter(names, select.args["having"].this)
        self.add_windows(names)

    def _key_nodes(self, names: SelectNames) -> list[Any]:
        return [node for node in group_keys(self.exp, names.select) if not isinstance(node, self.exp.Literal)]

    def require_plain_key(self, key: Any) -> None:
        """Refuse a subquery in a group key where few units must not show: the groups would show its value."""
        if self.strict and self.queries(key):
            raise refuse(f"a subquery in the group key {key.sql('duckdb')}, and min_count is {self.policy.min_count}", "group by columns and expressions of them")  # fmt: skip

    def _aggregate_nodes(self, select: Any) -> list[Any]:
        """Aggregates of a SELECT, with their FILTER; not those that are window functions."""
        exp, found = self.exp, []
        places = [*select.expressions, *(select.args[name] for name in ("having", "qualify", "order") if select.args.get(name))]  # fmt: skip
        for place in places:
            for node in self.outermost(place, (exp.Filter, exp.AggFunc, exp.Window)):
                if isinstance(node, exp.Window):
                    called = node.this.this if isinstance(node.this, exp.IgnoreNulls | exp.RespectNulls) else node.this
                    inner = [*(node.args.get("partition_by") or ()), *([node.args["order"]] if node.args.get("order") else []), *called.iter_expressions()]  # fmt: skip
                    found += [one for part in inner for one in self.outermost(part, (exp.Filter, exp.AggFunc))]
                else:
                    found.append(node)
        return list(dict.fromkeys(found))

    def _group(self, names: SelectNames, nodes: Sequence[Any]) -> None:
        """GROUP BY: afterwards only keys and aggregates have values."""
        keys = self._key_nodes(names)
        for key in keys:
            self.require_plain_key(key)
        self.require_keys(keys, names.scope)
        values = [self.value(key, names) for key in keys]
        columns, mapping = self.plan_aggregates(nodes, names)
        names.operator, stored = self.store(names.operator, values, "GROUP BY", words=True)
        units = self.unit_columns(names) if self.strict else []
        made, counts = self.represent_units(units), dict[Any, GroupColumn]()
        # Of a subquery without groups all rows stand behind the one value, which decides about rows of others.
        counted = self.count_units(units, counts) if self.strict and not keys else []
        shown = ", ".join(key.sql("duckdb") for key in keys)
        grouped = GroupedRows(names.operator, tuple(stored), (*columns, *made, *counts.values()), what=f"{f'group by {shown}' if keys else 'one group'}: {', '.join(node.sql('duckdb') for node in nodes)}".removesuffix(": "))  # fmt: skip
        names.operator = self.keep_enough(grouped, counted) if counted else grouped
        names.grouped, names.represented = True, [one.column for one in made]
        names.values = {**mapping, **{key.sql("duckdb"): column for key, column in zip(keys, stored, strict=True)}}

    # ------------------------------------------------------------------ aggregates

    def plan_aggregates(self, nodes: Sequence[Any], names: SelectNames) -> tuple[list[GroupColumn], dict[str, Value]]:
        """What the parties compute of aggregates, and their values."""
        columns: dict[Any, GroupColumn] = {}
        mapping: dict[str, Value] = {}
        for node in nodes:
            if isinstance(node, self.exp.Filter):
                # A site's record has the conditions of the outermost aggregates alone.
                self.require_seen(node.expression.this, names)
            name, parts = self._parts_of(node, names, columns)
            inner = node.this if isinstance(node, self.exp.Filter) else node
            if self.strict and isinstance(inner.this, self.exp.Distinct):
                self.require_distinct(inner, inner.this.expressions[0], names)
            if self.strict and name in ("sum", "avg"):  # a sum over a group of a subquery may be that of one row
                parts = [parts[0], replace(parts[1], bases=self.bases_of(node, names))]
            if name == "avg":
                count, total = parts
                mapping[node.sql("duckdb")] = Quotient(ColumnCode("whole", "DOUBLE"), total.bases, over=total, under=count)  # fmt: skip
            elif name in ("count", "sum", "min", "max"):
                mapping[node.sql("duckdb")] = parts[-1]
            else:
                raise refuse(f"{node.sql('duckdb')} inside a subquery", "use COUNT, SUM, AVG, MIN or MAX")
        return list(columns.values()), mapping

    def _parts_of(self, node: Any, names: SelectNames, columns: dict[Any, GroupColumn]) -> tuple[str, list[Stored]]:
        """The totals of an aggregate: of COUNT one, of MIN and MAX the value, of others what `QueryAggregate.finish` takes."""
        exp = self.exp
        inner, where = (node.this, node.expression.this) if isinstance(node, exp.Filter) else (node, None)
        name, args = read_aggregate(exp, inner)
        distinct, text = name == "count_distinct", inner.sql("duckdb")
        if not name and isinstance(inner, exp.Sum | exp.Avg) and isinstance(inner.this, exp.Distinct):
            name, args, distinct = type(inner).__name__.lower(), list(inner.this.expressions), True
        name = "count" if name == "count_distinct" else name
        if self.strict and isinstance(inner, quantile_kinds(exp)):
            raise self.one_row(inner)
        if name not in _KNOWN:
            raise refuse(f"{text} under shares", "use COUNT, SUM, AVG, VAR_SAMP, STDDEV, CORR, MIN or MAX, or MEDIAN of numbers in the outermost SELECT and of whole numbers in a subquery, or QUANTILE_DISC")  # fmt: skip
        if any(one is not None and any(not self.is_local_query(q) for q in self.queries(one)) for one in (inner, where)):  # fmt: skip
            raise refuse(f"a subquery inside {text}", "give it a name in a table of FROM: SELECT sum(x) FROM (SELECT (…) AS x FROM …)")  # fmt: skip
        put = _Columns(self, columns, None if where is None else self.condition(where, names), distinct)
        if name == "count":
            return name, [put.add("count", self.value(args[0], names) if args else None, _WHOLE)]
        if name in ("min", "max"):
            value = self.value(args[0], names)
            if isinstance(value, Quotient):
                raise refuse(f"{text} of averages", "show the averages, and look for it yourself")
            return name, [put.add(name, value, value.code, value.bases)]
        for arg in args:
            self.scopes.require_released(self.bases_of(arg, names), text)
        numbers = [self.number(arg, names, adds=text) for arg in args]
        if any(isinstance(one, Quotient) for one in numbers):
            raise refuse(f"{text} adds averages", "show the averages, and add them yourself")
        return name, self._totals(name, args, numbers, names, put)

    def _totals(self, name: str, args: Sequence[Any], numbers: Sequence[Value], names: SelectNames, put: _Columns) -> list[Stored]:  # fmt: skip
        """The count, the sums and the sums of products of an aggregate."""
        if len(numbers) == 1:
            (x,) = numbers
            found = [put.add("count", x, _WHOLE), put.add("sum", x, self.sum_code(x))]
            if name in ("sum", "avg"):
                return found
            return [*found, put.add("sum", self._product(args[0], args[0], x, x, names), self._square_code(x, x))]
        put.require(Connected(True, tuple(Negated(MissingValue(one)) for one in numbers)))
        found = [put.add("count", None, _WHOLE), *(put.add("sum", one, replace(one.code, type="DOUBLE")) for one in numbers)]  # fmt: skip
        for i, j in [(0, 1), (0, 0), (1, 1)] if name == "corr" else [(0, 1)]:
            product = self._product(args[i], args[j], numbers[i], numbers[j], names)
            found.append(put.add("sum", product, self._square_code(numbers[i], numbers[j])))
        return found

    @staticmethod
    def _square_code(x: Value, y: Value) -> ColumnCode:
        return ColumnCode("whole", "DOUBLE", x.code.scale + y.code.scale)

    def _product(self, one: Any, other: Any, x: Value, y: Value, names: SelectNames) -> Value:
        """The product of two numbers: at the sites, if one leaf has both."""
        leaves = [self.leaf_of(node, names) if node.sql("duckdb") not in names.values else None for node in (one, other)]  # fmt: skip
        leaf = leaves[0]
        if leaf is not None and leaf is leaves[1] and isinstance(x, Stored) and isinstance(y, Stored) and x.number and y.number:  # fmt: skip
            a, b = (next(column for column in leaf.columns if column.name == side.name) for side in (x, y))
            text = f"({a.text}) * ({b.text})"
            return self.share(leaf, f"TRY({text})" if self.strict else text, self._square_code(x, y), x.bases | y.bases, number=True, bound=a.bound.times(b.bound))  # fmt: skip
        return Computed(self._square_code(x, y), x.bases | y.bases, "*", left=x, right=y)

    # ------------------------------------------------------------------ set operations

    def _set(self, node: Any, scope: Any) -> tuple[Operator, list[tuple[str, Value]], frozenset[Value] | None]:
        """UNION, INTERSECT and EXCEPT."""
        exp = self.exp
        self._require_rows(node)
        sides = [self.query(one, self.scope(one), None) for one in (node.left, node.right)]
        (a, left, _), (b, right, _) = sides
        columns, inputs = [], [[], []]  # type: ignore[var-annotated]
        for (_, x), (_, y) in zip(left, right, strict=True):
            if isinstance(x, Quotient) or isinstance(y, Quotient):
                raise refuse(f"{type(node).__name__.upper()} of averages or quotients", "ask for SUM and COUNT, and divide yourself")  # fmt: skip
            if x.code.kind != y.code.kind:
                raise refuse(f"{type(node).__name__.upper()} of types {x.code.type} and {y.code.type}", "cast the columns inside their tables")  # fmt: skip
            scale = max(x.code.scale, y.code.scale)
            wide = x if x.code.scale == scale else y
            if x.code.scale != y.code.scale or x.arithmetic or y.arithmetic:
                self.mark([x, y])
            columns.append(Stored(wide.code, x.bases | y.bases, self.new_name()))
            self.origins[columns[-1].name] = x
            inputs[0].append(x)
            inputs[1].append(y)
        units = self._stack_units([one.unnest() for one in (node.left, node.right)], inputs)
        name = type(node).__name__.upper()
        every = not node.args.get("distinct", True)
        flags = () if isinstance(node, exp.Union) else (self.new_name("f"), self.new_name("f"))
        made: Operator = Stacked((a, b), (tuple(inputs[0]), tuple(inputs[1])), (*columns, *units), flags, what=f"{name} {'ALL' if every else ''}".strip())  # fmt: skip
        unique = None
        if flags and every:
            made = self._take_off(made, columns, flags, name)
        if not every:
            tests = [GroupColumn(Stored(_WHOLE, frozenset(), self.new_name("g"), True), "count", None, Flag(flag)) for flag in flags]  # fmt: skip
            kept = self.represent_units(units)
            made, units = GroupedRows(made, tuple(columns), (*tests, *kept), what="DISTINCT"), [one.column for one in kept]  # fmt: skip
            unique = frozenset(columns)
            if flags:
                zero = Fixed(_WHOLE, value=0)
                here, there = (Compared(False, zero, test.column) for test in tests)
                made = Filtered(made, Connected(True, (here, there if isinstance(node, exp.Intersect) else Negated(there))), what=name)  # fmt: skip
        outputs: list[tuple[str, Value]] = [(alias, column) for (alias, _), column in zip(left, columns, strict=True)]
        if node.args.get("limit") or node.args.get("offset"):
            order = self._order(node, SelectNames(node, scope, None), dict(outputs))
            rows, skip = self._limits(node)
            made = Limited(made, tuple((cast("Stored", value), down, first) for value, down, first in order), rows, skip, what=f"LIMIT {rows}")  # fmt: skip
        self.query_units[id(node)] = units
        return made, outputs, unique

    def _require_rows(self, node: Any) -> None:
        """Refuse a set operation that policies do not allow, and rows by whose equality one value shows."""
        self.require_sites(f"the parties do {type(node).__name__.upper()}")
        distinct = node.args.get("distinct", True)
        if distinct or not isinstance(node, self.exp.Union):  # a constant among the rows tests for rows that are equal
            self.require_seen_rows(node, also=True)
        for select in self.scopes.list_selects(node) if distinct else ():
            self.require_keys([one.unalias() for one in select.expressions], self.scope(select))

    def _take_off(self, stacked: Operator, columns: Sequence[Stored], flags: Sequence[str], name: str) -> Operator:
        """INTERSECT ALL and EXCEPT ALL of stacked rows: the left rows that are alike are numbered, and of n on the right they take the first n, or leave them out.

        Raises:
            CompositionError: few rows must not show, and rows of the right side decide about single ones of the left.
        """
        if self.strict:
            raise refuse(f"{name} ALL, and min_count is {self.policy.min_count}", f"use {name}")
        here, there = (TruthValue(_TRUTH, condition=Flag(flag)) for flag in flags)
        one = Fixed(_WHOLE, value=1)
        right = ChosenValue(_WHOLE, cases=((there.condition, one),), default=Fixed(_WHOLE, value=None))
        turn = ChosenValue(_WHOLE, cases=((here.condition, Fixed(_WHOLE, value=0)),), default=one)
        stacked, (after,) = self.store(stacked, [turn], f"{name} ALL")
        number, count = (Stored(_WHOLE, frozenset(), self.new_name("g"), True) for _ in range(2))
        made = Ranked(stacked, tuple(columns), ((after, False, False),), (WindowColumn(number, "row_number"), WindowColumn(count, "count", right)), what=f"number the rows of {name} ALL")  # fmt: skip
        above = Compared(False, count, number)
        return Filtered(made, Connected(True, (here.condition, above if name == "EXCEPT" else Negated(above))), what=f"{name} ALL")  # fmt: skip

    def _stack_units(self, sides: Sequence[Any], inputs: Sequence[list[Value]]) -> list[Stored]:
        """The units of stacked rows, put beside their other columns: those of different tables are counted together."""
        own = [self.query_units.get(id(one), []) for one in sides]
        count = max(map(len, own))
        for row, mine in zip(inputs, own, strict=True):
            row += [mine[min(k, len(mine) - 1)] if mine else Fixed(_WHOLE, value=None) for k in range(count)]
        return [Stored(_WHOLE, frozenset(), self.new_name("u")) for _ in range(count)]
