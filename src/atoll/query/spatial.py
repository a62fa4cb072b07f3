"""Spatial SQL: functions of points that the policy declares, written out as SQL over their coordinates.

| function | meaning |
| --- | --- |
| ``POINT(x, y)`` | a point of two numbers; a text such as ``'POINT (2.3 48.8)'`` is one too |
| ``Distance(a, b)`` | the Euclidean distance, in units of the coordinates |
| ``DistanceSphere(a, b)`` | metres on a sphere of radius 6,371,008.8 m (the mean radius of the earth, IUGG), of degrees of longitude and latitude: the haversine formula |
| ``DWithin(a, b, r)`` | whether ``Distance(a, b) <= r`` |
| ``kNN(q, location, k)`` | whether the row is one of the k of its table that are nearest to ``q``, a point or a point of another table's row |
| ``kNN(q, location, k, error)`` | the same up to a factor of ``1 + error`` of the distance: a strategy may keep rows that are so much farther in place of nearer ones |

A declared point is named by itself or with its table: ``location``, ``cities.location``. Coordinates that are missing, or no numbers, make a distance NULL, so that the row is near to nothing.

Every function becomes plain SQL before names are resolved, so each strategy sees columns with their levels, and whoever sums or filters can answer it. ``kNN`` becomes
``QUALIFY row_number() OVER (ORDER BY distance) <= k``. Rows at one distance are ordered by the columns that are shown: then the rows of an answer do not depend on who has which.
What a strategy needs of a function stands in the ``meta`` of its node: a distance's ``extent`` and ``precision`` (`distance_of`), its line in the statement (``at``), the points ``between`` which it is Euclidean, with their coordinates, and a ``nearest`` (`nearest_of`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from atoll.core.errors import ConfigError, nearest

from .databases.silo import quote

if TYPE_CHECKING:
    from .policy import PointPolicy

__all__ = [
    "RADIUS",
    "DistanceRange",
    "NearestRows",
    "break_ties",
    "distance_of",
    "expand_points",
    "nearest_of",
    "write_coordinates",
    "write_distance",
]

RADIUS = 6_371_008.8
"""Metres: the mean radius of the earth."""
MOST_NEIGHBOURS = 10_000
_NUMBER = r"([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)"
_WKT = rf"^\s*(?:SRID\s*=\s*[0-9]+\s*;)?\s*POINT\s*\(\s*{_NUMBER}\s+{_NUMBER}\s*\)\s*$"
"""A point as OGC's well-known text has it, of two dimensions."""
_ARGUMENTS = {"dwithin": (3, "DWithin(location, POINT(2.3, 48.8), 5)"), "distance": (2, "Distance(location, POINT(2.3, 48.8))"),
              "distancesphere": (2, "DistanceSphere(location, POINT(2.3, 48.8))"), "knn": (3, "kNN(POINT(2.3, 48.8), location, 5)")}  # fmt: skip
Points = Mapping[str, "Mapping[str, PointPolicy]"]
At = Callable[[Any], str]


class DistanceRange(NamedTuple):
    """What a policy says of a distance.

    Attributes:
        extent: the largest one.
        precision: the smallest difference that matters.
    """

    extent: float
    precision: float


class NearestRows(NamedTuple):
    """What ``kNN`` asks for.

    Attributes:
        k: how many rows.
        table: alias of the table that they are in.
        of: alias of the table whose rows they are near to; empty for one point.
        error: by which part of the distance rows may be farther.
    """

    k: int
    table: str
    of: str
    error: float = 0.0


class _Point(NamedTuple):
    """An argument: SQL of its coordinates, alias of its table if it is a declared point, and what the policy says."""

    x: str
    y: str
    alias: str = ""
    policy: PointPolicy | None = None


def distance_of(node: Any) -> DistanceRange | None:
    """What the policy says of an expression that is a distance; ``None`` for another one."""
    found = node.meta.get("distance")
    return None if found is None else DistanceRange(*found)


def nearest_of(tree: Any) -> NearestRows | None:
    """What ``kNN`` asks for in a statement; ``None`` without one."""
    qualify = tree.args.get("qualify")
    found = None if qualify is None else qualify.this.meta.get("nearest")
    return None if found is None else NearestRows(*found)


# ---------------------------------------------------------------- functions as SQL


