"""Answers are those of all rows in one place: drawn statements over drawn tables against DuckDB on the union, and closed forms."""

from __future__ import annotations

import datetime
import statistics
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import CompositionError, ConfigError, DataError, PolicyError
from tests.support.silos import TableSource, connected, pooled, same_rows

TYPES = {"id": "BIGINT", "ward": "VARCHAR", "k": "INTEGER", "age": "BIGINT", "pay": "DECIMAL(12,2)", "x": "DOUBLE", "y": "DOUBLE", "seen": "DATE"}  # fmt: skip
AGGREGATED = {"level": "private", "release": "aggregate"}
POLICY = {
    "policy": {"min_count": 1},
    "tables": {
        "p": {"columns": {"id": {"level": "protected", "join": "local"}, "ward": "public", "k": "public", "seen": "protected", **dict.fromkeys(("age", "pay", "x", "y"), AGGREGATED)}},
        "v": {"columns": {"id": {"level": "protected", "join": "local"}, "cost": AGGREGATED}},
        "n": {"mode": "replicated", "columns": "public"},
    },
}  # fmt: skip

numbers = st.one_of(st.none(), st.sampled_from([0.0, 1.5, -2.25, 1e9, 1e9 + 1]), st.floats(-1e6, 1e6, width=32))
rows = st.tuples(
    st.sampled_from("ABC") | st.none(), st.integers(1, 3) | st.none(), st.integers(-5, 90) | st.none(), st.decimals(-999, 999, places=2) | st.none(),
    numbers, numbers, st.dates(datetime.date(2023, 1, 1), datetime.date(2024, 3, 1)) | st.none(),
)  # fmt: skip
tables = st.lists(st.lists(rows, max_size=9), min_size=2, max_size=3)

NUMBERS = ["p.age", "p.pay", "p.x", "p.y", "p.age * 2 + 1", "p.pay * p.age", "CASE WHEN p.age > 30 THEN p.pay ELSE 0 END", "coalesce(p.x, p.y)", "CAST(p.k AS DOUBLE)", "nullif(p.age, 7)"]  # fmt: skip
CONDITIONS = ["p.age > 30", "p.ward = 'A'", "p.ward IS NULL", "p.pay BETWEEN -50 AND 500", "p.k IN (1, 2)", "p.x > p.y", "NOT (p.age < 40)", "p.seen >= DATE '2023-06-01'", "p.ward LIKE 'A%' OR p.k = 3", "extract(year FROM p.seen) = 2024"]  # fmt: skip
KEYS = ["p.ward", "p.k", "p.k + 1", "coalesce(p.ward, 'none')", "CASE WHEN p.k = 1 THEN 'one' ELSE p.ward END"]


ALONE = ["sum", "avg", "var_samp", "var_pop", "stddev_samp", "stddev_pop"]
TOGETHER = ["covar_pop", "covar_samp", "corr"]
JOINS = ["", " JOIN n USING (k)", " LEFT JOIN n ON n.k = p.k AND n.name <> 'Y'", " JOIN v USING (id)"]
AROUND = [
    "SELECT * FROM ({0}) AS t", "SELECT {1} + 1 AS more, t.* FROM ({0}) AS t WHERE {1} > 2 OR {1} IS NULL", "WITH t AS ({0}) SELECT {1} / 2, {1} FROM t AS u ORDER BY {1}",
    "SELECT d + 1 FROM (SELECT {1} * 2 AS d FROM ({0}) AS t) AS u WHERE d < 100",
]  # fmt: skip
"""What may stand around groups: each row of it is computed from one of them."""
value, condition = st.sampled_from(NUMBERS), st.sampled_from(CONDITIONS)
plain = st.one_of(
    st.sampled_from(["count(*)", "count(p.ward)", "count(p.x)", "count(DISTINCT p.id)"]),
    st.builds("{}({})".format, st.sampled_from(ALONE), value),
    st.builds("{}({}, {})".format, st.sampled_from(TOGETHER), value, value),
)
aggregate = st.one_of(plain, plain, st.builds("{} FILTER (WHERE {})".format, plain, condition), st.builds("1 + {} / 2".format, plain))  # fmt: skip


