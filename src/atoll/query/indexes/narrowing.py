"""Which rows of a site's tables a statement can need, by the site's own indexes: local SQL then looks at these rows alone.

An index narrows a table that the statement names once, by a condition of the outermost WHERE that a NULL does not fulfil: a range of a column, or ``DWithin`` of one point; and for the nearest rows to one point, by the k-th distance. What it
finds may be more than what fulfils the condition, never less, and local SQL still asks the condition of every row: so an answer does not depend on indexes. Numbers are compared as doubles, to which all types round in order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..plan import split_conditions
from .registry import LARGEST, LocalIndex, known_indexes, measure_distances

if TYPE_CHECKING:
    from ..policy import QueryPolicy

__all__ = ["narrow_tables"]

_FEWEST, _MOST = 256, 20_000
"""Rows of a table that is worth an index, and most rows that local SQL names one by one."""
_TYPES = re.compile(r"U?(TINY|SMALL|BIG|HUGE)INT|U?INTEGER|DOUBLE|DECIMAL\(.*\)")
"""Types whose comparison with a number agrees with that of doubles; FLOAT rounds the number to its own digits."""
_CONSTANT = re.compile(r"CAST\(\(([-+0-9.eE]+)\) AS DOUBLE\)")
Box = tuple[NDArray[np.float64], NDArray[np.float64]]
Run = Callable[[str], Any]


def narrow_tables(policy: QueryPolicy, plan: Any, names: Mapping[str, str], run: Run, kept: dict[Any, Any], k: int = 0) -> dict[str, str]:  # fmt: skip
    """Table -> local SQL of the rows that the statement can need; nothing for a table without an index that helps.

    Args:
        policy: the site's own.
        plan: the plan, with its ``statement``, ``catalog`` and ``sources``.
        names: table -> as the source writes it.
        run: returns the columns of a query, of the snapshot that the statement sees.
        kept: keeps indexes for as long as the snapshot.
        k: how many of the nearest rows are asked for; 0 for all that fulfil the conditions.
    """
    found: dict[str, str] = {}
    for table in plan.sources:
        indexes = policy.table(table).indexes
        best: NDArray[np.int64] | None = None
        for label, low, high in _boxes(policy, plan, table, k) if indexes else ():
            index, rows, others = _index(policy, plan, table, label, names[table], run, kept)
            if len(rows) < _FEWEST:
                continue
            if k:
                low, high = _reach(index, low, k)
            runs = index.lookup(low, high).rows
            if len(runs) + len(others) <= min(_MOST, len(rows) // 4) and (best is None or len(runs) + len(others) < len(best)):  # fmt: skip
                best = np.concatenate([rows[runs], others])
        if best is not None:
            found[table] = f"rowid IN ({', '.join(map(str, np.sort(best).tolist()))})" if len(best) else "false"
    return found


def _reach(index: Any, point: NDArray[np.float64], k: int) -> Box:
    """A box that holds all rows as near as the k-th one."""
    last = index.nearest(point, k)[0, -1]
    if last < 0:
        return np.full((1, 2), -np.inf), np.full((1, 2), np.inf)
    most = measure_distances(point, index.of_row(last)[None])[0]
    return _around(point, most)


def _around(point: NDArray[np.float64], radius: float) -> Box:
    reach = radius * (1 + 1e-15) + 1e-150  # a computed distance may be a little smaller
    return np.nextafter(point - reach, -np.inf), np.nextafter(point + reach, np.inf)


def _index(policy: QueryPolicy, plan: Any, table: str, label: str, name: str, run: Run, kept: dict[Any, Any]) -> tuple[Any, NDArray[np.int64], NDArray[np.int64]]:  # fmt: skip
    """An index, the numbers of its rows in the table, and of rows that it cannot hold."""
    from ..databases.silo import bounded_cell, quote

    kind = policy.table(table).indexes[label]
    types = {column.lower(): (column, kind) for column, kind in plan.catalog.tables[table].items()}
    point = policy.table(table).points.get(label)
    columns = (label,) if point is None else point.columns
    key = table, kind, tuple(types[column] for column in columns)
    if key not in kept:
        # Values outside a range count as missing, in an index too: of the nearest rows they would take the places of others.
        cells = [f"try_cast({bounded_cell(policy, table, *types[c])} AS DOUBLE) AS k{j}" for j, c in enumerate(columns)]
        there = " AND ".join(f"k{j} IS NOT NULL" for j in range(len(columns)))
        got = run(f"SELECT * FROM (SELECT rowid AS r, {', '.join(cells)} FROM main.{quote(name)}) WHERE {there}")
        keys = np.stack([np.asarray(got[f"k{j}"], np.float64) for j in range(len(columns))], axis=1)
        rows, usable = np.asarray(got["r"], np.int64), (np.abs(keys) <= LARGEST).all(axis=1)
        made: LocalIndex = known_indexes()[kind](keys[usable] if point is not None else keys[usable, 0])  # type: ignore[call-arg]  # fmt: skip
        kept[key] = made, rows[usable], rows[~usable]
    return kept[key]  # type: ignore[no-any-return]


# ---------------------------------------------------------------- what a statement asks for


def _boxes(policy: QueryPolicy, plan: Any, table: str, k: int) -> Iterator[tuple[str, Any, Any]]:
    """The indexed columns and points of a table that a statement asks for, with the ends of what it asks."""
    from sqlglot import exp

    tree = plan.statement.tree
    reads = [one for one in tree.find_all(exp.Table) if one.name.lower() == table]
    if not isinstance(tree, exp.Select) or len(reads) != 1 or reads[0].find_ancestor(exp.Select) is not tree:
        return
    alias, conditions = reads[0].alias_or_name, split_conditions(exp, tree.args.get("where"))
    if k:
        yield from _nearest(exp, policy, tree, table, alias, conditions)
        return
    types = {column.lower(): kind for column, kind in plan.catalog.tables[table].items()}
    ends: dict[str, tuple[float, float]] = {}
    for one in conditions:
        node = one.unnest()
        if isinstance(node, exp.LTE) and node.meta.get("spatial"):
            place, radius = _place_of(policy, table, alias, node.this), _number(exp, node.expression)
            if place is not None and radius is not None:
                yield place[0], *_around(place[1], max(0.0, radius))
            continue
        found = _range(exp, node)
        if found is None or found[0].table != alias:
            continue
        column, low, high = found
        label = column.name.lower()
        if label in policy.table(table).indexes and label not in policy.table(table).points and _TYPES.fullmatch(types[label]):  # fmt: skip
            before = ends.get(label, (-np.inf, np.inf))
            ends[label] = max(low, before[0]), min(high, before[1])
    for label, (low, high) in ends.items():
        yield label, np.array([low]), np.array([high])


def _nearest(exp: Any, policy: QueryPolicy, tree: Any, table: str, alias: str, conditions: list[Any]) -> Iterator[tuple[str, Any, Any]]:  # fmt: skip
    """The point near to which rows are asked for, if nothing else decides which rows these are."""
    if tree.args.get("joins") or any(not one.meta.get("there") for one in conditions):
        return
    qualify, order = tree.args.get("qualify"), tree.args.get("order")
    if qualify is not None:
        order = qualify.this.this.args.get("order")
    if order is None or order.expressions[0].args.get("nulls_first"):
        return
    first = order.expressions[0].this
    if isinstance(first, exp.Column) and not first.table:  # the alias of a column
        first = next((one.unalias() for one in tree.expressions if one.alias == first.name), first)
    place = _place_of(policy, table, alias, first)
    if place is not None:
        yield place[0], place[1], place[1]


def _place_of(policy: QueryPolicy, table: str, alias: str, distance: Any) -> tuple[str, NDArray[np.float64]] | None:
    """Of a distance between an indexed point of a table and a constant one: the point's name, and the constant."""
    ends: Any = distance.unnest().meta.get("between") or ()
    for (own, x, _), (other, a, b) in (ends, ends[::-1]) if len(ends) == 2 else ():
        constant = [_CONSTANT.fullmatch(part) for part in (a, b)]
        if own.lower() != alias.lower() or other or None in constant:
            continue
        for label, point in policy.table(table).points.items():
            if label in policy.table(table).indexes and f'"{point.x}"' in x.lower():
                return label, np.array([[float(one[1]) for one in constant if one is not None]])
    return None


