"""Points of the policy, and spatial functions as SQL: closed forms, the policy's own checks, and what is refused before a site is asked."""

from __future__ import annotations

import math
from typing import Any

import pytest

from atoll.core.errors import AtollError, ConfigError, PolicyError
from atoll.query import QueryPolicy
from atoll.query.policy import strictest
from tests.support.silos import TableSource, connected

TYPES = {"id": "BIGINT", "x": "DOUBLE", "y": "DOUBLE", "shape": "VARCHAR"}
POINTS = {"location": {"x": "x", "y": "y", "extent": 400, "precision": 1e-3}, "place": {"wkt": "shape"}}
POLICY: dict[str, Any] = {"policy": {"min_count": 1}, "tables": {"t": {"columns": "protected", "points": POINTS}, "r": {"mode": "replicated", "columns": "public", "points": POINTS}}}  # fmt: skip


def told(points: Any) -> Any:
    policy = QueryPolicy.of({"policy": {"min_count": 1}, "tables": {"t": {"columns": "public", "points": points}}})
    return policy.told({"t": list(TYPES)})


def test_a_policy_keeps_points_and_where_sites_differ_the_strictest_counts() -> None:
    one, other = told({"p": {"x": "X", "y": "y", "extent": 10, "precision": 0.5}, "q": {"wkt": "shape"}}), told({"P": {"x": "x", "y": "y", "extent": 20, "precision": 0.1}})  # fmt: skip
    (found,) = strictest([one, other]).table("t").points.items()
    assert (found[0], found[1].columns, found[1].extent, found[1].precision) == ("p", ("x", "y"), 20.0, 0.5)
    with pytest.raises(ConfigError, match=r"points\.p of table t lies in x, y at one site, and in shape at another"):
        strictest([one, told({"p": {"wkt": "shape"}})])