def expand_points(tree: Any, points: Points, at: At) -> bool:
    """Write the spatial functions of a statement out, in place.

    Args:
        tree: the statement, before names are resolved.
        points: table -> point -> its columns.
        at: the line of a node, and a caret below it, for errors.

    Returns:
        Whether there was one.

    Raises:
        ConfigError: an argument is no point, or ``kNN`` stands where it cannot be answered.
    """
    from sqlglot import exp

    found = [node for node in tree.find_all(exp.Anonymous) if node.name.lower() in (*_ARGUMENTS, "point")]
    for node in found:
        name = node.name.lower()
        if name == "point":
            if not (isinstance(node.parent, exp.Anonymous) and node.parent.name.lower() in _ARGUMENTS):
                raise ConfigError(f"POINT outside a spatial function{at(node)}", where="sql", remedy="use it as in Distance(location, POINT(2.3, 48.8))")  # fmt: skip
            continue
        count, example = _ARGUMENTS[name]
        if len(node.expressions) != count and not (name == "knn" and len(node.expressions) == 4):
            raise ConfigError(f"{node.name} of {len(node.expressions)} arguments{at(node)}", where="sql", remedy=f"write {example}")  # fmt: skip
        if name == "knn":
            _expand_nearest(tree, node, points, at)
            continue
        a, b = (_point_of(part, points, at) for part in node.expressions[:2])
        distance = _distance(a, b, sphere=name == "distancesphere")
        distance.meta["at"] = at(node)
        if name == "dwithin":
            distance = exp.LTE(this=distance, expression=exp.paren(node.expressions[2].copy()))
            distance.meta["spatial"] = True
            distance = exp.paren(distance, copy=False)
        node.replace(distance)
    return bool(found)


def _parse(text: str) -> Any:
    import sqlglot

    made = sqlglot.parse_one(text, dialect="duckdb")
    for node in made.walk():
        node.meta.clear()  # places in this text are none in the statement
    return made


def write_distance(a: tuple[str, str], b: tuple[str, str], *, sphere: bool, windows: bool = False) -> str:
    """SQL of the distance of two points.

    Args:
        a: SQL of the coordinates of one.
        b: of the other.
        sphere: whether it is in metres, of degrees.
        windows: whether coordinates are those of rows before or after, which DuckDB does not try: then points beyond a pole have no distance.
    """
    (ax, ay), (bx, by) = a, b
    if not sphere:
        return f"sqrt(({ax} - {bx}) * ({ax} - {bx}) + ({ay} - {by}) * ({ay} - {by}))"  # faster than pow
    across = f"pow(sin(radians({ay} - {by}) / 2), 2) + cos(radians({ay})) * cos(radians({by})) * pow(sin(radians({ax} - {bx}) / 2), 2)"
    # LEAST takes a NULL for no value at all: without the condition a missing coordinate would lie at the antipode.
    if windows:
        return f"CASE WHEN isfinite({ax} + {bx}) AND abs({ay}) <= 90 AND abs({by}) <= 90 THEN {2 * RADIUS!r} * asin(least(1.0, sqrt({across}))) END"  # fmt: skip
    return f"CASE WHEN isfinite({ax} + {ay} + {bx} + {by}) THEN try({2 * RADIUS!r} * asin(least(1.0, sqrt({across})))) END"  # fmt: skip


def write_coordinates(policy: PointPolicy, table: str) -> tuple[str, str]:
    """SQL of the coordinates of a declared point, NULL where they are no numbers.

    Args:
        policy: its columns.
        table: what the statement calls its table.
    """
    if not policy.wkt:
        x, y = (f"try_cast({quote(table)}.{quote(column)} AS DOUBLE)" for column in policy.columns)
    else:
        text = f"CAST({quote(table)}.{quote(policy.wkt)} AS VARCHAR)"  # a column of a file without a point has another type
        x, y = (f"try_cast(regexp_extract({text}, '{_WKT}', {k}, 'i') AS DOUBLE)" for k in (1, 2))
    return x, y


def _distance(a: _Point, b: _Point, *, sphere: bool) -> Any:
    made = _parse(write_distance((a.x, a.y), (b.x, b.y), sphere=sphere))
    if not sphere:
        made.meta["between"] = [(one.alias, one.x, one.y) for one in (a, b)]
    told = [one.policy for one in (a, b) if one.policy is not None]
    extent, precision = max(one.extent for one in told), max(one.precision for one in told)
    if sphere:
        extent, precision = min(math.pi * RADIUS, math.radians(extent) * RADIUS), math.radians(precision) * RADIUS
    made.meta["distance"] = (extent, precision)
    return made


