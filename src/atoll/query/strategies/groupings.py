"""Statements of several groupings: GROUPING SETS, ROLLUP and CUBE, and subqueries beside aggregates.

Each grouping is a plan of its own, with its keys and aggregates; sites answer all of them in the rounds of one (`atoll.query.strategies.sums`), and the coordinator puts the cells together. So
``SELECT ward, SUM(pay) / (SELECT SUM(pay) FROM p) FROM p GROUP BY ROLLUP (ward)`` has three: the wards, all rows, and the total. Its finish reads ``cells``, ``cells1`` and ``cells2``.

A number of one grouping less one of another is a difference as between two statements, and a site's record of answers treats it as one (`atoll.query.local.record_units`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from atoll.core.errors import CompositionError

from ..plan import QueryPlan, make_plan
from ..policy import QueryPolicy
from ..scopes import beside_groups, find_outermost, group_keys, has_grouping_sets, merge_derived
from ..statement import Catalog, SqlStatement, shadow

__all__ = ["WrittenSets", "make_sums_plan", "name_cells", "write_out_grouping_sets"]

_MOST = 64
"""Most groupings of one statement."""
_VALUE, _MEMBER, _THERE = "atoll_value_of", "atoll_member_of", "atoll_row_of"
"""Functions that stand for a subquery while the rest is planned; a statement that names them is refused when it is read."""
_ROWS = "@sets"

TypeOf = Callable[[Any, Any], str]
"""DuckDB's type of an expression, of a SELECT and the expression."""


def name_cells(place: int) -> str:
    """The table of the cells of a grouping, by its place in a plan."""
    return f"cells{place or ''}"


# ---------------------------------------------------------------- grouping sets


@dataclass(frozen=True)
class WrittenSets:
    """A SELECT over grouping sets, written as one plain SELECT for each set.

    Attributes:
        branches: the SELECT of each set: columns ``c0``… of what is shown, and ``o0``… of what rows are ordered by beside that.
        around: what is left: DISTINCT, ORDER BY and LIMIT, of all branches together.
    """

    branches: list[Any]
    around: Any

    def unite(self, branches: list[Any]) -> Any:
        """The SELECT around branches.

        Args:
            branches: in their order; of the same columns.
        """
        from sqlglot import exp

        made = branches[0]
        for one in branches[1:]:
            made = exp.Union(this=made, expression=one, distinct=False)
        tree = self.around.copy()
        alias = exp.TableAlias(this=exp.to_identifier(_ROWS, quoted=True))
        tree.set("from_", exp.From(this=exp.Subquery(this=made, alias=alias)))
        return tree


def write_out_grouping_sets(tree: Any, type_of: TypeOf, where: str) -> Any:
    """The tree with every SELECT over grouping sets written as the UNION ALL of one SELECT for each set. Changes the tree.

    Args:
        tree: the statement, with the table of every column.
        type_of: DuckDB's type of an expression, of a SELECT and the expression.
        where: what errors call the strategy.

    Raises:
        CompositionError: there are too many sets, or a window sees the rows of all of them.
    """
    from sqlglot import exp

    for select in list(tree.find_all(exp.Select)):
        if not has_grouping_sets(select):
            continue
        written, common = _write_sets(exp, select, type_of, where), select.args.get("with_")
        for one in written.branches:
            one.set("with_", None)
        made = written.unite(written.branches)
        made.set("with_", common.copy() if common is not None else None)
        if select is tree:
            tree = made
        else:
            select.replace(made)
    return tree


