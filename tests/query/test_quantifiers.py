"""Comparisons with ``ANY`` and ``ALL`` of a subquery, INTERSECT ALL and EXCEPT ALL under shares are DuckDB's on the union: NULLs, ties, sets without a row."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from hypothesis import given, settings

from atoll.core.errors import AtollError, CompositionError
from tests.query.test_shares_law import POLICY, connected, pooled, same_rows, sites, sources
from tests.support.silos import TableSource

DAY = datetime.date(2024, 1, 1)
PEOPLE = [(0, "A", 1, None, None, None), (1, "A", 2, 3, None, None), (2, None, 2, 0, None, None), (3, "B", None, 2, None, None), (4, "B", 2, 3, None, None)]  # fmt: skip
VISITS: dict[str, list[Any]] = {"some": [(1, 2, DAY), (1, 2, DAY), (2, 3, DAY)], "none": [], "one": [(None, 3, DAY)]}
WITHIN = "(SELECT cost FROM v)"
BESIDE = "(SELECT p2.k FROM p p2 WHERE p2.ward = p.ward AND p2.id <> 9)"
COMPARED = [f"{op} {which}" for op in ("=", "<>", "<", "<=", ">", ">=") for which in ("ANY", "ALL")]
SETS = [
    "SELECT k FROM p EXCEPT ALL SELECT cost FROM v",
    "SELECT k FROM p INTERSECT ALL SELECT cost FROM v",
    "SELECT ward, k FROM p EXCEPT ALL SELECT ward, age FROM p",
    "SELECT ward, k FROM p INTERSECT ALL SELECT ward, age FROM p WHERE age > 2",
    "SELECT count(*), sum(k) FROM (SELECT k FROM p EXCEPT ALL SELECT cost FROM v) d",
    "SELECT k FROM p INTERSECT ALL (SELECT cost FROM v EXCEPT ALL SELECT k FROM p)",
]
WHOLE = [
    "SELECT count(*) FROM p WHERE age > ALL (SELECT sum(cost) FROM v GROUP BY id)",
    "SELECT id FROM p WHERE age <= ANY (SELECT cost FROM v UNION SELECT k FROM p)",
    "SELECT id FROM p WHERE ward >= ALL (SELECT ward FROM p)",
    "SELECT id FROM p WHERE age >= ANY (SELECT cost FROM v ORDER BY cost LIMIT 1)",
]
COUNTED = "SELECT id, (SELECT count(*) FROM v) AS n FROM p"  # a table of which no column is read
QUICK = [("< ANY", WITHIN), ("= ALL", BESIDE)]


def table_of(visits: str) -> dict[str, TableSource]:
    """A site has all people, another one some, and the third one none; visits lie at two."""
    return sources([(PEOPLE[:2], VISITS[visits][:1], []), (PEOPLE[2:], VISITS[visits][1:], []), ([], [], [])])


def require_equal(made: dict[str, TableSource], text: str) -> None:
    with connected(made, POLICY) as db, pooled(made, replicated=("n",)) as oracle:
        same_rows(db.sql(text, strategy="smcql").rows, oracle.execute(text).fetchall(), what=text)


@pytest.mark.quick("*some", "< ANY*none")
@pytest.mark.parametrize("visits", ["some", "none", pytest.param("one", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("compared", "query"), [pytest.param(c, q, marks=() if (c, q) in QUICK else pytest.mark.slow) for c in COMPARED for q in (WITHIN, BESIDE)])  # fmt: skip
def test_a_comparison_with_any_or_all_has_three_values(compared: str, query: str, visits: str) -> None:
    """NULL beside a row is NULL, unless another row decides; of no row ANY is false and ALL is true."""
    require_equal(table_of(visits), f"SELECT id, age, age {compared} {query} AS said FROM p")


@pytest.mark.parametrize("text", [pytest.param(text, marks=() if text in (*SETS[:2], WHOLE[0], COUNTED) else pytest.mark.slow) for text in [*SETS, *WHOLE, COUNTED]])  # fmt: skip
def test_sets_with_all_and_subqueries_with_groups_are_those_of_the_union(text: str) -> None:
    require_equal(table_of("some"), text)


@pytest.mark.slow
@settings(max_examples=8)
@given(sites)
def test_drawn_tables_give_what_duckdb_gives(drawn: Any) -> None:
    for text in (*SETS[:4], f"SELECT id, age > ALL {WITHIN} AS a, age <= ANY {BESIDE} AS b FROM p", COUNTED):
        require_equal(sources(drawn), text)


def test_few_rows_are_not_singled_out() -> None:
    """The least value of a subquery is that of one row, and which rows EXCEPT ALL keeps is decided by single ones."""
    strict = {**POLICY, "policy": {"min_count": 3, "unrecorded": "joins"}}
    with connected(table_of("some"), strict) as db:
        with pytest.raises(CompositionError, match="one row of v could decide about many rows"):
            db.sql(f"SELECT count(*) FROM p WHERE age > ALL {WITHIN}", strategy="smcql")
        with pytest.raises(CompositionError, match="EXCEPT ALL, and min_count is 3"):
            db.sql("SELECT count(*) FROM (SELECT k FROM p EXCEPT ALL SELECT cost FROM v) d", strategy="smcql")


def test_masked_sums_refuse_what_needs_rows_of_other_sites() -> None:
    with connected(table_of("some"), POLICY) as db:
        for text in (f"SELECT count(*) FROM p WHERE age > ALL {WITHIN}", f"SELECT count(*) FROM ({SETS[0]}) d"):
            with pytest.raises(AtollError, match="in sums"):
                db.sql(text, strategy="sums")
