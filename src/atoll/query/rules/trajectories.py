"""Trajectories: the points of a unit, such as a taxi or a phone, in the order of time.

| rule | a row is |
| --- | --- |
| ``Steps`` | two points of a unit, one after the other: time, distance and speed between them |
| ``Trips`` | points of a unit without a long pause between two of them: its length, duration and ends |
| ``Stays`` | points of a unit near to the first of them, for a while: where it was, from when to when |
| ``Meetings`` | two points of two tables that are near in space and in time |

A table has a row for each point. The policy declares where it is (``points: {place: {x: lon, y: lat}}``) and who it belongs to (``unit: taxi``). Points without a unit, a time or a place are left out. Points at one time are ordered by
their coordinates, so that steps depend neither on the order of rows nor on who has which.

Times are numbers of seconds, dates or timestamps. A distance is Euclidean, in units of the coordinates; ``DistanceSphere(place)`` in the place of the point makes it metres.

Terms are those of MobilityDB and MovingPandas. A trip ends before a pause of more than ``gap`` seconds, as ``ObservationGapSplitter`` has it; a point alone is a trip of length 0. Stays are the stay points of Li et al. 2008, "Mining user
similarity based on location history".

Where few must not show (``min_count``), numbers that the analyst chooses make rows of several points: a gap, a radius. So a site's record knows a trip or a stay by all that its values are computed from, and also by the points where it begins and ends, by all of its
points and by the steps between them: sums of these are sums over rows that other statements have too (`RunForm`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll.core.errors import ConfigError

from ..databases.silo import quote
from ..spatial import write_coordinates, write_distance
from .registry import Rewriting, RuleCall, RuleSource, rule

if TYPE_CHECKING:
    from ..policy import PointPolicy

__all__ = ["RunForm", "expand_runs", "read_form", "write_meetings", "write_stays", "write_steps", "write_trips"]

_MOMENT = re.compile(r"DATE|TIMESTAMP.*")
_NUMBER = re.compile(r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|FLOAT|REAL|DOUBLE|DECIMAL.*")
_POINTS = "point"
_STEPS = ("number", "began", "ended", "seconds", "distance", "speed", "from_x", "from_y", "to_x", "to_y")
_TRIPS = ("began", "ended", "seconds", "points", "length", "from_x", "from_y", "to_x", "to_y")
_STAYS = ("began", "ended", "seconds", "points", "x", "y")
_ROW = "@row"
"""The number of a row in local SQL (`atoll.query.plan.ROW`)."""
_BASES = ("@starts", "@ends", "@points", "@steps")
"""Of a row of several points: hashes of the point where it begins, of that where it ends, of all, and of all but the last, where steps begin."""
_MARKS = ("7000001.25", "7000002.25")
"""Stand for the numbers of a call in the text that calls are compared with."""
_NUMBER_TEXT = r"([0-9.eE+-]+)"
_ARGUMENTS = {"eachpoint": 4, "runnumber": 5}
"""What rules write for a unit's points one by one, and for the number of the run of each: a window knows no run, which begins where the one before ends."""


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

    def row(self, rows: bool) -> list[str]:
        """The number of a point's row in local SQL, if it is asked for."""
        return [f"{quote(self.source.alias)}.{quote(_ROW)} AS row_"] if rows else []

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


