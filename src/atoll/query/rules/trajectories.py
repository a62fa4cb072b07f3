"""Trajectories: the points of a unit, such as a taxi or a phone, in the order of time.

| rule | a row is |
| --- | --- |
| ``Steps`` | two points of a unit, one after the other: time, distance and speed between them |
| ``Trips`` | points of a unit without a long pause between two of them: its length, duration and ends |
| ``Meetings`` | two points of two tables that are near in space and in time |

A table has a row for each point. The policy declares where it is (``points: {place: {x: lon, y: lat}}``) and who it belongs to (``unit: taxi``). Points without a unit, a time or a place are left out. Points at one time are ordered by
their coordinates, so that steps depend neither on the order of rows nor on who has which.

Times are numbers of seconds, dates or timestamps. A distance is Euclidean, in units of the coordinates; ``DistanceSphere(place)`` in the place of the point makes it metres.

Terms are those of MobilityDB and MovingPandas. A trip ends before a pause of more than ``gap`` seconds, as ``ObservationGapSplitter`` has it; a point alone is a trip of length 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..databases.silo import quote
from ..spatial import write_coordinates, write_distance
from .registry import Rewriting, RuleCall, RuleSource, rule

if TYPE_CHECKING:
    from ..policy import PointPolicy

__all__ = ["is_steps", "write_meetings", "write_steps", "write_trips"]

_MOMENT = re.compile(r"DATE|TIMESTAMP.*")
_NUMBER = re.compile(r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|FLOAT|REAL|DOUBLE|DECIMAL.*")
_POINTS = "point"
_STEPS = ("number", "began", "ended", "seconds", "distance", "speed", "from_x", "from_y", "to_x", "to_y")
_TRIPS = ("began", "ended", "seconds", "points", "length", "from_x", "from_y", "to_x", "to_y")


@dataclass(frozen=True)
class _Trajectory:
    """The points of all units, as SQL has them.

    Attributes:
        source: the table.
        unit: the column of units, quoted.
        at: the column of times, quoted.
        x: SQL of the first coordinate.
        y: SQL of the second one.
        moment: whether times are dates or timestamps.
        sphere: whether distances are metres.
        there: SQL of whether a row is a point of a unit at a time.
        columns: the columns that are no part of this, quoted.
    """

    source: RuleSource
    unit: str
    at: str
    x: str
    y: str
    moment: bool
    sphere: bool
    there: str
    columns: tuple[str, ...]

    def window(self, function: str, value: str = "") -> str:
        """SQL of a window over the points of a unit in the order of time."""
        return f"{function}({value}) OVER (PARTITION BY {self.unit} ORDER BY {self.at}, {self.x}, {self.y})"

    def seconds(self, began: str, ended: str) -> str:
        """SQL of the seconds between two times."""
        return f"epoch({ended}) - epoch({began})" if self.moment else f"{ended} - {began}"

    def distance(self, other: str) -> str:
        """SQL of the distance to the point before or after (``LAG``, ``LEAD``)."""
        there = (self.window(other, self.x), self.window(other, self.y))
        return write_distance((self.x, self.y), there, sphere=self.sphere, windows=True)


def _read_trajectory(call: RuleCall) -> _Trajectory:
    """The first four arguments: table, unit, time, point."""
    from sqlglot import exp

    source = call.source(0).named(_POINTS)
    unit, at = (call.column(place, call.source(0)) for place in (1, 2))
    node = call.arguments[3]
    sphere = isinstance(node, exp.Anonymous) and node.name.lower() == "distancesphere" and len(node.expressions) == 1
    point = node.expressions[0] if sphere else node
    name = point.name.lower() if isinstance(point, exp.Column) else ""
    if name not in source.points:
        raise call.refuse(f"no point {point.sql('duckdb')} is declared at all sites", f"use {', '.join(source.points)}" if source.points else "let the sites declare it: points: {location: {x: lon, y: lat}}", 3)  # fmt: skip
    kind = source.types.get(_plain(at), "")
    if not (_MOMENT.fullmatch(kind) or _NUMBER.fullmatch(kind)):
        raise call.refuse(f"times are {kind or 'of an unknown type'}", f"give a number of seconds, a date or a timestamp: (SELECT *, CAST({at} AS TIMESTAMP) AS moment FROM …) AS points", 2)  # fmt: skip
    return _make_trajectory(source, unit, at, kind, source.points[name], sphere)


def _plain(name: str) -> str:
    """A column without its quotes."""
    return name[1:-1].replace('""', '"')


def _make_trajectory(source: RuleSource, unit: str, at: str, kind: str, point: PointPolicy, sphere: bool) -> _Trajectory:  # fmt: skip
    x, y = write_coordinates(point, source.alias)
    table = quote(source.alias)
    mine, when = f"{table}.{unit}", f"{table}.{at}"
    exact = kind.startswith("DECIMAL") or kind.endswith("INT") or kind == "INTEGER"
    there = [f"{mine} IS NOT NULL", f"{when} IS NOT NULL" if exact else f"isfinite({when})", f"isfinite({x})", f"isfinite({y})"]  # fmt: skip
    taken = {unit, at, *map(quote, point.columns)}
    columns = tuple(one for one in map(quote, source.columns) if one not in taken)
    moment = _MOMENT.fullmatch(kind) is not None
    return _Trajectory(source, mine, when, x, y, moment, sphere, " AND ".join(there), columns)


def is_steps(select: Any, unit: str, types: Mapping[str, str], points: Mapping[str, PointPolicy]) -> bool:
    """Whether a SELECT of one table is what ``Steps`` writes: each value is computed from points of one unit, by no number that somebody chooses.

    Args:
        select: the SELECT, with names resolved.
        unit: the column of the table's units, in lower case.
        types: the types of its columns, in lower case.
        points: its points.
    """
    from sqlglot import exp, parse_one

    def text_of(node: Any) -> str:
        return str(node.sql("duckdb")).replace("TRY_CAST(", "CAST(")  # where few must not show, casts are tried

    if any(value for name, value in select.args.items() if name not in ("expressions", "from_", "where")):
        return False
    alias, window = select.args["from_"].this.alias_or_name, select.find(exp.Window)
    order = window.args.get("order") if window is not None else None
    at = order.expressions[0].this if order is not None else None
    if not isinstance(at, exp.Column) or at.name.lower() not in types:
        return False
    names = [one.alias_or_name.lower() for one in select.expressions]
    units = [one for one in select.expressions if one.alias_or_name.lower() == unit]
    if len(set(names)) < len(names) or "@row" in names or [one.unalias().name.lower() for one in units if isinstance(one.unalias(), exp.Column)] != [unit]:  # fmt: skip
        return False
    source = RuleSource("", alias, "", tuple(types))
    values = [one.unalias() for one in select.expressions]
    made = {text_of(one) for one in values if not isinstance(one, exp.Column)}
    where = select.args.get("where")
    for point in points.values():
        for sphere in (False, True):
            steps = _make_trajectory(source, quote(unit), quote(at.name.lower()), types[at.name.lower()], point, sphere)
            known = {text_of(parse_one(text, dialect="duckdb")) for text in _list_steps(steps).values()}
            same = where is not None and text_of(where.this) == text_of(parse_one(steps.there, dialect="duckdb"))
            if same and made <= known:
                return True
    return False


def _list_steps(found: _Trajectory) -> dict[str, str]:
    """SQL of the columns of steps, by their names."""
    seconds = found.seconds(found.at, found.window("LEAD", found.at))
    distance = found.distance("LEAD")
    values = (
        found.window("ROW_NUMBER"), found.at, found.window("LEAD", found.at), seconds, distance, f"{distance} / NULLIF({seconds}, 0)",
        found.x, found.y, found.window("LEAD", found.x), found.window("LEAD", found.y),
    )  # fmt: skip
    return dict(zip(_STEPS, values, strict=True))


@rule("Steps(points, unit, at, location)")
def write_steps(call: RuleCall) -> Rewriting:
    """The steps of trajectories, one row for two points of a unit that follow each other: ``Steps(pings, taxi, seen, place)``.

    Its columns are the unit, ``number`` (1, 2, … for each unit), ``began``, ``ended``, ``seconds``, ``distance``, ``speed`` (distance a second; NULL where both points are at one time), the coordinates ``from_x``, ``from_y``, ``to_x``, ``to_y``,
    and the other columns of the point where the step begins. A unit of n points has n - 1 steps.

    Where all points of a unit lie at one site (``join: local`` of its column), that site makes its steps, and `sums` adds them up, under a ``min_count`` too: a step has no number that the analyst chooses, so a column of steps is like
    any other column. Points of a unit at several sites `smcql` brings together under shares: there ``number``, ``began``, ``ended`` and differences of times are to be had, and no distance.
    """
    found = _read_trajectory(call)
    taken = [one for one in found.columns if _plain(one) in _STEPS]
    if taken:
        raise call.refuse(f"{_plain(taken[0])} is a column of the points, and one of steps", f"leave it out, or give it another name: (SELECT {', '.join(_plain(call.column(place, call.source(0))) for place in (1, 2))}, … FROM …) AS points", 0)  # fmt: skip
    values = {name: text for name, text in _list_steps(found).items() if name == "ended" or call.asks(name)}
    shown = [found.unit, *(f"{text} AS {name}" for name, text in values.items()), *(f"{quote(_POINTS)}.{one}" for one in found.columns if call.asks(_plain(one)))]  # fmt: skip
    name = quote(call.alias or "steps")
    return Rewriting(f"(SELECT {', '.join(shown)} FROM {found.source.text} WHERE {found.there}) AS {name}", f"{name}.ended IS NOT NULL")  # fmt: skip


@rule("Trips(points, unit, at, location, gap)")
def write_trips(call: RuleCall) -> Rewriting:
    """The trips of trajectories: the points of a unit between two pauses of more than ``gap`` seconds, ``Trips(pings, taxi, seen, place, 600)``.

    Its columns are the unit, ``number`` (1, 2, … for each unit), ``began``, ``ended``, ``seconds``, ``points`` (how many), ``length`` (the sum of the distances of its steps), and the coordinates ``from_x``, ``from_y``, ``to_x``, ``to_y`` of its ends. With a
    gap above all pauses each unit has one trip, and lengths add up to the distances of all steps.

    All points of a unit lie at one site (``join: local`` of its column). Under a ``min_count`` trips are refused: two gaps that differ by little would tell of one pause.
    """
    found = _read_trajectory(call)
    gap = call.number(4, 0.0, "600")
    before = f"{found.seconds(found.window('LAG', found.at), found.at)} <= {gap!r}"
    after = f"{found.seconds(found.at, found.window('LEAD', found.at))} <= {gap!r}"
    shown = [
        f"{found.unit} AS unit", f"{found.at} AS at_", f"{found.x} AS x", f"{found.y} AS y", f"CASE WHEN {before} THEN 0 ELSE 1 END AS starts", f"CASE WHEN {after} THEN 0 ELSE 1 END AS stops",
        f"CASE WHEN {before} THEN {found.distance('LAG')} ELSE 0.0 END AS distance",
    ]  # fmt: skip
    points = f"(SELECT {', '.join(shown)} FROM {found.source.text} WHERE {found.there}) AS s"
    number = "SUM(s.starts) OVER (PARTITION BY s.unit ORDER BY s.at_, s.x, s.y ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS number"  # fmt: skip
    numbered = f"(SELECT s.unit, s.at_, s.x, s.y, s.starts, s.stops, s.distance, {number} FROM {points}) AS t"
    values = {"began": "MIN(t.at_)", "ended": "MAX(t.at_)", "points": "COUNT(*)", "length": "SUM(t.distance)"}
    values |= {f"{name}_{axis}": f"MAX(CASE WHEN t.{which} = 1 THEN t.{axis} END)" for name, which in (("from", "starts"), ("to", "stops")) for axis in "xy"}  # fmt: skip
    values = {name: f"{text} OVER (PARTITION BY t.unit, t.number)" for name, text in values.items()}
    values["seconds"] = found.seconds(values["began"], values["ended"])
    order = [name for name in ("number", *_TRIPS) if call.asks(name)]
    inner = ", ".join(f"{values[name]} AS {name}" for name in order if name in values)
    trips = f"(SELECT t.unit, t.number, t.starts{', ' * bool(inner)}{inner} FROM {numbered}) AS w"
    asked = ", ".join([f"w.unit AS {call.column(1, call.source(0))}", *(f"w.{name}" for name in order)])
    return Rewriting(f"(SELECT {asked} FROM {trips} WHERE w.starts = 1) AS {quote(call.alias or 'trips')}")


@rule("Meetings(left, right, at, location, radius, seconds)")
def write_meetings(call: RuleCall) -> Rewriting:
    """Pairs of points of two tables that are at most ``radius`` apart, at times at most ``seconds`` apart: ``Meetings(phones, cases, seen, place, 5, 900)``, as contact tracing asks.

    Both tables have the column ``at`` and declare the point; give one table two names to look for meetings among its own units: ``Meetings(pings AS a, pings AS b, seen, place, 5, 900)``, with ``a.phone < b.phone`` in WHERE. The result has
    the columns of both, so that ``GROUP BY a.phone, b.phone`` counts meetings of two, and ``MIN(a.seen)`` is their first.

    It stands for ``left JOIN right ON DWithin(left.place, right.place, radius)`` and a condition on the times. Where the points lie at different sites, the strategy `hufu` finds pairs that are near under shares, and opens these with the columns that the
    statement needs to the coordinator, who compares the times: so the columns of both points are not private.
    """
    one, other = call.source(0), call.source(1)
    if one.alias.lower() == other.alias.lower():
        raise call.refuse(f"both tables are called {one.alias}", f"name one of them: {one.alias} AS other", 1)
    at = [f"{quote(side.alias)}.{call.column(2, side)}" for side in (one, other)]
    node = call.arguments[3]
    for side in (one, other):
        if node.name.lower() not in side.points:
            raise call.refuse(f"no point {node.sql('duckdb')} of {side.alias} is declared at all sites", f"use {', '.join(side.points)}" if side.points else "let the sites declare it: points: {location: {x: lon, y: lat}}", 3)  # fmt: skip
    kinds = [side.types.get(node_name, "") for side in (one, other) for node_name in (call.arguments[2].name.lower(),)]
    for kind, side in zip(kinds, (one, other), strict=True):
        if not (_MOMENT.fullmatch(kind) or _NUMBER.fullmatch(kind)) or bool(_MOMENT.fullmatch(kind)) != bool(_MOMENT.fullmatch(kinds[0])):  # fmt: skip
            raise call.refuse(f"times of {side.alias} are {kind or 'of an unknown type'}, and of {one.alias} {kinds[0] or 'of an unknown type'}", "give both as numbers of seconds, or as dates or timestamps", 2)  # fmt: skip
    radius, seconds = call.number(4, 0.0, "5"), call.number(5, 0.0, "900")
    shown = [f"epoch({text})" if _MOMENT.fullmatch(kinds[0]) else text for text in at]
    place = node.name.lower()
    near = f"DWithin({quote(one.alias)}.{quote(place)}, {quote(other.alias)}.{quote(place)}, {radius!r})"
    return Rewriting(
        f"{one.text} JOIN {other.text} ON {near}",
        f"{shown[0]} <= {shown[1]} + {seconds!r} AND {shown[1]} <= {shown[0]} + {seconds!r}",
    )
