"""``smcql`` answers all 22 queries of TPC-H over three sites, and each answer is DuckDB's on the union."""

from __future__ import annotations

import pytest

from tests.support.silos import connected, pooled, same_rows
from tests.support.tpch import POLICY, QUERIES, make_sources

QUICK = (21,)
"""A join of six tables with a product of columns of two sites; a self join with EXISTS and NOT EXISTS."""


@pytest.mark.parametrize("number", [k if k in QUICK else pytest.param(k, marks=pytest.mark.slow) for k in QUERIES])
def test_a_query_equals_duckdb_on_the_union(number: int) -> None:
    made = make_sources()
    with connected(made, POLICY) as db, pooled(made, replicated=("region", "nation")) as oracle:
        expected = oracle.execute(QUERIES[number]).fetchall()
        assert expected
        found = db.sql(QUERIES[number], strategy="smcql")
        same_rows(found.rows, expected, ordered="ORDER BY" in QUERIES[number], what=str(number))
