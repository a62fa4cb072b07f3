"""What a SELECT reads, and whether sites can answer it by themselves: base columns, local joins, local subqueries.

A part of a statement is *local* if running it at each site and putting the rows together gives the rows of the whole: filters and expressions always; joins with tables
that every site has; joins of two divided tables only on columns whose equal values lie at one site (``join: local``). A subquery that groups is local if it groups by such a
column.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from atoll.core.errors import CompositionError, PolicyError

from .policy import ColumnPolicy, QueryPolicy
from .rules.matching import has_matching, weight_of
from .statement import SOURCE, Catalog

__all__ = [
    "Scopes",
    "beside_groups",
    "factor_conditions",
    "find_outermost",
    "group_keys",
    "has_grouping_sets",
    "merge_derived",
    "split_parts",
    "wrap_value",
    "write_out_quantifiers",
]

Base = tuple[str, str]
"""Table and column, in lower case."""


def merge_derived(tree: Any) -> Any:
    """A copy of a tree in which derived tables are merged into the queries around them, where that is safe, and expressions of a derived table's groups are those of its SELECT.

    It is not where a table inside a derived one has the name of a table elsewhere: merged into a subquery, ``p`` would hide the ``p`` around it, and a condition on both would compare one with itself.
    """
    from sqlglot import exp
    from sqlglot.optimizer.merge_subqueries import merge_subqueries

    made = _merge_groups(exp, tree.copy())
    names = [table.alias_or_name for table in made.find_all(exp.Table)]
    inner = [table.alias_or_name for one in made.find_all(exp.Subquery) if isinstance(one.parent, exp.From | exp.Join) for table in one.find_all(exp.Table)]  # fmt: skip
    if any(names.count(name) > 1 for name in inner):
        return made
    return _merge_groups(exp, merge_subqueries(made, leave_tables_isolated=False))


_AROUND = ("with_", "from_", "expressions", "where", "order", "limit", "offset", "hint", "kind")
_INSIDE = ("with_", "from_", "joins", "expressions", "where", "group", "having", "order")
"""Clauses that a SELECT around groups may have, and those of the groups themselves: with others, rows and groups are not one to one."""


def _merge_groups(exp: Any, tree: Any) -> Any:
    """The tree, without a SELECT that only computes from each group of a derived table or a WITH: it asks for the aggregates themselves, with its WHERE as their HAVING.

    ``SELECT ward, n / 2 FROM (SELECT ward, COUNT(*) AS n FROM p GROUP BY ward) AS t WHERE n > 9`` is ``SELECT ward, COUNT(*) / 2 FROM p GROUP BY ward HAVING COUNT(*) > 9``, which sites answer by sums.
    """
    while True:
        groups = _find_groups(exp, tree)
        if groups is None:
            return tree
        alias, inner, named = groups
        values = {one.alias_or_name: one.unalias() for one in inner.expressions}

        def put(node: Any, alias: str = alias, values: dict[str, Any] = values) -> Any:
            here = isinstance(node, exp.Column) and node.table == alias
            if not here:
                return node
            return wrap_value(exp, values[node.name])

        made, conditions = inner.copy(), [one.this for one in (inner.args.get("having"),) if one is not None]
        if made.args.get("group") is not None:
            made.set("group", exp.Group(expressions=[key.copy() for key in group_keys(exp, inner)]))
        for name in ("expressions", "order", "limit", "offset"):
            value = tree.args.get(name)
            made.set(name, [one.transform(put) for one in value] if isinstance(value, list) else value and value.transform(put))  # fmt: skip
        if tree.args.get("where") is not None:
            conditions.append(tree.args["where"].this.transform(put))
        if not (made.args.get("group") or any(one.find(exp.AggFunc) for one in made.expressions)):
            return tree  # one row for all rows, whose values nobody asks for
        made.set("having", exp.Having(this=exp.and_(*conditions)) if conditions else None)
        rest = [one for one in tree.args["with_"].expressions if one.alias != named] if tree.args.get("with_") else []
        made.set("with_", exp.With(expressions=rest) if rest else None)
        tree = made


def _find_groups(exp: Any, tree: Any) -> tuple[str, Any, str] | None:
    """What a SELECT calls its only table, the SELECT of that table, and the name of its WITH; ``None`` unless the table has groups and the SELECT has expressions of them alone."""
    if not isinstance(tree, exp.Select) or tree.args.get("from_") is None or _has_more(tree, _AROUND):
        return None
    beside = [tree.args.get(name) for name in ("where", "order", "limit", "offset")]
    if any(node.find(exp.AggFunc, exp.Window, exp.Query) for node in [*tree.expressions, *filter(None, beside)]):
        return None
    source, named = tree.args["from_"].this, ""
    if isinstance(source, exp.Table):
        known = {one.alias: one for one in tree.args["with_"].expressions} if tree.args.get("with_") else {}
        named = source.name
        if named not in known or [one.name for one in tree.find_all(exp.Table)].count(named) > 1:
            return None
        inner = known[named].this
    else:
        inner = source.this if isinstance(source, exp.Subquery) else None
    if not isinstance(inner, exp.Select) or inner.args.get("from_") is None or _has_more(inner, _INSIDE):
        return None
    if inner.args.get("with_") or any(one.find(exp.Window, exp.Query) for one in inner.expressions):
        return None
    names = [one.alias_or_name for one in inner.expressions]
    grouped = inner.args.get("group") or any(one.find(exp.AggFunc) for one in inner.expressions)
    asked = {one.name for one in tree.find_all(exp.Column) if one.table == source.alias_or_name and one.find_ancestor(exp.Subquery) is None}  # fmt: skip
    whole = grouped and len(set(names)) == len(names) and asked <= {*names}
    return (source.alias_or_name, inner, named) if whole else None


def wrap_value(exp: Any, value: Any) -> Any:
    """A copy of an expression to stand in place of a column, whatever is around it: ``NOT k`` of ``a OR b AS k`` is ``NOT (a OR b)``."""
    # AND and OR are functions to sqlglot.
    closed = isinstance(value, exp.Column | exp.Func | exp.Literal) and not isinstance(value, exp.Binary)
    return value.copy() if closed else exp.paren(value.copy(), copy=False)


def _has_more(select: Any, clauses: tuple[str, ...]) -> bool:
    return any(value for name, value in select.args.items() if name not in clauses)


def find_outermost(node: Any, kinds: tuple[type, ...], closed: tuple[type, ...], top: bool = True) -> Iterator[Any]:
    """Nodes of some kinds, none inside another, and none inside a closed node."""
    if not top and isinstance(node, kinds):
        yield node
        return
    if not top and isinstance(node, closed):
        return
    for child in node.iter_expressions():
        yield from find_outermost(child, kinds, closed, top=False)


def group_keys(exp: Any, select: Any) -> list[Any]:
    """The keys of the groups of a SELECT; those of ``GROUP BY ALL`` are what it shows without an aggregate."""
    group = select.args.get("group")
    if group is not None and group.args.get("all"):
        return [one.unalias() for one in select.expressions if not any(True for _ in find_outermost(one, (exp.AggFunc,), (exp.Query,)))]  # fmt: skip
    return list(group.expressions) if group is not None else []


def has_grouping_sets(select: Any) -> bool:
    """Whether a SELECT has GROUPING SETS, ROLLUP or CUBE, or asks of which of them a row is."""
    from sqlglot import exp

    group = select.args.get("group") if isinstance(select, exp.Select) else None
    if group is None:
        return False
    return any(isinstance(one, exp.GroupingSets | exp.Rollup | exp.Cube) for one in group.expressions) or any(True for part in beside_groups(select) for _ in _find_grouping(exp, part))  # fmt: skip


def beside_groups(select: Any) -> list[Any]:
    """The expressions of a SELECT in which aggregates may stand."""
    return [*select.expressions, *(select.args[name] for name in ("having", "order", "qualify") if select.args.get(name))]  # fmt: skip


def _find_grouping(exp: Any, part: Any) -> Iterator[Any]:
    kinds = (exp.Grouping, exp.GroupingId)
    return iter([part]) if isinstance(part, kinds) else find_outermost(part, kinds, (exp.Query,))


def factor_conditions(tree: Any) -> Any:
    """The tree with ``(a AND b) OR (a AND c)`` written as ``a AND (b OR c)`` in WHERE and ON, which is the same under three-valued logic: a join finds its equal columns there. Changes the tree."""
    from sqlglot import exp

    for clause in list(tree.find_all(exp.Where, exp.Join)):
        name = "this" if isinstance(clause, exp.Where) else "on"
        parts = split_parts(exp.And, clause.args[name]) if clause.args.get(name) is not None else []
        made = [_factor(exp, part) for part in parts]
        if any(one is not part for one, part in zip(made, parts, strict=True)):
            clause.set(name, exp.and_(*made, wrap=True, copy=False))
    return tree


def split_parts(kind: Any, node: Any) -> list[Any]:
    """The conditions that one kind of operator joins, whatever parentheses stand around it."""
    node = node.unnest()
    return [part for side in (node.left, node.right) for part in split_parts(kind, side)] if isinstance(node, kind) else [node]  # fmt: skip


def _factor(exp: Any, node: Any) -> Any:
    """One condition, or those that all of its alternatives have in common and the alternatives of the rest."""
    ways = [split_parts(exp.And, way) for way in split_parts(exp.Or, node)]
    common = [part for part in dict.fromkeys(ways[0]) if all(part in way for way in ways)]
    if len(ways) == 1 or not common:
        return node
    rests = [[part for part in way if part not in common] for way in ways]
    if not all(rests):  # one alternative says no more than that
        return exp.and_(*common, wrap=True, copy=False)
    return exp.and_(*common, exp.or_(*(exp.and_(*rest, wrap=True) for rest in rests), wrap=True), wrap=True, copy=False)  # fmt: skip


def write_out_quantifiers(tree: Any, *, strict: bool = False) -> Any:
    """A tree in which comparisons with ``ANY`` and ``ALL`` of a subquery are written with its least and its largest value, and with how many values it has and lacks.

    ``x > ANY (…)`` is true if x is above the least value; else NULL if x is NULL and there is a row, or a value is; else false: of no row at all it is false. ``x > ALL (…)`` is ``NOT x <= ANY (…)``.

    Args:
        tree: the tree.
        strict: whether few units must not show: then a subquery of few has neither a least value nor a number of rows, and only ``= ANY`` and ``<> ALL`` are written, with IN.
    """
    from sqlglot import exp

    opposite = {exp.EQ: exp.NEQ, exp.NEQ: exp.EQ, exp.LT: exp.GTE, exp.GTE: exp.LT, exp.GT: exp.LTE, exp.LTE: exp.GT}

    numbers = itertools.count()

    def put(node: Any) -> Any:
        kind, which = type(node), node.args.get("expression")
        if (
            kind not in opposite
            or not isinstance(which, exp.All | exp.Any)
            or not isinstance(which.this.unnest(), exp.Query)
        ):
            return node
        every = isinstance(which, exp.All)
        positive = opposite[kind] if every else kind
        if strict and positive is not exp.EQ:
            return node
        made = _compare_with_any(positive, node.this, which.this.unnest(), f"@any{next(numbers)}")
        return exp.Not(this=exp.paren(made, copy=False)) if every else exp.paren(made, copy=False)

    return tree.transform(put)


def _compare_with_any(kind: Any, value: Any, query: Any, alias: str) -> Any:
    """A comparison of a value with ``ANY`` of the rows of a subquery; one with groups, aggregates or a limit becomes a derived table of this name."""
    from sqlglot import exp

    if kind is exp.EQ:
        return exp.In(this=value.copy(), query=exp.Subquery(this=query.copy()))
    plain = isinstance(query, exp.Select) and not any(query.args.get(name) for name in ("group", "having", "limit", "offset", "qualify", "with_")) and not (query.args.get("distinct") and query.args["distinct"].args.get("on")) and not query.expressions[0].find(exp.AggFunc, exp.Window)  # fmt: skip
    if plain:
        source, shown = query.copy(), query.expressions[0].unalias()
        for name in ("distinct", "order"):
            source.set(name, None)
    else:
        source = exp.Select().from_(
            exp.Subquery(this=query.copy(), alias=exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))
        )
        shown = exp.column(query.named_selects[0], table=alias, quoted=True)

    def scalar(made: Any) -> Any:
        one = source.copy()
        one.set("expressions", [exp.alias_(made, "one", quoted=True)])
        return exp.Subquery(this=one)

    bounds = [bound for bound, kinds in ((exp.Min, (exp.GT, exp.GTE, exp.NEQ)), (exp.Max, (exp.LT, exp.LTE, exp.NEQ))) if kind in kinds]  # fmt: skip
    found = exp.or_(*(kind(this=value.copy(), expression=scalar(bound(this=shown.copy()))) for bound in bounds))
    rows, values = scalar(exp.Count(this=exp.Star())), scalar(exp.Count(this=shown.copy()))
    missing = exp.and_(exp.Is(this=value.copy(), expression=exp.Null()), exp.GT(this=rows.copy(), expression=exp.Literal.number(0)))  # fmt: skip
    unknown = exp.or_(missing, exp.GT(this=rows, expression=values))
    return exp.Case(ifs=[exp.If(this=found, true=exp.true()), exp.If(this=unknown, true=exp.Cast(this=exp.Null(), to=exp.DataType.build("BOOLEAN")))], default=exp.false())  # fmt: skip


class Scopes:
    """The scopes of a qualified tree.

    Args:
        tree: a SELECT whose columns all name their tables.
        policy: what all sites allow.
    """

    def __init__(self, tree: Any, policy: QueryPolicy) -> None:
        from sqlglot import exp
        from sqlglot.optimizer.scope import traverse_scope

        self.tree, self.exp, self.policy = tree, exp, policy
        self.all = list(traverse_scope(tree))
        self.root = self.all[-1]
        self._of = {id(scope.expression): scope for scope in self.all}

    # ------------------------------------------------------------------ where columns come from

    def source_of(self, column: Any, scope: Any) -> tuple[Any, Any]:
        """What a column's table stands for, and the scope in which it does."""
        at = scope
        while at is not None:
            if column.table in at.selected_sources:
                return at.selected_sources[column.table][1], at
            at = at.parent
        return scope.sources.get(column.table), scope

    def bases(self, node: Any, scope: Any) -> set[Base]:
        """The columns of tables that an expression is computed from."""
        found: set[Base] = set()
        for column in node.find_all(self.exp.Column):
            inner = self.scope_of(column) or scope
            found |= self._bases_of(column, inner)
        return found

    def _bases_of(self, column: Any, scope: Any) -> set[Base]:
        source, _ = self.source_of(column, scope)
        if isinstance(source, self.exp.Table):
            return {(source.name.lower(), column.name.lower())}
        found: set[Base] = set()
        for projection in self.projections_of(source, column.name):
            found |= self.bases(projection, source)
        return found

    def projections_of(self, source: Any, name: str) -> list[Any]:
        """The expressions that a derived table has under a name: one for each SELECT of a set operation."""
        if source is None or not hasattr(source, "expression"):
            return []
        selects, named = self.list_selects(source.expression), name.lower()
        shown = [[one.alias_or_name.lower() for one in select.expressions] for select in selects]
        by_name = any(one.args.get("by_name") for one in source.expression.find_all(self.exp.SetOperation))
        # Columns of a set operation are those of its first SELECT, by their places.
        places = [(names if by_name else shown[0]).index(named) if named in (names if by_name else shown[0]) else None for names in shown]  # fmt: skip
        return [select.expressions[k].unalias() for select, k in zip(selects, places, strict=True) if k is not None and k < len(select.expressions)]  # fmt: skip

    def list_selects(self, query: Any) -> list[Any]:
        """A SELECT, or those that set operations put together."""
        query = query.unnest()
        if isinstance(query, self.exp.SetOperation):
            return [*self.list_selects(query.left), *self.list_selects(query.right)]
        return [query] if isinstance(query, self.exp.Select) else []

    def scope_of(self, node: Any) -> Any:
        """The innermost scope that a node stands in."""
        at = node
        while at is not None:
            if id(at) in self._of:
                return self._of[id(at)]
            at = at.parent
        return None

    def tables(self, scope: Any) -> set[str]:
        """The tables that a scope reads, at any depth."""
        found = {table.name.lower() for table in scope.expression.find_all(self.exp.Table)}
        for one in self.all:
            if one is not scope and any(one is source for source in scope.sources.values()) and self._names(scope, one):
                found |= self.tables(one)
        return found & set(self.policy.tables)

    def _names(self, scope: Any, inner: Any) -> bool:
        named = {table.name for table in scope.expression.find_all(self.exp.Table)}
        return any(source is inner and name in named for name, source in scope.sources.items()) or any(source is inner for _, source in scope.selected_sources.values())  # fmt: skip

    def every_base(self) -> Iterator[tuple[Any, Base]]:
        """Every column of a table that the statement names, and where."""
        for scope in self.all:
            for column in scope.columns:
                for base in self._bases_of(column, scope):
                    yield column, base

    def column_policy(self, base: Base) -> ColumnPolicy:
        """The policy of a column."""
        return self.policy.table(base[0]).column(base[1])

    def is_public(self, node: Any, scope: Any) -> bool:
        """Whether an expression is computed from public columns alone."""
        return all(self.column_policy(base).level == "public" for base in self.bases(node, scope))

    def is_cte(self, table: Any) -> bool:
        """Whether a table is one of the statement's WITH."""
        scope = self.scope_of(table)
        return scope is not None and table.name in scope.cte_sources

    def rename_tables(self, part: Any, catalog: Catalog) -> Any:
        """A copy of a part of the tree, with tables of the catalog under the names that local SQL gives them."""
        made = part.copy()
        for mine, table in zip(part.find_all(self.exp.Table), made.find_all(self.exp.Table), strict=True):
            if mine.name.lower() in catalog.tables and not self.is_cte(mine):
                table.this.replace(self.exp.to_identifier(SOURCE + mine.name.lower(), quoted=True))
        return made

    def columns_read(self, catalog: Catalog, more: Iterable[Base] = ()) -> dict[str, tuple[str, ...]]:
        """The tables that the statement reads, and their columns, as the catalog writes and orders them.

        Args:
            catalog: the tables.
            more: columns that a plan needs beside those that the statement names, such as units.
        """
        used: dict[str, set[str]] = {}
        for table in self.tree.find_all(self.exp.Table):
            if table.name.lower() in catalog.tables and not self.is_cte(table):
                used.setdefault(table.name.lower(), set())
        for table, column in (*(base for _, base in self.every_base()), *more):
            used.setdefault(table, set()).add(column)
        return {table: tuple(name for name in catalog.tables[table] if name.lower() in columns) for table, columns in used.items()}  # fmt: skip

    # ------------------------------------------------------------------ what no strategy may do

    def require_readable(self) -> None:
        """Refuse a statement that reads what is never released, or carries values by rows that every site has.

        Raises:
            PolicyError: names the column.
        """
        for _, (table, column) in self.every_base():
            if self.column_policy((table, column)).release == "never":
                raise PolicyError(f"{table}.{column} is never released, not even in a condition", where="policies of the sites", remedy="leave the column out")  # fmt: skip
        self.require_no_carrier()

    def require_released(self, bases: Iterable[Base], text: str, allowed: tuple[str, ...] = ("aggregate",)) -> None:
        """Refuse to add up values that policies do not release.

        Args:
            bases: the columns that are added up.
            text: the aggregate, for errors.
            allowed: releases that do.

        Raises:
            PolicyError: names the column, and how sites may release it.
        """
        for table, column in sorted(bases):
            policy = self.column_policy((table, column))
            if policy.release not in allowed:
                how = "aggregate" if allowed[-1] == "aggregate" else f"{allowed[-1]}, range: [0, 100]"
                raise PolicyError(f"{text}: {table}.{column} is {policy.level} and only counts rows", where="policies of the sites", remedy=f"ask for COUNT, or let the sites release it: {{level: private, release: {how}}}")  # fmt: skip

    def divided_tables(self, scope: Any) -> set[str]:
        """The tables that a scope reads, at any depth, whose rows only one site has."""
        return {table for table in self.tables(scope) if self.policy.table(table).mode != "replicated"}

    def is_divided(self, scope: Any) -> bool:
        """Whether a scope reads rows that only one site has."""
        return bool(self.divided_tables(scope))

    def is_source_divided(self, source: Any) -> bool:
        """Whether a table of FROM has rows that only one site has."""
        if isinstance(source, self.exp.Table):
            return self.policy.table(source.name).mode != "replicated"
        return self.is_divided(source)

    def require_no_carrier(self) -> None:
        """Refuse a join that carries a column which only counts rows into rows that every site has.

        ``SUM(x.i)`` over ``JOIN (VALUES (1), (2)) x(i) ON x.i = v.age`` is ``SUM(v.age)``, a count of rows that a JOIN multiplies is it too, and ``x.i`` itself the values.

        Raises:
            PolicyError: names the rows, and the column.
        """
        for alias, (table, column) in self._carriers():
            raise PolicyError(f"rows of {alias} would carry the values of {table}.{column}, which only counts rows", where="policies of the sites", remedy=f"write WHERE {column} IN (…) in place of the JOIN, or let the sites release it: {{level: private, release: aggregate}}")  # fmt: skip

    def _carriers(self) -> Iterator[tuple[str, Base]]:
        """Sources that every site has alike, and a column that they are related to and that only counts rows."""
        for scope in self.all:
            select = scope.expression
            if scope.is_subquery or not isinstance(select, self.exp.Select) or not self.is_divided(scope):
                continue
            alike = {
                alias for alias, (_, source) in scope.selected_sources.items() if not self.is_source_divided(source)
            }
            found: dict[str, Base] = {}
            parts = [join.args["on"] for join in select.args.get("joins") or () if join.args.get("on") is not None]
            parts += [select.args[name].this for name in ("where", "having") if select.args.get(name)]
            parts += select.expressions  # FILTER and CASE are conditions too
            related = [
                ({column.table for column in one.find_all(self.exp.Column)} & alike, one)
                for part in parts
                for one in (part.flatten() if isinstance(part, self.exp.And) else [part])
            ]
            for _ in related:  # what is related to a carrier is one
                for names, one in related:
                    counted = [base for base in sorted(self.bases(one, scope)) if self.column_policy(base).release != "aggregate" and self.policy.table(base[0]).mode != "replicated"]  # fmt: skip
                    known = [found[name] for name in sorted(names) if name in found]
                    if counted or known:
                        found |= {name: found.get(name, (counted or known)[0]) for name in names}
            yield from sorted(found.items())

    def require_even_weights(self, *, recorded: bool = False) -> None:
        """Refuse what would have single rows count more often than others, where few rows must not show: units are counted once, however often they are added.

        ``SUM(v.pay)`` over ``v JOIN n ON n.k = 1 OR v.id = 3`` is the total and ``v.pay`` of one row many times, and the units behind both are the same.
        So tables meet in equal values, whole tables alone, and no value of rows that every site has weighs the rows that they meet. Where units are counted, each once (``COUNT(DISTINCT taxi)``), nothing weighs more.

        Args:
            recorded: whether a site's record of answers sees which rows meet those that every site has.

        Raises:
            CompositionError: names the part.
        """
        for scope in self.all:
            select = scope.expression
            if not self.is_divided(scope):
                continue
            if isinstance(select, self.exp.SetOperation):
                self._require_other_tables(scope)
            elif isinstance(select, self.exp.Select) and len(self.sources_of(scope)) > 1:
                alike = {name for name, (_, source) in self.sources_of(scope).items() if not self.is_source_divided(source)}  # fmt: skip
                once = recorded and scope is self.root and len(self._units_counted(scope)) == len(self.sources_of(scope)) - len(alike) == 1  # fmt: skip
                self._require_even_joins(scope, alike, once=once)
                self._require_own_values(scope, alike)

    # ------------------------------------------------------------------ what single rows decide, where few must not show

    def require_few_decided(self) -> None:
        """Refuse what lets a row of one table decide about many others, where few rows must not show: a count of these would say something of that row.

        ``COUNT(*)`` of patients ``WHERE EXISTS (SELECT … FROM q WHERE q.ward = p.ward AND q.id = 3)`` is that of a ward or 0. By ``q.id = p.id`` a row of q decides about the rows of p with its id alone, so
        policies must say that these are fewer than ``min_count``: by ``key``, ``at_most``, or as a unit. A value over all rows of a subquery rests on enough units, and is no value of one.

        Raises:
            CompositionError: names the table.
        """
        least, known = self.policy.min_count, dict[int, dict[str, int]]()
        for scope in reversed(self.all):
            sources = self.sources_of(scope) if isinstance(scope.expression, self.exp.Select) else {}
            semi = {join.this.alias_or_name for join in scope.expression.args.get("joins") or () if (join.kind or "").upper() in ("SEMI", "ANTI")}  # fmt: skip
            inner = set(sources) if scope.is_subquery else semi
            around = known.get(id(scope.parent), {}) if scope.is_subquery else {}
            reach = {name: rows for name, rows in around.items() if name not in sources} | {
                name: 1 for name in sources if name not in inner
            }
            self._follow_equalities(scope, inner, reach)
            known[id(scope)] = reach
            divided = [name for name in sorted(inner) if self.is_source_divided(sources[name][1])]
            if not (scope.is_subquery and self._is_total(scope)):
                for name in divided:
                    if reach.get(name, least) >= least:
                        raise CompositionError(f"one row of {name} could decide about many rows around ({scope.expression.sql('duckdb')[:120]}), and min_count is {least}", where="few rows", remedy=f"relate it to them by a column with key or at_most: {least - 1} in the policy, or by the unit of their table; or ask it in a statement of its own")  # fmt: skip
            self._require_own_order(scope)

    def _follow_equalities(self, scope: Any, inner: set[str], reach: dict[str, int]) -> None:
        """About how many rows around a subquery one row of each of its tables decides, along equal columns."""
        exp, select = self.exp, scope.expression
        where = select.args.get("where")
        conditions = [where and where.this, *(join.args.get("on") for join in select.args.get("joins") or () if not join.side)]  # fmt: skip
        pairs = [(part.left.unnest(), part.right.unnest()) for one in conditions for part in self._conjuncts(one) if isinstance(part, exp.EQ)]  # fmt: skip
        holder = select.find_ancestor(exp.In)
        if scope.is_subquery and holder is not None and holder.args.get("query") is not None and holder.args["query"].unnest() is select:  # fmt: skip
            pairs.append((select.expressions[0].unalias(), holder.this.unnest()))
        pairs = [pair for a, b in pairs if isinstance(a, exp.Column) and isinstance(b, exp.Column) for pair in ((a, b), (b, a))]  # fmt: skip
        for _ in inner:
            for mine, other in pairs:
                if mine.table in inner and other.table in reach and mine.table != other.table:
                    rows, own = self._rows_alike(other, scope), self._rows_of_unit(mine, scope)
                    if rows is not None and own is not None:
                        reach[mine.table] = min(reach.get(mine.table, 1 << 30), reach[other.table] * rows * own)

    def is_of_few(self, column: Any, scope: Any) -> bool:
        """Whether policies say that fewer than ``min_count`` units of rows have one value of a column."""
        return (self._rows_alike(column, scope) or self.policy.min_count) < self.policy.min_count

    def _rows_alike(self, column: Any, scope: Any) -> int | None:
        """How many units of rows may have one value of a column; ``None`` for any number."""
        source, _ = self.source_of(column, scope)
        if isinstance(source, self.exp.Table):
            table = self.policy.table(source.name)
            return 1 if table.unit == column.name.lower() else table.column(column.name).at_most
        found = self.projections_of(source, column.name)
        keys = group_keys(self.exp, source.expression) if isinstance(getattr(source, "expression", None), self.exp.Select) else []  # fmt: skip
        if found and keys == found:
            return 1
        alone = len(found) == 1 and isinstance(found[0], self.exp.Column) and len(self.sources_of(source)) == 1
        return self._rows_alike(found[0], source) if alone else None

    def _rows_of_unit(self, column: Any, scope: Any) -> int | None:
        """How many values of a column a unit of its table may have; ``None`` for any number."""
        source, _ = self.source_of(column, scope)
        unit = self.policy.table(source.name).unit if isinstance(source, self.exp.Table) else ""
        return 1 if unit in ("", column.name.lower()) else self.policy.table(source.name).column(unit).at_most

    def _is_total(self, scope: Any) -> bool:
        """Whether a subquery is a number over all of its rows, each of which counts alike."""
        exp, select = self.exp, scope.expression
        if scope.external_columns or not isinstance(select, exp.Select) or select.args.get("group") or len(select.expressions) != 1 or isinstance(select.find_ancestor(exp.In, exp.Exists, exp.Select), exp.In | exp.Exists):  # fmt: skip
            return False
        nodes = list(find_outermost(select.expressions[0], (exp.AggFunc, exp.Filter, exp.Window), (exp.Query,), top=not isinstance(select.expressions[0], exp.AggFunc)))  # fmt: skip
        nodes = nodes or [node for node in (select.expressions[0].unalias(),) if isinstance(node, exp.AggFunc)]
        return bool(nodes) and all(isinstance(node, exp.Count | exp.Sum | exp.Avg) and self._counts_alike(node, scope) for node in nodes)  # fmt: skip

    def _counts_alike(self, node: Any, scope: Any) -> bool:
        """Whether an aggregate is of rows, of a column of a table, or of public ones."""
        exp, value = self.exp, node.this.unnest()
        while isinstance(value, exp.Cast | exp.TryCast | exp.Paren):
            value = value.this
        if isinstance(value, exp.Column):
            return isinstance(self.source_of(value, scope)[0], exp.Table)
        chosen = node.find(exp.Case, exp.If, exp.Predicate, exp.Connector, exp.Nullif, exp.Coalesce)
        public = self.is_public(node, scope)
        return chosen is None and (public or isinstance(value, exp.Star | exp.Literal))

    def _require_own_order(self, scope: Any) -> None:
        """Refuse a LIMIT or a window in a subquery that chooses or marks rows by those of others."""
        exp, select = self.exp, scope.expression
        if scope is self.root or not self.is_divided(scope):
            return
        cut = select.args.get("limit") or select.args.get("offset")
        if cut and not isinstance(select.find_ancestor(exp.Exists, exp.Select), exp.Exists):
            raise self._uneven_order("LIMIT in a subquery chooses rows by those of others", "leave it out")
        for node in select.find_all(exp.Window):
            parts = [one for one in node.args.get("partition_by") or () if isinstance(one, exp.Column)]
            if self.scope_of(node) is scope and not any(self.is_of_few(one, scope) for one in parts):
                raise self._uneven_order(f"{node.sql('duckdb')} depends on rows of others", "PARTITION BY the unit of the table, or a column with key or at_most in the policy")  # fmt: skip

    def _uneven_order(self, what: str, remedy: str) -> CompositionError:
        return CompositionError(f"{what}, so that two such statements could differ by one row, and min_count is {self.policy.min_count}", where="few rows", remedy=remedy)  # fmt: skip

    def _uneven(self, what: str, remedy: str) -> CompositionError:
        return CompositionError(f"{what}, which could count single rows more often than others, and min_count is {self.policy.min_count}", where="few rows", remedy=remedy)  # fmt: skip

    def _units_counted(self, scope: Any) -> set[str]:
        """The sources of whose units a SELECT counts each once, by ``COUNT(DISTINCT …)``; none if it has other aggregates, or shows something beside its groups."""
        exp, found = self.exp, set[str]()
        nodes = [one for one in scope.expression.find_all(exp.AggFunc) if self.scope_of(one) is scope]
        for node in nodes:
            given = node.this.expressions if isinstance(node, exp.Count) and isinstance(node.this, exp.Distinct) else []
            if len(given) != 1 or not self.is_unit(given[0], scope):
                return set()
            found.add(given[0].table)
        return found

    def is_unit(self, node: Any, scope: Any) -> bool:
        """Whether an expression is the column of a table's units."""
        source = self.source_of(node, scope)[0] if isinstance(node, self.exp.Column) else None
        return isinstance(source, self.exp.Table) and self.policy.table(source.name).unit == node.name.lower() != ""

    def _require_other_tables(self, scope: Any) -> None:
        """Refuse a set operation that reads the rows of one table twice."""
        left, right = map(self.divided_tables, scope.set_operation_scopes)
        for table in sorted(left & right):
            raise self._uneven(f"{type(scope.expression).__name__.upper()} reads rows of {table} on both sides", "write one SELECT whose WHERE has both conditions")  # fmt: skip

    def _require_even_joins(self, scope: Any, alike: set[str], *, once: bool) -> None:
        """Refuse joins that could count single rows more often than others.

        Args:
            scope: the SELECT.
            alike: the sources that every site has alike.
            once: whether each unit of the only other one counts once, whatever it joins: then which of those it meets weighs nothing.
        """
        exp, sources, select = self.exp, self.sources_of(scope), scope.expression
        for name in sorted(alike):
            if not isinstance(sources[name][1], exp.Table):
                raise self._uneven(f"the rows of {name} are written in the statement", "use CASE or IN, or a table that the policies call replicated")  # fmt: skip
        where = select.args.get("where")
        met = {select.args["from_"].this.alias_or_name}
        for part in () if once else self._conjuncts(where and where.this):
            self._require_even(part, scope, alike)
        for join in select.args.get("joins") or ():
            name, side = join.this.alias_or_name, (join.side or "").upper()
            kept = {"LEFT": met, "RIGHT": {name}}.get(side, met | {name} if side == "FULL" else set())
            for part in self._conjuncts(join.args.get("on")):
                if not once:
                    self._require_even(part, scope, alike)
                read = self._read_of(part, scope)
                if kept and (read <= kept if side != "FULL" else len(read) < 2):
                    raise self._uneven(f"{part.sql('duckdb')} decides which rows of a {side} JOIN meet others", "write the condition into WHERE")  # fmt: skip
            met = met | {name}

    def _read_of(self, part: Any, scope: Any) -> set[str]:
        """The tables of a SELECT that an expression reads, in its subqueries too."""
        found = [(column, self.scope_of(column) or scope) for column in part.find_all(self.exp.Column)]
        return {column.table for column, at in found if column.table in self.sources_of(scope) and (at is scope or self.source_of(column, at)[1] is scope)}  # fmt: skip

    def _require_even(self, part: Any, scope: Any, alike: set[str]) -> None:
        """Refuse a condition on several tables that is no comparison of one with another."""
        exp, read = self.exp, self._read_of(part, scope)
        if len(read) < 2 or read <= alike:
            return
        if isinstance(part, exp.EQ | exp.LT | exp.LTE | exp.GT | exp.GTE | exp.NEQ | exp.NullSafeEQ):
            sides = [self._read_of(one, scope) for one in (part.left, part.right)]
            plain = all(isinstance(one.unnest(), exp.Column) for one in (part.left, part.right)) and not read & alike
            if all(len(one) == 1 for one in sides) and (plain or (isinstance(part, exp.EQ) and part.find(exp.Query) is None)):  # fmt: skip
                return
        units = [f"COUNT(DISTINCT {name}.{unit})" for name in sorted(read - alike) if isinstance(source := self.sources_of(scope)[name][1], exp.Table) and (unit := self.policy.table(source.name).unit)]  # fmt: skip
        count = f"ask for {units[0]} alone, or " if read & alike and len(units) == 1 else ""
        raise self._uneven(f"{part.sql('duckdb')} reads several tables", f"{count}join on equal columns, and put conditions on one table each into WHERE")  # fmt: skip

    def _require_own_values(self, scope: Any, alike: set[str]) -> None:
        """Refuse to add up values of rows that every site has."""
        exp = self.exp
        for node in scope.expression.find_all(exp.AggFunc):
            if self.scope_of(node) is not scope or isinstance(node.this, exp.Distinct):
                continue
            for column in node.find_all(exp.Column):
                if column.table in alike and not self.is_condition(column, node):
                    raise self._uneven(f"{node.sql('duckdb')} adds values of {column.table}", f"GROUP BY {column.sql('duckdb')}, and weigh the groups yourself")  # fmt: skip

    def is_condition(self, node: Any, top: Any) -> bool:
        """Whether an expression decides about values alone."""
        while node is not top:
            if isinstance(node.parent, self.exp.If) and node.arg_key == "this":
                return True
            node = node.parent
        return False

    # ------------------------------------------------------------------ what sites can do by themselves

    def require_local(self) -> None:
        """Refuse a statement whose rows no site can make by itself.

        Raises:
            CompositionError: names the part.
        """
        for scope in self.all:
            if has_matching(scope.expression):
                raise CompositionError("a matching needs the rows of all sites", where="sums", remedy="use the strategy smcql")  # fmt: skip
            if not self.is_divided(scope):
                continue
            if not isinstance(scope.expression, self.exp.Select):
                raise CompositionError(f"{type(scope.expression).__name__.upper()} of rows that lie at different sites", where="sums", remedy="ask the parts one by one")  # fmt: skip
            self.require_local_joins(scope)
            if scope is not self.root:
                self.require_local_rows(scope)
            if scope.is_subquery:
                self.require_local_subquery(scope)

    def require_rows(self) -> None:
        """Refuse a statement that does not give rows which each site can make by itself.

        Raises:
            CompositionError: names the part.
        """
        if not isinstance(self.root.expression, self.exp.Select):
            raise CompositionError(f"{type(self.root.expression).__name__.upper()} at the outside", where="islands", remedy="write one SELECT")  # fmt: skip
        self.require_local()
        self.require_local_rows(self.root)

    def sources_of(self, scope: Any) -> dict[str, tuple[Any, Any]]:
        """Alias -> a node and what it stands for, of all that FROM names; sqlglot leaves out what SEMI and ANTI JOIN read."""
        found = dict(scope.selected_sources)
        for join in scope.expression.args.get("joins") or () if isinstance(scope.expression, self.exp.Select) else ():
            name = join.this.alias_or_name
            if name not in found and name in scope.sources:
                found[name] = (join.this, scope.sources[name])
        return found

    def require_local_scope(self, scope: Any) -> None:
        """Refuse a derived table whose joins or rows depend on rows of several sites.

        Raises:
            CompositionError: names the part.
        """
        self.require_local_joins(scope)
        self.require_local_rows(scope)

    def require_local_joins(self, scope: Any) -> None:
        """Refuse joins of rows that may lie at two sites.

        Raises:
            CompositionError: names the table.
        """
        select = scope.expression
        first = select.args["from_"].this if select.args.get("from_") else None
        if first is None:
            return
        sources = self.sources_of(scope)
        divided = self.is_source_divided(sources[first.alias_or_name][1])
        joined = [first.alias_or_name]
        where = select.args.get("where")
        for join in select.args.get("joins") or ():
            if weight_of(join) is not None:
                raise CompositionError("a matching needs the rows of all sites", where="sums", remedy="use the strategy smcql")  # fmt: skip
            name = join.this.alias_or_name
            right = self.is_source_divided(sources[name][1])
            side, kind = (join.side or "").upper(), (join.kind or "").upper()
            if (join.args.get("method") or "").upper() in ("ASOF", "POSITIONAL") or kind == "POSITIONAL":
                raise CompositionError(f"{join.args.get('method') or kind} JOIN depends on rows of all sites", where="sums", remedy="join on equal values")  # fmt: skip
            outer = side in ("LEFT", "RIGHT", "FULL") or kind in ("SEMI", "ANTI")
            lost = (right and not divided and (side in ("LEFT", "FULL") or kind in ("SEMI", "ANTI"))) or (divided and not right and side in ("RIGHT", "FULL"))  # fmt: skip
            if lost:
                raise CompositionError(f"a {side or kind} JOIN keeps rows of a table that every site has, once for each site", where="sums", remedy="keep rows of the divided table, or use an inner JOIN")  # fmt: skip
            conditions = [join.args.get("on"), None if outer else where and where.this]
            if divided and right and not self._meets(conditions, scope, {name}, set(joined)):
                whole = (
                    self.policy.table(sources[name][1].name).whole
                    if isinstance(sources[name][1], self.exp.Table)
                    else ""
                )
                if whole:
                    raise CompositionError(f"columns of {whole} lie apart: the join of {sources[name][1].name} needs rows of other sites", where="sums", remedy="use the strategy smcql")  # fmt: skip
                raise CompositionError(f"the join of {name} may need rows of two sites", where="sums", remedy="join on columns that the policy declares with join: local, or let sites declare one table replicated")  # fmt: skip
            divided = divided or right
            joined.append(name)

    def _meets(self, conditions: list[Any], scope: Any, here: set[str], there: set[str]) -> bool:
        """Whether a condition says that two columns are equal whose values lie at one site."""
        for condition in conditions:
            for part in self._conjuncts(condition):
                if not isinstance(part, self.exp.EQ):
                    continue
                left, right = part.left.unnest(), part.right.unnest()
                if not (isinstance(left, self.exp.Column) and isinstance(right, self.exp.Column)):
                    continue
                crosses = {left.table, right.table} & here and {left.table, right.table} & there
                if crosses and left.table != right.table and self.is_local(left, scope) and self.is_local(right, scope):
                    return True
        return False

    def _conjuncts(self, condition: Any) -> Iterator[Any]:
        if condition is None:
            return
        if isinstance(condition, self.exp.And | self.exp.Paren):
            for part in (condition.left, condition.right) if isinstance(condition, self.exp.And) else (condition.this,):
                yield from self._conjuncts(part)
        else:
            yield condition

    def is_local(self, node: Any, scope: Any) -> bool:
        """Whether all rows with one value of a column lie at one site."""
        if not isinstance(node, self.exp.Column):
            return False
        source, _ = self.source_of(node, scope)
        if isinstance(source, self.exp.Table):
            return self.column_policy((source.name.lower(), node.name.lower())).local
        projections = self.projections_of(source, node.name)
        return len(projections) == 1 and self.is_local(projections[0], source)

    def require_local_rows(self, scope: Any) -> None:
        """Refuse a derived table whose rows depend on rows of several sites."""
        select = scope.expression
        if select.args.get("limit") or select.args.get("offset"):
            raise CompositionError("LIMIT in a subquery depends on rows of all sites", where="sums", remedy="put it at the end of the statement")  # fmt: skip
        group = select.args.get("group")
        keys = list(group.expressions) if group else []
        if select.args.get("distinct"):
            on = select.args["distinct"].args.get("on")
            keys = [one.unalias() for one in select.expressions] if on is None else list(on.expressions)
        windows = [one for one in select.find_all(self.exp.Window) if self.scope_of(one) is scope]
        for window in windows:
            if not any(self.is_local(part, scope) for part in window.args.get("partition_by") or ()):
                raise CompositionError("a window of a subquery depends on rows of all sites", where="sums", remedy="PARTITION BY a column that the policy declares with join: local")  # fmt: skip
        if keys and any(one.find(self.exp.Explode) for one in select.expressions) and not self.is_local(keys[0], scope):
            raise CompositionError(f"stays need all points of one {keys[0].name} at one site", where="sums", remedy=f"let the sites declare {keys[0].name} with join: local, if that is so")  # fmt: skip
        grouped = group is not None or select.args.get("distinct") or any(self.scope_of(one) is scope and not isinstance(one.parent, self.exp.Window) for one in select.find_all(self.exp.AggFunc))  # fmt: skip
        correlated = scope.is_subquery and bool(scope.external_columns)
        if grouped and not correlated and not any(self.is_local(key, scope) for key in keys):
            raise CompositionError("a subquery groups rows of several sites", where="sums", remedy="group by a column that the policy declares with join: local, or ask for the groups in a statement of their own")  # fmt: skip

    def require_local_subquery(self, scope: Any) -> None:
        """Refuse a condition on a subquery that needs rows of other sites."""
        select = scope.expression
        around = scope.parent
        holder = select.parent
        while isinstance(holder, self.exp.Subquery | self.exp.Paren):
            holder = holder.parent
        if isinstance(holder, self.exp.In) and len(select.expressions) == 1:
            inner, outer = select.expressions[0].unalias(), holder.this.unnest()
            if self.is_local(inner, scope) and self.is_local(outer, around):
                return
        there = set(around.selected_sources)
        where = select.args.get("where")
        if where is not None and self._meets([where.this], scope, set(scope.selected_sources), there):
            return
        raise CompositionError("a subquery sees rows of all sites", where="sums", remedy="relate it to the outer rows by columns that the policy declares with join: local, or ask it in a statement of its own")  # fmt: skip
