"""Joins of near rows whose points no other site may read: the rows are those of brute force over all points."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import AtollError, CompositionError, PolicyError, TaskError
from atoll.engines.recording import RecordingEngine
from atoll.query.job import Query
from tests.query.test_hufu import Row, distance, nearest
from tests.support.silos import TableSource, connected

TYPES = {"id": "BIGINT", "name": "VARCHAR", "x": "DOUBLE", "y": "DOUBLE", "shape": "VARCHAR", "age": "INTEGER"}
POINTS = {"location": {"x": "x", "y": "y", "extent": 2000, "precision": 0.25}, "place": {"wkt": "shape", "extent": 2000, "precision": 0.25}}  # fmt: skip
COLUMNS = {**dict.fromkeys(TYPES, "protected"), "age": "private"}
POLICY: dict[str, Any] = {"policy": {"min_count": 1}, "tables": {name: {"columns": COLUMNS, "points": POINTS} for name in "rt"}}  # fmt: skip
STEPS = math.ceil(math.log2(2000 / 0.25))


def source(t: list[Row], r: list[Row]) -> TableSource:
    def table(rows: list[Row]) -> Any:
        return TYPES, [(i, name, x, y, None if x is None or y is None else f"POINT ({x!r} {y!r})", i % 90) for i, name, x, y in rows]  # fmt: skip

    return TableSource({"t": table(t), "r": table(r)})


def require_equal(sites: list[tuple[list[Row], list[Row]]], radius: float, k: int, strategy: str) -> None:
    t, r = ([row for site in sites for row in site[j]] for j in (0, 1))
    here = [row for row in r if row[2] is not None and row[3] is not None]
    pairs = [(a[0], b[1], b[0]) for a in here for b in t if distance(b, a[2], a[3]) <= radius]  # type: ignore[arg-type]
    near = [(a[0], b[1], b[0]) for a in here if a[0] % 2 for b in nearest(t, a[2], a[3], k)]  # type: ignore[arg-type]
    cases = [
        (f"SELECT r.id, t.name, t.id FROM r JOIN t ON DWithin(r.location, t.place, {radius}) WHERE t.age >= 0", pairs, 0),
        (f"SELECT r.id, t.name, t.id FROM t, r WHERE kNN(r.place, t.location, {k}) AND r.id % 2 = 1", near, STEPS),
    ]  # fmt: skip
    with connected({f"s{j}": source(*site) for j, site in enumerate(sites)}, POLICY) as db:
        for text, expected, comparisons in cases:
            found = db.sql(text, strategy=strategy)
            assert (found.strategy, sorted(found.rows)) == (strategy, sorted(expected)), text
            assert found.facts()["comparisons"] == comparisons
            assert abs(found.predicted / found.bytes - 1) < 0.3, (
                text,
                found.predicted,
                found.bytes,
            )  # few rows are sorted in a number of steps that varies


def test_groups_and_aggregates_of_near_pairs_equal_brute_force() -> None:
    """The coordinator computes them from the pairs; of no pair a count is 0 and a sum NULL."""
    ring: list[Row] = [(k, "ab"[k % 2], 3.0 * (-1) ** k, 4.0 * (-1) ** (k // 2)) for k in range(4)]
    sites = [(ring[:2], [(21, "q", 0.0, 0.0)]), ([*ring[2:], (8, "z", None, 0.0)], [(23, "q", 700.0, 1.0)]), ([], [])]
    grouped = "SELECT t.name, count(*) AS n, sum(t.id), max(Distance(r.location, t.place)) FROM r, t WHERE DWithin(r.location, t.place, {}) GROUP BY t.name HAVING count(*) > 1 ORDER BY t.name DESC"
    with connected({f"s{j}": source(*site) for j, site in enumerate(sites)}, POLICY) as db:
        assert db.sql(grouped.format(5), strategy="smcql").rows == [("b", 2, 4, 5.0), ("a", 2, 2, 5.0)]
        assert db.sql("SELECT count(*), sum(t.id) FROM r JOIN t ON DWithin(r.location, t.place, 4.99)").rows == [(0, None)]  # fmt: skip


@st.composite
def cases(draw: Any) -> tuple[Any, ...]:
    """Few places, so that there are ties; far from 0 or not, between units, missing, and beyond the extent."""
    offset = draw(st.sampled_from([0.0, 0.1, 1e9, -3e5]))
    at = st.sampled_from([-4.0, -1.0, 0.0, 0.3, 2.0, 700.0]).map(lambda value: offset + value)
    place = st.tuples(at, at) | st.sampled_from([(None, offset), (offset + 9e6, offset)])
    sites = []
    for site in range(3):
        tables = [draw(st.lists(st.tuples(place, st.sampled_from("ab")), max_size=most)) for most in (5, 3)]
        sites.append(tuple([(100 * site + 10 * j + k, name, *where) for k, (where, name) in enumerate(rows)] for j, rows in enumerate(tables)))  # fmt: skip
    return sites, draw(st.sampled_from([-1.0, 0.0, 2.5, 5.0, 1e12])), draw(st.sampled_from([1, 2, 40]))


@settings(max_examples=1)
@given(cases())
def test_drawn_joins_equal_brute_force(drawn: Any) -> None:
    require_equal(*drawn, "hufu")


@pytest.mark.slow
@settings(max_examples=15)
@given(cases(), st.sampled_from(["hufu", "smcql"]))
def test_many_drawn_joins_equal_brute_force(drawn: Any, strategy: str) -> None:
    require_equal(*drawn, strategy)


def test_ties_boundaries_and_points_far_from_zero() -> None:
    """Four rows at exactly the radius of a row, in units that its coordinates are no multiples of; more neighbours than rows within the extent."""
    x = 1e9 + 0.1
    ring: list[Row] = [(k, "ab"[k % 2], x + 3.0 * (-1) ** k, 4.0 * (-1) ** (k // 2)) for k in range(4)]
    far: list[Row] = [(8, "z", x + 5e6, 0.0), (9, "z", x, None)]
    require_equal([(ring[:2], [(21, "q", x, 0.0)]), ([*ring[2:], *far], [(23, "q", x + 5e6, 1.0)]), ([], [])], 5.0, 3, "hufu")  # fmt: skip


def test_a_helper_is_the_third_beside_two_sites() -> None:
    sites = {f"s{j}": source([(j, "a", float(j), 0.0)], [(10 + j, "b", 0.0, 1.0)]) for j in range(2)}
    text = "SELECT r.id, t.id FROM r JOIN t ON DWithin(r.location, t.location, 1)"
    with connected(sites, POLICY) as db:
        assert sorted(db.sql(text, strategy="hufu").rows) == [(10, 0), (11, 0)]
        with pytest.raises(CompositionError, match="2 sites, and shares need three parties"):
            db.sql(text)
        assert db.sql("SELECT id FROM t WHERE kNN(POINT(0, 0), location, 1)", strategy="hufu").rows == [(0,)]


def test_sites_hear_no_point_of_others() -> None:
    engine = RecordingEngine()
    sites = {f"s{j}": source([(j, "person", 424.242, 1.0)], [(j, "person", 424.242, 1.0)]) for j in range(3)}
    with connected(sites, POLICY) as db:
        db.engine = engine
        found = db.sql("SELECT r.id, t.name FROM r JOIN t ON DWithin(r.place, t.place, 1)")
        assert len(found) == 9
        told = json.dumps(found.leakage)
        assert "how many pairs of r and t are near, up to the next power of two" in told
        assert "pairs that are up to 1 farther away, which it leaves out" in told
    between = b"".join(one for link, messages in engine.heard.items() if "coordinator" not in link for one in messages)
    assert b"person" not in between
    assert b"424" not in between


@pytest.mark.parametrize(("text", "error", "match"), [
    ("SELECT r.age, t.id FROM r JOIN t ON DWithin(r.location, t.location, 2)", PolicyError, r"shows values of r\.age to the coordinator"),
    ("SELECT sum(r.age) FROM r JOIN t ON DWithin(r.location, t.location, 2)", PolicyError, r"r\.age"),
    ("SELECT r.id FROM r JOIN t ON DWithin(r.location, t.location, 2) AND r.age < t.age", PolicyError, r"shows values of [rt]\.age"),
    ("SELECT r.id FROM r JOIN t ON DistanceSphere(r.location, t.location) < 2", PolicyError, "other sites would read r"),
    ("SELECT r.id FROM r LEFT JOIN t ON DWithin(r.location, t.location, 2)", PolicyError, "other sites would read r"),
])  # fmt: skip
def test_what_pairs_may_not_show_is_refused(text: str, error: type[AtollError], match: str) -> None:
    sites = {f"s{j}": source([(j, "a", 0.0, 0.0)], [(j, "b", 0.0, 0.0)]) for j in range(3)}
    with connected(sites, POLICY) as db, pytest.raises(error, match=match):
        db.sql(text, strategy="hufu")


def test_a_point_that_units_cannot_hold_is_refused() -> None:
    sites = {f"s{j}": source([(j, "a", 1e300, 0.0)], [(j, "b", 0.0, 0.0)]) for j in range(3)}
    with connected(sites, POLICY) as db, pytest.raises(TaskError, match="InvalidInputException"):
        db.sql("SELECT r.id FROM r JOIN t ON DWithin(r.location, t.location, 2)")


def test_two_sites_that_ask_what_is_near_need_no_helper_of_their_own() -> None:
    """Between organisations nobody has named one: a statement that no shares answer must not ask for it."""
    plain = Query(sql="SELECT 1", strategy="hufu")
    assert plain.others(2) == plain.helpers() == {}
    helped = Query(sql="SELECT 1", strategy="hufu", helper=True)
    assert helped.others(2) == helped.helpers() == {"helper": "shares"}


# ---------------------------------------------------------------- public points


SHOWN: dict[str, Any] = {"policy": {"min_count": 1}, "tables": {name: {"columns": {**dict.fromkeys(TYPES, "public"), "age": "private"}, "points": POINTS} for name in "rt"}}  # fmt: skip
_COUNTED = "SELECT count(*) FROM r JOIN t ON {}"
_GROUPED = "SELECT t.name AS n, count(*) AS c, count(DISTINCT r.id), sum(t.id) FROM r, t WHERE {} AND r.age >= 0 GROUP BY 1 HAVING count(*) > 1 ORDER BY c DESC, n"


def haversine(a: Row, b: Row) -> float:
    across = math.sin(math.radians(a[3] - b[3]) / 2) ** 2 + math.cos(math.radians(a[3])) * math.cos(math.radians(b[3])) * math.sin(math.radians(a[2] - b[2]) / 2) ** 2  # type: ignore[operator]  # fmt: skip
    return 2 * 6371008.8 * math.asin(math.sqrt(across))


@pytest.mark.parametrize("count", [2, 3])
def test_counts_and_groups_of_public_points_equal_brute_force(count: int) -> None:
    """Two sites suffice, and any distance does: sites tell each other one table."""
    rows: list[Row] = [(k, "ab"[k % 3 > 0], float(k % 5), float(k % 7)) for k in range(12)]
    others: list[Row] = [(50 + k, "q", float(k), 3.0) for k in range(6)]
    sites = {f"s{j}": source([*rows[j::count], (90 + j, "a", None, 1.0)], others[j::count]) for j in range(count)}
    with connected(sites, SHOWN) as db:
        for condition, near in (
            ("DWithin(r.location, t.place, 2)", lambda a, b: distance(b, a[2], a[3]) <= 2),
            ("DistanceSphere(r.location, t.location) <= 240000", lambda a, b: haversine(a, b) <= 240000),
            ("DWithin(r.location, t.place, -1)", lambda a, b: False),
        ):
            pairs = [(a, b) for a in others for b in rows if near(a, b)]
            found = db.sql(_COUNTED.format(condition))
            assert (found.strategy, found.rows, db.check(found)) == ("hufu", [(len(pairs),)], True)
            assert abs(found.predicted / found.bytes - 1) < 0.1
            assert "how many pairs of rows there are" in json.dumps(found.leakage)
            names = {name: [(a, b) for a, b in pairs if b[1] == name] for name in "ab"}
            expected = [(name, len(own), len({a[0] for a, _ in own}), sum(b[0] for _, b in own)) for name, own in names.items() if len(own) > 1]  # fmt: skip
            assert db.sql(_GROUPED.format(condition)).rows == sorted(expected, key=lambda row: (-row[1], row[0]))
        with pytest.raises(PolicyError, match=r"r\.age"):
            db.sql("SELECT sum(r.age) FROM r JOIN t ON DWithin(r.location, t.place, 2)", strategy="hufu")


def test_a_few_rows_behind_a_count_of_pairs_stay_hidden() -> None:
    sites = {f"s{j}": source([(j, "a", 0.0, 0.0)], [(j, "b", 0.0, 0.0)]) for j in range(2)}
    with connected(sites, {**SHOWN, "policy": {"min_count": 2}}) as db, pytest.raises(PolicyError, match="min_count is 2, and the coordinator reads each pair"):  # fmt: skip
        db.sql(_COUNTED.format("DistanceSphere(r.location, t.place) < 2"), strategy="hufu")


def test_remedies_of_a_count_of_pairs_at_two_sites_work() -> None:
    """Of points that other sites may not read: by the strategy's name, with a helper; or with one table that is public."""
    sites = {f"s{j}": source([(j, "a", float(j), 0.0)], [(10 + j, "b", 0.0, 1.0)]) for j in range(2)}
    with connected(sites, POLICY) as db:
        with pytest.raises(CompositionError, match="hufu, conclave: 2 sites, and shares need three parties") as caught:
            db.sql(_COUNTED.format("DWithin(r.location, t.location, 1)"))
        assert "ask for the strategy hufu by its name" in str(caught.value.remedy)
        assert db.sql(_COUNTED.format("DWithin(r.location, t.location, 1)"), strategy="hufu").rows == [(2,)]
        with pytest.raises(PolicyError, match="a distance between rows of r and t, which lie at different sites") as caught:  # fmt: skip
            db.sql(_COUNTED.format("DistanceSphere(r.location, t.location) < 120000"))
        assert "make the columns of one of the two tables public" in str(caught.value.remedy)
    tables = {**POLICY["tables"], "t": SHOWN["tables"]["t"]}
    with connected(sites, {**POLICY, "tables": tables}) as db:
        assert db.sql(_COUNTED.format("DistanceSphere(r.location, t.location) < 120000")).rows == [(2,)]


