"""Which rows an answer under shares is about, where few rows must not show: chosen at the sites, whose records compare it with earlier answers, or by the parties, whose choice no site sees.

A site writes down which of its rows it shares (`LocalRows.record`), and refuses rows that differ from those of an earlier answer by few units. Of ``SELECT sum(s) FROM (SELECT id, sum(pay) AS s FROM p GROUP BY id) q
WHERE id <> 3`` it would share all rows, and the parties leave out one person. So

* conditions on columns that a subquery only passes on, such as keys of its groups, move into the subquery (`push_conditions`), until a site evaluates them;
* what is left for the parties is as the sites' policies say by ``unrecorded``:

  ============  ================================================================================
  ``nothing``   no condition, join, window or set operation, and no group by what sites do not see
  ``joins``     comparisons of columns, but no constant: who may choose ``s > 500`` may choose ``s > 501`` too, and the two answers differ by one row
  ``anything``  all that the parties can compute
  ============  ================================================================================

Source: the rule is ours. Dinur, Nissim 2003 ("Revealing information while preserving privacy") has why no rule about single statements suffices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..scopes import Scopes, group_keys, wrap_value

__all__ = ["find_constant", "push_conditions"]


# ---------------------------------------------------------------- conditions move to where a site sees them


def push_conditions(tree: Any, kind: Callable[[Any, Any], str]) -> Any:
    """The tree with conditions on what a subquery in FROM passes on written into the subquery, where that is the same. Changes the tree.

    It is the same for keys of groups and for columns that are no aggregates; not below LIMIT or a window, not where an outer join makes rows of NULLs, and not where ASOF or POSITIONAL joins choose by rows beside. A WITH
    takes conditions if it is read once, and a set operation where both sides have the type of the column: ``CAST(k AS VARCHAR)`` of 1 and of 1.0 differ.

    Args:
        tree: a statement whose columns all name their tables.
        kind: the type of an expression in a SELECT.
    """
    from sqlglot import exp

    for select in list(tree.find_all(exp.Select)):  # outer ones before those inside
        for holder, name in _clauses(exp, select):
            parts = _conjuncts(exp, holder.args[name])
            left = [part for part in parts if not _push(exp, tree, select, part, kind)]
            if len(left) < len(parts):
                holder.set(name, exp.and_(*left, copy=False) if left else None)
                if name == "this" and not left:
                    select.set("where", None)
        if select is not tree.unnest():
            _move_having(exp, select)
    return tree


def _clauses(exp: Any, select: Any) -> Iterator[tuple[Any, str]]:
    """What holds conditions that all rows of a SELECT fulfil."""
    if select.args.get("where"):
        yield select.args["where"], "this"
    for join in select.args.get("joins") or ():
        if join.args.get("on") is not None and not join.side and (join.kind or "").upper() in ("", "INNER", "CROSS"):
            yield join, "on"


def _conjuncts(exp: Any, node: Any) -> list[Any]:
    node = node.unnest()
    return [part for side in (node.left, node.right) for part in _conjuncts(exp, side)] if isinstance(node, exp.And) else [node]  # fmt: skip


def _push(exp: Any, tree: Any, select: Any, condition: Any, kind: Callable[[Any, Any], str]) -> bool:
    """Write a condition into the subquery of FROM that it is about; whether it could be."""
    if condition.find(exp.Query, exp.AggFunc, exp.Window) is not None:
        return False
    read = {column.table for column in condition.find_all(exp.Column)}
    if len(read) != 1 or select.args.get("from_") is None:
        return False
    (alias,) = read
    joins = list(select.args.get("joins") or ())
    items = [select.args["from_"].this, *(one.this for one in joins)]
    place = next((k for k, one in enumerate(items) if one.alias_or_name == alias), None)
    if place is None or any(one.args.get("method") or (one.kind or "").upper() in ("ASOF", "POSITIONAL") for one in joins):  # fmt: skip
        return False
    own = joins[place - 1] if place else None
    lost = {"RIGHT", "FULL"}  # a later one of these makes rows of NULLs of all tables before it
    if (own is not None and (own.side or (own.kind or "").upper() not in ("", "INNER", "CROSS"))) or any((one.side or "").upper() in lost for one in joins[place:]):  # fmt: skip
        return False
    item = items[place]
    query = _definition(exp, tree, item)
    if query is None:
        return False
    renamed = [one.name.lower() for one in item.args["alias"].columns] if item.args.get("alias") is not None else []
    shown = [one.lower() for one in query.named_selects]
    names = [*renamed, *shown[len(renamed) :]]
    places = {name: k for k, name in enumerate(names)}
    asked = {column.name.lower() for column in condition.find_all(exp.Column)}
    if len(places) < len(names) or not asked <= set(places):
        return False
    selects = _sides(exp, query)
    if selects is None or not all(_takes(exp, one, [places[name] for name in asked]) for one in selects):
        return False
    if len(selects) > 1 and any(len({kind(one, one.expressions[places[name]].unalias()) for one in selects}) > 1 for name in asked):  # fmt: skip
        return False
    for one in selects:
        one.where(_written(exp, condition, one, places), copy=False)
    return True


def _definition(exp: Any, tree: Any, item: Any) -> Any:
    """The query that an item of FROM stands for; none of a table, and of a WITH that is read more than once."""
    if isinstance(item, exp.Subquery):
        return item.this.unnest()
    if not isinstance(item, exp.Table) or [one.name for one in tree.find_all(exp.Table)].count(item.name) > 1:
        return None
    found = [one for one in tree.find_all(exp.CTE) if one.alias == item.name]
    return found[0].this.unnest() if len(found) == 1 else None


def _sides(exp: Any, query: Any) -> list[Any] | None:
    """The SELECTs of a set operation, each of which may take a condition on its rows."""
    if isinstance(query, exp.Select):
        return [query]
    if not isinstance(query, exp.SetOperation) or query.args.get("limit") or query.args.get("offset"):
        return None
    found = [_sides(exp, one.unnest()) for one in (query.left, query.right)]
    return None if None in found else [one for side in found for one in side or ()]


def _takes(exp: Any, select: Any, places: list[int]) -> bool:
    """Whether a SELECT passes columns on, so that a condition on them may be done before its groups."""
    if any(select.args.get(name) for name in ("limit", "offset", "qualify", "windows")) or select.args.get("from_") is None:  # fmt: skip
        return False
    if select.args.get("distinct") and select.args["distinct"].args.get("on"):
        return False
    if any(one.find(exp.Window) for one in select.expressions):
        return False
    shown = [select.expressions[place].unalias() for place in places]
    if any(one.find(exp.AggFunc, exp.Query) for one in shown):
        return False
    group = select.args.get("group")
    if group is None:
        return not select.args.get("having") and not any(one.find(exp.AggFunc) for one in select.expressions)
    if any(isinstance(one, exp.GroupingSets | exp.Rollup | exp.Cube) for one in group.expressions) or any(group.args.get(name) for name in ("grouping_sets", "cube", "rollup", "totals")):  # fmt: skip
        return False
    keys = group_keys(exp, select)
    return all(one in keys for one in shown)


def _written(exp: Any, condition: Any, select: Any, places: dict[str, int]) -> Any:
    def put(node: Any) -> Any:
        if not isinstance(node, exp.Column):
            return node
        return wrap_value(exp, select.expressions[places[node.name.lower()]].unalias())

    return condition.transform(put)


def _move_having(exp: Any, select: Any) -> None:
    """Do conditions of HAVING that read keys alone before there are groups: of GROUP BY (), there is one without rows too."""
    group, having = select.args.get("group"), select.args.get("having")
    if group is None or having is None or not any(one.find(exp.Column) for one in group_keys(exp, select)) or any(isinstance(one, exp.GroupingSets | exp.Rollup | exp.Cube) for one in group.expressions):  # fmt: skip
        return
    parts = _conjuncts(exp, having.this)
    early = [part for part in parts if part.find(exp.AggFunc, exp.Query, exp.Window) is None and part.find(exp.Column) is not None]  # fmt: skip
    for part in early:
        select.where(part.copy(), copy=False)
    left = [part for part in parts if not any(part is one for one in early)]
    select.set("having", exp.Having(this=exp.and_(*left, copy=False)) if left else None)


# ---------------------------------------------------------------- constants that would choose rows


def find_constant(scopes: Scopes, node: Any, scope: Any) -> Any:
    """A constant that an expression depends on, in columns of subqueries and in subqueries that stand for a value too; ``None`` for none.

    NULL, TRUE and FALSE are none: there is no next one to them. Of ``EXISTS`` and ``IN`` the subquery has conditions of its own.

    Args:
        scopes: of the statement.
        node: the expression.
        scope: where it stands.
    """
    return next(_constants(scopes, node, scope, set()), None)


def _constants(scopes: Scopes, node: Any, scope: Any, known: set[int]) -> Iterator[Any]:
    exp = scopes.exp
    if isinstance(node, exp.Literal):
        yield node
    elif isinstance(node, exp.Subquery | exp.Select | exp.SetOperation):
        yield from _constants_below(scopes, node, known)
    elif isinstance(node, exp.Column):
        source, _ = scopes.source_of(node, scopes.scope_of(node) or scope)
        for one in [] if isinstance(source, exp.Table) else scopes.projections_of(source, node.name):
            if id(one) not in known:
                known.add(id(one))
                yield from _constants(scopes, one, source, known)
    else:
        for part in _parts(exp, node):
            yield from _constants(scopes, part, scope, known)


def _parts(exp: Any, node: Any) -> Iterator[Any]:
    """What an expression is computed from: neither units of time, nor digits of a type, nor a subquery that has conditions of its own."""
    if isinstance(node, exp.DataType | exp.Exists):
        return
    for name, value in node.args.items():
        if name != "unit" and not (name == "query" and isinstance(node, exp.In)):
            yield from (one for one in (value if isinstance(value, list) else [value]) if isinstance(one, exp.Expression))  # fmt: skip


def _constants_below(scopes: Scopes, query: Any, known: set[int]) -> Iterator[Any]:
    """The constants of a query and of what it reads, wherever they stand: all of them decide about a value that it stands for."""
    exp = scopes.exp
    for one in query.find_all(exp.Literal):
        if one.find_ancestor(exp.DataType) is None:
            yield one
    for table in query.find_all(exp.Table):
        for one in scopes.all:
            source = one.sources.get(table.name)
            if source is not None and not isinstance(source, exp.Table) and id(source) not in known and scopes.is_cte(table):  # fmt: skip
                known.add(id(source))
                yield from _constants_below(scopes, source.expression, known)
