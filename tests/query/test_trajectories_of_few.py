"""What trips, stays and meetings show under a ``min_count``: no mover alone, and no difference between two answers that rests on few movers, whatever numbers somebody chooses."""

from __future__ import annotations

from typing import Any

import pytest

from atoll.core.errors import AtollError, CompositionError, PolicyError
from tests.query.test_trajectories import APART, TAXIS, Point, list_stays, list_trips, plain, policy_of, sites_of
from tests.support.silos import connected

FEW = "fewer than min_count=5 rows"
CROWD = 8
"""Taxis of each site."""


def fleet(pauses: dict[int, int], begin: dict[int, int] | None = None) -> list[list[Point]]:
    """Three sites with taxis that drive along a line, a point a minute; some pause for so many seconds more in the middle, and some begin later."""
    groups: list[list[Point]] = [[], [], []]
    for taxi in range(3 * CROWD):
        for j in range(6):
            at = 60 * j + (pauses.get(taxi, 0) if j > 2 else 0) + (begin or {}).get(taxi, 0)
            groups[taxi % 3].append((taxi, at, float(taxi), j * (1.0 + 0.01 * taxi)))
    return groups


def calls(gap: Any) -> str:
    return f"Trips(pings, taxi, seen, place, {gap})"


def test_sites_add_up_trips_under_a_minimum() -> None:
    trips = list_trips(TAXIS, 300)
    with connected(sites_of(APART), policy_of(5)) as db:
        found = db.sql(f"SELECT count(*), sum(length), avg(seconds), sum(points), sum(number) FROM {calls(300)}")
        expected = (len(trips), sum(row[6] for row in trips), sum(row[4] for row in trips) / len(trips), len(TAXIS), sum(row[1] for row in trips))  # fmt: skip
        assert (found.strategy, found.rows[0]) == ("sums", pytest.approx(expected))
        assert db.check(found)
    with connected(sites_of(APART), policy_of(5)) as db:
        square = db.sql(f"SELECT sum(length * points) FROM {calls(300)}")
        assert square.rows[0][0] == pytest.approx(sum(row[5] * row[6] for row in trips))
        assert db.check(square)


@pytest.mark.parametrize("call", [calls(300), "Stays(pings, taxi, seen, place, 5, 60)"])
def test_one_mover_alone_never_shows(call: str) -> None:
    with connected(sites_of(fleet({})), policy_of(5)) as db:
        for shown in ("sum(seconds) FROM {} WHERE taxi = 3", "sum(points) FROM {} WHERE taxi < 4", "avg(seconds) FILTER (WHERE taxi = 3) FROM {}", "sum(CASE WHEN taxi = 3 THEN points END) FROM {}"):  # fmt: skip
            found = db.sql(f"SELECT {shown.format(call)}")
            assert found.rows in ([], [(None,)])
            assert found.withheld_groups + found.withheld_values == 1
        db.sql(f"SELECT sum(seconds) FROM {call}")
        for condition in ("taxi <> 3", "NOT (taxi = 3 AND number = 1)"):
            with pytest.raises(AtollError, match=FEW):
                db.sql(f"SELECT sum(seconds) FROM {call} WHERE {condition}")