def _point_of(node: Any, points: Points, at: At) -> _Point:
    """The coordinates of an argument."""
    from sqlglot import exp

    if isinstance(node, exp.Anonymous) and node.name.lower() == "point" and len(node.expressions) == 2:
        if any(part.find(exp.Column) is not None for part in node.expressions):
            raise ConfigError(f"POINT of columns{at(node)}", where="sql", remedy="let the policy declare the point: points: {location: {x: lon, y: lat}}")  # fmt: skip
        x, y = (f"CAST(({part.sql('duckdb')}) AS DOUBLE)" for part in node.expressions)
        return _Point(x, y)
    if isinstance(node, exp.Literal) and node.is_string:
        found = re.fullmatch(_WKT, node.name, re.I)
        if found is not None:
            return _Point(f"CAST(({found[1]}) AS DOUBLE)", f"CAST(({found[2]}) AS DOUBLE)")
    elif isinstance(node, exp.Column) and not isinstance(node.this, exp.Star):
        return _declared(node, points, at)
    raise ConfigError(f"{node.sql('duckdb')} is no point{at(node)}", where="sql", remedy="use a point that the policy declares, or POINT(2.3, 48.8)")  # fmt: skip


def _declared(node: Any, points: Points, at: At) -> _Point:
    """A point of a table around the function."""
    from sqlglot import exp

    select, known = node.find_ancestor(exp.Select), list[str]()
    name, alias = node.name.lower(), node.table.lower()
    while select is not None:
        tables = [item.this for item in (select.args.get("from_"), *(select.args.get("joins") or ())) if item is not None]  # fmt: skip
        here = [(one.alias_or_name, points.get(one.name.lower(), {})) for one in tables if isinstance(one, exp.Table)]
        fitting = [(own, declared[name]) for own, declared in here if name in declared and alias in ("", own.lower())]
        if len(fitting) > 1:
            raise ConfigError(f"{node.name} is a point of {' and of '.join(own for own, _ in fitting)}{at(node)}", where="sql", remedy=f"name its table: {fitting[0][0]}.{node.name}")  # fmt: skip
        if fitting:
            own, policy = fitting[0]
            return _Point(*write_coordinates(policy, own), own, policy)
        known += [point for _, declared in here for point in declared]
        select = select.find_ancestor(exp.Select)
    near = nearest(name, known).replace("'", "")
    raise ConfigError(f"no point {node.sql('duckdb')} is declared at all sites.{near}{at(node)}", where="sql", remedy=f"use {', '.join(known)}" if known else "let the sites declare it: points: {location: {x: lon, y: lat}}")  # fmt: skip


def _expand_nearest(tree: Any, node: Any, points: Points, at: At) -> None:
    from sqlglot import exp

    query, place, count, *rest = node.expressions
    error = _error_of(rest[0], at) if rest else 0.0
    k = int(count.name) if isinstance(count, exp.Literal) and count.name.isdigit() else 0
    if not 0 < k <= MOST_NEIGHBOURS:
        raise ConfigError(f"k is {count.sql('duckdb')}{at(node)}", where="sql", remedy=f"use a whole number from 1 to {MOST_NEIGHBOURS:,}")  # fmt: skip
    holder = node
    while isinstance(holder.parent, exp.And | exp.Paren):
        holder = holder.parent
    at_top = isinstance(holder.parent, exp.Where | exp.Join) and holder.find_ancestor(exp.Select) is tree
    grouped = tree.args.get("group") or tree.args.get("distinct") or any(one.find(exp.AggFunc) for one in tree.expressions)  # fmt: skip
    if not at_top or tree.args.get("qualify") is not None or grouped:
        raise ConfigError(f"kNN stands inside another condition, beside another kNN or aggregates, or in a subquery{at(node)}", where="sql", remedy="write it once, in WHERE or ON of the outermost SELECT, by itself or with AND")  # fmt: skip
    a, b = _point_of(query, points, at), _point_of(place, points, at)
    if error and a.alias:
        raise ConfigError(f"kNN with an error, near the rows of {a.alias}{at(node)}", where="sql", remedy="leave the error out, or ask for what is near to one point")  # fmt: skip
    if b.policy is None or a.alias == b.alias:
        raise ConfigError(f"kNN looks for rows near a point of their own table, or of no table{at(node)}", where="sql", remedy="write kNN(POINT(2.3, 48.8), location, k), or kNN(riders.location, drivers.location, k)")  # fmt: skip
    distance = _distance(a, b, sphere=False)
    window = exp.Window(this=exp.RowNumber(), order=exp.Order(expressions=[exp.Ordered(this=distance)]), over="OVER")
    first = exp.LTE(this=window, expression=exp.Literal.number(k))
    first.meta["nearest"] = (k, b.alias.lower(), a.alias.lower(), error)
    tree.set("qualify", exp.Qualify(this=first))
    there = exp.func("isfinite", distance.copy(), dialect="duckdb")
    there.meta["there"] = True
    node.replace(there)


