"""Steps, trips, stays and meetings of trajectories are what a person computes point by point, whoever has which point, and show nothing of few."""

from __future__ import annotations

import datetime
import itertools
import math
import random
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import AtollError, CompositionError, ConfigError, PolicyError
from atoll.query.policy import PointPolicy
from atoll.query.spatial import RADIUS
from atoll.query.statement import Catalog, parse_statement
from tests.support.silos import TableSource, connected, fill_table, same_rows

Point = tuple[Any, Any, Any, Any]
"""Unit, time, and both coordinates."""
XY = {"taxi": "INTEGER", "seen": "INTEGER", "x": "DOUBLE", "y": "DOUBLE", "fleet": "VARCHAR"}
WKT = {"taxi": "INTEGER", "seen": "INTEGER", "spot": "VARCHAR", "fleet": "VARCHAR"}
COLUMNS = "taxi, number, began, ended, seconds, distance, speed, from_x, from_y, to_x, to_y"


def plain(a: tuple[float, float], b: tuple[float, float]) -> float:
    return math.hypot(a[0] - b[0], a[1] - b[1])


def metres(a: tuple[float, float], b: tuple[float, float]) -> float:
    """The haversine formula as scikit-mobility has it, with the earth's mean radius."""
    (lon1, lat1), (lon2, lat2) = ((math.radians(one) for one in point) for point in (a, b))
    across = math.sin((lat1 - lat2) / 2) ** 2 + math.cos(lat1) * math.cos(lat2) * math.sin((lon1 - lon2) / 2) ** 2
    return 2 * RADIUS * math.asin(math.sqrt(across))


def trajectories(points: list[Point]) -> list[list[Point]]:
    """The points of each unit in the order of time, without those that lack something."""
    there = [one for one in points if all(value is not None and not (isinstance(value, float) and not math.isfinite(value)) for value in one)]  # fmt: skip
    return [sorted(group, key=lambda one: one[1:]) for _, group in itertools.groupby(sorted(there, key=lambda one: one[0]), lambda one: one[0])]  # fmt: skip


def seconds_of(a: Any, b: Any) -> Any:
    return (b - a).total_seconds() if isinstance(a, datetime.datetime) else b - a


def list_steps(points: list[Point], measure: Any = plain) -> list[tuple[Any, ...]]:
    made = []
    for group in trajectories(points):
        for k, (a, b) in enumerate(itertools.pairwise(group), 1):
            seconds, distance = seconds_of(a[1], b[1]), measure(a[2:], b[2:])
            made.append((a[0], k, a[1], b[1], seconds, distance, distance / seconds if seconds else None, *a[2:], *b[2:]))  # fmt: skip
    return made


def list_trips(points: list[Point], gap: float) -> list[tuple[Any, ...]]:
    made = []
    for group in trajectories(points):
        trips = [[group[0]]]
        for a, b in itertools.pairwise(group):
            if seconds_of(a[1], b[1]) <= gap:
                trips[-1].append(b)
            else:
                trips.append([b])
        for k, one in enumerate(trips, 1):
            length = sum(plain(a[2:], b[2:]) for a, b in itertools.pairwise(one))
            made.append((one[0][0], k, one[0][1], one[-1][1], seconds_of(one[0][1], one[-1][1]), len(one), length, *one[0][2:], *one[-1][2:]))  # fmt: skip
    return made


def list_stays(points: list[Point], radius: float, least: float, measure: Any = plain) -> list[tuple[Any, ...]]:
    """The stay points of Li et al. 2008: an anchor, all points behind it up to the first one outside, and on from there."""
    made = []
    for group in trajectories(points):
        anchor, number = 0, 0
        while anchor < len(group):
            after = anchor + 1
            while after < len(group) and measure(group[anchor][2:], group[after][2:]) <= radius:
                after += 1
            run = group[anchor:after]
            seconds = seconds_of(run[0][1], run[-1][1])
            if seconds >= least:
                number += 1
                x, y = (math.fsum(one[k] for one in run) / len(run) for k in (2, 3))
                made.append((run[0][0], number, run[0][1], run[-1][1], seconds, len(run), x, y))
            anchor = after
    return made


