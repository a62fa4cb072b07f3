"""Approximate nearest rows: none is farther than the error allows, none that is surely among the nearest is left out, and fewer comparisons find them."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import AtollError, CompositionError, ConfigError
from tests.support.silos import TableSource, connected

TYPES = {"id": "BIGINT", "x": "DOUBLE", "y": "DOUBLE"}
POINTS = {"place": {"x": "x", "y": "y", "extent": 2000, "precision": 0.25}}
POLICY: dict[str, Any] = {"policy": {"min_count": 1}, "tables": {"t": {"columns": "protected", "points": POINTS}}}
Row = tuple[int, float | None, float | None]


def require_near(sites: list[list[Row]], k: int, error: float, strategy: str) -> None:
    """The rows are k, or all that have a place; each is within the error of the k-th distance, and all that are nearer by more than the error are there."""
    rows = [row for site in sites for row in site if row[1] is not None and row[2] is not None]
    apart = {row[0]: math.hypot(row[1] - 1, row[2] + 2) for row in rows}  # type: ignore[operator]
    with connected({f"s{j}": TableSource({"t": (TYPES, site)}) for j, site in enumerate(sites)}, POLICY) as db:
        found = db.sql(f"SELECT id FROM ApproxKNN(POINT(1, -2), t.place, {k}, {error})", strategy=strategy)
        assert found.approximate == {"error": error}
        assert db.check(found) is None
        assert abs(found.predicted / found.bytes - 1) < (0.1 if found.rows else 0.2)
        rings = math.ceil(math.log(2000 / 0.25) / math.log1p(error)) + 1
        assert found.facts()["comparisons"] <= math.ceil(math.log2(rings)) < math.ceil(math.log2(2000 / 0.25))
    kept = {row[0] for row in found.rows}
    assert len(kept) == len(found) == min(k, len(rows))
    if rows:
        farthest = sorted(apart.values())[min(k, len(rows)) - 1]
        assert all(apart[i] <= max(0.25, (1 + error) * farthest) * (1 + 1e-9) for i in kept)
        assert kept >= {i for i, d in apart.items() if max(0.25, d * (1 + error)) * (1 + 1e-9) < farthest}


@st.composite
def cases(draw: Any) -> tuple[Any, ...]:
    """Ties, empty sites, rows without a place, on the point itself, and beyond the extent."""
    at = st.sampled_from([-2.0, 1.0, 1.1, 5.0, 300.0])
    place = st.tuples(at, at) | st.sampled_from([(None, 1.0), (9000.0, 0.0)])
    sites = [[(10 * site + n, *where) for n, where in enumerate(draw(st.lists(place, max_size=7)))] for site in range(draw(st.integers(2, 3)))]  # fmt: skip
    return sites, draw(st.sampled_from([1, 3, 30])), draw(st.sampled_from([0.02, 0.1, 1.0]))


@settings(max_examples=3)
@given(cases(), st.sampled_from(["hufu", "hufu:bound=extent"]))
def test_drawn_rows_are_as_near_as_the_error_allows(drawn: Any, strategy: str) -> None:
    require_near(*drawn, strategy)


@pytest.mark.slow
@settings(max_examples=30)
@given(cases(), st.sampled_from(["hufu", "hufu:bound=extent", "hufu:radii=3"]))
def test_many_drawn_rows_are_as_near_as_the_error_allows(drawn: Any, strategy: str) -> None:
    require_near(*drawn, strategy)


def test_rows_of_the_last_ring_draw_lots() -> None:
    """Four rows at one distance for two places: over some draws each of them gets one. The coordinator gets no third row."""
    ring: list[Row] = [(0, 4.0, 2.0), (1, -2.0, 2.0), (2, 4.0, -6.0), (3, -2.0, -6.0)]
    seen: set[int] = set()
    with connected({f"s{j}": TableSource({"t": (TYPES, ring[j::2])}) for j in range(2)}, POLICY) as db:
        for _ in range(12):
            found = db.sql("SELECT id FROM ApproxKNN(POINT(1, -2), t.place, 2, 0.5)")
            assert found.strategy == "hufu"
            assert len(found) == 2
            seen |= {row[0] for row in found.rows}
        assert "rows of the last ring draw lots" in json.dumps(found.plan)
        assert "the 2nd distance up to a factor of 1.5" in json.dumps(found.leakage)
    assert seen == {0, 1, 2, 3}  # each misses all twelve draws once in 2^12


@pytest.mark.parametrize(("text", "strategy", "error", "match"), [
    ("ApproxKNN(POINT(1, 2), place, 2, 0.1)", "hufu", ConfigError, "place names no table"),
    ("ApproxKNN(POINT(1, 2), t.place, 2, 3)", "hufu", ConfigError, "the error is 3"),
    ("ApproxKNN(POINT(1, 2), t.place, 0, 0.1)", "hufu", ConfigError, "k is 0"),
    ("ApproxKNN(POINT(1, 2), t.spot, 2, 0.1)", "hufu", ConfigError, "no point"),
    ("t, t AS u WHERE kNN(u.place, t.place, 2, 0.1)", "hufu", ConfigError, "kNN with an error, near the rows of u"),
    ("ApproxKNN(POINT(1, 2), t.place, 2, 0.1)", "hufu:epsilon=1", CompositionError, "of an approximate search"),
])  # fmt: skip
def test_what_cannot_be_near_is_refused(text: str, strategy: str, error: type[AtollError], match: str) -> None:
    with connected({f"s{j}": TableSource({"t": (TYPES, [])}) for j in range(2)}, POLICY) as db, pytest.raises(error, match=match):  # fmt: skip
        db.sql(f"SELECT t.id FROM {text}", strategy=strategy)
