"""What three parties compute on shares is the answer of DuckDB on the union, whatever a drawn statement asks: outer joins, subqueries, windows, sets, NULLs, ties and sites without rows."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import CompositionError, ConfigError, DataError, PolicyError
from atoll.query import QueryPolicy
from tests.support.silos import TableSource, connected, pooled, same_rows

P = {"id": "BIGINT", "ward": "VARCHAR", "k": "INTEGER", "age": "BIGINT", "pay": "DECIMAL(12,2)", "seen": "DATE"}
V = {"id": "BIGINT", "cost": "BIGINT", "day": "DATE"}
Q = {"id": "BIGINT", "score": "BIGINT", "name": "VARCHAR"}
POLICY: dict[str, Any] = {
    "policy": {"min_count": 1},
    "tables": {
        "p": {"columns": {**dict.fromkeys(P, "protected"), "pay": {"level": "private", "release": "aggregate"}}},
        "v": {"columns": {"id": {"level": "protected", "at_most": 9}, "cost": "protected", "day": "protected"}},
        "q": {"columns": {"id": {"level": "protected", "key": True}, "score": "protected", "name": "protected"}},
        "n": {"mode": "replicated", "columns": "public"},
    },
}
N = ({"k": "INTEGER", "name": "VARCHAR"}, [(1, "X"), (2, "Y"), (4, None)])

days = st.dates(datetime.date(2024, 1, 1), datetime.date(2024, 3, 1))
people = st.tuples(
    st.integers(0, 5), st.sampled_from(["A", "B", "Cä", "a long name of a ward", ""]) | st.none(), st.integers(1, 3) | st.none(), st.integers(-5, 40) | st.none(),
    st.decimals(-999, 999, places=2) | st.none(), days | st.none(),
)  # fmt: skip
visits = st.tuples(st.integers(0, 5) | st.none(), st.integers(-9, 9), days)
scores = st.tuples(st.integers(0, 9), st.sampled_from(["A", "B"]) | st.none())
sites = st.lists(st.tuples(st.lists(people, max_size=5), st.lists(visits, max_size=3), st.lists(scores, max_size=2)), min_size=2, max_size=4)  # fmt: skip


def sources(drawn: Any) -> dict[str, TableSource]:
    made, key = {}, 0
    for k, (p, v, q) in enumerate(drawn):
        keyed = [(key + j, *row) for j, row in enumerate(q)]
        key += len(q)
        made[f"s{k}"] = TableSource({"p": (P, p), "v": (V, v), "q": (Q, keyed), "n": N})
    return made


# What is between FROM and WHERE, and the tables whose columns it has.
FROMS = [
    ("p", "p"), ("p JOIN v ON p.id = v.id", "pv"), ("p, v", "pv"), ("p LEFT JOIN v ON p.id = v.id", "pv"), ("p LEFT JOIN v ON p.id = v.id AND v.cost > 1", "pv"),
    ("p RIGHT JOIN v ON p.id = v.id", "pv"), ("p FULL JOIN v ON p.id = v.id AND p.age > v.cost", "pv"), ("p JOIN q ON p.k = q.id", "pq"), ("p LEFT JOIN q ON p.k = q.id", "pq"),
    ("q JOIN p ON p.k = q.id LEFT JOIN v ON v.id = p.id", "pqv"), ("p JOIN n ON n.k = p.k", "pn"), ("p LEFT JOIN n ON n.k = p.k JOIN v ON v.id = p.id", "pnv"),
    ("p JOIN (SELECT id, sum(cost) AS s, count(*) AS c FROM v GROUP BY id) d ON d.id = p.id", "pd"), ("p LEFT JOIN (SELECT id, sum(cost) AS s, count(*) AS c FROM v GROUP BY id) d ON d.id = p.id", "pd"),
]  # fmt: skip
NUMBERS = {"p": ["p.age", "p.age * 2 + 1", "coalesce(p.age, 7)"], "v": ["v.cost", "v.cost - 1"], "q": ["q.score"], "d": ["d.s", "d.c"], "n": []}  # fmt: skip
KEYS = {"p": ["p.ward", "p.k", "coalesce(p.ward, 'none')", "p.seen"], "v": ["v.id", "v.day"], "q": ["q.name", "q.id"], "d": ["d.c"], "n": ["n.name"]}  # fmt: skip
CONDITIONS = {
    "p": ["p.age > 10", "p.ward IS NULL", "p.ward LIKE 'A%' OR p.k = 2", "NOT (p.age BETWEEN 5 AND 20)", "p.k IN (1, 3)"],
    "v": ["v.cost > 2", "v.day >= DATE '2024-01-20'", "v.cost IS NOT NULL"], "q": ["q.score < 6", "q.name = 'A'"], "d": ["d.s > 3", "coalesce(d.c, 0) < 2"], "n": ["n.name = 'X'"],
    "pv": ["p.age > v.cost", "p.seen - v.day BETWEEN -20 AND 20", "p.id < v.id + 3 OR v.cost = p.k", "p.age IS DISTINCT FROM v.cost", "(p.age > v.cost) IS NOT TRUE"],
    "pd": ["p.age > d.s", "d.c = p.k"],
}  # fmt: skip
SUBQUERIES = [
    "EXISTS (SELECT 1 FROM v w WHERE w.id = p.id AND w.cost > 0)", "NOT EXISTS (SELECT 1 FROM v w WHERE w.id = p.id AND w.cost > p.age - 10)", "p.id IN (SELECT w.id FROM v w)",
    "p.k NOT IN (SELECT w.id FROM v w WHERE w.cost > 2)", "p.age > (SELECT avg(w.cost) FROM v w)", "p.age >= (SELECT sum(w.cost) FROM v w WHERE w.id = p.id)",
    "(SELECT count(*) FROM v w WHERE w.id = p.id) = 1", "p.age NOT IN (SELECT w.age FROM p w WHERE w.k = p.k AND w.id <> p.id)", "NOT (p.k IN (SELECT q.id FROM q) AND p.age > 3)",
]  # fmt: skip
WINDOWS = [
    "row_number() OVER (PARTITION BY p.ward ORDER BY p.id, p.k, p.age, p.seen)", "rank() OVER (ORDER BY p.age DESC)", "dense_rank() OVER (PARTITION BY p.k ORDER BY p.ward NULLS FIRST)",
    "sum(p.age) OVER (PARTITION BY p.ward)", "count(*) OVER (PARTITION BY p.k ORDER BY p.age)", "avg(p.age) OVER ()", "max(p.seen) OVER (PARTITION BY p.ward ORDER BY p.id)",
    "lag(p.age) OVER (PARTITION BY p.id ORDER BY p.age, p.k)", "lead(p.seen, 2) OVER (ORDER BY p.seen, p.id)",
]  # fmt: skip


SHOWN = [
    "(SELECT count(*) FROM v w)",
    "(SELECT avg(w.cost) FROM v w)",
    "coalesce((SELECT max(w.name) FROM q w), 'none')",
]


def choices(table: dict[str, list[str]], read: str) -> list[str]:
    return [one for name, found in table.items() if set(name) <= set(read) for one in found]


@st.composite
def statements(draw: Any) -> str:
    source, read = draw(st.sampled_from(FROMS))
    where = draw(st.lists(st.sampled_from(choices(CONDITIONS, read)), max_size=2, unique=True))
    if draw(st.integers(0, 2)) == 0:
        where.append(draw(st.sampled_from(SUBQUERIES)))
    if source == "p, v":
        where.append("p.id = v.id")
    tail = f" FROM {source}" + (f" WHERE {' AND '.join(f'({one})' for one in where)}" if where else "")
    keys = draw(st.lists(st.sampled_from(choices(KEYS, read)), max_size=2, unique=True))
    numbers = st.sampled_from(choices(NUMBERS, read))
    kind = draw(st.sampled_from(["rows", "groups", "groups", "windows", "union", "except"]))
    if kind == "groups":
        plain = st.builds("{}({})".format, st.sampled_from(["sum", "avg", "min", "max", "count", "var_pop", "stddev_samp"]), numbers)  # fmt: skip
        told = st.one_of(st.just("count(*)"), plain, st.builds("count(DISTINCT {})".format, st.sampled_from(choices(KEYS, read))), st.builds("max({})".format, st.sampled_from(choices(KEYS, read))))  # fmt: skip
        shown = [
            *keys,
            *draw(st.lists(told, min_size=1, max_size=3)),
            *draw(st.lists(st.sampled_from(SHOWN), max_size=1)),
        ]
        having = draw(st.sampled_from(["", "", " HAVING count(*) > 1", " HAVING sum(p.age) > 20"]))
        by = f" GROUP BY {', '.join(str(k + 1) for k in range(len(keys)))}" if keys else ""
        return f"SELECT {', '.join(shown)}{tail}{by}{having if keys else ''}"
    shown = [*keys, draw(numbers), *draw(st.lists(st.sampled_from([*SHOWN, "(SELECT sum(w.cost) FROM v w WHERE w.id = p.id)"]), max_size=1))]  # fmt: skip
    if kind == "windows" and read == "p":
        shown += draw(st.lists(st.sampled_from(WINDOWS), min_size=1, max_size=2, unique=True))
        return f"SELECT {', '.join(shown)}{tail}"
    text = f"SELECT {'DISTINCT ' if kind == 'rows' and draw(st.booleans()) else ''}{', '.join(shown)}{tail}"
    if kind in ("union", "except"):
        word = draw(st.sampled_from(["UNION", "UNION ALL"])) if kind == "union" else draw(st.sampled_from(["EXCEPT", "INTERSECT"]))  # fmt: skip
        return f"SELECT p.k, p.age FROM p WHERE p.id < 4 {word} SELECT w.id, w.cost FROM v w WHERE w.cost > -3"
    return text


def require_equal(drawn: Any, texts: list[str]) -> None:
    made = sources(drawn)
    with connected(made, POLICY) as db, pooled(made, replicated=("n",)) as oracle:
        for text in texts:
            try:
                found = db.sql(text, strategy="smcql")
            except PolicyError:
                assert "OVER" in text  # ranks and sums of windows show by what rows are ordered
                continue
            expected = oracle.execute(text)
            assert found.columns == tuple(one[0] for one in expected.description), text
            same_rows(found.rows, expected.fetchall(), what=text)


def site(j: int) -> Any:
    start = datetime.date(2024, 1, 1)
    p = [(k % 6, [None, "A", "B", "Cä", "a long name of a ward"][k % 5], None if k % 6 == 5 else k % 3 + 1, None if k % 7 == 0 else k * 13 % 40, Decimal(k * 37 % 100) / 10, None if k % 8 == 3 else start + datetime.timedelta(k * 17 % 50)) for k in range(j, 15, 3)]  # fmt: skip
    v = [(None if k == 4 else k * 5 % 7, k % 7, start + datetime.timedelta(k * 29 % 50)) for k in range(j, 9, 3)]
    return p, v, [(j + 1, "AB"[j % 2])]


FIXED = [site(0), ([], [], []), site(1), site(2)]
EXAMPLES = [
    "SELECT p.ward, v.cost, q.score FROM p FULL JOIN v ON p.id = v.id AND p.age > v.cost LEFT JOIN q ON q.id = v.id WHERE p.k NOT IN (SELECT w.id FROM v w WHERE w.cost > 2)",
    "WITH d AS (SELECT id, sum(cost) AS s FROM v GROUP BY id) SELECT x.id, x.s, y.ward FROM d x LEFT JOIN p y ON y.id = x.id WHERE x.s >= (SELECT avg(s) FROM d)",
    "SELECT p.ward, corr(p.age, v.cost), sum(p.pay * v.cost), min(p.ward), count(DISTINCT v.day), sum(DISTINCT v.cost) FROM p JOIN v ON p.id = v.id GROUP BY 1 HAVING count(*) > (SELECT count(*) / 20 FROM v)",
    "SELECT id, cost, rank() OVER w AS r, lag(day) OVER w FROM v WINDOW w AS (PARTITION BY id ORDER BY cost DESC) QUALIFY row_number() OVER (PARTITION BY id ORDER BY day, cost) < 3",
    "SELECT p.id, p.age FROM p SEMI JOIN q ON p.k = q.id AND p.age > q.score INTERSECT SELECT id, age FROM p WHERE NOT EXISTS (SELECT 1 FROM v WHERE v.id = p.id AND v.cost > p.age)",
    "SELECT id, (SELECT count(*) FROM v WHERE v.id = p.id) AS c, CASE WHEN id IN (SELECT id FROM q) THEN 'q' ELSE ward END AS w FROM p ORDER BY age DESC NULLS FIRST, p.id, p.k LIMIT 6",
]  # fmt: skip


@pytest.mark.parametrize("place", [3, *(pytest.param(k, marks=pytest.mark.slow) for k in (0, 1, 2, 4, 5))])
def test_a_statement_of_each_kind_equals_duckdb(place: int) -> None:
    require_equal(FIXED, [EXAMPLES[place]])


UNNAMED = [
    "SELECT ward, (SELECT count(*) FROM v), 1, (SELECT max(cost) + (SELECT count(*) FROM q) FROM v) FROM p",
    "SELECT count(*), (SELECT avg(cost) FROM v), EXISTS (SELECT 1 FROM q WHERE q.score > 5), CASE WHEN count(*) > 3 THEN (SELECT count(*) FROM v) ELSE 0 END FROM p",
    "SELECT ward, (SELECT avg(cost) FROM v), (SELECT max(day) FROM v WHERE v.id = p.id) FROM p WHERE k = 2",
    "SELECT DISTINCT k, (SELECT max(cost) FROM v WHERE v.id = p.k), (SELECT count(*) FROM n) FROM p",
    "SELECT (SELECT max(cost) FROM v WHERE v.id = p.id), count(*) FROM p GROUP BY 1 ORDER BY 2, 1",
    "SELECT EXISTS (SELECT 1 FROM v WHERE v.id = p.id), id IN (SELECT id FROM v), sum(age) FROM p GROUP BY ALL HAVING count(*) > (SELECT min(cost) FROM v)",
    "SELECT k, sum(age), (SELECT count(*) FROM v WHERE v.id = p.k), k IN (SELECT id FROM v) FROM p GROUP BY k ORDER BY count(*) + (SELECT min(cost) FROM v) DESC, k NULLS FIRST LIMIT 2",
    "SELECT ward, count(*) FROM p GROUP BY ward QUALIFY rank() OVER (ORDER BY count(*) DESC) <= (SELECT min(cost) + 2 FROM v)",
    "SELECT x, (SELECT min(day) FROM v), sum(n) FROM (SELECT *, age + 1, (SELECT count(*) FROM v WHERE v.id = p.id), (SELECT max(cost) FROM v) AS x, 1 AS n FROM p) GROUP BY x",
    "SELECT k, (SELECT count(*) FROM v) FROM p UNION SELECT id, (SELECT min(cost) FROM v WHERE v.id = q.id) FROM q",
]  # fmt: skip
"""Subqueries in a select list without a name, and what stands around them."""


@pytest.mark.parametrize("place", [pytest.param(k, marks=pytest.mark.slow if k != 2 else ()) for k in range(len(UNNAMED))])  # fmt: skip
def test_a_subquery_without_a_name_equals_duckdb(place: int) -> None:
    require_equal(FIXED, [UNNAMED[place]])


def test_a_subquery_beside_the_aggregates_of_few_is_refused() -> None:
    policy = {**POLICY, "policy": {"min_count": 3}, "tables": {**POLICY["tables"], "p": {**POLICY["tables"]["p"], "unit": "id"}}}  # fmt: skip
    with connected(sources(FIXED), policy) as db:
        for text, what in (("SELECT count(*), (SELECT count(cost) FROM v) FROM p", "beside the aggregates"), ("SELECT EXISTS (SELECT 1 FROM v WHERE v.id = p.id), count(*) FROM p GROUP BY 1", "in the group key")):  # fmt: skip
            with pytest.raises(CompositionError, match=what):
                db.sql(text, strategy="smcql")


@settings(max_examples=2)
@given(sites, st.lists(statements(), min_size=2, max_size=2))
def test_drawn_statements_equal_duckdb_on_the_union(drawn: Any, texts: list[str]) -> None:
    require_equal(drawn, texts)


@pytest.mark.slow
@settings(max_examples=40)
@given(sites, st.lists(statements(), min_size=4, max_size=4))
def test_many_drawn_statements_equal_duckdb_on_the_union(drawn: Any, texts: list[str]) -> None:
    require_equal(drawn, texts)


# ---------------------------------------------------------------- keys


def keyed(rows: list[list[int]], visits: list[list[int]], **key: Any) -> Any:
    """Sites with a table of keys and one that refers to them."""
    made = {f"s{j}": TableSource({"t": ({"id": "BIGINT"}, [(one,) for one in own]), "u": ({"id": "BIGINT"}, [(one,) for one in other])}) for j, (own, other) in enumerate(zip(rows, visits, strict=True))}  # fmt: skip
    return connected(made, {"policy": {"min_count": 1}, "tables": {"t": {"columns": {"id": {"level": "protected", **key}}}, "u": {"columns": "protected"}}})  # fmt: skip


PAIRS = "SELECT t.id FROM t JOIN u ON t.id = u.id"


def test_a_key_makes_a_join_as_large_as_the_other_table() -> None:
    """24 x 24 rows would be 576 pairs: without a declared key the parties send several times as much."""
    rows, visits = [[100 * j + k for k in range(7)] for j in range(3)], [[(27 * k + j) % 270 for k in range(7)] for j in range(3)]  # fmt: skip
    found, sent = [], []
    for key in ({}, {"key": True}, {"at_most": 2}):
        with keyed(rows, visits, **key) as db:
            result = db.sql(PAIRS, strategy="smcql")
            found.append(sorted(result.rows))
            sent.append(result.bytes)
    expected = sorted((v,) for own in visits for v in own if v in {one for site in rows for one in site})
    assert found == [expected] * 3
    assert sent[1] < sent[2] < sent[0]


@pytest.mark.parametrize("order", ["v.cost DESC, v.id, v.day", pytest.param("v.id DESC NULLS FIRST, v.day, v.cost", marks=pytest.mark.slow), ""])  # fmt: skip
def test_sites_share_their_own_first_rows_alone(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slicing: of 27 rows at three sites 6 are shared, and the first three are those of all."""
    start = datetime.date(2024, 1, 1)
    made = {f"s{j}": TableSource({"p": (P, []), "v": (V, [(None if k % 5 == 4 else k * 5 % 7, k * 11 % 9, start + datetime.timedelta(k * 29 % 50)) for k in range(j, 27, 3)]), "q": (Q, []), "n": N}) for j in range(3)}  # fmt: skip
    text = f"SELECT v.id, v.cost, v.day FROM v WHERE v.cost < 8 {f'ORDER BY {order}' if order else ''} LIMIT 2 OFFSET 1"
    with connected(made, POLICY) as db:
        found = db.sql(text, strategy="smcql")
        assert "LIMIT 3" in found.plan[0]["what"]
        assert db.check(found) if order else len(found.rows) == 2
        with monkeypatch.context() as patch:
            patch.setattr("atoll.query.secure.plan.SecurePlanner._slice_leaf", lambda *args: None)
            whole = db.sql(text.replace("v.id, v.cost, v.day FROM", "v.day, v.id, v.cost FROM"), strategy="smcql")
        assert "LIMIT" not in whole.plan[0]["what"]
        assert not order or {(i, c, d) for d, i, c in whole.rows} == set(found.rows)
        assert found.bytes < 0.75 * whole.bytes