def _write_sets(exp: Any, select: Any, type_of: TypeOf, where: str) -> WrittenSets:
    """One SELECT for each grouping set, with NULL for the keys that it lacks."""
    shown = select.args["group"].sql("duckdb").strip()
    if any(node.find(exp.Window) is not None for node in beside_groups(select)):
        raise CompositionError(f"a window function beside {shown} sees the rows of all groupings", where=where, remedy="ask for the groups, and rank them yourself")  # fmt: skip
    sets = _list_sets(exp, select, where)
    keys = {key.sql("duckdb"): key for one in sets for key in one}
    kinds = {text: type_of(select, key) for text, key in keys.items()}
    order, hidden = _write_order(exp, select)
    named = [exp.alias_(one.unalias().copy(), f"c{place}", quoted=True) for place, one in enumerate(select.expressions)]
    named += [exp.alias_(one.copy(), f"o{place}", quoted=True) for place, one in enumerate(hidden)]
    branches = []
    for one in sets:
        made = select.copy()
        for name in ("distinct", "order", "limit", "offset"):
            made.set(name, None)
        held = {key.sql("duckdb") for key in one}
        put = _nulls(exp, held, kinds)
        made.set("expressions", [_replace_in(exp, node, put) for node in named])
        made.set("group", exp.Group(expressions=[key.copy() for key in one]) if one else None)
        having = made.args.get("having")
        if having is not None:
            made.set("having", exp.Having(this=_replace_in(exp, having.this, put)))
        elif not one and not any(True for node in made.expressions for _ in find_outermost(node, (exp.AggFunc,), (exp.Query,))):  # fmt: skip
            always = exp.GTE(this=exp.Count(this=exp.Star()), expression=exp.Literal.number(0))
            made.set("having", exp.Having(this=always))  # one row for all rows, and not a row for each
        branches.append(made)
    around = exp.Select(expressions=[exp.alias_(exp.column(f"c{place}", table=_ROWS, quoted=True), node.alias_or_name, quoted=True) for place, node in enumerate(select.expressions)])  # fmt: skip
    for name in ("distinct", "limit", "offset"):
        around.set(name, select.args[name].copy() if select.args.get(name) else None)
    around.set("order", order)
    return WrittenSets(branches, around)


def _list_sets(exp: Any, select: Any, where: str) -> list[list[Any]]:
    """The keys of each grouping set: those of several parts of GROUP BY are combined, each with each."""

    def flat(node: Any) -> list[Any]:
        if isinstance(node, exp.Tuple):
            return [key for one in node.expressions for key in flat(one)]
        return [node.unnest()]

    def sets(node: Any) -> list[list[Any]]:
        if isinstance(node, exp.GroupingSets):
            return [one for part in node.expressions for one in sets(part)]
        if not isinstance(node, exp.Rollup | exp.Cube):
            return [flat(node)]
        parts = [flat(part) for part in node.expressions]
        if isinstance(node, exp.Rollup):
            return [list(itertools.chain(*parts[:size])) for size in range(len(parts), -1, -1)]
        if 2 ** len(parts) > _MOST:  # refused by their number, before they are made; DuckDB takes 65,535
            return [[]] * 2 ** len(parts)
        return [list(itertools.chain(*some)) for size in range(len(parts), -1, -1) for some in itertools.combinations(parts, size)]  # fmt: skip

    parts = [sets(part) for part in select.args["group"].expressions]
    number = math.prod(map(len, parts))
    if number > _MOST:
        shown = select.args["group"].sql("duckdb").strip()
        raise CompositionError(f"{shown} makes {number:,} groupings", where=where, remedy=f"name at most {_MOST} of them with GROUPING SETS")  # fmt: skip
    found = [list(itertools.chain(*one)) for one in itertools.product(*parts)]
    return [list({key.sql("duckdb"): key for key in one}.values()) for one in found]


def _nulls(exp: Any, held: set[str], kinds: dict[str, str]) -> Callable[[Any], Any]:
    """What stands for a node in the SELECT of one set: NULL for a key that the set lacks, and a number for GROUPING."""

    def put(node: Any) -> Any:
        if isinstance(node, exp.Grouping | exp.GroupingId):
            bits = "".join("0" if one.sql("duckdb") in held else "1" for one in node.expressions)
            return exp.cast(exp.Literal.number(int(bits or "0", 2)), "BIGINT", dialect="duckdb")
        text = node.sql("duckdb")
        if text in held:
            return node.copy()  # whole: what it is made of may be a key that this set lacks
        return exp.cast(exp.Null(), kinds[text], dialect="duckdb") if text in kinds else None

    return put


def _replace_in(exp: Any, node: Any, put: Callable[[Any], Any]) -> Any:
    """A copy of an expression with parts replaced, from the outside in, and none inside an aggregate or a subquery: these see rows, which have all keys."""
    closed = (exp.AggFunc, exp.Filter, exp.Query)

    def change(one: Any) -> Any:
        if isinstance(one, exp.Alias):
            return one
        made = put(one)
        if made is not None:
            return made
        return one.copy() if isinstance(one, closed) else one

    return node.copy().transform(change, copy=False)