@pytest.mark.parametrize(
    ("points", "match"),
    [
        ({"p": {"x": "x"}}, "x of a point"),
        ({"p": {"x": "x", "y": "y", "wkt": "shape"}}, "x and y and wkt of a point"),
        ({"p": {}}, "no column of a point"),
        ({"p": {"wkt": 3}}, "wkt: 3"),
        ({"p": {"wkt": "shape", "extent": -1}}, "extent: -1"),
        ({"p": {"wkt": "shape", "precision": True}}, "precision: True"),
        ({"p": {"wkt": "shape", "extent": 1, "precision": 1}}, "extent: 1 and precision: 1"),
        ({"p": {"wkt": "shape", "extents": 1}}, "extents: there is no such setting"),
        ({"p": "shape"}, "'shape' where settings by name are expected"),
    ],
)
def test_points_that_a_policy_cannot_mean_are_refused(points: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        told(points)


def test_a_point_of_a_column_that_is_not_there_is_refused_at_the_site() -> None:
    wrong = {"tables": {"t": {"columns": "public", "points": {"p": {"x": "x", "y": "z"}}}}}
    with connected({"a": TableSource({"t": (TYPES, [])})}, wrong) as db, pytest.raises(ConfigError, match="there is no column 'z'"):  # fmt: skip
        db.sql("SELECT count(*) FROM t")


ROWS = [(1, 0.0, 0.0, "POINT(0 1)"), (2, 1.0, 0.0, " srid=4326;point ( 1e0  -0.5 ) "), (3, 3.0, 4.0, "POINT Z (1 2 3)"), (4, None, 0.0, None), (5, math.nan, 0.0, "LINESTRING(0 0, 1 1)")]  # fmt: skip


def answer(text: str, policy: Any = POLICY) -> Any:
    source = {"t": (TYPES, ROWS), "r": (TYPES, ROWS[:2])}
    with connected({"a": TableSource(source), **{name: TableSource({"t": (TYPES, []), "r": source["r"]}) for name in "bc"}}, policy) as db:  # fmt: skip
        found = db.sql(text)
        assert db.check(found), text
        return found.rows


def test_distances_are_those_of_closed_forms() -> None:
    whole = {**POLICY, "tables": {**POLICY["tables"], "t": {**POLICY["tables"]["t"], "columns": "public"}}}
    assert answer("SELECT count(*) FROM t WHERE DWithin(location, POINT(0, 0), 5)") == [
        (3,)
    ]  # 3, 4, 5 is on the circle
    assert answer("SELECT count(*) FROM t WHERE DWithin('POINT(0 0)', t.location, 4.999999)") == [(2,)]
    assert answer("SELECT count(*) FROM t WHERE DWithin(place, POINT(0, 0), 1)") == [(1,)]
    assert answer("SELECT count(*) FROM t WHERE DWithin(place, POINT(0, 0), 2)") == [
        (2,)
    ]  # what is no point is near to nothing
    degree = math.pi * 6_371_008.8 / 180
    found = answer("SELECT avg(DistanceSphere(location, POINT(0, 0))) AS d FROM t WHERE id = 2", whole)
    assert found[0][0] == pytest.approx(degree, rel=1e-12)
    # Haversine by hand for (3, 4): h = sin²(2°) + cos(4°) sin²(1.5°).
    h = math.sin(math.radians(2)) ** 2 + math.cos(math.radians(4)) * math.sin(math.radians(1.5)) ** 2
    found = answer("SELECT avg(DistanceSphere(POINT(0, 0), location)) AS d FROM t WHERE id = 3", whole)
    assert found[0][0] == pytest.approx(2 * 6_371_008.8 * math.asin(math.sqrt(h)), rel=1e-12)
    assert answer("SELECT count(*) FROM t JOIN r ON DWithin(t.location, r.location, 0.5)") == [(2,)]
    sphere = "DistanceSphere({}, POINT(0, 0))"  # rows 4 and 5 have no x, or one that is no number
    assert sorted(answer(f"SELECT id FROM t WHERE {sphere.format('location')} <= 3e7")) == [(1,), (2,), (3,)]
    assert sorted(answer(f"SELECT id FROM t WHERE {sphere.format('location')} IS NULL")) == [(4,), (5,)]
    assert sorted(answer(f"SELECT id FROM t WHERE {sphere.format('place')} IS NULL")) == [(3,), (4,), (5,)]


def test_a_column_of_points_that_has_none_is_read_as_text() -> None:
    """A CSV file without a point has a column of another type."""
    types = {"id": "BIGINT", "shape": "INTEGER"}
    policy = {"policy": {"min_count": 1}, "tables": {"t": {"columns": "protected", "points": {"place": POINTS["place"]}}}}  # fmt: skip
    with connected({name: TableSource({"t": (types, [(k, None)])}) for k, name in enumerate("ab")}, policy) as db:
        assert db.sql("SELECT count(*) FROM t WHERE DWithin(place, POINT(0, 0), 9)").rows == [(0,)]
        assert db.sql("SELECT id FROM t WHERE kNN(POINT(0, 0), place, 2)").rows == []


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("SELECT count(*) FROM t WHERE DWithin(locatoin, POINT(0, 0), 5)", r"no point locatoin is declared at all sites. Did you mean location\?\nLINE 1: .*\n *\^"),
        ("SELECT count(*) FROM t WHERE DWithin(location, 5)", "DWithin of 2 arguments"),
        ("SELECT count(*) FROM t WHERE DWithin(location, 'POINT(a b)', 5)", "is no point"),
        ("SELECT count(*) FROM t WHERE DWithin(location, POINT(x, 1), 5)", "POINT of columns"),
        ("SELECT count(*) FROM t WHERE POINT(1, 1) IS NULL", "POINT outside a spatial function"),
        ("SELECT count(*) FROM t JOIN r ON DWithin(location, location, 5)", "location is a point of t and of r"),
        ("SELECT id FROM t WHERE kNN(POINT(0, 0), location, 0)", "k is 0"),
        ("SELECT id FROM t WHERE kNN(POINT(0, 0), location, 2.5)", "k is 2.5"),
        ("SELECT id FROM t WHERE id = 1 OR kNN(POINT(0, 0), location, 2)", "kNN stands inside another condition"),
        ("SELECT id FROM t WHERE id = 1 AND kNN(POINT(0, 0), location, 2)", "kNN beside the condition .* on the rows that it looks among"),
        ("SELECT id FROM t WHERE kNN(location, POINT(0, 0), 2)", "kNN looks for rows near a point of their own table"),
        ("SELECT id FROM t WHERE kNN(location, location, 2)", "kNN looks for rows near a point of their own table"),
        ("SELECT t.id FROM t, r WHERE kNN(POINT(0, 0), t.location, 2)", "kNN reads other tables"),
        ("SELECT id FROM t WHERE id IN (SELECT id FROM r WHERE kNN(POINT(0, 0), r.location, 2))", "or in a subquery"),
        ("SELECT count(*) FROM (SELECT id FROM t) AS s WHERE DWithin(location, POINT(0, 0), 5)", "no point location is declared"),
    ],
)  # fmt: skip
def test_what_is_no_spatial_statement_is_refused_before_a_site_is_asked(text: str, match: str) -> None:
    with pytest.raises(AtollError, match=match):
        answer(text)


def test_a_table_is_described_with_its_points() -> None:
    with connected({"a": TableSource({"t": (TYPES, [])})}, {"tables": {"t": {"columns": {"x": "public"}, "points": POINTS}}}) as db:  # fmt: skip
        found = db.sql("DESCRIBE t").rows[-2:]
    assert found == [("location", "POINT of x, y", "private", None, None), ("place", "POINT of shape", "private", None, None)]  # fmt: skip


def test_private_points_answer_counts_and_show_no_row() -> None:
    private = {"policy": {"min_count": 1}, "tables": {"t": {"columns": {"id": "protected"}, "points": POINTS}}}
    assert answer("SELECT count(*) FROM t WHERE DWithin(location, POINT(0, 0), 5)", private) == [(3,)]
    for text in (
        "SELECT id FROM t WHERE DWithin(location, POINT(0, 0), 5)",
        "SELECT id, count(*) FROM t WHERE DistanceSphere(location, POINT(0, 0)) < 9 GROUP BY id",
    ):
        with pytest.raises(PolicyError, match=r"shows rows by their distance, and t\.x is private"):
            answer(text, private)