def test_a_derived_table_passes_on_how_many_rows_a_key_has() -> None:
    """Rows of ``t`` with a number beside them have its keys, so a join of them is no larger; a cast that makes keys equal does not pass on."""
    plain = "SELECT a.id FROM (SELECT id, row_number() OVER (PARTITION BY id ORDER BY id) AS r FROM t) a JOIN u ON a.id = u.id WHERE a.r = 1"
    rows, visits = [[100 * j + k for k in range(5)] for j in range(3)], [[(27 * k + j) % 270 for k in range(5)] for j in range(3)]  # fmt: skip
    sent = []
    for text, key in ((plain, {}), (plain, {"at_most": 2}), (plain.replace("SELECT id, row", "SELECT id // 2 AS id, row"), {"at_most": 2})):  # fmt: skip
        with keyed(rows, visits, **key) as db:
            result = db.sql(text, strategy="smcql")
            assert db.check(result)
            sent.append(result.bytes)
    assert sent[1] < 0.5 * sent[0]
    assert sent[2] > 0.8 * sent[0]


def test_what_a_policy_claims_of_a_key_is_checked() -> None:
    with keyed([[1, 1], [2], [3]], [[1], [], []], key=True) as db, pytest.raises(DataError, match=r"t.id is in more than 1 row, as the policy says"):  # fmt: skip
        db.sql(PAIRS, strategy="smcql")
    with keyed([[1, 2], [2], [3]], [[1], [], [3]], key=True) as db, pytest.raises(DataError, match="declare to be in few rows"):  # fmt: skip
        db.sql(PAIRS, strategy="smcql")
    with keyed([[1, 1], [1, 1], [1, 1]], [[1] * 4, [1] * 4, [1] * 4], at_most=2) as db, pytest.raises(DataError, match="declare to be in few rows"):  # fmt: skip
        db.sql(PAIRS, strategy="smcql")
    with keyed([[1, 4], [2], [3]], [[1], [5], [3]], key=True) as db:
        assert sorted(db.sql("SELECT t.id, u.id FROM t FULL JOIN u ON t.id = u.id", strategy="smcql").rows, key=str) == [(1, 1), (2, None), (3, 3), (4, None), (None, 5)]  # fmt: skip
        with pytest.raises(DataError, match="stands for one value has several rows"):
            db.sql("SELECT id FROM u WHERE id = (SELECT id FROM t WHERE id > 2)", strategy="smcql")
        assert db.sql("SELECT id FROM u WHERE id = (SELECT id FROM t WHERE id = 3)", strategy="smcql").rows == [(3,)]