def _range(exp: Any, node: Any) -> tuple[Any, float, float] | None:
    """A column, and the ends of the range in which a condition wants it."""
    if isinstance(node, exp.Between) and isinstance(node.this, exp.Column):
        low, high = (_number(exp, node.args[name]) for name in ("low", "high"))
        return None if low is None or high is None else (node.this, low, high)
    if not isinstance(node, exp.EQ | exp.LT | exp.LTE | exp.GT | exp.GTE):
        return None
    left, right = node.left.unnest(), node.right.unnest()
    turned = isinstance(right, exp.Column)
    column, value = (right, _number(exp, left)) if turned else (left, _number(exp, right))
    if not isinstance(column, exp.Column) or value is None:
        return None
    if isinstance(node, exp.EQ):
        return column, value, value
    below = isinstance(node, exp.LT | exp.LTE) != turned
    return (column, -np.inf, value) if below else (column, value, np.inf)


def _number(exp: Any, node: Any) -> float | None:
    """A number that stands in the statement; ``None`` for another expression."""
    node = node.unnest()
    sign = -1.0 if isinstance(node, exp.Neg) else 1.0
    node = node.this.unnest() if isinstance(node, exp.Neg) else node
    if not isinstance(node, exp.Literal) or node.is_string:
        return None
    value = sign * float(node.name)
    return value if np.isfinite(value) else None