@pytest.mark.parametrize(("first", "second"), [
    ("count(*), sum(length) FROM Trips(pings, taxi, seen, place, 100)", "count(*), sum(length) FROM Trips(pings, taxi, seen, place, 200)"),
    ("sum(length) FROM Trips(pings, taxi, seen, place, 100) WHERE number = 1", "sum(length) FROM Trips(pings, taxi, seen, place, 200) WHERE number = 1"),
    ("sum(length) FROM Trips(pings, taxi, seen, place, 200)", "sum(distance) FROM Steps(pings, taxi, seen, place) WHERE seconds <= 100"),
    ("sum(distance) FROM Steps(pings, taxi, seen, place) WHERE seconds <= 200", "sum(length) FROM Trips(pings, taxi, seen, place, 100)"),
    ("sum(points) FROM Trips(pings, taxi, seen, place, 200)", "count(*) FROM pings WHERE NOT (taxi = 4 AND seen = 60)"),
    ("avg(x), count(*) FROM Stays(pings, taxi, seen, place, 7, 290)", "avg(x), count(*) FROM Stays(pings, taxi, seen, place, 6.12, 290)"),
    ("avg(x), count(*) FROM Stays(pings, taxi, seen, place, 7, 1)", "avg(x), count(*) FROM Stays(pings, taxi, seen, place, 6.12, 1)"),
    ("sum(seconds) FROM Stays(pings, taxi, seen, place, 6.12, 1)", "sum(seconds) FROM Steps(pings, taxi, seen, place)"),
])  # fmt: skip
def test_two_answers_that_differ_by_one_mover_are_refused_whatever_numbers_say_so(first: str, second: str) -> None:
    """Taxi 4 alone pauses for 130 seconds more: sums of all but its step over the pause are those of another gap, or of steps below a time. Taxi 23 alone goes farther than 6.12."""
    with connected(sites_of(fleet({4: 130})), policy_of(5)) as db:
        assert None not in db.sql(f"SELECT {first}").rows[0]
        with pytest.raises(AtollError, match=FEW):
            db.sql(f"SELECT {second}")


@pytest.mark.parametrize(("first", "second"), [
    ("sum(to_x) FROM Steps(pings, taxi, seen, place)", "sum(x) FROM pings WHERE seen > 10"),
    ("sum(from_x) FROM Trips(pings, taxi, seen, place, 1e9)", "sum(x) FROM pings WHERE seen < 10"),
    ("sum(to_x) FROM Trips(pings, taxi, seen, place, 1e9)", "sum(x) FROM pings WHERE seen > 250"),
])  # fmt: skip
def test_points_of_a_trajectory_are_rows_of_the_table_too(first: str, second: str) -> None:
    """All taxis but taxi 4 begin at 0 and end at 300: what lies behind the first point of each is what lies behind 10 seconds, but for one point of taxi 4."""
    with connected(sites_of(fleet({}, {4: 20})), policy_of(5)) as db:
        db.sql(f"SELECT {first}")
        with pytest.raises(AtollError, match=FEW):
            db.sql(f"SELECT {second}")


def test_gaps_and_radii_that_differ_by_many_movers_are_answered() -> None:
    """Half of all taxis pause: two gaps differ by four of each site, and 12 in all; a site's own minimum is 4."""
    groups = fleet(dict.fromkeys(range(12), 130))
    points = [one for group in groups for one in group]
    with connected(sites_of(groups), policy_of(4)) as db:
        for gap in (100, 200):
            trips = list_trips(points, gap)
            found = db.sql(f"SELECT count(*), sum(length) FROM {calls(gap)}")
            assert found.rows == [(len(trips), pytest.approx(sum(row[6] for row in trips)))]
    with connected(sites_of(groups), policy_of(4)) as db:
        for least in (400, 300):
            stays = list_stays(points, 50, least)
            assert db.sql(f"SELECT count(*) FROM Stays(pings, taxi, seen, place, 50, {least})").rows == [(len(stays),)]


# ---------------------------------------------------------------- meetings


STOPS = ({"stop": "INTEGER", "seen": "INTEGER", "x": "DOUBLE", "y": "DOUBLE"}, [(k, 60 * k, 4.0 * k, 1.0) for k in range(6)])  # fmt: skip


def with_stops(groups: list[list[Point]]) -> tuple[Any, Any]:
    """Sites that all have the same stops beside their own taxis, and their policy."""
    sites, policy = sites_of(groups), policy_of(5)
    for one in sites.values():
        one.tables["stops"] = STOPS
    policy["tables"]["stops"] = {"mode": "replicated", "columns": "public", "points": policy["tables"]["pings"]["points"]}  # fmt: skip
    return sites, policy


def near(groups: list[list[Point]], radius: float) -> set[int]:
    stops = [((x, y), at) for _, at, x, y in STOPS[1]]
    return {one[0] for group in groups for one in group for place, at in stops if plain(one[2:], place) <= radius and abs(one[1] - at) <= 60}  # fmt: skip