def test_a_join_without_a_key_is_refused_before_it_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.query.strategies.shared_rows.MOST_ROWS", 2303)
    with keyed([list(range(9))] * 3, [list(range(9))] * 3) as db, pytest.raises(CompositionError, match="2,304 rows, filled up"):  # fmt: skip
        db.sql(PAIRS, strategy="smcql")


@pytest.mark.parametrize("key", [{"key": False}, {"at_most": 0}, {"at_most": True}, {"key": True, "at_most": 2}])
def test_a_key_is_true_or_a_number(key: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="key: true, or at_most"):
        QueryPolicy.of({"tables": {"t": {"columns": {"id": key}}}})


# ---------------------------------------------------------------- bytes


def large(rows: int) -> dict[str, TableSource]:
    """Sites with tables of some hundred rows, so that a sort's number of steps varies little."""
    start = datetime.date(2024, 1, 1)
    made = {}
    for j in range(3):
        p = [(j * rows + k, "ABC"[k % 3], k % 9, k * 13 % 40, Decimal(k), start) for k in range(rows)]
        v = [(k * 7 % (3 * rows), k % 7, start) for k in range(j, rows, 2)]
        made[f"s{j}"] = TableSource({"p": (P, p), "v": (V, v), "q": (Q, []), "n": N})
    return made


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            "SELECT p.ward, count(*), sum(p.age * v.cost), count(DISTINCT p.k) FROM p JOIN v ON p.id = v.id GROUP BY p.ward",
            marks=pytest.mark.slow,
        ),
        "SELECT id, rank() OVER (PARTITION BY ward ORDER BY age) AS r FROM p WHERE id NOT IN (SELECT id FROM v) ORDER BY r, id LIMIT 9",
    ],
)
def test_the_predicted_bytes_are_those_that_are_sent(text: str) -> None:
    keyed = {**POLICY, "tables": {**POLICY["tables"], "p": {"columns": {**POLICY["tables"]["p"]["columns"], "id": {"level": "protected", "key": True}}}}}  # fmt: skip
    with connected(large(100), keyed) as db:
        found = db.sql(text, strategy="smcql")
        assert abs(found.predicted / found.bytes - 1) < 0.1
        # What EXPLAIN says is for 256 rows: with 128, filled up, it is twice as much and a little.
        assert 1.5 < db.sql(f"EXPLAIN {text}", strategy="smcql").predicted / found.bytes < 6


