"""Which rows an answer under shares is about, where few rows must not show: chosen at the sites, whose records compare it with earlier answers, or by the parties, whose choice no site sees.

A site writes down which of its rows it shares (`LocalRows.record`), and refuses rows that differ from those of an earlier answer by few units. Of ``SELECT sum(s) FROM (SELECT id, sum(pay) AS s FROM p GROUP BY id) q
WHERE id <> 3`` it would share all rows, and the parties leave out one person. So

* conditions on columns that a subquery only passes on, such as keys of its groups, move into the subquery (`push_conditions`), until a site evaluates them;
* what is left for the parties is as the sites' policies say by ``unrecorded``:

  ============  ================================================================================
  ``nothing``   no condition, join, window or set operation, and no group by what sites do not see; columns of subqueries are counts and sums of columns
  ``joins``     comparisons of columns, but no constant: who may choose ``s > 500`` may choose ``s > 501`` too, and the two answers differ by one row. What computes with columns makes constants: ``n / n + n / n`` is 2
  ``anything``  all that the parties can compute
  ============  ================================================================================

Source: the rule is ours. Dinur, Nissim 2003 ("Revealing information while preserving privacy") has why no rule about single statements suffices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ...scopes import Scopes, group_keys, has_grouping_sets, split_parts, wrap_value

__all__ = ["find_choice", "find_constant", "find_key_choice", "find_known_choice", "push_conditions"]

_DIGITS = 8  # before the point, of a decimal that has room for usual numbers


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
            parts = split_parts(exp.And, holder.args[name])
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
    if has_grouping_sets(select):
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
    if (
        group is None
        or having is None
        or not any(one.find(exp.Column) for one in group_keys(exp, select))
        or has_grouping_sets(select)
    ):
        return
    parts = split_parts(exp.And, having.this)
    early = [part for part in parts if part.find(exp.AggFunc, exp.Query, exp.Window) is None and part.find(exp.Column) is not None]  # fmt: skip
    for part in early:
        select.where(part.copy(), copy=False)
    left = [part for part in parts if not any(part is one for one in early)]
    select.set("having", exp.Having(this=exp.and_(*left, copy=False)) if left else None)


# ---------------------------------------------------------------- constants that would choose rows


def find_constant(scopes: Scopes, node: Any, scope: Any) -> Any:
    """A constant that an expression depends on, or a part that could compute one, in columns of subqueries and in subqueries that stand for a value too; ``None`` for none.

    NULL, TRUE and FALSE are none: there is no next one to them. A sum of two columns of tables is none either: ``discharge - admission``. Of ``EXISTS`` and ``IN`` the subquery has conditions of its own.

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
        if _is_known_number(scopes, node):
            yield node
    elif isinstance(node, exp.Column):
        source, _ = scopes.source_of(node, scopes.scope_of(node) or scope)
        for one in [] if isinstance(source, exp.Table) else scopes.projections_of(source, node.name):
            if id(one) not in known:
                known.add(id(one))
                yield from _constants(scopes, one, source, known)
    else:
        parts = [one for part in _parts(exp, node) for one in _constants(scopes, part, scope, known)]
        yield from parts
        if not parts and _computes(scopes, node, scope):
            yield node


def _computes(scopes: Scopes, node: Any, scope: Any) -> bool:
    """Whether an expression makes new values: of ``CAST(TRUE AS INTEGER)``, or of ``length(ward)``, every number can be added up."""
    exp = scopes.exp
    if isinstance(node, exp.Add | exp.Sub):
        sides = [one.unnest() for one in (node.left, node.right)]
        return not all(isinstance(one, exp.Column) and isinstance(scopes.source_of(one, scopes.scope_of(one) or scope)[0], exp.Table) for one in sides) or sides[0] == sides[1]  # fmt: skip
    if isinstance(node, exp.Cast | exp.TryCast):
        return isinstance(node.this.unnest(), exp.Boolean | exp.Predicate | exp.Connector | exp.Not) or _is_narrow(exp, node.args["to"])  # fmt: skip
    if isinstance(node, exp.Binary | exp.Unary | exp.Bracket):
        return not isinstance(node, exp.Predicate | exp.Connector | exp.Not | exp.Paren | exp.IgnoreNulls)
    chosen = (exp.AggFunc, exp.Case, exp.If, exp.Coalesce, exp.Nullif, exp.Greatest, exp.Least, exp.Predicate, exp.Connector, exp.Exists, exp.RowNumber, exp.Rank, exp.DenseRank, exp.PercentRank, exp.CumeDist)  # fmt: skip
    return isinstance(node, exp.Func) and not isinstance(node, (*chosen, *_parts_of_values(exp)))


def _is_narrow(exp: Any, kind: Any) -> bool:
    """Whether a type has no room for usual numbers, so that a cast is NULL for those above its bound: TINYINT for what is above 127."""
    kinds = exp.DataType.Type
    if kind.this == kinds.DECIMAL:
        digits = [int(one.name) for one in kind.expressions if one.name.isdigit()] or [18, 3]
        return digits[0] - sum(digits[1:]) < _DIGITS
    return kind.this in (kinds.TINYINT, kinds.SMALLINT, kinds.UTINYINT, kinds.USMALLINT, kinds.UINT, kinds.UBIGINT, kinds.UINT128, kinds.BOOLEAN)  # fmt: skip


def _parts_of_values(exp: Any) -> tuple[type, ...]:
    """Functions whose value is what is left of one value: parts of dates, and texts without regard to case."""
    return exp.Year, exp.Month, exp.Day, exp.Extract, exp.DateTrunc, exp.TimestampTrunc, exp.DateDiff, exp.Lower, exp.Upper, exp.Trim  # fmt: skip


