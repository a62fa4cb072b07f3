"""Window functions under shares are those of DuckDB over all rows in one place: numbers of rows and tiles, values of other rows, and frames of some rows."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import AtollError, CompositionError, PolicyError
from tests.support.silos import TableSource, connected, pooled

TYPES = {"id": "INTEGER", "g": "VARCHAR", "k": "INTEGER", "x": "INTEGER", "d": "DECIMAL(12,2)", "t": "DATE", "y": "DOUBLE"}  # fmt: skip
row = st.tuples(
    st.sampled_from("AB") | st.none(), st.integers(0, 2) | st.none(), st.none() | st.integers(-9, 9), st.none() | st.decimals(-9, 9, places=2),
    st.none() | st.dates(datetime.date(2020, 1, 1), datetime.date(2020, 1, 9)), st.none() | st.sampled_from([0.0, -2.5, 1e9, 7.25]),
)  # fmt: skip
tables = st.lists(st.lists(row, max_size=6), min_size=3, max_size=3)
edge = st.one_of(st.none(), st.integers(-3, 3))
"""Where a frame begins or ends, as rows below a row."""


def written(rows: int | None, *, first: bool) -> str:
    """An edge of a frame."""
    if rows is None:
        return "UNBOUNDED PRECEDING" if first else "UNBOUNDED FOLLOWING"
    return f"{abs(rows)} {'PRECEDING' if rows < 0 else 'FOLLOWING'}" if rows else "CURRENT ROW"


@st.composite
def windows(draw: Any) -> str:
    partition = draw(st.sampled_from(["PARTITION BY g ", "PARTITION BY k ", ""]))
    ranked = draw(st.booleans())
    if ranked:  # equal rows are equal here
        made = draw(st.sampled_from(["percent_rank()", "cume_dist()"]))
        return f"{made} OVER ({partition}ORDER BY {draw(st.sampled_from(['k', 'x DESC', 't NULLS FIRST', 'k, x']))})"
    frame = f" ROWS BETWEEN {written(draw(edge), first=True)} AND {written(draw(edge), first=False)}"
    value = draw(st.sampled_from(["x", "d", "t", "y", "2 * x + k"]))
    number = value if value[0] in "xd2" else "x"
    made = draw(
        st.sampled_from(
            [
                "ntile(1)", "ntile(2)", "ntile(5)", "count(*)", f"count({value})", f"sum({number})", f"avg({number})", f"min({value})", f"max({value})", f"first_value({value})", f"last_value({value})",
                f"nth_value({value}, 1)", f"nth_value({value}, 2)", f"lag({value}, 2)", "lag(x, 1, -7)", "lead(d, 2, 0.5)", "lag(g, 1, 'none')", "lead(t, 1, DATE '2020-01-01')", f"lag({value}, 0)",
            ]
        )
    )  # fmt: skip
    plain = made.startswith(("ntile", "lag", "lead")) or draw(st.booleans())
    return f"{made} OVER ({partition}ORDER BY id{draw(st.sampled_from(['', ' DESC']))}{'' if plain else frame})"


def silos(drawn: list[list[Any]]) -> dict[str, TableSource]:
    return {f"s{j}": TableSource({"p": (TYPES, [(10 * j + k, *one) for k, one in enumerate(site)])}) for j, site in enumerate(drawn)}  # fmt: skip


def policy(least: int = 1, **columns: Any) -> dict[str, Any]:
    return {"policy": {"min_count": least}, "tables": {"p": {"unit": "id", "columns": {**dict.fromkeys(TYPES, "protected"), **columns}}}}  # fmt: skip


def require_equal(drawn: list[list[Any]], texts: list[str], strategy: str = "smcql", **columns: Any) -> None:
    made = silos(drawn)
    with connected(made, policy(**columns)) as db, pooled(made) as oracle:
        for text in texts:
            found = db.sql(text, strategy=strategy)
            assert db.check(found), (text, found.rows, oracle.execute(text).fetchall())
            assert found.types == tuple(str(one[1]) for one in oracle.execute(f"DESCRIBE {text}").fetchall())


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(tables, st.lists(windows(), min_size=2, max_size=2))
def test_drawn_windows_equal_duckdb_on_the_union(drawn: list[list[Any]], made: list[str]) -> None:
    require_equal(drawn, [f"SELECT id, {one} AS v FROM p" for one in made])


ROWS = [[("AB"[k % 2], k % 3, None if k == 3 else 7 * k % 5 - 2, None, None, None) for k in range(5)], [], [("B", None, k, 2, datetime.date(2020, 1, 3), 1e9) for k in range(2)]]  # fmt: skip
TEXTS = [
    "SELECT id, ntile(3) OVER (ORDER BY id) FROM p",
    "SELECT id, percent_rank() OVER (PARTITION BY g ORDER BY k), cume_dist() OVER (ORDER BY g), percent_rank() OVER (PARTITION BY id ORDER BY k) FROM p",
    "SELECT id, first_value(x) OVER w, last_value(x) OVER (PARTITION BY g ORDER BY id), nth_value(t, 2) OVER w FROM p WINDOW w AS (PARTITION BY g ORDER BY id DESC)",
    "SELECT id, avg(x) OVER (ORDER BY id ROWS BETWEEN 2 PRECEDING AND CURRENT ROW), min(x) OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) FROM p",
    "SELECT id, sum(x) OVER (PARTITION BY g ORDER BY id ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING), max(x) OVER (ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) FROM p",
    "SELECT id, first_value(x) OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING), last_value(x) OVER (ORDER BY id ROWS BETWEEN 3 PRECEDING AND 2 PRECEDING) FROM p",
    "SELECT id, lag(x, 2, -1) OVER (PARTITION BY g ORDER BY id), lead(g, 1, 'last') OVER (ORDER BY id) FROM p QUALIFY cume_dist() OVER (ORDER BY id) > 0.3",
    "SELECT count(*) FROM (SELECT id, sum(x) OVER (ORDER BY id ROWS 1 PRECEDING) AS s, ntile(2) OVER (ORDER BY id) AS n FROM p) AS q WHERE s > 0 AND n = 1",
]
QUICK = (1, 3, 6)


@pytest.mark.parametrize("place", [k if k in QUICK else pytest.param(k, marks=pytest.mark.slow) for k in range(len(TEXTS))])  # fmt: skip
def test_windows_equal_duckdb_on_the_union(place: int) -> None:
    require_equal(ROWS, [TEXTS[place]])


def test_a_frame_of_some_rows_in_a_circuit_of_two_owners() -> None:
    text = "SELECT id, sum(x) OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) FROM p"
    require_equal([ROWS[0][:2], ROWS[2][:1]], [text], "smcql:mode=garbled")


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["smcql:mode=garbled", "senate", "smcql:slices=none", "smcql"])
def test_other_ways_give_the_same_windows(strategy: str) -> None:
    drawn = [ROWS[0][:4], ROWS[2]] if "garbled" in strategy else ROWS
    require_equal(drawn, [TEXTS[0], *TEXTS[3:7], "SELECT g, last_value(x) OVER (PARTITION BY g ORDER BY id) FROM p"], strategy, g="public")  # fmt: skip


@pytest.mark.parametrize(
    ("window", "match"),
    [
        ("sum(x) OVER (ORDER BY t RANGE BETWEEN INTERVAL 2 DAY PRECEDING AND CURRENT ROW)", "goes by values.*use ROWS with whole numbers"),
        ("sum(x) OVER (ORDER BY k GROUPS BETWEEN 1 PRECEDING AND CURRENT ROW)", "goes by values.*use ROWS with whole numbers"),
        ("sum(x) OVER (ORDER BY k RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)", "begins at equal values.*use ROWS"),
        ("sum(x) OVER (ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING EXCLUDE CURRENT ROW)", "has EXCLUDE.*leave it out"),
        ("sum(x) OVER (ROWS 2 PRECEDING)", "depends on an order.*add ORDER BY"),
        ("max(x) OVER (ORDER BY id ROWS 40 PRECEDING)", "compares 41 rows.*at most 32 rows, or UNBOUNDED"),
        ("ntile(k) OVER (ORDER BY id)", "NTILE of .*write a whole number above 0"),
        ("ntile(2000000) OVER (ORDER BY id)", "more than 1,048,576 tiles.*use at most"),
        ("nth_value(x, k) OVER (ORDER BY id)", "NTH_VALUE of .*write a whole number above 0"),
        ("first_value(g) OVER (ORDER BY id)", "of text or averages.*use numbers or dates, or LAG"),
        ("lag(x, k) OVER (ORDER BY id)", "offset that is no number.*write a whole number"),
        ("last_value(x IGNORE NULLS) OVER (ORDER BY id)", "leave IGNORE NULLS"),
        ("stddev(x) OVER (ORDER BY id)", "under shares.*use ROW_NUMBER, .*NTILE"),
    ],
)  # fmt: skip
def test_a_window_that_parties_cannot_compute_is_refused_with_what_they_can(window: str, match: str) -> None:
    with connected(silos(ROWS), policy()) as db, pytest.raises(CompositionError, match=match):
        db.sql(f"SELECT id, {window} FROM p", strategy="smcql")


@pytest.mark.parametrize(
    "window", ["first_value(x) OVER (ORDER BY id)", "ntile(2) OVER (ORDER BY x)", "nth_value(x, 2) OVER (ORDER BY id ROWS 1 PRECEDING)", "min(x) OVER (ORDER BY id ROWS 1 PRECEDING)", "cume_dist() OVER (ORDER BY x)", "lag(k, 1, x) OVER (ORDER BY id)"]
)  # fmt: skip
def test_a_window_shows_no_private_value_and_none_where_few_rows_must_not_show(window: str) -> None:
    private = {"level": "private", "release": "aggregate"}
    with connected(silos(ROWS), policy(x=private)) as db, pytest.raises(PolicyError, match=r"shows values of p\.x, which is private"):  # fmt: skip
        db.sql(f"SELECT id, {window} FROM p", strategy="smcql")
    with connected(silos(ROWS), policy(5)) as db, pytest.raises(AtollError, match="at the outside, and min_count is 5"):
        db.sql(f"SELECT id, {window} FROM p", strategy="smcql")