@st.composite
def statements(draw: Any) -> str:
    keys = draw(st.lists(st.sampled_from(KEYS), max_size=2, unique=True))
    shown = [*keys, *draw(st.lists(aggregate, min_size=1, max_size=3))]
    around = draw(st.sampled_from([None, None, *AROUND]))
    named = shown if around is None else [f"{one} AS c{place}" for place, one in enumerate(shown)]
    text = f"SELECT {', '.join(named)} FROM p{draw(st.sampled_from(JOINS))}"
    semi = st.just("EXISTS (SELECT 1 FROM n AS m WHERE m.k = p.k AND m.name = 'X')")
    where = draw(st.lists(condition | semi, max_size=2))
    if where:
        text += f" WHERE {' AND '.join(f'({one})' for one in where)}"
    if keys:
        text += f" GROUP BY {', '.join(str(place + 1) for place in range(len(keys)))}"
        text += draw(
            st.sampled_from(["", " HAVING count(*) >= 2", " ORDER BY ALL", " HAVING count(*) >= 2 ORDER BY ALL"])
        )
    return text if around is None else around.format(text, f"c{len(keys)}")


def sources(drawn: list[list[Any]]) -> dict[str, TableSource]:
    made, number = {}, 0
    for place, site in enumerate(drawn):
        whole = []
        for row in site:
            number += 1
            whole.append((number, *row))
        visits = [(row[0], row[3]) for row in whole for _ in range(row[0] % 3)]
        made[f"s{place}"] = TableSource(
            {
                "p": (TYPES, whole),
                "v": ({"id": "BIGINT", "cost": "BIGINT"}, visits),
                "n": ({"k": "INTEGER", "name": "VARCHAR"}, [(1, "X"), (2, "Y"), (4, None)]),
            }
        )
    return made


drawn_statements = given(tables, st.lists(statements(), min_size=3, max_size=3))


@settings(max_examples=4)
@drawn_statements
def test_drawn_statements_equal_duckdb_on_the_union(drawn: list[list[Any]], texts: list[str]) -> None:
    require_equal(drawn, texts)


@pytest.mark.slow
@settings(max_examples=100)
@drawn_statements
def test_many_drawn_statements_equal_duckdb_on_the_union(drawn: list[list[Any]], texts: list[str]) -> None:
    require_equal(drawn, texts)


def require_equal(drawn: list[list[Any]], texts: list[str]) -> None:
    made = sources(drawn)
    with connected(made, POLICY) as db, pooled(made, replicated=("n",)) as oracle:
        for text in texts:
            found = db.sql(text)
            expected = oracle.execute(text)
            assert db.check(found), text
            assert abs(found.predicted / found.bytes - 1) < 0.1, text
            assert found.columns == tuple(one[0] for one in expected.description), text
            same_rows(found.rows, expected.fetchall(), ordered=text.endswith("ORDER BY ALL"), what=text)


def test_null_is_a_third_value() -> None:
    """The issue's golden: k 1 2 3, p 5, LEFT JOIN (1, 9), (3, NULL)."""
    left = ({"k": "INTEGER", "p": "INTEGER"}, [(1, 5), (2, 5)])
    right = ({"k": "INTEGER", "q": "INTEGER"}, [(1, 9), (3, None)])
    made = {
        "north": TableSource({"a": left, "b": right}),
        "south": TableSource({"a": (left[0], [(3, 5)]), "b": right}),
    }
    policy = {"policy": {"min_count": 1}, "tables": {"a": {"columns": "public"}, "b": {"mode": "replicated", "columns": "public"}}}  # fmt: skip
    with connected(made, policy) as db:
        found = db.sql("SELECT a.k, count(q), avg(q), count(*) FILTER (WHERE p < q), count(*) FILTER (WHERE (p < q) IS NULL) FROM a LEFT JOIN b USING (k) GROUP BY a.k ORDER BY 1")  # fmt: skip
        assert found.rows == [(1, 1, 9.0, 1, 0), (2, 0, None, 0, 1), (3, 0, None, 0, 1)]
        assert db.sql("SELECT count(q), avg(q) FROM a LEFT JOIN b USING (k)").rows == [(1, 9.0)]