# ---------------------------------------------------------------- subqueries


def test_a_distance_to_rows_around_a_subquery_is_refused_with_its_place_and_a_remedy_that_works() -> None:
    sites = {f"s{j}": source([(j, "a", float(j), 0.0)], [(10 + j, "b", 0.0, 1.0)]) for j in range(3)}
    with connected(sites, POLICY) as db:
        text = "SELECT r.id FROM r\nWHERE EXISTS (SELECT 1 FROM t WHERE DWithin(r.location, t.location, 1))"
        for strategy in (None, "smcql", "conclave"):
            with pytest.raises(CompositionError, match="a distance between rows of r and t, which lie at different sites") as caught:  # fmt: skip
                db.sql(text, strategy=strategy)
            lines = str(caught.value.what).split("\n")
            assert lines[1] == "LINE 2: WHERE EXISTS (SELECT 1 FROM t WHERE DWithin(r.location, t.location, 1))"
            assert lines[2] == " " * lines[1].index("DWithin") + "^"
            assert "ON DWithin(…) in the outermost SELECT, with DISTINCT" in str(caught.value.remedy)
        found = db.sql("SELECT DISTINCT r.id FROM r JOIN t ON DWithin(r.location, t.location, 1)")
        assert sorted(found.rows) == [(10,), (11,), (12,)]


def test_a_subquery_may_compute_with_columns_around_it() -> None:
    """Types of such expressions are those over both tables; an alias means the innermost one."""
    sites = {f"s{j}": source([(j, "a", float(j), 0.0)], [(3 * j, "b", 0.0, 1.0)]) for j in range(3)}
    with connected(sites, POLICY) as db:
        for text, rows in (
            ("SELECT r.id FROM r WHERE EXISTS (SELECT 1 FROM t WHERE r.id + t.id < 4)", [(0,), (3,)]),
            ("SELECT a.id FROM r a WHERE NOT EXISTS (SELECT 1 FROM t a2 WHERE a.id - a2.id > 4 AND EXISTS (SELECT 1 FROM t a WHERE a.id - a2.id > 1))", [(0,), (3,)]),
        ):  # fmt: skip
            found = db.sql(text, strategy="smcql")
            assert (sorted(found.rows), db.check(found)) == (rows, True)
