"""A plan whose rows are shared: what each site computes by itself, and what three parties compute on shares of the rows of all sites.

The statement falls into *leaves*: parts that each site can compute from its own rows. If the whole FROM and WHERE is one, there is one leaf, and sites also group by themselves; what
they share are then partial aggregates, a row for each of their groups. Otherwise every table of FROM is a leaf with the conditions that read it alone, and the parties join the leaves
by equal columns and hold the remaining conditions (Bater et al. 2017, section 4: as much as possible in plaintext at the owner).

The parties then group the rows, and what is opened are the groups: their keys and aggregates, or with LIMIT the first of them. The coordinator computes what is written around them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from atoll.core.errors import CompositionError, PolicyError

from .aggregates import QueryAggregate
from .column_codes import ColumnCode, code_of
from .plan import Key, _aggregate_of, _outermost, _parts, _Planner
from .policy import QueryPolicy
from .statement import Catalog, SqlStatement, shadow

__all__ = ["AggregateColumns", "PlanLeaf", "SecurePlan", "SharedColumn", "make_secure_plan"]


@dataclass(frozen=True)
class SharedColumn:
    """A column that sites share.

    Attributes:
        name: in the shared table.
        text: local SQL, coded.
        code: how its values become words.
        number: whether it is a summand: a number modulo 2^64, 0 where there is none; otherwise words, with a bit for a missing value.
    """

    name: str
    text: str
    code: ColumnCode
    number: bool = False


@dataclass(frozen=True)
class PlanLeaf:
    """A part of the statement that each site computes from its own rows.

    Attributes:
        name: what it is called: the alias of its table, or all of FROM.
        columns: what is shared of it.
        body: local SQL of its rows: FROM and WHERE.
        group: GROUP BY, if sites aggregate by themselves.
        size: local SQL of FROM alone, whose number of rows is told, rounded up.
        lone: whether every site has all of its rows, so that one shares them.
    """

    name: str
    columns: tuple[SharedColumn, ...]
    body: str
    group: str
    size: str
    lone: bool

    @property
    def text(self) -> str:
        """Local SQL of the shared columns."""
        shown = ", ".join(f"{one.text} AS c{k}" for k, one in enumerate(self.columns)) or "1 AS c0"
        return f"SELECT {shown} {self.body}{self.group}"


@dataclass(frozen=True)
class AggregateColumns:
    """What the parties compute of an aggregate.

    Attributes:
        count: column of summands that count its values; empty for the rows themselves.
        sum: column of summands, if it needs a sum.
        least: column of words whose least or largest value it is.
        operation: ``"min"`` or ``"max"``, with ``least``.
        distinct: whether it counts the values of the plan's distinct column.
        code: how its values are coded.
    """

    count: str = ""
    sum: str = ""
    least: str = ""
    operation: str = ""
    distinct: bool = False
    code: ColumnCode = field(default_factory=lambda: ColumnCode("whole", "BIGINT"))


@dataclass(frozen=True)
class SecurePlan:
    """How one statement is answered under shares.

    Attributes:
        statement: the statement.
        catalog: the tables.
        policy: what all sites allow.
        leaves: see above.
        joins: for each leaf after the first, pairs of columns of earlier leaves and of it that are equal.
        conditions: what else holds of joined rows, as nodes of sqlglot's.
        operands: text of an operand of a condition -> its column, or the coded constant.
        keys: what is grouped by, or shown of single rows.
        key_columns: their columns.
        distinct: the column whose values are counted once; empty for none.
        aggregates: the aggregates.
        computed: what the parties compute of each.
        grouped: whether rows are grouped; if not, the rows themselves are the answer.
        order: what the first groups are chosen by: a column, and whether descending and missing values first.
        limit: how many are opened; ``None`` for all.
        sources: tables -> columns that are read.
        common: the statement's own WITH.
        finish: SQL of the result, over the table ``cells``.
    """

    statement: SqlStatement
    catalog: Catalog
    policy: QueryPolicy
    leaves: tuple[PlanLeaf, ...]
    joins: tuple[tuple[tuple[str, str], ...], ...]
    conditions: tuple[Any, ...] = field(compare=False)
    operands: dict[str, Any] = field(compare=False)
    keys: tuple[Key, ...]
    key_columns: tuple[SharedColumn, ...]
    distinct: str
    aggregates: tuple[QueryAggregate, ...]
    computed: tuple[AggregateColumns, ...]
    grouped: bool
    order: tuple[tuple[str, bool, bool], ...]
    limit: int | None
    sources: dict[str, tuple[str, ...]] = field(compare=False)
    common: str
    finish: str

    def column(self, name: str) -> SharedColumn:
        """A shared column."""
        return next(one for leaf in self.leaves for one in leaf.columns if one.name == name)


def make_secure_plan(statement: SqlStatement, catalog: Catalog, policy: QueryPolicy) -> SecurePlan:
    """Plan a statement under shares.

    Raises:
        PolicyError: a column's level or release does not allow it.
        CompositionError: the parties cannot answer it.
    """
    named = QueryPolicy(policy.min_count, policy.seconds, policy.memory, {t: policy.table(t) for t in catalog.tables})
    return _SecurePlanner(statement, catalog, named).secure_plan()


class _SecurePlanner(_Planner):
    where = "smcql"

    def _require_key(self, node: Any) -> None:
        level = self._level(node)
        if level == "private":
            column = next(f"{t}.{c}" for t, c in sorted(self.scopes.bases(node, self.root)) if self.scopes.column_policy((t, c)).level == "private")  # fmt: skip
            raise PolicyError(f"shows values of {column}, which is private", where="policies of the sites", remedy="show public or protected columns, or aggregates")  # fmt: skip

    # ------------------------------------------------------------------ the plan

    def secure_plan(self) -> SecurePlan:
        """All of it."""
        if self.strict:
            raise PolicyError(f"min_count is {self.policy.min_count}, and under shares no site can write down which of its rows stand behind an answer", where="smcql", remedy="use the strategy sums, or let sites set min_count: 1")  # fmt: skip
        self._require_levels()
        nodes = list(dict.fromkeys(self._aggregate_nodes()))
        group, distinct = self.tree.args.get("group"), self.tree.args.get("distinct")
        self.grouped = bool(nodes or group or distinct)
        keys = self._keys() if self.grouped else self._shown_rows()
        if keys:
            self._require_points()
        self._divide()
        with shadow(self.catalog) as connection:
            self.connection = connection
            self.sources = self._sources()
            self.body, _ = self._body(keys)
            self.columns: list[list[SharedColumn]] = [[] for _ in self.names]
            self.operands: dict[str, Any] = {}
            joins, conditions = self._read_conditions()
            key_columns = tuple(self._shared(node) for _, node in keys)
            self.distinct = ""
            self.made: list[AggregateColumns] = []
            for node in nodes:
                self._add_secure(node)
            key_types = self._types([text for text, _ in keys])
            leaves = tuple(self._leaf(place, [one.text for one in key_columns]) for place in range(len(self.names)))
        if not self.grouped:
            self._require_shown_order(keys)
        order, limit = self._first_groups(keys, key_columns)
        return SecurePlan(
            self.statement, self.catalog, self.policy, leaves, tuple(joins), tuple(conditions), self.operands,
            tuple(Key(text, kind) for (text, _), kind in zip(keys, key_types, strict=True)), key_columns, self.distinct,
            tuple(one for _, one in self.aggregates), tuple(self.made), self.grouped, order, limit, self.sources, self.with_text, self._finish(keys),
        )  # fmt: skip

    def _require_shown_order(self, keys: Sequence[tuple[str, Any]]) -> None:
        """Refuse rows in an order that the shown columns do not tell."""
        exp, texts = self.exp, {text for text, _ in keys}
        aliases = {one.alias for one in self.tree.expressions if isinstance(one, exp.Alias)}
        for one in self.tree.args["order"].expressions if self.tree.args.get("order") else ():
            for column in one.this.find_all(exp.Column):
                if column.sql("duckdb") not in texts and one.this.sql("duckdb") not in texts and column.name not in aliases:  # fmt: skip
                    raise CompositionError(f"ORDER BY {column.sql('duckdb')}, which is not shown", where="smcql", remedy="add it to SELECT, or leave it out of ORDER BY")  # fmt: skip

    def _shown_rows(self) -> list[tuple[str, Any]]:
        """What is shown of each row, where rows are not grouped."""
        found = []
        for one in self.tree.expressions:
            node = one.unalias()
            self._require_key(node)
            if any(True for _ in _outermost(node, (self.exp.Query,), ())):
                raise CompositionError("a subquery beside columns", where="smcql", remedy="show columns and expressions of them")  # fmt: skip
            found.append((node.sql("duckdb"), node))
        return list(dict.fromkeys(found))

    # ------------------------------------------------------------------ leaves

    def _divide(self) -> None:
        """Decide what the leaves are."""
        aliases = list(self.root.selected_sources)
        try:
            self.scopes.require_local()
        except CompositionError:
            self.local = False
        else:
            self.local = True
        self.names = ["all"] if self.local else aliases
        if self.local:
            return
        for join in self.tree.args.get("joins") or ():
            if (join.side or "") or (join.kind or "").upper() not in ("", "INNER", "CROSS") or join.args.get("method"):
                raise CompositionError(f"a {join.side or join.kind or join.args.get('method')} JOIN of rows that lie at different sites", where="smcql", remedy="use an inner JOIN")  # fmt: skip
        for scope in self.scopes.all:
            if scope is self.root or not self.scopes.is_divided(scope):
                continue
            if scope.is_subquery and not scope.is_derived_table and not scope.is_cte:
                raise CompositionError("a subquery in a condition sees rows of all sites", where="smcql", remedy="write it as a join")  # fmt: skip
            self.scopes._require_local_joins(scope)
            self.scopes._require_local_rows(scope)

    def _leaf_of(self, node: Any) -> int:
        """The leaf that an expression is computed from.

        Raises:
            CompositionError: it reads several.
        """
        if self.local:
            return 0
        read = {column.table for column in node.find_all(self.exp.Column)} & set(self.names)
        if len(read) > 1:
            raise CompositionError(f"{node.sql('duckdb')} reads columns of {' and '.join(sorted(read))}, which lie at different sites", where="smcql", remedy="compute with columns of one table, and compare the results")  # fmt: skip
        return self.names.index(read.pop()) if read else 0

    def _leaf(self, place: int, keys: Sequence[str]) -> PlanLeaf:
        exp = self.exp
        columns = tuple(self.columns[place])
        if self.local:
            group = ""
            if self.grouped:
                by = [one.text for one in columns if not one.number and not one.name.startswith("m")]
                group = f" GROUP BY {', '.join(dict.fromkeys(by))}" if by else ""
            tree = self._renamed(self.tree.copy())
            joins = [one.sql("duckdb") for one in tree.args.get("joins") or ()]
            size = tree.args["from_"].sql("duckdb") + "".join(
                one if one.startswith(",") else f" {one}" for one in joins
            )
            return PlanLeaf("all", columns, self.body, group, f"SELECT count(*) {size}", not self.scopes.is_divided(self.root))  # fmt: skip
        alias = self.names[place]
        tree = self._renamed(self.tree.copy())
        items = [tree.args["from_"].this, *(join.this for join in tree.args.get("joins") or ())]
        item = next(one for one in items if one.alias_or_name == alias)
        whole = _parts(exp, tree.args.get("where"))
        for join in tree.args.get("joins") or ():
            whole += list(join.args["on"].flatten()) if isinstance(join.args.get("on"), exp.And) else [join.args["on"]] if join.args.get("on") is not None else []  # fmt: skip
        mine = [part.sql("duckdb") for part in whole if {c.table for c in part.find_all(exp.Column)} <= {alias} and (place == 0 or part.find(exp.Column) is not None)]  # fmt: skip
        where = f" WHERE {' AND '.join(f'({part})' for part in mine)}" if mine else ""
        source = self.root.selected_sources[alias][1]
        return PlanLeaf(alias, columns, f"FROM {item.sql('duckdb')}{where}", "", f"SELECT count(*) FROM {item.sql('duckdb')}", not self.scopes._source_divided(source))  # fmt: skip

    # ------------------------------------------------------------------ columns

    def _shared(self, node: Any, kind: str = "") -> SharedColumn:
        """The column of an expression, as words."""
        place, text = self._leaf_of(node), node.sql("duckdb")
        (own,) = [kind] if kind else self._types([text])
        code = code_of(own, text)
        return self._column(place, code.local(f"CAST({text} AS {own})" if kind else text), code)

    def _column(self, place: int, text: str, code: ColumnCode, *, number: bool = False, prefix: str = "w") -> SharedColumn:  # fmt: skip
        known = next((one for one in self.columns[place] if (one.text, one.number, one.name[0]) == (text, number, prefix)), None)  # fmt: skip
        if known is not None:
            return known
        made = SharedColumn(f"{prefix}{place}.{len(self.columns[place])}", text, code, number)
        self.columns[place].append(made)
        return made

    # ------------------------------------------------------------------ conditions

    def _read_conditions(self) -> tuple[list[tuple[tuple[str, str], ...]], list[Any]]:
        """Equal columns by which leaves are joined, and conditions on joined rows."""
        if self.local:
            return [], []
        exp = self.exp
        parts = list(_parts(exp, self.tree.args.get("where")))
        for join in self.tree.args.get("joins") or ():
            if join.args.get("using"):
                raise CompositionError("JOIN … USING of rows that lie at different sites", where="smcql", remedy="write ON a.x = b.x")  # fmt: skip
            on = join.args.get("on")
            parts += list(on.flatten()) if isinstance(on, exp.And) else [] if on is None else [on]
        pairs: dict[int, list[tuple[str, str]]] = {}
        rest = []
        for part in parts:
            read = {column.table for column in part.find_all(exp.Column)} & set(self.names)
            if len(read) < 2:
                continue  # a leaf holds it
            sides = [one.unnest() for one in (part.left, part.right)] if isinstance(part, exp.EQ) else []
            if sides and all(len({c.table for c in one.find_all(exp.Column)} & set(self.names)) == 1 for one in sides):
                one, other = sorted(sides, key=self._leaf_of)
                kind = self._common(one, other)
                pairs.setdefault(self._leaf_of(other), []).append((self._shared(one, kind).name, self._shared(other, kind).name))  # fmt: skip
            else:
                self._read_operands(part)
                rest.append(part)
        for place in range(1, len(self.names)):
            if place not in pairs:
                raise CompositionError(f"{self.names[place]} is joined to no table before it by equal columns", where="smcql", remedy="join with a.x = b.x, and name tables in the order in which they are joined")  # fmt: skip
        return [tuple(pairs[place]) for place in range(1, len(self.names))], rest

    def _common(self, one: Any, other: Any) -> str:
        """The type to which DuckDB casts both sides of a comparison."""
        kinds = self._types([one.sql("duckdb"), other.sql("duckdb")])
        text = f"DESCRIBE SELECT CAST(NULL AS {kinds[0]}) AS x UNION ALL SELECT CAST(NULL AS {kinds[1]})"
        return str(self.connection.execute(text).fetchone()[1])

    def _read_operands(self, node: Any) -> None:
        """Share the operands of a condition.

        Raises:
            CompositionError: the parties cannot compute it.
        """
        exp = self.exp
        if isinstance(node, exp.Paren | exp.Not):
            self._read_operands(node.this)
        elif isinstance(node, exp.And | exp.Or):
            self._read_operands(node.left)
            self._read_operands(node.right)
        elif isinstance(node, exp.EQ | exp.NEQ | exp.LT | exp.LTE | exp.GT | exp.GTE):
            self._read_sides(node, [node.left, node.right])
        elif isinstance(node, exp.Between):
            self._read_sides(node, [node.this, node.args["low"], node.args["high"]])
        elif isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
            self.operands[node.this.sql("duckdb")] = self._shared(node.this).name
        else:
            raise CompositionError(f"{node.sql('duckdb')} on rows of different sites", where="smcql", remedy="use comparisons, AND, OR and NOT")  # fmt: skip

    def _read_sides(self, node: Any, sides: Sequence[Any]) -> None:
        kind = self._common(sides[0], sides[1])
        for more in sides[2:]:
            kinds = f"DESCRIBE SELECT CAST(NULL AS {kind}) AS x UNION ALL SELECT CAST(NULL AS {self._types([more.sql('duckdb')])[0]})"
            kind = str(self.connection.execute(kinds).fetchone()[1])
        for side in sides:
            self._read_operand(side, kind, node)

    def _read_operand(self, node: Any, kind: str, whole: Any) -> None:
        exp = self.exp
        text = node.sql("duckdb")
        read = {column.table for column in node.find_all(exp.Column)} & set(self.names)
        if len(read) == 1:
            self.operands[text] = self._shared(node, kind).name
        elif not read:
            code = code_of(kind, text)
            self.operands[text] = code, self.connection.execute(f"SELECT {code.local(f'CAST({text} AS {kind})')}").fetchone()[0]  # fmt: skip
        elif isinstance(node, exp.Paren):
            self._read_operand(node.this, kind, whole)
        elif isinstance(node, exp.Sub | exp.Add):
            for side in (node.left, node.right):
                (own,) = self._types([side.sql("duckdb")])
                if code_of(own, side.sql("duckdb")).kind != "whole" or own.startswith(("DECIMAL", "TIMESTAMP")):
                    raise CompositionError(f"{text} on rows of different sites", where="smcql", remedy="add and subtract whole numbers and dates")  # fmt: skip
                self._read_operand(side, own, whole)
        else:
            raise CompositionError(f"{text} on rows of different sites", where="smcql", remedy="compare columns and their differences")  # fmt: skip

    # ------------------------------------------------------------------ aggregates

    def _add_secure(self, node: Any) -> None:
        exp = self.exp
        inner, condition = (node.this, node.expression.this) if isinstance(node, exp.Filter) else (node, None)
        name, args = _aggregate_of(exp, inner)
        text = inner.sql("duckdb")
        if name not in ("count", "count_distinct", "sum", "avg", "min", "max"):
            raise CompositionError(f"{text} under shares", where="smcql", remedy="use COUNT, COUNT(DISTINCT), SUM, AVG, MIN or MAX")  # fmt: skip
        if any(one is not None and one.find(exp.Query) is not None for one in (inner, condition)):
            raise CompositionError(f"a subquery inside {text}", where="smcql", remedy="put it into WHERE")
        for arg in args:
            if name in ("min", "max"):
                self._require_key(arg)
            elif not name.startswith("count"):
                self._require_value(arg, inner)
        place = self._leaf_of(exp.and_(*(one.copy() for one in (*args, condition) if one is not None))) if args or condition is not None else 0  # fmt: skip
        where = "" if condition is None else condition.sql("duckdb")
        (kind,) = self._types([text])
        addends = (0, 1) if name in ("sum", "avg") else (0,)
        found = QueryAggregate("count" if name.startswith("count") else name, text, kind, addends)
        if name == "count_distinct":
            self._add_distinct(args[0], text, condition)
            made = AggregateColumns(distinct=True)
        elif name in ("min", "max"):
            made = self._least(name, args[0], place, where)
        else:
            made = self._summands(name, args, place, where, text)
        self.aggregates.append((node, found))
        self.made.append(made)

    def _add_distinct(self, arg: Any, text: str, condition: Any) -> None:
        column = self._shared(arg)
        if condition is not None or self.distinct not in ("", column.name):
            raise CompositionError(f"{text} beside another one, or with FILTER", where="smcql", remedy="count one column's values a statement, with WHERE in place of FILTER")  # fmt: skip
        self.distinct = column.name

    def _number(self, place: int, there: str, value: str, code: ColumnCode) -> str:
        """A column of summands: of one row, or if sites group by themselves of all rows of a group."""
        row = f"CASE WHEN {there} THEN {value} ELSE 0 END" if there else value
        text = f"CAST(coalesce(sum({row}), 0) AS BIGINT)" if self.local and self.grouped else f"CAST({row} AS BIGINT)"
        return self._column(place, text, code, number=True, prefix="n").name

    def _summands(self, name: str, args: Sequence[Any], place: int, where: str, what: str) -> AggregateColumns:
        texts = [arg.sql("duckdb") for arg in args]
        there = " AND ".join(f"({part})" for part in (where, *(f"({text}) IS NOT NULL" for text in texts)) if part)
        whole = ColumnCode("whole", "BIGINT")
        if name == "count":
            plain = not there and not self.local
            return AggregateColumns("" if plain else self._number(place, there, "1", whole))
        (kind,) = self._types(texts)
        code, scale = code_of(kind, texts[0]), self._scale_of(args[0])
        if code.kind == "real":
            if scale is None:
                raise CompositionError(f"{what} adds doubles, and parties add whole numbers", where="smcql", remedy=f"cast: ({texts[0]})::DECIMAL(18,4), or let the sites declare scale: 0.01")  # fmt: skip
            code = ColumnCode("whole", kind, scale)
            value = f"CAST(round(({texts[0]}) * {10**scale}) AS BIGINT)"
        elif code.kind != "whole" or kind in ("DATE", "BOOLEAN") or kind.startswith("TIMESTAMP"):
            raise CompositionError(f"{what} is of type {kind}", where="smcql", remedy="cast to a number")
        else:
            value = code.local(texts[0])
        return AggregateColumns(self._number(place, there, "1", whole), self._number(place, there, value, code), code=code)  # fmt: skip

    def _scale_of(self, node: Any) -> int | None:
        """Digits after the point that the policy declares of a column."""
        bases = self.scopes.bases(node, self.root)
        scales = {self.scopes.column_policy(base).scale for base in bases} if isinstance(node, self.exp.Column) else {None}  # fmt: skip
        found = scales.pop() if len(scales) == 1 else None
        return next((k for k in range(10) if found is not None and abs(found * 10**k - round(found * 10**k)) < 1e-9 and round(found * 10**k) >= 1), None)  # fmt: skip

    def _least(self, name: str, arg: Any, place: int, where: str) -> AggregateColumns:
        text = arg.sql("duckdb")
        (kind,) = self._types([text])
        code = code_of(kind, text)
        if code.kind == "text":
            raise CompositionError(f"{name.upper()} of text", where="smcql", remedy="group by the text instead")
        row = f"CASE WHEN {where} THEN {code.local(text)} END" if where else code.local(text)
        column = self._column(place, f"{name}({row})" if self.local and self.grouped else row, code, prefix="m")
        return AggregateColumns(least=column.name, operation=name, code=code)

    # ------------------------------------------------------------------ the first groups

    def _first_groups(self, keys: Sequence[tuple[str, Any]], columns: Sequence[SharedColumn]) -> tuple[tuple[tuple[str, bool, bool], ...], int | None]:  # fmt: skip
        """What the parties sort the groups by, so that only the first are opened; nothing if they cannot."""
        exp, tree = self.exp, self.tree
        limit, order = tree.args.get("limit"), tree.args.get("order")
        if limit is None or tree.args.get("having") is not None or (self.grouped and not keys):
            return (), None
        try:
            rows = int(limit.expression.name) + int(tree.args["offset"].expression.name if tree.args.get("offset") else 0)  # fmt: skip
        except ValueError:
            return (), None
        places = {text: column.name for (text, _), column in zip(keys, columns, strict=True)}
        names = {node.sql("duckdb"): f"a{k}" for k, (node, one) in enumerate(self.aggregates) if one.name == "count"}
        aliases = {one.alias: one.unalias().sql("duckdb") for one in tree.expressions if isinstance(one, exp.Alias)}
        found = []
        for one in order.expressions if order is not None else ():
            text = one.this.sql("duckdb")
            if isinstance(one.this, exp.Column) and not one.this.table:
                text = aliases.get(one.this.name, text)
            if isinstance(one.this, exp.Literal) and not one.this.is_string:
                text = tree.expressions[int(one.this.name) - 1].unalias().sql("duckdb")
            name = places.get(text) or names.get(text)
            if name is None:
                return (), None
            found.append((name, bool(one.args.get("desc")), bool(one.args.get("nulls_first"))))
        return tuple(found), rows