def _write_order(exp: Any, select: Any) -> tuple[Any, list[Any]]:
    """ORDER BY of all branches together, and the expressions that it needs beside the columns."""
    order = select.args.get("order")
    if order is None:
        return None, []
    values = {one.alias: one.unalias() for one in select.expressions if isinstance(one, exp.Alias)}
    made, hidden = order.copy(), []
    for one in made.expressions:
        at = one.this
        plain = isinstance(at, exp.Column) and not at.table and at.name in values
        if plain or isinstance(at, exp.Literal | exp.Star) or at.sql("duckdb").strip('"').upper() == "ALL":
            continue
        hidden.append(at.transform(lambda node: values[node.name].copy() if isinstance(node, exp.Column) and not node.table and node.name in values else node))  # fmt: skip
        one.set("this", exp.column(f"o{len(hidden) - 1}", table=_ROWS, quoted=True))
    return made, hidden


# ---------------------------------------------------------------- subqueries beside aggregates


def _take_subqueries(exp: Any, tree: Any, taken: dict[str, Any], remedy: str) -> Any:
    """The tree with a function in the place of each subquery beside aggregates; `taken` has them by their text, `remedy` says what else there is. Changes the tree.

    Raises:
        CompositionError: one depends on the groups around it.
    """
    for part in beside_groups(tree):
        for query in list(find_outermost(part, (exp.Query,), (exp.AggFunc, exp.Filter, exp.Window), top=False)):
            inner = query.unnest().copy()
            shown = f"the subquery ({inner.sql('duckdb')}) beside the aggregates"
            if (outer := _outer_column(inner)) is not None:
                raise CompositionError(f"{shown} reads {outer.sql('duckdb')} of the statement around it", where="sums", remedy=remedy)  # fmt: skip
            holder = query.parent
            if isinstance(holder, exp.Any | exp.All):
                raise CompositionError(f"a comparison with {type(holder).__name__.upper()} of {shown}", where="sums", remedy="compare with a subquery that stands for one value")  # fmt: skip
            text = inner.sql("duckdb")
            place = exp.Literal.number(list(taken.setdefault(text, inner) and taken).index(text))
            if isinstance(holder, exp.In) and query.arg_key == "query":
                holder.replace(exp.Anonymous(this=_MEMBER, expressions=[holder.this.copy(), place]))
            elif isinstance(holder, exp.Exists):
                holder.replace(exp.Anonymous(this=_THERE, expressions=[place]))
            else:
                query.replace(exp.Anonymous(this=_VALUE, expressions=[place]))
    return tree


def _write_keys(exp: Any, tree: Any) -> Any:
    """The tree with the keys of GROUP BY ALL written out, without those of subqueries, which have one value for each of the other keys. Changes the tree.

    Raises:
        CompositionError: the groups depend on the value of a subquery.
    """
    if tree.args.get("group") is not None and tree.args["group"].args.get("all"):
        every = group_keys(exp, tree)
        keys = [one for one in every if one.find(exp.Query) is None]
        for one in every:
            read = [one] if isinstance(one, exp.Column) else find_outermost(one, (exp.Column,), (exp.Query,))
            if not keys or any(column not in keys for column in read if one not in keys):
                raise CompositionError(f"GROUP BY ALL has the key {one.sql('duckdb')}, a subquery's value", where="sums", remedy="write GROUP BY and columns")  # fmt: skip
        tree.set("group", exp.Group(expressions=[one.copy() for one in keys]))
    return tree


def _outer_column(query: Any) -> Any:
    """A column of a query that is of a table around it; ``None`` if there is none."""
    from sqlglot.optimizer.scope import traverse_scope

    return next(iter(list(traverse_scope(query))[-1].external_columns), None)


def _keep_common(exp: Any, query: Any, common: Any) -> Any:
    """The query with those of a statement's WITH that it reads, directly or through others."""
    names = {one.name for one in query.find_all(exp.Table)}
    kept: list[Any] = []
    for one in reversed(common.expressions if common is not None else []):
        if one.alias in names:
            kept.insert(0, one.copy())
            names |= {table.name for table in one.find_all(exp.Table)}
    if kept and query.args.get("with_") is None:
        query.set("with_", exp.With(expressions=kept))
    return query