def test_sums_are_exact_where_doubles_would_lose_them() -> None:
    """1e17 and -1e17 at two sites leave the 1s between them; squares of values far from 0 do not cancel; decimals keep their cents."""
    types = {"x": "DOUBLE", "d": "DECIMAL(18,2)", "h": "BIGINT"}
    big = 9_007_199_254_740_993
    north = [(1e17, Decimal("0.10"), big), (1.0, Decimal("0.10"), big)]
    south = [(-1e17, Decimal("0.10"), big), (None, Decimal("-0.05"), 2)]
    made = {"north": TableSource({"t": (types, north)}), "south": TableSource({"t": (types, south)}), "west": TableSource({"t": (types, [(1.0, None, None)])})}  # fmt: skip
    policy = {"policy": {"min_count": 1}, "tables": {"t": {"columns": "public"}}}
    with connected(made, policy) as db:
        assert db.sql("SELECT sum(d), sum(h) FROM t").rows == [(Decimal("0.25"), 3 * big + 2)]
    long = Decimal("123456789012345678901234567890123456.78")
    huge = {name: TableSource({"t": ({"d": "DECIMAL(38,2)"}, [(long,)])}) for name in ("a", "b")}
    with connected(huge, policy) as db:
        assert db.sql("SELECT sum(d) FROM t").rows == [(Decimal("246913578024691357802469135780246913.56"),)]
    far = {"a": TableSource({"t": ({"x": "DOUBLE"}, [(1e9,), (1e9 + 1,)])}), "b": TableSource({"t": ({"x": "DOUBLE"}, [(1e9 + 2,)])})}  # fmt: skip
    with connected(far, policy) as db:
        assert db.sql("SELECT var_samp(x), sum(x) FROM t").rows == [(1.0, 3e9 + 3)]


def test_a_check_allows_for_the_digits_that_duckdb_loses() -> None:
    """Variances of values far from 0, which sums have exactly; and not for other numbers, nor for more digits."""
    made = {f"s{k}": TableSource({"t": ({"v": "DOUBLE"}, [(1e9 + 0.125 * (3 * k + i),) for i in range(6)])}) for k in range(2)}  # fmt: skip
    with connected(made, {"policy": {"min_count": 1}, "tables": {"t": {"columns": {"v": {"level": "private", "release": "aggregate"}}}}}) as db, pooled(made) as oracle:  # fmt: skip
        found = db.sql("SELECT var_samp(v), stddev_pop(v) FROM t")
        exact = statistics.variance([0.125 * (3 * k + i) for k in range(2) for i in range(6)])
        assert found.rows[0][0] == pytest.approx(exact, rel=1e-12)
        [(theirs, _)] = oracle.execute("SELECT var_samp(v), 0 FROM t").fetchall()
        assert theirs != pytest.approx(exact, rel=1e-9)
        assert db.check(found)
        for factor, text in ((1 + 1e-5, "SELECT var_samp(v), stddev_pop(v) FROM t"), (1 + 1e-8, "SELECT sum(v), avg(v) FROM t")):  # fmt: skip
            one = db.sql(text)
            one.rows = [tuple(value * factor for value in one.rows[0])]
            assert db.check(one) is False


def test_rows_that_every_site_has_count_once() -> None:
    made = {name: TableSource({"t": ({"x": "INTEGER"}, [(1,), (2,)])}) for name in ("a", "b", "c")}
    policy = {"policy": {"min_count": 1}, "tables": {"t": {"mode": "replicated", "columns": "public"}}}
    with connected(made, policy) as db:
        assert db.sql("SELECT count(*), sum(x) FROM t").rows == [(2, 3)]
        assert db.sql("SELECT x, count(*) FROM t GROUP BY x ORDER BY x").rows == [(1, 1), (2, 1)]