def run(text: str, types: dict[str, str], rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    point = PointPolicy(wkt="spot") if "spot" in types else PointPolicy("x", "y")
    with duckdb.connect() as made:
        fill_table(made, "pings", (types, rows))
        return made.execute(parse_statement(text, Catalog({"pings": types}, {"pings": {"place": point}})).pooled).fetchall()  # fmt: skip


coordinates = st.sampled_from([-0.0, 1.0, 2.5, 1e9, 1e9 + 3]) | st.none() | st.just(math.inf)
pings = st.lists(st.tuples(st.integers(0, 2) | st.none(), st.integers(0, 9) | st.none(), coordinates, coordinates), max_size=9)  # fmt: skip


@settings(max_examples=6)
@given(pings, st.sampled_from([0, 10**9]), st.sampled_from(["INTEGER", "DOUBLE", "TIMESTAMP", "DECIMAL(18,2)"]), st.sampled_from([0.0, 2.0, 1e18]))  # fmt: skip
def test_calls_are_what_a_person_computes_point_by_point(rows: list[Point], offset: int, kind: str, gap: float) -> None:
    start = datetime.datetime(2013, 7, 1)
    points: list[Point] = []
    for taxi, at, *place in rows:
        when: Any = None if at is None else start + datetime.timedelta(seconds=at) if kind == "TIMESTAMP" else float(at + offset) if kind == "DOUBLE" else at + offset  # fmt: skip
        points.append((taxi, when, *place))
    cells = [(*one, "a") for one in points]
    types = {**XY, "seen": kind}
    found = run(f"SELECT {COLUMNS} FROM Steps(pings, taxi, seen, place)", types, cells)
    numbers = [tuple(float(value) if kind.startswith("DECIMAL") and k in (2, 3, 4) else value for k, value in enumerate(row)) for row in found]  # fmt: skip
    assert_close(numbers, list_steps(points))
    trips = f"SELECT taxi, number, began, ended, seconds, points, length, from_x, from_y, to_x, to_y FROM Trips(pings, taxi, seen, place, {gap!r})"
    assert_close(run(trips, types, cells), list_trips(points, gap))
    stays = f"SELECT taxi, number, began, ended, seconds, points, x, y FROM Stays(pings, taxi, seen, place, {gap!r}, 2)"
    assert_close(run(stays, types, cells), list_stays(points, gap, 2))


tracks = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 400), st.integers(0, 8), st.integers(0, 3)), max_size=40)


@settings(max_examples=15)
@given(tracks, st.sampled_from([0.0, 1.0, 2.5, 40.0]), st.sampled_from([0, 1, 60, 1000]), st.booleans())
def test_stays_are_the_runs_around_anchors_that_last(rows: Any, radius: float, least: int, sphere: bool) -> None:
    """Points lie on a lattice, so that many are exactly at the radius; degrees are so small that a step is about a metre."""
    scale = 1 / 111_195 if sphere else 1.0
    points: list[Point] = [(taxi, at, x * scale, y * scale) for taxi, at, x, y in rows]
    radius = radius + 0.01 if sphere else radius
    place = "DistanceSphere(place)" if sphere else "place"
    text = f"SELECT taxi, number, began, ended, seconds, points, x, y FROM Stays(pings, taxi, seen, {place}, {radius}, {least}) ORDER BY taxi, number"
    expected = list_stays(points, radius, least, metres if sphere else plain)
    assert_close(run(text, XY, [(*one, "a") for one in points]), expected)
    assert run(text.replace("taxi, number, began, ended, seconds, points, x, y", "count(*)").partition(" ORDER")[0], XY, [(*one, "a") for one in points]) == [(len(expected),)]  # fmt: skip


def assert_close(found: list[Any], expected: list[Any]) -> None:
    """Rows are equal up to rounding, whatever type a number has."""

    def plain_rows(rows: list[Any]) -> list[Any]:
        return [tuple(float(value) if isinstance(value, int | float) or hasattr(value, "as_tuple") else value for value in row) for row in rows]  # fmt: skip

    same_rows(plain_rows(found), plain_rows(expected))