def _put_subqueries(exp: Any, finish: str, taken: list[Any]) -> Any:
    """The tree of a finish with subqueries in their places."""
    import sqlglot

    def put(node: Any) -> Any:
        name = node.name.lower() if isinstance(node, exp.Anonymous) else ""  # sqlglot writes it in capitals
        if name not in (_VALUE, _MEMBER, _THERE):
            return node
        query = taken[int(node.expressions[-1].name)].copy()
        if name == _MEMBER:
            return exp.In(this=exp.paren(node.expressions[0].copy().transform(put)), query=exp.Subquery(this=query))
        return exp.Exists(this=query) if name == _THERE else exp.Subquery(this=query)

    return sqlglot.parse_one(finish, dialect="duckdb").transform(put)


# ---------------------------------------------------------------- the plan


def make_sums_plan(statement: SqlStatement, catalog: Catalog, policy: QueryPolicy) -> QueryPlan:
    """Plan a statement of aggregates with any number of groupings; see `atoll.query.plan.make_plan`, which plans each.

    Raises:
        PolicyError: a column's level or release does not allow it.
        CompositionError: sums cannot answer it.
    """
    from sqlglot import exp

    tree = statement.tree
    if not isinstance(tree, exp.Select) or not (tree.find(exp.GroupingSets, exp.Rollup, exp.Cube, exp.Grouping, exp.GroupingId) or any(part.find(exp.Query) for part in beside_groups(tree))):  # fmt: skip
        return make_plan(statement, catalog, policy)
    common, taken = tree.args.get("with_"), dict[str, Any]()
    other = ", or use the strategy smcql" if policy.min_count == 1 else ""
    tree = _take_subqueries(exp, _write_keys(exp, tree.copy()), taken, f"ask for its groups in a statement of their own{other}")  # fmt: skip
    if taken and common is not None:
        tree.set("with_", None)
        tree = _keep_common(exp, tree, common)
    tree = merge_derived(tree)
    written = None
    if has_grouping_sets(tree):
        with shadow(catalog) as connection:
            written = _write_sets(exp, tree, lambda select, node: _type_in(connection, select, node), "sums")
    branches = [tree] if written is None else written.branches
    queries = [_keep_common(exp, one, common) for one in taken.values()]
    parts = tuple(make_plan(replace(statement, tree=one), catalog, policy) for one in (*branches, *queries))
    if len(parts) == 1 and written is None:
        return parts[0]
    trees = [_name_cells(exp, one.finish, place) for place, one in enumerate(parts)]
    shown, beside = trees[: len(branches)], trees[len(branches) :]
    root = shown[0] if written is None else written.unite(shown)
    finish = _put_subqueries(exp, root.sql("duckdb"), beside).sql("duckdb")
    return _unite(statement, parts, finish)


def _type_in(connection: Any, select: Any, node: Any) -> str:
    """DuckDB's type of an expression of a SELECT's rows."""
    items = [select.args["from_"], *(select.args.get("joins") or ())]
    prefix = f"{select.args['with_'].sql('duckdb')} " if select.args.get("with_") else ""
    text = f"DESCRIBE {prefix}SELECT {node.sql('duckdb')} AS x FROM {', '.join(one.this.sql('duckdb') for one in items)}"  # fmt: skip
    return str(connection.execute(text).fetchone()[1])


def _name_cells(exp: Any, finish: str, place: int) -> Any:
    import sqlglot

    tree = sqlglot.parse_one(finish, dialect="duckdb")
    for table in tree.find_all(exp.Table):
        table.set("this", exp.to_identifier(name_cells(place)))
    return tree


def _unite(statement: SqlStatement, parts: tuple[QueryPlan, ...], finish: str) -> QueryPlan:
    """One plan of several: what is said of all of them."""
    sources: dict[str, tuple[str, ...]] = {}
    for table, columns in (item for one in parts for item in one.sources.items()):
        sources[table] = tuple(dict.fromkeys((*sources.get(table, ()), *columns)))
    reads = tuple(sorted({text for one in parts for text in one.reads}))
    return replace(parts[0], statement=statement, sources=sources, reads=reads, finish=finish, parts=parts)