def test_every_site_has_one_type_or_the_statement_is_refused() -> None:
    policy = {"policy": {"min_count": 1}, "tables": {"t": {"columns": "public"}}}
    whole, half = ({"x": "INTEGER"}, [(1,)]), ({"x": "DOUBLE"}, [(0.5,)])
    with connected({"a": TableSource({"t": whole}), "b": TableSource({"t": half})}, policy) as db:
        found = db.sql("SELECT sum(x) FROM t")
        assert (found.rows, found.types) == ([(1.5,)], ("DOUBLE",))
    words = TableSource({"t": ({"x": "VARCHAR"}, [("one",)])})
    with connected({"a": TableSource({"t": whole}), "b": words}, policy) as db, pytest.raises(ConfigError, match="column x of t is INTEGER at a and VARCHAR at b"):  # fmt: skip
        db.sql("SELECT count(*) FROM t")


def test_python_has_rows_frames_and_cursors() -> None:
    types, policy = {"w": "VARCHAR", "d": "DECIMAL(9,2)"}, {"policy": {"min_count": 1}, "tables": {"t": {"columns": "public"}}}  # fmt: skip
    made = {name: TableSource({"t": (types, [("A", Decimal("1.25"))])}) for name in ("north", "south")}
    with connected(made, policy) as db:
        found = db.sql("SELECT w, sum(d) AS total FROM t WHERE w = ? GROUP BY w", ["A"])
        assert found.df().to_dict("list") == {"w": ["A"], "total": [Decimal("2.50")]}
        assert found.arrow().to_pylist() == [{"w": "A", "total": Decimal("2.50")}]
        assert found.facts()["rows"] == [["A", "2.50"]]
        cursor = db.cursor().execute("SELECT count(*) AS n FROM t")
        assert cursor.description is not None
        assert (cursor.description[0][:2], cursor.rowcount, cursor.fetchone(), cursor.fetchone()) == (("n", "BIGINT"), 1, (2,), None)  # fmt: skip


def test_a_training_runs_on_the_rows_of_a_statement() -> None:
    types = {"id": "BIGINT", "age": "BIGINT", "pay": "DECIMAL(9,2)", "ill": "BIGINT"}
    made = {name: TableSource({"t": (types, [(k, 30 + k, Decimal(k), k % 2) for k in range(20)])}) for name in ("north", "south")}  # fmt: skip
    policy = {"tables": {"t": {"columns": {"id": {"level": "protected", "join": "local"}}}}}
    with connected(made, policy) as db:
        islands = db.islands("SELECT age * 2 AS twice, pay, ill FROM t WHERE age > ?", [35], target="ill")
        assert (list(islands.names), islands.sizes.tolist()) == (["north", "south"], [14, 14])
        assert islands.shard(0).x[0].tolist() == [72.0, 6.0]
        for text in ("SELECT sum(age) AS s, 1 AS ill FROM t", "SELECT age, ill FROM t LIMIT 3", "SELECT a.age, b.ill FROM t a JOIN t b ON a.age = b.age"):  # fmt: skip
            with pytest.raises(CompositionError, match=r"rows of several sites|LIMIT in a subquery|rows of two sites"):
                db.islands(text, target="ill")


NAMES = {"k": "INTEGER", "name": "VARCHAR", "own": "DOUBLE"}
CODES = [(1, "x", 0.5), (2, None, -0.0), (2, "|n", 1e300), (2, "|n", 1e300)]