def _is_known_number(scopes: Scopes, query: Any) -> bool:
    """Whether a subquery that stands for a value is the same for all rows, and counts, or reads what every site has: whoever asks knows it."""
    scope = scopes.scope_of(query.unnest())
    if scope is None or scope.external_columns:
        return False
    return not scopes.is_divided(scope) or any(one.find(scopes.exp.Count) is not None for one in query.unnest().expressions)  # fmt: skip


def find_known_choice(scopes: Scopes, node: Any, scope: Any) -> bool:
    """Whether a condition compares known values alone: of tables that every site has, ``a.k < b.k`` leaves out the rows of the largest k.

    Args:
        scopes: of the statement.
        node: the condition.
        scope: where it stands.
    """
    exp = scopes.exp
    if node.find(exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NEQ, exp.NullSafeNEQ, exp.Between) is None:
        return False
    read = scopes.bases(node, scope)
    return bool(read) and all(scopes.policy.table(table).mode == "replicated" for table, _ in read) and scopes.is_divided(scopes.root)  # fmt: skip


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
    yield from (one for one in query.find_all(exp.Cast, exp.TryCast) if _computes(scopes, one, None))
    for table in query.find_all(exp.Table):
        for one in scopes.all:
            source = one.sources.get(table.name)
            if source is not None and not isinstance(source, exp.Table) and id(source) not in known and scopes.is_cte(table):  # fmt: skip
                known.add(id(source))
                yield from _constants_below(scopes, source.expression, known)


# ---------------------------------------------------------------- columns of subqueries that would choose rows


def find_key_choice(scopes: Scopes, node: Any, scope: Any, level: str) -> Any:
    """A part of a group key of a subquery that chooses what becomes equal; ``None`` for none.

    Of ``CASE WHEN id = 3 THEN pay ELSE id END`` there are as many groups as ids, or one less: by what one person is paid. No site's record has the keys of groups that are grouped again.

    Args:
        scopes: of the statement.
        node: the key.
        scope: of the subquery.
        level: ``nothing`` or ``joins``, as policies say.
    """
    exp = scopes.exp
    if scopes.is_public(node, scope):
        return None
    if level == "nothing":
        return next((one for one in node.find_all(exp.Func, exp.Binary, exp.Unary) if not isinstance(one, (exp.Paren, *_parts_of_values(exp)))), None)  # fmt: skip
    return find_constant(scopes, node, scope)


def find_choice(scopes: Scopes, node: Any, scope: Any, level: str, known: frozenset[int] = frozenset()) -> Any:
    """A part of what an aggregate adds up or counts that chooses among rows of a subquery, where no site's record sees which; ``None`` for none.

    ``sum(s)`` of ``sum(pay * 10000000000) AS s`` lacks who is paid most, because the product fails and is NULL. ``sum(max(pay))`` over wards less that of all but one ward is what one person is paid, as is what a sum of
    different values lacks.

    * ``nothing``: columns of subqueries are sums of columns, and counts of rows;
    * ``joins``: also what `find_constant` finds no constant in; the least, the largest and the different values of few rows alone, which a key of their groups says (``key``, ``at_most``, the unit).

    Args:
        scopes: of the statement.
        node: the argument, or a column of a subquery.
        scope: where it stands.
        level: ``nothing`` or ``joins``, as policies say.
        known: columns that were looked at.
    """
    exp = scopes.exp
    for column in node.find_all(exp.Column):
        source, _ = scopes.source_of(column, scopes.scope_of(column) or scope)
        if isinstance(source, exp.Table) or scopes.is_public(column, scope):
            continue
        for one in scopes.projections_of(source, column.name):
            if id(one) in known:
                continue
            found = _find_value_choice(scopes, one, source, level)
            found = find_choice(scopes, one, source, level, known | {id(one)}) if found is None else found
            if found is not None:
                return found
    return None


def _find_value_choice(scopes: Scopes, value: Any, source: Any, level: str) -> Any:
    exp = scopes.exp
    if level != "nothing" and isinstance(value, exp.Sum | exp.Avg) and isinstance(value.this, exp.Coalesce) and isinstance(value.this.this, exp.Column):  # fmt: skip
        rest = [one for one in value.this.expressions if one.find(exp.Column, exp.Query) is not None]
        return rest[0] if rest else None  # a constant in place of a value that nobody has is no condition on one
    if level != "nothing":
        found = find_constant(scopes, value, source)
        if found is not None:
            return found
    picked = value if isinstance(value, exp.Column) and _is_distinct(scopes, value, source) else value.find(exp.Min, exp.Max)  # fmt: skip
    if picked is not None and (level == "nothing" or not _is_of_few(scopes, source)):
        return picked
    inner = value.this if isinstance(value, exp.Sum | exp.Avg) else value
    plain = isinstance(inner, exp.Column) or (isinstance(inner, exp.Count) and isinstance(inner.this, exp.Star))
    return None if plain or level != "nothing" else value


def _is_distinct(scopes: Scopes, value: Any, source: Any) -> bool:
    """Whether a column of a query is a key of its groups, or of its different rows."""
    query = source.expression
    if isinstance(query, scopes.exp.SetOperation):
        return bool(query.args.get("distinct", True))
    return bool(query.args.get("distinct")) or value in group_keys(scopes.exp, query)


def _is_of_few(scopes: Scopes, source: Any) -> bool:
    """Whether each group of a query is of few rows, so that the record compares it when it is left out."""
    query = source.expression
    if not isinstance(query, scopes.exp.Select):
        return False
    keys = group_keys(scopes.exp, query) or [one.unalias() for one in query.expressions]
    return any(isinstance(one, scopes.exp.Column) and scopes.is_of_few(one, source) for one in keys)
