"""The tables of TPC-H are as the paper says, and its queries over three silos are answered as DuckDB answers them on the union."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.query import connect
from atoll.reproduce import Lab
from atoll_papers.query_tpch import ENTRY
from atoll_papers.tpch import QUERIES, draw_silos, policy_of, write_union


@pytest.mark.slow
def test_the_quick_form_holds(tmp_path: Path) -> None:
    claims = ENTRY.run(Lab(tmp_path), True)
    judged = {claim.claim: claim.verdict for claim in claims if claim.kind == "statement"}
    assert judged == {f"query {number} is answered": "holds" for number in range(1, 23)}


def test_drawn_tables_are_as_the_policy_claims_and_every_query_finds_rows(tmp_path: Path) -> None:
    with write_union(draw_silos(tmp_path, 120, 11)) as pooled:
        for number, text in QUERIES.items():
            rows = pooled.execute(text).fetchall()
            assert any(value is not None for row in rows for value in row), number
        for table, rule in policy_of()["tables"].items():
            for column, level in rule["columns"].items():
                if most := 1 if level.get("key") else level.get("at_most"):
                    got = pooled.execute(f"SELECT max(n) FROM (SELECT count(*) AS n FROM {table} GROUP BY {column})").fetchone()[0]  # fmt: skip
                    assert got <= most, (table, column)


def test_an_order_of_a_far_customer_is_joined(tmp_path: Path) -> None:
    silos = draw_silos(tmp_path, 20, 3)
    text = "SELECT count(*) AS n, sum(o_totalprice) FROM customer, orders WHERE c_custkey = o_custkey"
    with connect(silos=silos, policy=policy_of()) as db, write_union(silos) as pooled:
        away = [pooled.execute(f"SELECT count(*) FROM silo{k}.orders WHERE o_custkey NOT IN (SELECT c_custkey FROM silo{k}.customer)").fetchone()[0] for k in range(3)]  # fmt: skip
        assert sum(away) > 8
        assert db.sql(text, strategy="smcql").rows == pooled.execute(text).fetchall()
        six = db.sql(QUERIES[6], strategy="sums")
        assert db.check(six)