@pytest.mark.parametrize("strategy", ["sums", "hufu"])
def test_movers_that_meet_what_every_site_has_are_counted_once_each(strategy: str) -> None:
    sites, policy = with_stops(fleet({}))
    met = "Meetings(pings, stops, seen, place, {}, 60)"
    with connected(sites, policy) as db:
        found = db.sql(f"SELECT count(DISTINCT taxi) FROM {met.format(3)}", strategy=strategy)
        assert found.rows == [(len(near(fleet({}), 3)),)]
        assert 15 < found.rows[0][0] < 24
        assert db.check(found)
        alone = db.sql(f"SELECT count(DISTINCT taxi) FROM {met.format(3)} WHERE taxi = 3", strategy=strategy)
        assert (alone.rows, alone.withheld_groups) == ([], 1)
        with pytest.raises(AtollError, match=FEW):
            db.sql(f"SELECT count(DISTINCT taxi) FROM {met.format(3)} WHERE taxi <> 3", strategy=strategy)


def test_a_mover_more_is_one_more_whatever_other_points_come_near() -> None:
    """At 3.25 nearly all taxis have other points near a stop than at 3, and there is one taxi more: the difference of the counts is this one."""
    groups = fleet({})
    assert 0 < len(near(groups, 3.25)) - len(near(groups, 3)) < 5
    sites, policy = with_stops(groups)
    with connected(sites, policy) as db:
        db.sql("SELECT count(DISTINCT taxi) FROM Meetings(pings, stops, seen, place, 3, 60)")
        with pytest.raises(AtollError, match=FEW):
            db.sql("SELECT count(DISTINCT taxi) FROM Meetings(pings, stops, seen, place, 3.25, 60)")


def test_a_unit_that_is_counted_is_itself_whichever_of_its_rows_there_are() -> None:
    """All taxis but one have a point before 10; before 70 all have, each one more: the counts differ by that one."""
    with connected(sites_of(fleet({}, {4: 20})), policy_of(5)) as db:
        assert db.sql("SELECT count(DISTINCT taxi) FROM pings WHERE seen < 10").rows == [(23,)]
        with pytest.raises(AtollError, match=FEW):
            db.sql("SELECT count(DISTINCT taxi) FROM pings WHERE seen < 70")


@pytest.mark.parametrize(("text", "strategy", "error", "match"), [
    ("SELECT count(*) FROM Meetings(pings, stops, seen, place, 3, 60)", "sums", CompositionError, r"could count single rows more often(.|\n)*ask for COUNT\(DISTINCT pings\.taxi\) alone"),
    ("SELECT count(DISTINCT taxi), avg(pings.x) FROM Meetings(pings, stops, seen, place, 3, 60)", "hufu", CompositionError, r"ask for COUNT\(DISTINCT pings\.taxi\) alone"),
    ("SELECT count(DISTINCT taxi) FROM Meetings(pings, stops, seen, place, 3, 60)", "smcql", CompositionError, r"could count single rows more often"),
    ("SELECT count(DISTINCT a.taxi) FROM Meetings(pings AS a, pings AS b, seen, place, 3, 60) WHERE a.taxi < b.taxi", "smcql", PolicyError, r"min_count is 5(.|\n)*let sites set min_count: 1; or declare one table replicated"),
    ("SELECT count(DISTINCT a.taxi) FROM Meetings(pings AS a, pings AS b, seen, place, 3, 60) WHERE a.taxi < b.taxi", "hufu", PolicyError, r"min_count is 5(.|\n)*let sites set min_count: 1; or declare one table replicated"),
])  # fmt: skip
def test_meetings_whose_movers_cannot_be_counted_are_refused(text: str, strategy: str, error: type[Exception], match: str) -> None:  # fmt: skip
    sites, policy = with_stops(fleet({}))
    policy["tables"]["pings"]["columns"] |= {"x": "protected", "y": "protected"}
    with connected(sites, policy) as db, pytest.raises(error, match=match):
        db.sql(text, strategy=strategy)