def test_distances_are_metres_on_a_sphere_and_points_may_be_texts() -> None:
    """Of Beijing's taxi 1 on 2008-02-02 the first points; texts that are no point are none, and beyond a pole there is no distance."""
    route = [(1, 0, 116.51172, 39.92123), (1, 600, 116.51135, 39.93883), (1, 1200, 116.51135, 39.93883), (1, 1800, 116.51627, 39.91034)]  # fmt: skip
    cells = [(taxi, at, f"POINT ({x} {y})", "a") for taxi, at, x, y in route] + [(1, 60, "nowhere", "a"), (1, 61, None, "a")]  # fmt: skip
    found = run(f"SELECT {COLUMNS} FROM Steps(pings, taxi, seen, DistanceSphere(place))", WKT, cells)
    assert_close(found, list_steps(route, metres))
    assert sum(row[5] for row in found) == pytest.approx(1957.2 + 3195.7, rel=1e-3)
    (row,) = run("SELECT distance FROM Steps(pings, taxi, seen, DistanceSphere(place))", XY, [(1, 0, 10.0, 20.0, "a"), (1, 1, 10.0, 95.0, "a")])  # fmt: skip
    assert row == (None,)


# ---------------------------------------------------------------- between sites


def drive(taxis: int, points: int, seed: int = 0, first: int = 0) -> list[Point]:
    draw = random.Random(seed)
    return [(first + k, 60 * j + draw.choice([0, 5, 50]) + 600 * (j > points // 2), round(draw.uniform(0, 9), 3), round(draw.uniform(0, 9), 3)) for k in range(taxis) for j in range(points)]  # fmt: skip


AGGREGATED = {"level": "private", "release": "aggregate"}


def policy_of(least: int = 1, **columns: Any) -> dict[str, Any]:
    """Sites that each have all points of a taxi."""
    own = {"taxi": {"level": "protected", "join": "local"}, "seen": "protected", "x": AGGREGATED, "y": AGGREGATED, "fleet": "public", **columns}  # fmt: skip
    table = {"unit": "taxi", "points": {"place": {"x": "x", "y": "y", "extent": 20, "precision": 0.001}}, "columns": own}  # fmt: skip
    return {"policy": {"min_count": least}, "tables": {"pings": table}}


def sites_of(groups: list[list[Point]], turn: bool = False) -> dict[str, TableSource]:
    """A table a site; turned, its rows and columns stand the other way round."""
    names, made = list(XY)[::-1] if turn else list(XY), {}
    for k, points in enumerate(groups):
        cells = [{**dict(zip(XY, one, strict=False)), "fleet": "ab"[one[0] % 2]} for one in (points[::-1] if turn else points)]  # fmt: skip
        made[f"s{k}"] = TableSource({"pings": ({name: XY[name] for name in names}, [tuple(row[name] for name in names) for row in cells])})  # fmt: skip
    return made


TAXIS = drive(18, 6)
APART = [[one for one in TAXIS if one[0] % 3 == k] for k in range(3)]
"""All points of a taxi at one site."""
MIXED = [TAXIS[k::3] for k in range(3)]
"""Points of a taxi at all of them."""


@pytest.mark.parametrize("least", [1, 5])
def test_sites_add_up_their_own_steps(least: int) -> None:
    steps = list_steps(TAXIS)
    answers = []
    for groups, turn in ((APART, False), ([APART[0], APART[1] + APART[2]], True)):
        with connected(sites_of(groups, turn), policy_of(least)) as db:
            found = db.sql("SELECT count(*), sum(seconds), sum(distance), avg(speed), corr(distance, seconds) FROM Steps(pings, taxi, seen, place)", strategy="sums")  # fmt: skip
            assert (found.rows[0][0], found.rows[0][1]) == (len(steps), sum(row[4] for row in steps))
            assert found.rows[0][2:4] == pytest.approx((sum(row[5] for row in steps), sum(row[6] for row in steps) / len(steps)))  # fmt: skip
            long = db.sql("SELECT fleet, count(*) AS n FROM Steps(pings, taxi, seen, place) AS s WHERE s.seconds > 300 GROUP BY fleet ORDER BY fleet", strategy="sums")  # fmt: skip
            assert long.rows == [(fleet, sum(row[4] > 300 and "ab"[row[0] % 2] == fleet for row in steps)) for fleet in "ab"]  # fmt: skip
            assert db.check(long)
            answers.append(found.rows + long.rows)
    same_rows(answers[0], answers[1])


def test_lengths_of_trips_without_a_gap_are_those_of_all_steps() -> None:
    with connected(sites_of(APART), policy_of()) as db:
        steps = db.sql("SELECT sum(distance) FROM Steps(pings, taxi, seen, place)").rows[0][0]
        count, length, points = db.sql("SELECT count(*), sum(length), sum(points) FROM Trips(pings, taxi, seen, place, 1e18)").rows[0]  # fmt: skip
        assert (count, points) == (18, len(TAXIS))
        assert length == pytest.approx(steps, rel=1e-12)
        trips = list_trips(TAXIS, 300)
        found = db.sql("SELECT count(*), sum(length), avg(seconds) FROM Trips(pings, taxi, seen, place, 300)").rows[0]
        assert found == pytest.approx((len(trips), sum(row[6] for row in trips), sum(row[4] for row in trips) / len(trips)))  # fmt: skip


@pytest.mark.parametrize("least", [1, 5])
def test_sites_add_up_their_own_stays(least: int) -> None:
    """Under a minimum too; where a taxi's points lie at several sites, no site knows its stays."""
    stays = list_stays(TAXIS, 5, 60)
    with connected(sites_of(APART), policy_of(least)) as db:
        found = db.sql("SELECT count(*), sum(points), avg(seconds), avg(x), sum(number) FROM Stays(pings, taxi, seen, place, 5, 60)")  # fmt: skip
        assert (found.strategy, found.rows[0][:2]) == ("sums", (len(stays), sum(row[5] for row in stays)))
        means = [sum(row[k] for row in stays) / len(stays) for k in (4, 6)]
        assert found.rows[0][2:] == (pytest.approx(means[0]), pytest.approx(means[1]), sum(row[1] for row in stays))
        assert db.check(found)
    with connected(sites_of(MIXED), policy_of(least, taxi="protected")) as db, pytest.raises(CompositionError, match=r"stays need all points of one taxi at one site(.|\n)*let the sites declare taxi with join: local"):  # fmt: skip
        db.sql("SELECT count(*) FROM Stays(pings, taxi, seen, place, 5, 60)")


def test_points_of_a_unit_at_several_sites_make_steps_under_shares() -> None:
    points = [one for one in TAXIS if one[0] < 4]
    steps = list_steps(points)
    with connected(sites_of([points[k::3] for k in range(3)]), policy_of(taxi="protected")) as db:
        found = db.sql("SELECT count(*), sum(ended - began) FROM Steps(pings, taxi, seen, place) WHERE seconds > 300")
        assert found.strategy == "smcql"
        long = [row[4] for row in steps if row[4] > 300]
        assert found.rows == [(len(long), sum(long))]
        with pytest.raises(AtollError, match=r"depends on rows of all sites(.|\n)*lie at different sites"):
            db.sql("SELECT sum(distance) FROM Steps(pings, taxi, seen, place)")


@pytest.mark.parametrize("strategy", ["smcql", "hufu"])
def test_meetings_are_the_pairs_that_are_near_in_space_and_time(strategy: str) -> None:
    points = [one for one in TAXIS if one[1] < 100]
    near = [(a, b) for a in points for b in points if a[0] < b[0] and plain(a[2:], b[2:]) <= 1.5 and abs(a[1] - b[1]) <= 40]  # fmt: skip
    firsts: dict[tuple[int, int], list[int]] = {}
    for a, b in near:
        firsts.setdefault((a[0], b[0]), []).append(a[1])
    text = "SELECT a.taxi, b.taxi, count(*), min(a.seen) FROM Meetings(pings AS a, pings AS b, seen, place, 1.5, 40) WHERE a.taxi < b.taxi GROUP BY a.taxi, b.taxi"
    shown = policy_of(taxi="protected", x="protected", y="protected")
    with connected(sites_of([points[k::3] for k in range(3)]), shown) as db:
        found = db.sql(text, strategy=strategy)
        assert sorted(found.rows) == sorted((*pair, len(times), min(times)) for pair, times in firsts.items())
        assert len(found.rows) > 2
    with connected(sites_of([points[k::3] for k in range(3)]), policy_of()) as db, pytest.raises(PolicyError, match=r"pings\.x to the coordinator, and it is private"):  # fmt: skip
        db.sql(text, strategy=strategy)


def test_explain_shows_what_a_call_stands_for_and_what_leaves() -> None:
    with connected(sites_of(APART), policy_of(5)) as db:
        found = db.sql("EXPLAIN SELECT avg(speed) FROM Steps(pings, taxi, seen, place)")
    assert str(found.plan[0]["what"]).startswith("Steps(pings, taxi, seen, place) stands for (SELECT")
    assert "pings.taxi" in str(found.leakage)


# ---------------------------------------------------------------- what few show, and what a policy keeps


def test_steps_of_few_units_stay_hidden() -> None:
    """A step is a row of its unit: a unit's steps show neither by themselves nor by what two answers leave between them."""
    with connected(sites_of(APART), policy_of(5)) as db:
        for text in ("sum(distance) FROM {} WHERE taxi = 3", "sum(distance) FROM {} WHERE distance > 11", "avg(speed) FILTER (WHERE taxi < 3) FROM {}"):  # fmt: skip
            found = db.sql(f"SELECT {text.format('Steps(pings, taxi, seen, place)')}")
            assert found.rows in ([], [(None,)])
            assert found.withheld_groups + found.withheld_values == 1
        db.sql("SELECT sum(distance) FROM Steps(pings, taxi, seen, place)")
        for condition in ("taxi <> 3", "number <> 2 OR taxi <> 3", "number < 5 OR taxi > 2"):
            with pytest.raises(AtollError, match="fewer than min_count=5"):
                db.sql(f"SELECT sum(distance) FROM Steps(pings, taxi, seen, place) WHERE {condition}")


def written(call: str) -> str:
    """The SQL that a call stands for."""
    point = {"place": PointPolicy("x", "y")}
    return parse_statement(f"SELECT sum(points) FROM {call}", Catalog({"pings": XY}, {"pings": point})).sql


TRIPS, STAYS = written("Trips(pings, taxi, seen, place, 300)"), written("Stays(pings, taxi, seen, place, 5, 60)")
STEP = "SELECT taxi, {} AS v, LEAD(seen) OVER (PARTITION BY taxi ORDER BY seen, TRY_CAST(x AS DOUBLE), TRY_CAST(y AS DOUBLE)) AS ended FROM pings WHERE taxi IS NOT NULL AND seen IS NOT NULL AND isfinite(TRY_CAST(x AS DOUBLE)) AND isfinite(TRY_CAST(y AS DOUBLE))"


@pytest.mark.parametrize("text", [
    f"SELECT sum(v) FROM ({STEP.format('CASE WHEN taxi = 3 THEN x ELSE 0 END')}) AS s",
    f"SELECT sum(v) FROM ({STEP.format('LEAD(x, 2) OVER (PARTITION BY taxi ORDER BY seen)')}) AS s",
    f"SELECT sum(v) FROM ({STEP.format('sqrt((x - 3) * (x - 3))')}) AS s", f"SELECT sum(v) FROM ({STEP.format('x')} AND taxi <> 3) AS s",
    f"SELECT sum(v) FROM (SELECT x AS taxi, {STEP.format('x')[len('SELECT taxi, '):]}) AS s", f"SELECT sum(v) FROM ({STEP.format('x')} LIMIT 5) AS s",
    TRIPS.replace("<= 300.0 THEN 0 ELSE 1 END AS stops", "<= 301.0 THEN 0 ELSE 1 END AS stops"), TRIPS.replace("WHERE", "WHERE taxi <> 3 AND"), TRIPS.replace("COUNT(*) OVER", "MAX(t.x) OVER"),
    TRIPS.replace(" QUALIFY ROW_NUMBER() OVER (PARTITION BY t.unit, t.number ORDER BY t.at_, t.x, t.y) = 1", ""), STAYS.replace("5.0, FALSE", "5.0 + 0.0, FALSE"), STAYS.replace("= 1 AND", "= 1 AND t.unit <> 3 AND"),
])  # fmt: skip
def test_what_looks_like_steps_and_has_a_number_of_ones_own_is_refused_under_a_minimum(text: str) -> None:
    assert text not in (TRIPS, STAYS)
    with connected(sites_of(APART), policy_of(5)) as db, pytest.raises(AtollError, match=r"min_count(=| is )5"):
        db.sql(text, strategy="sums")


def test_a_derived_column_is_as_private_as_what_it_is_computed_from() -> None:
    policy = policy_of(5, x="private")
    with connected(sites_of(APART), policy) as db:
        assert db.sql("SELECT count(*) FROM Steps(pings, taxi, seen, place) WHERE distance < 5").rows == [(sum(row[5] < 5 for row in list_steps(TAXIS)),)]  # fmt: skip
        for shown in ("sum(distance)", "avg(to_x)", "sum(number)"):
            with pytest.raises(PolicyError, match=r"pings\.x is private and only counts rows"):
                db.sql(f"SELECT {shown} FROM Steps(pings, taxi, seen, place)")
    with connected(sites_of(APART), policy_of(x={"level": "private", "release": "never"})) as db, pytest.raises(PolicyError, match=r"pings\.x is never released"):  # fmt: skip
        db.sql("SELECT count(*) FROM Steps(pings, taxi, seen, place)")


@pytest.mark.parametrize(("call", "match"), [
    ("Steps(pings, taxi, seen, spot)", r"no point spot is declared at all sites\nLINE 1: .*\n +\^"), ("Steps(pings, taxi, seen, Distance(place))", "no point DISTANCE"), ("Steps(pings, taxi, fleet, place)", "times are VARCHAR"),
    ("Steps(pings, cab, seen, place)", "cab is no column of pings"), ("Steps(pings, taxi, seen)", r"write Steps\(points, unit, at, location\)"), ("Trips(pings, taxi, seen, place, -5)", "gap is -5"), ("Trips(pings, taxi, seen, place, '5')", "gap is '5'"),
    ("Steps((SELECT *, x AS speed FROM pings) AS p, taxi, seen, place)", "speed is a column of the points"), ("Steps((SELECT taxi, seen, x FROM pings) AS p, taxi, seen, place)", "no point place is declared"),
    ("Steps((SELECT taxi, seen + 1 AS seen, x, y FROM pings) AS p, taxi, seen, place)", "times are of an unknown type"), ("Meetings(pings, pings, seen, place, 1, 1)", "both tables are called pings"),
    ("Stays(pings, taxi, seen, place, -1, 60)", "radius is -1"), ("Stays(pings, taxi, seen, place, 1, 'x')", "seconds is 'x'"), ("Stays(pings, taxi, seen, place, 1)", r"write Stays\(points, unit, at, location, radius, seconds\)"),
    ("(SELECT RunNumber(seen, x, y, 1, FALSE) AS n FROM pings) AS q", r"RunNumber outside of its place\nLINE 1(.|\n)*call stays"), ("(SELECT EachPoint(x, y) AS n FROM pings GROUP BY taxi) AS q", "EachPoint outside of its place"),
    ("Meetings(pings AS a, pings AS b, seen, spot, 1, 1)", "no point spot of a"), ("Meetings(pings AS a, pings AS b, fleet, place, 1, 1)", "times of a are VARCHAR"),
])  # fmt: skip
def test_calls_that_do_not_fit_are_refused_with_a_remedy(call: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        run(f"SELECT count(*) FROM {call}", XY, [])


def test_a_subquery_chooses_the_points() -> None:
    points = [one for one in TAXIS if one[0] % 2]
    cells = [(*one, "ab"[one[0] % 2]) for one in TAXIS]
    found = run("SELECT sum(distance) FROM Steps((SELECT taxi, CAST(seen AS DOUBLE) AS seen, x, y FROM pings WHERE fleet = 'b') AS p, taxi, seen, place)", XY, cells)  # fmt: skip
    assert found[0][0] == pytest.approx(sum(row[5] for row in list_steps(points)))