@dataclass(frozen=True)
class RunForm:
    """A derived table that a rule writes: each of its rows is of points of one unit, and of no other points by a number that somebody chooses.

    Attributes:
        bases: columns of local SQL, beside ``@row``, that are sums of hashes of points: those by which a site's record compares the table's rows with rows of other statements.
        text: local SQL of the table with these columns; empty for steps, to which they are added.
    """

    bases: tuple[str, ...]
    text: str = ""

    def number(self, select: Any) -> Any:
        """The SELECT in local SQL with ``@row`` and the bases; steps are changed in place.

        Args:
            select: the SELECT, of tables as local SQL calls them.
        """
        from sqlglot import exp, parse_one

        if self.text:
            made = parse_one(self.text, dialect="duckdb")
            expand_runs(made, lambda _: "")
            return made
        row = exp.column(_ROW, table=select.args["from_"].this.alias_or_name, quoted=True)
        after = next(one for one in select.find_all(exp.Window) if isinstance(one.this, exp.Lead)).copy()
        after.set("this", exp.Lead(this=row.copy()))
        select.append("expressions", exp.alias_(row, _ROW, quoted=True))
        select.append("expressions", parse_one(f"{_hash_text(after.sql('duckdb'))} AS {quote(self.bases[0])}", dialect="duckdb"))  # fmt: skip
        return select

    def list_plain(self, select: Any) -> Any:
        """The SELECT with the columns of its table alone, of all rows: which rows are points at all may not show in keys. Changes the SELECT.

        Args:
            select: the SELECT, of tables as local SQL calls them.
        """
        from sqlglot import exp

        shown = [one for one in select.expressions if isinstance(one.unalias(), exp.Column)]
        if self.text:
            lowest = find_lowest(select)
            unit = next(one.unalias() for one in lowest.expressions if one.alias == "unit")
            shown = [exp.alias_(unit, shown[0].alias_or_name, quoted=True)]
            return exp.select(*shown).from_(lowest.args["from_"].this)
        select.set("where", None)
        select.set("expressions", shown)
        return select

    def is_plain(self, name: str, found: Sequence[Any], unit: str) -> bool:
        """Whether a column is one of the table.

        Args:
            name: its name.
            found: what it is in the derived table.
            unit: the column of the table's units.
        """
        from sqlglot import exp

        return name.lower() == unit if self.text else all(isinstance(one, exp.Column) for one in found)


def _hash_text(row: str) -> str:
    """SQL of what a row counts in a digest (`atoll.query.plan.digest_rows_text`)."""
    return f"CAST(md5_number_lower(CAST({row} AS VARCHAR)) AS HUGEINT)"


def read_form(select: Any, table: str, unit: str, types: Mapping[str, str], points: Mapping[str, PointPolicy], prepare: Callable[[str], Any]) -> RunForm | None:  # fmt: skip
    """Which rule writes a SELECT: steps, trips or stays of one table; ``None`` for anything else.

    Args:
        select: the SELECT, with names resolved and casts tried.
        table: the table that it reads.
        unit: the column of the table's units, in lower case.
        types: the types of its columns, in lower case.
        points: its points.
        prepare: makes of the text of a SELECT one with names resolved and casts tried, as they are here.
    """
    from sqlglot import exp

    if _is_steps(select, unit, types, points):
        return RunForm(("@ends",))
    lowest = find_lowest(select)
    order = lowest.find(exp.Order)
    at = order.expressions[0].this.name.lower() if order is not None else ""
    if lowest.args["from_"].this.alias_or_name != _POINTS or at not in types:
        return None
    text, shown = str(select.sql("duckdb")), [one.alias_or_name for one in select.expressions][1:]
    for kind, columns, count in ((_write_trips, _TRIPS, 1), (_write_stays, _STAYS, 2)):
        if not {*shown} <= {"number", *columns}:
            continue
        for point in points.values():
            for sphere in (False, True):
                found, local = (_make_trajectory(RuleSource(f"{quote(name)} AS {quote(_POINTS)}", _POINTS, "", tuple(types)), quote(unit), quote(at), types[at], point, sphere) for name in (table, "@" + table))  # fmt: skip
                template = prepare(kind(found, unit, _MARKS[:count], shown)).sql("duckdb")
                numbers = _read_numbers(text, template, count)
                if numbers:
                    return RunForm(_BASES, kind(local, unit, numbers, shown, rows=True))
    return None


