"""Medians and quantiles under shares are those of DuckDB over all rows in one place, and are refused where MIN and MAX are."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import CompositionError, PolicyError
from tests.support.silos import TableSource, connected, pooled

TYPES = {"id": "INTEGER", "g": "VARCHAR", "k": "INTEGER", "x": "INTEGER", "d": "DECIMAL(12,2)", "t": "DATE", "y": "DOUBLE"}  # fmt: skip
row = st.tuples(
    st.sampled_from("AB") | st.none(), st.integers(0, 2), st.none() | st.integers(-9, 9), st.none() | st.decimals(-9, 9, places=2),
    st.none() | st.dates(datetime.date(2020, 1, 1), datetime.date(2020, 1, 9)), st.none() | st.sampled_from([0.0, -2.5, 1e9, 7.25]),
)  # fmt: skip
tables = st.lists(st.lists(row, max_size=6), min_size=3, max_size=3)
share = st.sampled_from(["0", "0.1", "0.25", "0.5", "0.7", "0.95", "1.0"])
quantile = st.one_of(
    st.builds("median({})".format, st.sampled_from(["x", "d", "y", "2 * x + k"])),
    st.builds("quantile_cont({}, {})".format, st.sampled_from(["x", "d", "y"]), share),
    st.builds("quantile_disc({}, {})".format, st.sampled_from(["x", "d", "t", "y"]), share),
    st.builds("quantile(x, {}) FILTER (WHERE k > 0)".format, share),
)


@st.composite
def statements(draw: Any) -> str:
    keys = draw(st.sampled_from(["", "g", "g, k", "k + 1"]))
    shown = ", ".join(filter(None, [keys, draw(quantile), draw(quantile), "count(x)"]))
    where = draw(st.sampled_from(["", " WHERE k < 2"]))
    group = f" GROUP BY {keys}" if keys else ""
    return f"SELECT {shown} FROM p{where}{group}" + (draw(st.sampled_from(["", " HAVING median(x) > 0"])) if keys else "")  # fmt: skip


def silos(drawn: list[list[Any]]) -> dict[str, TableSource]:
    return {
        f"s{place}": TableSource({"p": (TYPES, [(10 * place + k, *one) for k, one in enumerate(site)])})
        for place, site in enumerate(drawn)
    }


def policy(least: int = 1, level: Any = "protected") -> dict[str, Any]:
    columns = {**dict.fromkeys(TYPES, "protected"), "k": "public", "x": level}
    return {"policy": {"min_count": least}, "tables": {"p": {"unit": "id", "columns": columns}}}


def require_equal(drawn: list[list[Any]], texts: list[str]) -> None:
    made = silos(drawn)
    with connected(made, policy()) as db, pooled(made) as oracle:
        for text in texts:
            found = db.sql(text, strategy="smcql")
            assert db.check(found), (text, found.rows, oracle.execute(text).fetchall())
            assert found.types == tuple(str(one[1]) for one in oracle.execute(f"DESCRIBE {text}").fetchall())


@settings(max_examples=settings.default.max_examples // 20)
@given(tables, st.lists(statements(), min_size=2, max_size=2))
def test_drawn_quantiles_equal_duckdb_on_the_union(drawn: list[list[Any]], texts: list[str]) -> None:
    require_equal(drawn, texts)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(tables, st.lists(statements(), min_size=3, max_size=3))
def test_many_drawn_quantiles_equal_duckdb_on_the_union(drawn: list[list[Any]], texts: list[str]) -> None:
    require_equal(drawn, texts)


INSIDE = [
    "SELECT count(*) FROM p WHERE x > (SELECT {} FROM p WHERE k < 2)", "SELECT g, m FROM (SELECT g, {} AS m FROM p GROUP BY g) AS t WHERE m >= 1", "SELECT g, count(*), (SELECT {} FROM p) FROM p GROUP BY g",
    "SELECT p.id, t.m FROM p JOIN (SELECT g, {} AS m, median(x) AS n FROM p GROUP BY g) AS t ON t.g = p.g WHERE p.x > t.m OR p.x < t.n",
]  # fmt: skip
inner = st.sampled_from(["median(x)", "quantile_cont(x, 0.25)", "quantile_cont(k, 0.75)", "quantile_cont(x, 0)", "percentile_cont(0.25) WITHIN GROUP (ORDER BY x DESC)", "quantile_cont(x, 1) FILTER (WHERE k > 0)"])  # fmt: skip
"""Shares that are doubles: DuckDB rounds the others, and parties compare fractions."""


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(tables, st.builds(str.format, st.sampled_from(INSIDE), inner), st.builds(str.format, st.sampled_from(INSIDE), inner))  # fmt: skip
def test_drawn_quantiles_of_subqueries_equal_duckdb_on_the_union(drawn: list[list[Any]], text: str, more: str) -> None:
    require_equal(drawn, [text, more])


ROWS = [[("AB"[k % 2], k % 3, 7 * k % 5, None, None, None) for k in range(9)]] * 3


def test_continuous_quantiles_of_subqueries_and_within_groups() -> None:
    """A group without a value has no quantile; what is multiplied by 0 may be of any size."""
    rows = [(None, 1, None, None, None, None), ("A", 0, None, None, None, None), ("A", 0, 3, 2, None, None), ("B", 0, 4, None, None, None), ("B", 0, -7, 1, None, None)]  # fmt: skip
    texts = [
        "SELECT g, m, r FROM (SELECT g, median(x) AS m, quantile_cont(x, 0.3) AS r FROM p GROUP BY g) AS t",
        "SELECT id, x / 4 FROM p AS a WHERE x >= (SELECT quantile_cont(x, 0) FROM p)",
        "SELECT g, percentile_cont(0.3) WITHIN GROUP (ORDER BY x DESC), median(d) FROM p GROUP BY g",
    ]
    require_equal([rows, [], [("C", 2, None, None, None, None)]], texts)


def test_ties_an_empty_site_joins_and_several_quantiles_of_a_group() -> None:
    texts = [
        "SELECT g, median(x) AS m, quantile_disc(x, 0.25), quantile_disc(x, 0.75), avg(x) FROM p GROUP BY ALL ORDER BY m, g",
        "SELECT a.g, median(a.x - 1) FROM p AS a JOIN p AS b ON a.id = b.id AND b.x > 1 GROUP BY a.g",
        "WITH t AS (SELECT g, quantile_disc(x, 0.5) AS m FROM p GROUP BY g) SELECT count(*), max(m) FROM t",
    ]
    require_equal([ROWS[0], [], ROWS[1]], texts)


@pytest.mark.parametrize(
    "text", ["SELECT median(x) FROM p", "SELECT g, quantile_cont(x, 0.9) FROM p GROUP BY g", "SELECT quantile(x, 0.5) FROM p"]
)  # fmt: skip
def test_a_quantile_is_refused_where_the_largest_value_is(text: str) -> None:
    private = {"level": "private", "release": "aggregate"}
    with connected(silos(ROWS), policy(level=private)) as db, pytest.raises(PolicyError, match=r"shows values of p\.x, which is private"):  # fmt: skip
        db.sql(text, strategy="smcql")
    with connected(silos(ROWS), policy(5)) as db, pytest.raises(PolicyError, match=r"\(\"p\"\.\"x\".* is the value of one row, and min_count is 5"):  # fmt: skip
        db.sql(text, strategy="smcql")


@pytest.mark.parametrize("text", ["SELECT median(DISTINCT x) FROM p", "SELECT median(t) FROM p", "SELECT d FROM p WHERE d > (SELECT median(d) FROM p)", "SELECT y FROM p WHERE y > (SELECT median(y) FROM p)", "SELECT x FROM p WHERE x > (SELECT median(q.x) FROM p AS q WHERE q.g = p.g)", "SELECT g, percentile_disc(0.5) WITHIN GROUP (ORDER BY x DESC) FROM p GROUP BY g", "SELECT quantile_cont(x, [0.1, 0.2]) FROM p"])  # fmt: skip
def test_what_parties_cannot_compute_is_refused_with_what_they_can(text: str) -> None:
    with connected(silos(ROWS), policy()) as db, pytest.raises(CompositionError, match=r"under shares.*MEDIAN of numbers in the outermost SELECT"):  # fmt: skip
        db.sql(text, strategy="smcql")