def _error_of(node: Any, at: At) -> float:
    """The error of an approximate kNN."""
    error = float(node.name) if getattr(node, "is_number", False) and not node.is_string else 0.0
    if not 0.001 <= error <= 1:
        raise ConfigError(f"the error is {node.sql('duckdb')}{at(node)}", where="sql", remedy="use 0.001 to 1, such as 0.1")  # fmt: skip
    return error


# ---------------------------------------------------------------- rows at one distance


def break_ties(tree: Any) -> str:
    """Order rows at one distance by the columns that are shown, in place.

    Args:
        tree: the statement, with names resolved and spatial functions written out.

    Returns:
        The statement as DuckDB runs it over all rows in one place.

    Raises:
        ConfigError: ``kNN`` stands beside a condition on the table that it looks in.
    """
    from sqlglot import exp

    if not isinstance(tree, exp.Select):
        return str(tree.sql("duckdb"))
    shown = [exp.Ordered(this=one.unalias().copy(), nulls_first=False) for one in tree.expressions]
    found = nearest_of(tree)
    if found is None:
        order: Any = tree.args.get("order")
        if order is not None and tree.args.get("limit") is not None:
            first = order.expressions[0].this
            if isinstance(first, exp.Column) and not first.table:  # the alias of a column
                first = next((one.unalias() for one in tree.expressions if one.alias == first.name), first)
            if distance_of(first) is not None:
                for one in shown:
                    order.append("expressions", one)
        return str(tree.sql("duckdb"))
    _require_whole_table(tree, found)
    window = tree.args["qualify"].this.this
    for one in shown:
        window.args["order"].append("expressions", one)
    whole = tree.copy()
    if found.of:
        whole.args["qualify"].this.this.set("partition_by", [exp.column("rowid", table=found.of)])
    return str(whole.sql("duckdb"))


def _require_whole_table(tree: Any, found: NearestRows) -> None:
    """Refuse a condition on the table that ``kNN`` looks in: whether it holds before or after would change the rows."""
    from sqlglot import exp

    joins = tree.args.get("joins") or ()
    sources = [tree.args["from_"].this, *(join.this for join in joins)]
    plain = all(not (join.side or join.args.get("using") or join.args.get("method")) and (join.kind or "").upper() in ("", "INNER", "CROSS") for join in joins)  # fmt: skip
    if not plain or {one.alias_or_name.lower() for one in sources if isinstance(one, exp.Table)} != {found.table, found.of} - {""} or len(sources) > 2:  # fmt: skip
        raise ConfigError("kNN reads other tables than those of its points", where="sql", remedy="read one table, or join two: FROM riders r JOIN drivers d ON kNN(r.location, d.location, k)")  # fmt: skip
    conditions = [one for one in (tree.args.get("where") and tree.args["where"].this, *(join.args.get("on") for join in joins)) if one is not None]  # fmt: skip
    for whole in conditions:
        for part in whole.flatten() if isinstance(whole, exp.And) else [whole]:
            near = part.unnest().meta.get("there")
            if not near and any(column.table.lower() == found.table for column in part.find_all(exp.Column)):
                raise ConfigError(f"kNN beside the condition {part.sql('duckdb')} on the rows that it looks among", where="sql", remedy="write ORDER BY Distance(…) LIMIT k, which looks among the rows that WHERE leaves; or put conditions on the other table alone")  # fmt: skip