@pytest.mark.parametrize("strategy", ["sums", "smcql"])
def test_tables_that_policies_call_replicated_are_compared_and_other_claims_are_said(strategy: str) -> None:
    def answer(codes: list[Any], text: str, **levels: str) -> Any:
        made = {name: TableSource({"p": ({"k": "INTEGER"}, [(1,), (2,)]), "n": (NAMES, CODES[::-1] if name == "a" else CODES)}) for name in "ab"}  # fmt: skip
        made["c"] = TableSource({"p": ({"k": "INTEGER"}, [(2,)]), "n": (NAMES, codes)})
        policy = {"policy": {"min_count": 1}, "tables": {"p": {"columns": {"k": {"level": "public", "join": "local"}}}, "n": {"mode": "replicated", "columns": {**dict.fromkeys(NAMES, "public"), **levels}}}}  # fmt: skip
        with connected(made, policy) as db:
            return db.sql(text, strategy=strategy)

    asked = "SELECT count(*) FROM p JOIN n ON n.k = p.k WHERE n.name = '|n' OR n.own > 0.1"
    found = answer(CODES, asked)
    assert found.rows == [(8,)]
    said = [one["sees"] + ": " + one["assuming"] for one in found.leakage]
    assert any(line.startswith("whether all sites have the same n.k, n.name, n.own") for line in said)
    assert any("all rows with one p.k lie at one site, as the policies claim (join: local)" in line for line in said)
    other = [*CODES[:-1], (2, "|n", 2e300)]
    for codes in (CODES[:-1], [*CODES, CODES[0]], [(1, "x", 0.5), (2, "|n", -0.0), *CODES[2:]], other):
        with pytest.raises(DataError, match="table n of a, b from that of c differs in k, name, own"):
            answer(codes, asked)
    assert answer(other, "EXPLAIN " + asked).rows == []  # no row is read
    assert answer(other, "SELECT count(*) FROM p JOIN n ON n.k = p.k WHERE n.name = 'x'").rows == [(2,)]  # not of columns that nobody reads  # fmt: skip
    kept = answer(other, asked.replace("n.own > 0.1", "n.own IS NULL"), own="private")
    assert any("the same n.own, as the policies claim (mode: replicated): it is private" in one["assuming"] for one in kept.leakage)  # fmt: skip


def test_a_site_digests_no_private_column_whatever_the_coordinator_asks() -> None:
    from atoll.query import QueryPolicy, Silo
    from atoll.query.local import digest_rows

    given = QueryPolicy.of({"tables": {"n": {"mode": "replicated", "columns": {"k": "public"}}}})
    silo = Silo(TableSource({"n": (NAMES, CODES)}), given, "north")
    assert digest_rows(silo, {"n": {"k": "INTEGER"}}, "1") != digest_rows(silo, {"n": {"k": "INTEGER"}}, "2")
    with pytest.raises(PolicyError, match=r"compares n\.name, which is private"):
        digest_rows(silo, {"n": {"k": "INTEGER", "name": "VARCHAR"}}, "1")
    silo.close()


def test_a_select_around_groups_asks_for_the_aggregates_themselves_where_rows_and_groups_are_one_to_one() -> None:
    made = sources(
        [[("A", 1, 20, None, 1.0, 2.0, None), ("B", 1, 30, None, 2.0, 5.0, None)], [("A", 2, 50, None, 3.0, 5.0, None)]]
    )
    groups = "(SELECT ward, count(*) AS n, sum(age) AS s FROM p GROUP BY ward) AS t"
    with connected(made, POLICY) as db:
        assert sorted(db.sql(f"SELECT ward, s / n FROM {groups} WHERE n > 0", strategy="sums").rows) == [
            ("A", 35.0),
            ("B", 30.0),
        ]
        for text in (
            f"SELECT 1 FROM (SELECT sum(age) AS s FROM p) AS t, {groups.replace(' t', ' u')}",
            f"SELECT count(*) FROM {groups}",
            f"SELECT DISTINCT n FROM {groups}",
            f"SELECT ward FROM {groups} JOIN n ON n.k = t.n",
            "SELECT ward FROM (SELECT ward, count(*) AS n FROM p GROUP BY ward ORDER BY n LIMIT 1) AS t",
        ):
            with pytest.raises(CompositionError, match=r"it asks for rows|a subquery groups rows of several sites"):
                db.sql(text, strategy="sums")