@pytest.mark.parametrize("rows", [(24, 48, 48), pytest.param((6, 96, 48), marks=pytest.mark.slow), pytest.param((48, 24, 24), marks=pytest.mark.slow)])  # fmt: skip
@pytest.mark.parametrize("inner", ["SELECT b.x, c.k FROM b JOIN c ON b.k < c.k", pytest.param("SELECT count(*) AS x, c.k FROM b JOIN c ON b.k < c.k GROUP BY c.k", marks=pytest.mark.slow)])  # fmt: skip
def test_bytes_of_a_join_of_all_pairs_inside_another_are_foretold(inner: str, rows: tuple[int, int, int]) -> None:
    """Its tables grow apart: from one size of the largest to another, bytes were told as below 0, or as 1.7 times what was sent."""
    types = {"k": "INTEGER", "x": "INTEGER"}
    tables = {name: [(k * 7 % 11, k % 5) for k in range(n)] for name, n in zip("abc", rows, strict=True)}
    made = {f"s{k}": TableSource({name: (types, some[k::3]) for name, some in tables.items()}) for k in range(3)}
    policy = {"policy": {"min_count": 1}, "tables": {name: {"columns": "protected"} for name in tables}}
    text = f"SELECT count(*), max(q.x) FROM a JOIN ({inner}) q ON a.k > q.k"
    with connected(made, policy) as db, pooled(made) as oracle:
        found = db.sql(text, strategy="smcql:slices=none")
        assert found.rows == oracle.execute(text).fetchall()
        assert abs(found.predicted / found.bytes - 1) < 0.1
        assert db.sql(f"EXPLAIN {text}", strategy="smcql:slices=none").predicted > found.bytes  # of 256 rows a site
