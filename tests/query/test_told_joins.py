"""Full joins whose size is told: rows are DuckDB's, tables have no row more than there are pairs, and only who may says a size."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import CompositionError, ConfigError, PolicyError
from atoll.query import QueryPolicy, Silo, SqlConnection
from tests.query.test_slices import FIXED, P, V, sites, sources
from tests.support.silos import TableSource, connected, pooled, same_rows

OPEN: dict[str, Any] = {
    "policy": {"min_count": 1},
    "tables": {
        "p": {"sizes": "open", "columns": "protected"},
        "v": {"sizes": "open", "columns": {"id": {"level": "protected", "at_most": 40}, "cost": "protected"}},
    },
}
TOLD = "smcql:joins=told"
FEW = sources([([(k % 4, "ABC"[k % 3], k) for k in range(j, 6, 3)], [(k * 3 % 5, k % 4) for k in range(j, 6, 3)]) for j in range(3)])  # fmt: skip
STATEMENTS = [
    "SELECT p.ward, v.cost FROM p JOIN v ON p.id = v.id AND p.age > v.cost",
    "SELECT a.ward, b.cost, c.age FROM p a JOIN v b ON a.id = b.id JOIN p c ON c.id = b.id WHERE a.age <> c.age",
    "SELECT p.ward, v.cost FROM p LEFT JOIN v ON p.id = v.id",
    "SELECT p.ward, v.cost FROM p LEFT JOIN v ON p.id = v.id AND v.cost < p.age",
    "SELECT p.ward, v.cost FROM p FULL JOIN v ON p.id = v.id AND p.age > v.cost",
    "SELECT p.ward, max(v.cost - p.age), count(*) FROM p JOIN v ON p.id = v.id WHERE v.cost <> p.age GROUP BY 1",
]


@pytest.mark.parametrize("place", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(1, 6))])
def test_a_join_whose_size_is_told_equals_duckdb_and_sends_less(place: int) -> None:
    text = STATEMENTS[place]
    with connected(FEW, OPEN) as db, pooled(FEW) as oracle:
        found, whole = db.sql(text, strategy=TOLD), db.sql(text, strategy="smcql")
        same_rows(found.rows, oracle.execute(text).fetchall(), what=text)
        assert found.bytes < 0.8 * whole.bytes
        assert abs(found.predicted / found.bytes - 1) < 0.25  # sorts of few rows vary


@settings(max_examples=1)
@given(sites, st.sampled_from(STATEMENTS))
def test_drawn_joins_equal_duckdb_on_the_union(drawn: Any, text: str) -> None:
    made = sources(drawn)
    with connected(made, OPEN) as db, pooled(made) as oracle:
        same_rows(db.sql(text, strategy=TOLD).rows, oracle.execute(text).fetchall(), what=text)


@pytest.mark.slow
@settings(max_examples=15)
@given(sites, st.sampled_from(STATEMENTS))
def test_many_drawn_joins_equal_duckdb_on_the_union(drawn: Any, text: str) -> None:
    made = sources(drawn)
    with connected(made, OPEN) as db, pooled(made) as oracle:
        same_rows(db.sql(text, strategy=TOLD).rows, oracle.execute(text).fetchall(), what=text)


def tables(rows: int, keys: int) -> dict[str, TableSource]:
    return {f"s{j}": TableSource({"p": (P, [(1 + (3 * k + j) % keys, "A", k) for k in range(rows)]), "v": (V, [(1 + (3 * k + j) % keys, k) for k in range(rows)])}) for j in range(3)}  # fmt: skip


def test_the_parties_hold_as_many_rows_as_there_are_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 24 x 24 pairs 24 have equal keys: a join of 23 rows at most is refused when its size is opened, and one of 24 is computed."""
    made = tables(8, 24)
    with connected(made, OPEN) as db, monkeypatch.context() as patch:
        patch.setattr("atoll.query.strategies.shared_rows.MOST_ROWS", 24)
        assert len(db.sql(STATEMENTS[0].replace("p.age > v.cost", "p.age >= v.cost"), strategy=TOLD)) == 24
        with pytest.raises(CompositionError, match="576 rows, filled up"):
            db.sql(STATEMENTS[0], strategy="smcql")
    with connected(tables(8, 12), OPEN) as db, monkeypatch.context() as patch:
        patch.setattr("atoll.query.strategies.shared_rows.MOST_ROWS", 47)
        with pytest.raises(CompositionError, match="48 rows, filled up"):
            db.sql(STATEMENTS[0], strategy=TOLD)


def test_plans_say_which_sizes_are_told_and_policies_whether() -> None:
    with connected(FIXED, OPEN) as db:
        plan = db.sql(f"EXPLAIN {STATEMENTS[0]}", strategy=TOLD)
        [seen] = [one for one in plan.leakage if "how many pairs" in one["sees"]]
        assert seen["who"] == "three parties"
        assert "join v on" in seen["sees"]
        assert not any("how many pairs" in one["sees"] for one in db.sql(f"EXPLAIN {STATEMENTS[0]}").leakage)
        # Nothing is told of a statement without such a join.
        assert not any("how many pairs" in one["sees"] for one in db.sql("EXPLAIN SELECT ward FROM p", strategy=TOLD).leakage)  # fmt: skip
        with pytest.raises(ConfigError, match="joins=open"):
            db.sql(STATEMENTS[0], strategy="smcql:joins=open")
    two = dict(list(FIXED.items())[:2])
    with connected(two, OPEN) as db, pytest.raises(CompositionError, match="a circuit has a fixed size"):
        db.sql(STATEMENTS[0], strategy="smcql:mode=garbled,joins=told")
    few = {**OPEN, "policy": {"min_count": 2, "unrecorded": "joins"}}
    with connected(FIXED, few) as db, pytest.raises(CompositionError, match="sizes of joins are told, and min_count is 2"):  # fmt: skip
        db.sql(STATEMENTS[0], strategy=TOLD)


def test_the_strictest_site_decides_whether_sizes_are_told() -> None:
    hidden = copy.deepcopy(OPEN)
    del hidden["tables"]["v"]["sizes"]
    made = {name: Silo(source, QueryPolicy.of(hidden if name == "s1" else OPEN), name) for name, source in FIXED.items()}  # fmt: skip
    with SqlConnection(made) as db, pytest.raises(PolicyError, match="tells the size of a join of v, whose sizes are hidden"):  # fmt: skip
        db.sql(STATEMENTS[0], strategy=TOLD)