def find_lowest(select: Any) -> Any:
    """The SELECT inside others that reads a table."""
    from sqlglot import exp

    while isinstance(select.args["from_"].this, exp.Subquery) and isinstance(select.args["from_"].this.this, exp.Select) and select.args["from_"].this.this.args.get("from_"):  # fmt: skip
        select = select.args["from_"].this.this
    return select


def _read_numbers(text: str, template: str, count: int) -> tuple[str, ...]:
    """The numbers that a text has in the places of marks; none if it is another text."""
    pattern = re.escape(template)
    for k, mark in enumerate(_MARKS[:count]):
        pattern = pattern.replace(re.escape(mark), _NUMBER_TEXT, 1).replace(re.escape(mark), rf"\{k + 1}")
    found = re.fullmatch(pattern, text)
    return found.groups() if found else ()


def _is_steps(select: Any, unit: str, types: Mapping[str, str], points: Mapping[str, PointPolicy]) -> bool:
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

    All points of a unit lie at one site (``join: local`` of its column). Under a ``min_count`` units of trips count as those of any table, and two gaps that differ by pauses of few units are not both answered.
    """
    found = _read_trajectory(call)
    gap = call.number(4, 0.0, "600")
    shown = [name for name in ("number", *_TRIPS) if call.asks(name)]
    return Rewriting(f"({_write_trips(found, _plain(call.column(1, call.source(0))), (repr(gap),), shown)}) AS {quote(call.alias or 'trips')}")  # fmt: skip


def _write_trips(found: _Trajectory, unit: str, numbers: Sequence[str], shown: Sequence[str], *, rows: bool = False) -> str:  # fmt: skip
    """SQL of trips.

    Args:
        found: the points.
        unit: what the column of units is called.
        numbers: the gap.
        shown: the columns beside the unit.
        rows: whether with ``@row`` and the bases of `RunForm`.
    """
    (gap,) = numbers
    before = f"{found.seconds(found.window('LAG', found.at), found.at)} <= {gap}"
    after = f"{found.seconds(found.at, found.window('LEAD', found.at))} <= {gap}"
    points = [
        f"{found.unit} AS unit", f"{found.at} AS at_", f"{found.x} AS x", f"{found.y} AS y", f"CASE WHEN {before} THEN 0 ELSE 1 END AS starts", f"CASE WHEN {after} THEN 0 ELSE 1 END AS stops",
        f"CASE WHEN {before} THEN {found.distance('LAG')} ELSE 0.0 END AS distance", *found.row(rows),
    ]  # fmt: skip
    number = "SUM(s.starts) OVER (PARTITION BY s.unit ORDER BY s.at_, s.x, s.y ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS number"  # fmt: skip
    kept = ", ".join(f"s.{name}" for name in ("unit", "at_", "x", "y", "starts", "stops", "distance", *(["row_"] if rows else [])))  # fmt: skip
    numbered = f"(SELECT {kept}, {number} FROM (SELECT {', '.join(points)} FROM {found.source.text} WHERE {found.there}) AS s) AS t"  # fmt: skip
    values = {"began": "MIN(t.at_)", "ended": "MAX(t.at_)", "points": "COUNT(*)", "length": "SUM(t.distance)"}
    values |= {f"{name}_{axis}": f"MAX(CASE WHEN t.{which} = 1 THEN t.{axis} END)" for name, which in (("from", "starts"), ("to", "stops")) for axis in "xy"}  # fmt: skip
    return _write_runs(found, unit, numbered, {"number": "t.number"} | _over_runs(values), shown, rows)


def _over_runs(values: Mapping[str, str]) -> dict[str, str]:
    """Aggregates over the points of a run."""
    return {name: f"{text} OVER (PARTITION BY t.unit, t.number)" for name, text in values.items()}


def _write_runs(found: _Trajectory, unit: str, numbered: str, values: dict[str, str], shown: Sequence[str], rows: bool, condition: str = "") -> str:  # fmt: skip
    """SQL of a row for each run of points that have one number.

    Args:
        found: the points.
        unit: what the column of units is called.
        numbered: the points, each with the number of its run, as ``t``.
        values: SQL of columns.
        shown: those that are shown.
        rows: whether with ``@row`` and the bases of `RunForm`.
        condition: SQL of which runs there are.
    """
    values["seconds"] = found.seconds(values["began"], values["ended"])
    order = "PARTITION BY t.unit, t.number ORDER BY t.at_, t.x, t.y"
    made = [f"t.unit AS {quote(unit)}", *(f"{values[name]} AS {name}" for name in shown)]
    if rows:
        first, last = f"FIRST_VALUE(t.row_) OVER ({order})", f"LAST_VALUE(t.row_) OVER ({order} ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)"  # fmt: skip
        every, end = f"SUM({_hash_text('t.row_')}) OVER (PARTITION BY t.unit, t.number)", _hash_text(last)
        hashes = (_hash_text(first), end, every, f"NULLIF({every} - {end}, 0)")
        made += [f"concat({first}, '-', {last}, '-', t.number) AS {quote(_ROW)}", *(f"{text} AS {quote(name)}" for name, text in zip(_BASES, hashes, strict=True))]  # fmt: skip
    more = f" AND {condition}" if condition else ""
    return f"SELECT {', '.join(made)} FROM {numbered} QUALIFY ROW_NUMBER() OVER ({order}) = 1{more}"


@rule("Stays(points, unit, at, location, radius, seconds)")
def write_stays(call: RuleCall) -> Rewriting:
    """The stays of trajectories: points of a unit that follow each other within ``radius`` of the first of them, for at least so many seconds, ``Stays(pings, taxi, seen, place, 0.001, 600)``.

    Its columns are the unit, ``number`` (1, 2, … for each unit), ``began`` (arrival), ``ended`` (leaving), ``seconds``, ``points`` (how many), and their mean position ``x``, ``y``. The points of a unit fall into runs: a run begins with the first point, or with
    the first one behind the run before, and goes on as long as points are within the radius of where it begins. A run of at least so many seconds is a stay, ``ended - began >= seconds``. These are the stay points of Li, Zheng, Xie, Chen, Liu, Ma 2008,
    "Mining user similarity based on location history" (figure 4), except that theirs leaves with the first point outside; a run at the end of a trajectory counts too.

    All points of a unit lie at one site (``join: local`` of its column), which makes its stays.
    """
    found = _read_trajectory(call)
    numbers = (call.number(4, 0.0, "0.001"), call.number(5, 0.0, "600"))
    shown = [name for name in ("number", *_STAYS) if call.asks(name)]
    return Rewriting(f"({_write_stays(found, _plain(call.column(1, call.source(0))), [*map(repr, numbers)], shown)}) AS {quote(call.alias or 'stays')}")  # fmt: skip


def _write_stays(found: _Trajectory, unit: str, numbers: Sequence[str], shown: Sequence[str], *, rows: bool = False) -> str:  # fmt: skip
    """SQL of stays; see `_write_trips`.

    Args:
        found: the points.
        unit: what the column of units is called.
        numbers: the radius and the seconds.
        shown: the columns beside the unit.
        rows: whether with ``@row`` and the bases of `RunForm`.
    """
    radius, seconds = numbers
    order = f"{found.at}, {found.x}, {found.y}"
    each = {"at_": found.at, "x": found.x, "y": found.y} | ({"row_": f"{quote(found.source.alias)}.{quote(_ROW)}"} if rows else {})  # fmt: skip
    points = [f"{found.unit} AS unit", *(f"EachPoint({text}, {order}) AS {name}" for name, text in each.items()), f"RunNumber({order}, {radius}, {found.sphere}) AS number"]  # fmt: skip
    numbered = f"(SELECT {', '.join(points)} FROM {found.source.text} WHERE {found.there} GROUP BY {found.unit}) AS t"
    values = _over_runs({"began": "MIN(t.at_)", "ended": "MAX(t.at_)", "points": "COUNT(*)", "x": "AVG(t.x)", "y": "AVG(t.y)"})  # fmt: skip
    condition = f"{found.seconds(values['began'], values['ended'])} >= {seconds}"
    if "number" not in shown and not rows:
        return _write_runs(found, unit, numbered, values, shown, rows, condition)
    values["number"] = "t.number"
    inner = _write_runs(found, unit, numbered, values, list(dict.fromkeys(["number", *shown])), rows, condition)
    number = f"COUNT(*) OVER (PARTITION BY w.{quote(unit)} ORDER BY w.number ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"  # fmt: skip
    outer = [f"w.{quote(unit)} AS {quote(unit)}", *(f"{number if name == 'number' else f'w.{name}'} AS {name}" for name in shown)]  # fmt: skip
    if rows:
        outer += [f"concat(w.{quote(_ROW)}, '-', {number}) AS {quote(_ROW)}", *(f"w.{quote(name)} AS {quote(name)}" for name in _BASES)]  # fmt: skip
    return f"SELECT {', '.join(outer)} FROM ({inner}) AS w"


def expand_runs(tree: Any, at: Callable[[Any], str]) -> bool:
    """Write ``EachPoint`` and ``RunNumber`` out, in place: the points of a group one by one, and the number of the run that each is in.

    Args:
        tree: the statement, before names are resolved.
        at: the line of a node, and a caret below it, for errors.

    Returns:
        Whether there was one.

    Raises:
        ConfigError: one stands elsewhere than where `Stays` writes it.
    """
    from sqlglot import exp, parse_one

    found = [node for node in tree.find_all(exp.Anonymous) if node.name.lower() in _ARGUMENTS]
    for node in found:
        select: Any = node.parent.parent if isinstance(node.parent, exp.Alias) else None
        if not isinstance(select, exp.Select) or select.args.get("group") is None or len(node.expressions) != _ARGUMENTS[node.name.lower()]:  # fmt: skip
            raise ConfigError(f"{node.name} outside of its place{at(node)}", where="sql", remedy="call stays(points, unit, at, location, radius, seconds)")  # fmt: skip
        *_, x, y = (one.sql("duckdb") for one in node.expressions[: 4 if node.name.lower() == "eachpoint" else 3])
        text = _list_in_order(node) if node.name.lower() == "eachpoint" else _number_runs(node, x, y)
        made = parse_one(text, dialect="duckdb")
        for one in made.walk():
            one.meta.clear()  # places in this text are none in the statement
        node.replace(made)
    return bool(found)


def _list_in_order(node: Any) -> str:
    value, *order = (one.sql("duckdb") for one in node.expressions)
    return f"UNNEST(list({value} ORDER BY {', '.join(order)}))"


def _number_runs(node: Any, x: str, y: str) -> str:
    at, _, _, radius, sphere = (one.sql("duckdb") for one in node.expressions)
    near = write_distance(("s[-1][1]", "s[-1][2]"), ("p[1][1]", "p[1][2]"), sphere=sphere == "TRUE", windows=True)
    # A state has the first point of each run and how many there are: what lambdas read beside their arguments DuckDB computes for each element again.
    more = "list_concat(list_slice(s, 1, len(s) - 1), [[s[-1][1], s[-1][2], s[-1][3] + 1]])"
    runs = f"list_reduce(list([[{x}, {y}, CAST(1 AS DOUBLE)]] ORDER BY {at}, {x}, {y}), lambda s, p: CASE WHEN {near} <= {radius} THEN {more} ELSE list_concat(s, p) END)"
    return f"UNNEST(flatten(list_transform({runs}, lambda s, i: list_resize([i], CAST(s[3] AS BIGINT), i))))"


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
