"""What all alternatives of an OR have in common is found: a join by equal columns stays one, and no row is gained or lost, whatever is NULL."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest
import sqlglot
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.query.scopes import factor_conditions
from tests.support.silos import TableSource, connected

VALUES = "(VALUES (true), (false), (NULL))"
leaves = st.sampled_from(["x.a", "y.b", "z.c", "x.a IS NULL", "y.b = z.c"])
conditions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({' AND '.join(parts)})"),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({' OR '.join(parts)})"),
        inner.map(lambda part: f"NOT {part}"),
    ),
    max_leaves=9,
)


@settings(max_examples=40, deadline=None)
@given(conditions)
def test_the_same_rows_are_found(condition: str) -> None:
    text = f"SELECT * FROM {VALUES} AS x(a), {VALUES} AS y(b) JOIN {VALUES} AS z(c) ON {condition} WHERE {condition}"
    factored = factor_conditions(sqlglot.parse_one(text, dialect="duckdb")).sql("duckdb")
    assert sorted(duckdb.sql(factored).fetchall(), key=str) == sorted(duckdb.sql(text).fetchall(), key=str)


@pytest.mark.parametrize(
    ("written", "factored"),
    [
        ("(a = b AND c) OR (a = b AND d)", "a = b AND (c OR d)"),
        ("((a = b) AND c AND e) OR (e AND a = b)", "a = b AND e"),
        ("x AND (((c AND a = b)) OR (d AND (a = b)) OR (a = b AND f AND g))", "x AND a = b AND (c OR d OR (f AND g))"),
        ("(a AND b) OR c", "(a AND b) OR c"),
        ("NOT ((a AND b) OR (a AND c))", "NOT ((a AND b) OR (a AND c))"),
    ],
)
def test_what_is_common_stands_alone(written: str, factored: str) -> None:
    made, expected = (sqlglot.parse_one(f"SELECT 1 WHERE {one}", dialect="duckdb") for one in (written, factored))
    plain = [factor_conditions(one).sql("duckdb").replace("(", "").replace(")", "") for one in (made, expected)]
    assert plain[0] == plain[1]


def test_a_join_inside_alternatives_is_one_by_equal_columns() -> None:
    columns = {"id": "BIGINT", "n": "BIGINT"}
    policy: dict[str, Any] = {
        "policy": {"min_count": 1},
        "tables": {"p": {"columns": {"id": {"level": "protected", "key": True}, "n": "protected"}}, "v": {"columns": "protected"}},
    }  # fmt: skip
    made = {f"s{k}": TableSource({"p": (columns, [(k, k)]), "v": (columns, [(2 - k, 5), (k, 7)])}) for k in range(3)}
    alternatives = "SELECT count(*) FROM p, v WHERE (p.id = v.id AND v.n > 6) OR (p.id = v.id AND p.n = 0)"
    factored = "SELECT count(*) FROM p, v WHERE p.id = v.id AND (v.n > 6 OR p.n = 0)"
    with connected(made, policy) as db:
        plans = [db.sql(f"EXPLAIN {text}", strategy="smcql") for text in (alternatives, factored)]
        assert plans[0].plan == plans[1].plan
        assert db.sql(alternatives, strategy="smcql").rows == [(4,)]
