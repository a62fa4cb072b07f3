"""From SQL to a plan under shares: what each site computes by itself, and what three parties compute on shares of the rows of all sites (`atoll.query.secure.operators`).

Each SELECT is planned from the inside out. Its tables fall into *leaves*, parts that sites can compute from their own rows: tables that are joined within sites (`join: local`, or replicated),
with the conditions and expressions that read them alone (Bater et al. 2017, section 4: as much as possible in plaintext at the owner). The parties join the leaves and evaluate what is left.
A subquery in a condition becomes a lookup: a bit beside each row for EXISTS and IN, a value for one that stands for a value. At the outside, what is opened are rows, or groups with their
aggregates, and the coordinator computes what is written around them.

How many rows a join has follows from what policies declare of keys: `key`, or `at_most: 7`. Without it the parties hold all pairs.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, cast

from atoll.core.errors import CompositionError, PolicyError

from ..aggregates import QueryAggregate
from ..column_codes import ColumnCode
from ..databases.silo import quote
from ..plan import Key, require_points, split_conditions
from ..policy import QueryPolicy
from ..statement import SOURCE, Catalog, SqlStatement, shadow
from .extents import Extents
from .groups import GroupPlanner
from .limits.column_bounds import require_bounds
from .limits.sensitivity import bound_joins
from .names import SelectNames, refuse
from .near import make_near_plan
from .operators import (
    AggregateOutput,
    ChosenValue,
    Computed,
    Filtered,
    Fixed,
    GroupColumn,
    GroupedRows,
    JoinedRows,
    LeafRows,
    Limited,
    MissingValue,
    Operator,
    Order,
    Quotient,
    RowCondition,
    SecurePlan,
    Stored,
    ToldJoin,
    Value,
    rewrite_operators,
)
from .yannakakis import aggregate_early

__all__ = ["SecurePlanner", "make_row_plan", "make_secure_plan", "make_told_plan"]

_WHOLE = ColumnCode("whole", "BIGINT")


def make_secure_plan(statement: SqlStatement, catalog: Catalog, policy: QueryPolicy) -> SecurePlan:
    """Plan a statement under shares; groups of joined rows are made along a join tree (`atoll.query.secure.yannakakis`).

    Raises:
        PolicyError: a column's level or release does not allow it.
        CompositionError: the parties cannot answer it.
    """
    return aggregate_early(make_row_plan(statement, catalog, policy))


def make_told_plan(statement: SqlStatement, catalog: Catalog, policy: QueryPolicy) -> SecurePlan:
    """The same with joins of many rows with many whose number of pairs the parties open: they are then as large as what they join, in place of all pairs (Wang, Yi 2021: a full join whose size is told).

    Raises:
        PolicyError: a table of the statement may not tell sizes.
        CompositionError: few units must not show, as they might in the size of a join.
    """
    plan = make_secure_plan(statement, catalog, policy)
    numbers = itertools.count()

    def changed(old: Operator, new: Operator) -> Operator:
        del old
        if type(new) is not JoinedRows or not new.pairs or 1 in (new.left_most, new.right_most):
            return new
        given = {one.name: getattr(new, one.name) for one in fields(new)}
        shown = f"how many pairs of rows {new.what} has" if new.what else "how many pairs of rows a join has"
        return ToldJoin(**{**given, "shows": shown}, number=next(numbers))

    root, *rest = rewrite_operators([plan.root, *([] if plan.withheld is None else [plan.withheld])], changed)
    if not next(numbers):
        return plan
    if plan.policy.min_count > 1:
        raise CompositionError(f"sizes of joins are told, and min_count is {plan.policy.min_count}", where="smcql", remedy="use joins=hidden")  # fmt: skip
    for table in plan.sources:
        if plan.policy.table(table).sizes != "open":
            raise PolicyError(f"tells the size of a join of {table}, whose sizes are {plan.policy.table(table).sizes}", where="policies of the sites", remedy=f"let all sites write tables: {{{table}: {{sizes: open}}}}, or use joins=hidden")  # fmt: skip
    return replace(plan, root=root, withheld=rest[0] if rest else None)


def make_row_plan(statement: SqlStatement, catalog: Catalog, policy: QueryPolicy) -> SecurePlan:
    """The same with every join as a table of rows, for whoever counts these; see `make_secure_plan`.

    It is made once for one statement, tables and policy: strategies that compete for a statement, and parties in one process, begin with the same.
    """
    named = QueryPolicy(policy.min_count, policy.seconds, policy.memory, {t: policy.table(t) for t in catalog.tables}, unrecorded=policy.unrecorded)  # fmt: skip
    made = _plan_rows(_Asked(statement.sql, catalog.key(), repr(named), statement, catalog, named))
    return replace(made, statement=statement, catalog=catalog, policy=named)


@dataclass(frozen=True)
class _Asked:
    """A statement, tables and a policy; two are alike if all that a plan follows from is."""

    sql: str
    tables: tuple[Any, ...]
    allowed: str
    statement: SqlStatement = field(compare=False)
    catalog: Catalog = field(compare=False)
    policy: QueryPolicy = field(compare=False)


@functools.lru_cache(maxsize=64)
def _plan_rows(asked: _Asked) -> SecurePlan:
    near = make_near_plan(asked.statement, asked.catalog, asked.policy)
    if near is not None:
        return near
    with shadow(asked.catalog) as connection:
        return SecurePlanner(asked.statement, asked.catalog, asked.policy, connection).plan()


class SecurePlanner(GroupPlanner):
    """One planning of one statement."""

    # ------------------------------------------------------------------ the plan

    def plan(self) -> SecurePlan:
        """All of it."""
        self.scopes.require_readable()
        if self.strict:
            self.scopes.require_even_weights()
            self.scopes.require_few_decided()
        self.common = self.write_common()
        return self._plan_root() if isinstance(self.tree, self.exp.Select) else self._plan_set()

    def write_common(self) -> str:
        """Local SQL of the statement's own WITH."""
        common = self.tree.args.get("with_")
        named = [one for one in common.expressions if one.alias not in self.apart_names] if common else []
        return ", ".join(self.local(one) for one in named)

    def _made(self, root: Operator, keys: Sequence[tuple[str, Stored, str]], outputs: Sequence[AggregateOutput], finish: str, *, grouped: bool, ordered: bool = False, limit: int | None = None, copies: Stored | None = None, withheld: Operator | None = None) -> SecurePlan:  # fmt: skip
        shown = tuple(Key(text, kind) for text, _, kind in keys)
        columns = tuple(column for _, column, _ in keys)
        for _, column, _ in keys:
            self._require_shown(column)
        if keys:
            require_points(self.scopes)
        for leaf in self.leaves:
            if not leaf.columns:  # its rows count all the same, and parties see from columns how many there are
                self.share(leaf, "CAST(1 AS BIGINT)", _WHOLE, ())
        self._claim_keys()
        leaves = tuple(leaf.finish() for leaf in self.leaves)
        claimed = [(table, column) for leaf in self.leaves for table, column in leaf.claims]
        sources = self.scopes.columns_read(self.catalog, [*claimed, *self.unit_bases])
        made = SecurePlan(self.statement, self.catalog, self.policy, leaves, root, shown, columns, tuple(outputs), grouped, ordered, limit, sources, self.common, finish, copies, withheld)  # fmt: skip
        extents = Extents([1] * len(leaves))  # of one row each, as nobody has told how many there are
        for one in (root, *(() if withheld is None else (withheld,))):
            extents.rows(one)
        require_bounds(made, extents)
        return bound_joins(made)

    def _claim_keys(self) -> None:
        """Have each site check the keys of its parts of tables whose columns lie apart, also where no join is small because of them: rows would be in the table more than once."""
        for table in sorted(self.scopes.tables(self.scopes.root)):
            key = self.policy.table(table).key
            for leaf in self.leaves if key else ():
                if any(quote(SOURCE + table) in item for item in leaf.items):
                    leaf.claims.setdefault((table, key), 1)

    def _require_shown(self, value: Value) -> None:
        """Refuse to open what is private."""
        for table, column in sorted(value.bases):
            if self.scopes.column_policy((table, column)).level == "private":
                raise PolicyError(f"shows values of {table}.{column}, which is private", where="policies of the sites", remedy="show public or protected columns, or aggregates")  # fmt: skip

    # ------------------------------------------------------------------ the outermost SELECT

    def _plan_root(self) -> SecurePlan:
        exp, tree = self.exp, self.tree
        names = SelectNames(tree, self.scopes.root, None)
        where = split_conditions(exp, tree.args.get("where"))
        nodes = self._aggregate_nodes(tree)
        keys = self._key_nodes(names)
        distinct = bool(tree.args.get("distinct")) and not nodes and not tree.args.get("group")
        if distinct and not any(self.outermost(one, (exp.Window,)) for one in tree.expressions):
            keys = list(dict.fromkeys(one.unalias() for one in tree.expressions))
        if self.strict:
            self._require_no_windows()
        if not (nodes or tree.args.get("group") or (distinct and keys)):
            return self._plan_alike_rows(names, where) if self.strict else self._plan_rows(names, where)
        self.read_rows(names, where)
        kinds = [self.kind(key, names) for key in keys]
        for key in keys:
            self.require_plain_key(key)
        values = [self.value(key, names) for key in keys]
        columns: dict[Any, GroupColumn] = {}
        outputs = [self._output(node, names, columns) for node in nodes]
        if self.strict:
            return self._plan_guarded(names, nodes, outputs, columns, list(zip(keys, values, kinds, strict=True)))
        single = self._aggregate_at_sites(names, keys, columns)
        if single is None:
            names.operator, stored = self.store(names.operator, values, "GROUP BY", words=True)
            shown = ", ".join(key.sql("duckdb") for key in keys)
            what = f"{f'group by {shown}' if keys else 'one group'}: {', '.join(node.sql('duckdb') for node in nodes)}"
            names.operator = GroupedRows(names.operator, tuple(stored), tuple(columns.values()), what=what.removesuffix(": "))  # fmt: skip
        else:
            names.operator, stored = single, []
        names.grouped = True
        names.values = {key.sql("duckdb"): column for key, column in zip(keys, stored, strict=True)}
        _, mapping = self._mapping(nodes, outputs)
        names.values |= mapping
        finish_tree, having = tree, tree.args.get("having")
        if having is not None:
            finish_tree = self._having(names, having)
        named = [(key.sql("duckdb"), column, kind) for key, column, kind in zip(keys, stored, kinds, strict=True)]
        self._look_up_beside(names, named, outputs)
        ordered, limit = self._first_groups(names)
        finish = self._finish(finish_tree, named, outputs)
        return self._made(names.operator, named, outputs, finish, grouped=True, ordered=ordered, limit=limit)

    # ------------------------------------------------------------------ answers that few units must not show

    def _require_no_windows(self) -> None:
        """Refuse a window function at the outside, whose value may be that of one row, or a total less a group that is left out."""
        for place in (*self.tree.expressions, *(self.tree.args[name] for name in ("qualify", "order") if self.tree.args.get(name))):  # fmt: skip
            for node in self.outermost(place, (self.exp.Window,)):
                raise refuse(f"{node.sql('duckdb')} at the outside, and min_count is {self.policy.min_count}", "ask for the groups, and rank them yourself")  # fmt: skip

    def _plan_guarded(self, names: SelectNames, nodes: Sequence[Any], outputs: Sequence[AggregateOutput], columns: dict[Any, GroupColumn], keys: Sequence[tuple[Any, Value, str]]) -> SecurePlan:  # fmt: skip
        """Groups of enough units, with the aggregates that single out none. What is around them, the coordinator computes from these."""
        self.require_seen_cells(names, [node for node, _, _ in keys], nodes)
        units = self.unit_columns(names)
        counts: dict[Any, GroupColumn] = {}
        guards = self.guard_aggregates(nodes, names, units, counts)
        self.divide_leaves(names, [node for node, _, _ in keys], nodes)
        counted, shown = self.count_units(units, counts), self.represent_units(units)
        names.operator, stored = self.store(names.operator, [value for _, value, _ in keys], "GROUP BY", words=True)
        texts = ", ".join(node.sql("duckdb") for node, _, _ in keys)
        what = f"{f'group by {texts}' if keys else 'one group'}: {', '.join(node.sql('duckdb') for node in nodes)}"
        grouped = GroupedRows(names.operator, tuple(stored), (*columns.values(), *counts.values(), *shown), what=what.removesuffix(": "))  # fmt: skip
        names.operator = self.keep_enough(grouped, counted)
        made = [self._guarded_output(names, one, guard) for one, guard in zip(outputs, guards, strict=True)]
        names.grouped = True
        names.values = {node.sql("duckdb"): column for (node, _, _), column in zip(keys, stored, strict=True)}
        names.values |= self._mapping(nodes, made)[1]
        finish_tree, having = self.tree, self.tree.args.get("having")
        if having is not None and self.queries(having):
            finish_tree = self._having(names, having)
        for one in self._subqueries_beside():
            raise refuse(f"the subquery ({one.sql('duckdb')}) beside the aggregates", "ask it in a statement of its own")  # fmt: skip
        named = [(node.sql("duckdb"), column, kind) for (node, _, kind), column in zip(keys, stored, strict=True)]
        withheld = self.count_withheld(grouped, counted, [one.column for one in shown], None) if keys else None
        return self._made(names.operator, named, made, self._finish(finish_tree, named, made), grouped=True, withheld=withheld)  # fmt: skip

    def _guarded_output(self, names: SelectNames, one: AggregateOutput, guard: RowCondition | None) -> AggregateOutput:
        """An aggregate of which nothing is opened where it may not be shown."""
        if guard is None:
            return one
        values = [ChosenValue(part.code, part.bases, cases=((guard, part),), default=Fixed(part.code, value=None)) for part in one.parts]  # fmt: skip
        names.operator, parts = self.store(names.operator, values, f"{one.aggregate.text}, unless it shows few units")
        return AggregateOutput(one.aggregate, tuple(parts), True)

    def _plan_alike_rows(self, names: SelectNames, where: Sequence[Any]) -> SecurePlan:
        """Rows that are alike in what is shown and ordered by, each kind of them once, with how many there are."""
        exp, tree = self.exp, self.tree
        self.read_rows(names, where)
        order = [one.this for one in tree.args["order"].expressions] if tree.args.get("order") else []
        aliases = {one.alias for one in tree.expressions if isinstance(one, exp.Alias)}
        order = [one for one in order if not isinstance(one, exp.Literal) and not (isinstance(one, exp.Column) and not one.table and one.name in aliases)]  # fmt: skip
        nodes = list(dict.fromkeys([*(one.unalias() for one in tree.expressions), *order]))
        kinds = [self.kind(node, names) for node in nodes]
        keys = [(node.sql("duckdb"), self.value(node, names), kind) for node, kind in zip(nodes, kinds, strict=True)]
        self.require_seen_cells(names, nodes, [])
        units = self.unit_columns(names)
        self.divide_leaves(names, nodes, [])
        return self._plan_alike(names.operator, keys, units, self._finish_rows(keys))

    def _plan_alike(self, source: Operator, keys: Sequence[tuple[str, Value, str]], units: Sequence[Stored], finish: str) -> SecurePlan:  # fmt: skip
        source, stored = self.store(source, [value for _, value, _ in keys], "the answer", words=True)
        counts: dict[Any, GroupColumn] = {}
        counted, shown = self.count_units(units, counts), self.represent_units(units)
        copies = GroupColumn(Stored(_WHOLE, frozenset(), self.new_name("g"), True), "count")
        grouped = GroupedRows(source, tuple(stored), (copies, *counts.values(), *shown), what="rows that are alike, and how many units have them")  # fmt: skip
        named = [(text, replace(column, code=self._typed(column.code, kind)), kind) for (text, _, kind), column in zip(keys, stored, strict=True)]  # fmt: skip
        withheld = self.count_withheld(grouped, counted, [one.column for one in shown], copies.column)
        return self._made(self.keep_enough(grouped, counted), named, [], finish, grouped=False, copies=copies.column, withheld=withheld)  # fmt: skip

    def _finish_rows(self, keys: Sequence[tuple[str, Value, str]]) -> str:
        named = [(text, Stored(value.code), kind) for text, value, kind in keys]
        return self._finish(self.tree, named, [])

    def _subqueries_beside(self) -> list[Any]:
        tree = self.tree
        places = [*tree.expressions, *(tree.args[name] for name in ("qualify", "order") if tree.args.get(name))]
        return [query for place in places for query in self.queries(place)]

    def _look_up_beside(self, names: SelectNames, named: list[tuple[str, Stored, str]], outputs: list[AggregateOutput]) -> None:  # fmt: skip
        """Add the subqueries beside the aggregates to what is opened of each group: the value of one, or whether a row or a value is in it, is a column of the group."""
        exp, keys = self.exp, {text for text, _, _ in named}
        for query in self._subqueries_beside():
            around = [query, *self._nodes_around(query)]
            if any(one.sql("duckdb") in keys for one in around):
                continue
            node = next((one for one in around[:2] if isinstance(one, exp.In | exp.Exists)), query)
            text, value, kind = node.sql("duckdb"), self.value(node, names), self.kind(node, names)
            keys.add(text)
            self._require_shown(value)
            if isinstance(value, Quotient):
                outputs.append(AggregateOutput(QueryAggregate("avg", text, kind, (0, 1)), self._open_quotient(names, value)))  # fmt: skip
                continue
            names.operator, (column,) = self.store(names.operator, [value], f"{text} beside the aggregates", words=True)
            named.append((text, replace(column, code=self._typed(column.code, kind)), kind))

    def _open_quotient(self, names: SelectNames, value: Quotient) -> tuple[Stored, Stored]:
        """What a quotient is divided by, and what is divided, as numbers to open: by 0 where it is NULL."""
        over, under = value.over, value.under
        if isinstance(over, Stored) and isinstance(under, Stored) and over.number and under.number:
            return under, over
        zero = Fixed(_WHOLE, value=0)
        there = ChosenValue(under.code, value.bases, cases=((MissingValue(over), Fixed(under.code, value=0)),), default=under)  # fmt: skip
        parts = [Computed(one.code, value.bases, "+", left=one, right=zero) for one in (there, over)]
        names.operator, (by, divided) = self.store(names.operator, parts, "a quotient of the answer")
        return by, divided

    def _nodes_around(self, node: Any) -> Iterator[Any]:
        """The expressions that a node stands in, within its SELECT."""
        at = node.parent
        while at is not None and not isinstance(at, self._selects):
            yield at
            at = at.parent

    def _mapping(self, nodes: Sequence[Any], outputs: Sequence[AggregateOutput]) -> tuple[None, dict[str, Value]]:
        """The aggregates as values, for conditions and orders."""
        found: dict[str, Value] = {}
        for node, one in zip(nodes, outputs, strict=True):
            name, parts = one.aggregate.name, one.parts
            if name == "avg":
                found[node.sql("duckdb")] = Quotient(ColumnCode("whole", "DOUBLE"), over=parts[1], under=parts[0])
            elif name in ("count", "sum", "min", "max"):
                found[node.sql("duckdb")] = parts[-1]
        return None, found

    def _having(self, names: SelectNames, having: Any) -> Any:
        """Keep groups under shares, if the parties can; otherwise the coordinator does it. Returns what is left to finish."""
        kept = names.operator
        try:
            self.filter(names, having.this, shown=self.strict)
        except CompositionError:
            names.operator = kept
            if self.queries(having):
                raise
            return self.tree
        tree = self.tree.copy()
        tree.set("having", None)
        return tree

    def _output(self, node: Any, names: SelectNames, columns: dict[Any, GroupColumn]) -> AggregateOutput:
        """An aggregate of the answer."""
        name, parts = self._parts_of(node, names, columns)
        for part in parts:
            self._require_shown(part)
        places = tuple(range(len(parts)))
        return AggregateOutput(QueryAggregate(name, node.sql("duckdb"), self.kind(node, names), places), tuple(parts))

    def _aggregate_at_sites(self, names: SelectNames, keys: Sequence[Any], columns: dict[Any, GroupColumn]) -> Operator | None:  # fmt: skip
        """One row of aggregates for each site, where all rows are one group and each site has its own."""
        at = names.operator
        if keys or not isinstance(at, LeafRows) or len(self.leaves) != 1:
            return None
        leaf = self.leaves[0]
        texts = {one.name: one for one in leaf.columns}
        made = []
        for one in columns.values():
            if one.distinct or not (one.value is None or isinstance(one.value, Stored)) or one.where is not None:
                return None
            if one.operation in ("min", "max") and one.value is not None and one.value.code.kind == "text":
                return None
            made.append(one)
        leaf.columns, leaf.single = [], True
        found = []
        for one in made:
            value = one.value
            local = "1" if value is None else texts[cast("Stored", value).name].text
            if one.operation == "count":
                text, code = f"count({'*' if value is None else local})", _WHOLE
            elif one.operation == "sum":
                text, code = f"CAST(sum({local}) AS BIGINT)", one.column.code
            else:
                text, code = f"{one.operation}({local})", one.column.code
            number = one.operation in ("count", "sum")
            column = self.share(leaf, text, code, one.column.bases, number=number)
            found.append(GroupColumn(one.column, "sum" if number else one.operation, column))
        return GroupedRows(at, (), tuple(found), what="one group, of each site's own aggregates")

    def _first_groups(self, names: SelectNames) -> tuple[bool, int | None]:
        """Have the parties sort, so that only the first groups or rows are opened; leave it to the coordinator, if they cannot."""
        tree, distinct = self.tree, self.tree.args.get("distinct")
        if distinct and (tree.args.get("group") or distinct.args.get("on")):  # equal rows are still to be left out
            return False, None
        if tree.args.get("limit") is None or (tree.args.get("having") is not None and not self._is_kept(names)) or tree.args.get("qualify") is not None:  # fmt: skip
            return False, None
        if isinstance(names.operator, GroupedRows) and not names.operator.keys:
            return False, None
        if any(self.outermost(one, (self.exp.Window,)) for one in tree.expressions) and names.grouped:
            return False, None
        kept = names.operator
        try:
            rows, skip = self._limits(tree)
            aliases = {one.alias: self.value(one.unalias(), names) for one in tree.expressions if isinstance(one, self.exp.Alias) and self._is_ordered_by(one.alias)}  # fmt: skip
            order = self._order(tree, names, aliases)
            names.operator, columns = self.store(names.operator, [value for value, _, _ in order], "ORDER BY")
        except CompositionError:
            names.operator = kept
            return False, None
        by = tuple((column, down, first) for column, (_, down, first) in zip(columns, order, strict=True))
        names.operator = Limited(names.operator, by, rows + skip, what=f"sort, and keep the first {rows + skip}")
        return True, rows + skip

    def _is_kept(self, names: SelectNames) -> bool:
        return any(isinstance(one, Filtered) and one.what == self.tree.args["having"].this.sql("duckdb") for one in [names.operator])  # fmt: skip

    def _is_ordered_by(self, alias: str) -> bool:
        order = self.tree.args.get("order")
        return order is not None and any(column.name == alias and not column.table for column in order.find_all(self.exp.Column))  # fmt: skip

    def _plan_rows(self, names: SelectNames, where: Sequence[Any]) -> SecurePlan:
        """Rows, and what is computed beside them."""
        exp, tree = self.exp, self.tree
        self.read_rows(names, where)
        self.add_windows(names)
        shown = list(dict.fromkeys(one.unalias() for one in tree.expressions))
        outputs: list[AggregateOutput] = []
        keys: list[tuple[str, Stored, str]] = []
        for node in shown:
            value, text = self.value(node, names), node.sql("duckdb")
            if isinstance(value, Quotient):
                aggregate = QueryAggregate("avg", text, self.kind(node, names), (0, 1))
                self._require_shown(value)  # a share of the rows shows by what they are ordered
                outputs.append(AggregateOutput(aggregate, self._open_quotient(names, value)))
                continue
            names.operator, (column,) = self.store(names.operator, [value], "the answer", words=True)
            keys.append((text, replace(column, code=self._typed(column.code, self.kind(node, names))), self.kind(node, names)))  # fmt: skip
        finish_tree = tree.copy()
        finish_tree.set("qualify", None)
        ordered, limit = False, None
        order = tree.args.get("order")
        if tree.args.get("distinct"):
            pass  # the coordinator orders what it has made distinct
        elif order is not None and order.find(exp.Star) is None and not any(one.this.sql("duckdb").upper().strip('"') == "ALL" for one in order.expressions):  # fmt: skip
            aliases = {one.alias: self.value(one.unalias(), names) for one in tree.expressions if isinstance(one, exp.Alias)}  # fmt: skip
            if tree.args.get("limit") is not None or not self._is_order_shown(keys):
                by = self._order(tree, names, aliases)
                for value, _, _ in by:
                    self._require_shown(value)  # the order shows it
                names.operator, columns = self.store(names.operator, [value for value, _, _ in by], "ORDER BY")
                limit = sum(self._limits(tree)) if tree.args.get("limit") is not None else None
                by_columns = tuple((column, down, first) for column, (_, down, first) in zip(columns, by, strict=True))
                self._slice_leaf(names.operator, by_columns, limit)
                names.operator = Limited(names.operator, by_columns, limit, what="sort" if limit is None else f"sort, and keep the first {limit}")  # fmt: skip
                ordered = True
                finish_tree.set("order", None)
        elif tree.args.get("limit") is not None and order is None:
            limit = sum(self._limits(tree))
            self._slice_leaf(names.operator, (), limit)
            names.operator, ordered = Limited(names.operator, (), limit, what=f"keep the first {limit}"), True
        return self._made(names.operator, keys, outputs, self._finish(finish_tree, keys, outputs), grouped=False, ordered=ordered, limit=limit)  # fmt: skip

    def _slice_leaf(self, rows: Operator, order: Order, limit: int | None) -> None:
        """Have each site share its own first rows alone, where it can sort them: the parties sort ``sites * limit`` rows in place of all (Bater et al. 2017, section 5.2: slicing)."""
        if not limit or not isinstance(rows, LeafRows):
            return
        leaf = self.leaves[rows.place]
        texts = {one.name: one.text for one in leaf.columns}
        if all(column.name in texts for column, _, _ in order):
            leaf.first = ", ".join(f"{texts[column.name]} {'DESC' if down else 'ASC'} NULLS {'FIRST' if first else 'LAST'}" for column, down, first in order), limit  # fmt: skip

    @staticmethod
    def _typed(code: ColumnCode, kind: str) -> ColumnCode:
        return replace(code, type=kind) if code.kind == "whole" and kind in ("BOOLEAN", "DATE") else code

    def _is_order_shown(self, keys: Sequence[tuple[str, Stored, str]]) -> bool:
        exp, texts = self.exp, {text for text, _, _ in keys}
        aliases = {one.alias for one in self.tree.expressions if isinstance(one, exp.Alias)}
        for one in self.tree.args["order"].expressions:
            for column in one.this.find_all(exp.Column):
                if column.sql("duckdb") not in texts and one.this.sql("duckdb") not in texts and column.name not in aliases:  # fmt: skip
                    return False
        return True

    def _finish(self, tree: Any, keys: Sequence[tuple[str, Stored, str]], outputs: Sequence[AggregateOutput]) -> str:
        """SQL over the table ``cells``, with keys ``k0``… and aggregates ``a0``…."""
        exp = self.exp
        tree = tree.copy()
        texts = {text: f"k{k}" for k, (text, _, _) in enumerate(keys)}
        texts |= {one.aggregate.text: f"a{k}" for k, one in enumerate(outputs)}
        for name in ("from_", "joins", "where", "group", "with_", "laterals", "windows"):
            tree.set(name, None)
        aliases = {one.alias for one in tree.expressions if isinstance(one, exp.Alias)}

        def put(node: Any) -> Any:
            text = node.sql("duckdb")
            return exp.column(texts[text], quoted=True) if text in texts and not isinstance(node, exp.Alias) else node

        having = tree.args.get("having")
        tree.set("having", None)
        tree = tree.transform(put)
        if having is not None:
            tree.set("where", exp.Where(this=having.this.transform(put)))
        for column in tree.find_all(exp.Column):
            if column.table and column.name not in aliases:
                raise refuse(f"{column.sql('duckdb')} stands beside aggregates and is no group key", "add it to GROUP BY")  # fmt: skip
        tree.set("from_", exp.From(this=exp.to_table("cells")))
        return str(tree.sql("duckdb"))

    # ------------------------------------------------------------------ a set operation at the outside

    def _plan_set(self) -> SecurePlan:
        """A set operation at the outside."""
        exp, tree = self.exp, self.tree.unnest()
        if not isinstance(tree, exp.SetOperation):
            raise refuse(f"{type(tree).__name__.upper()} at the outside", "write SELECT")
        order, limit, offset = (tree.args.get(name) for name in ("order", "limit", "offset"))
        for name in ("order", "limit", "offset"):
            tree.set(name, None)
        if self.strict and (not isinstance(tree, exp.Union) or tree.args.get("distinct", True)):
            raise refuse(f"{type(tree).__name__.upper()} at the outside makes one row of many, and min_count is {self.policy.min_count}", "SELECT DISTINCT … FROM (… UNION ALL …), whose rows are counted")  # fmt: skip
        operator, outputs, _ = self._set(tree, self.scopes.root)
        finish = exp.select(*(f'k{k} AS "{name}"' for k, (name, _) in enumerate(outputs))).from_("cells")
        for name, part in (("order", order), ("limit", limit), ("offset", offset)):
            finish.set(name, part.copy() if part is not None else None)
        if self.strict:
            self.require_seen_rows(tree)
            shown = [(name, value, kind) for (name, value), kind in zip(outputs, self.statement.types, strict=True)]
            return self._plan_alike(operator, shown, self.query_units[id(tree)], str(finish.sql("duckdb")))
        operator, columns = self.store(operator, [value for _, value in outputs], "the answer", words=True)
        keys = [(name, column, kind) for (name, _), column, kind in zip(outputs, columns, self.statement.types, strict=True)]  # fmt: skip
        return self._made(operator, keys, [], str(finish.sql("duckdb")), grouped=False)
