"""``smcql``: what three parties compute on shares is the answer of DuckDB on the union, and what they see depends on sizes alone."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import AtollError, CompositionError, DataError, PolicyError
from atoll.core.federation.federation import Federation
from atoll.engines.recording import RecordingEngine
from atoll.query.strategies import Smcql
from tests.support.silos import TableSource, connected, pooled, same_rows

PEOPLE = {"id": "BIGINT", "ward": "VARCHAR", "k": "INTEGER", "age": "BIGINT", "pay": "DECIMAL(12,2)", "x": "DOUBLE", "seen": "DATE"}  # fmt: skip
VISITS = {"id": "BIGINT", "cost": "BIGINT", "day": "DATE"}
POLICY: dict[str, Any] = {
    "policy": {"min_count": 1},
    "tables": {
        "p": {"columns": {**dict.fromkeys(PEOPLE, "protected"), "pay": {"level": "private", "release": "aggregate"}}},
        "v": {"columns": "protected"},
        "n": {"mode": "replicated", "columns": "public"},
    },
}
STATEMENTS = [
    "SELECT ward, count(*), sum(pay), avg(age), min(x) FROM p GROUP BY ward ORDER BY ward",
    "SELECT count(*), count(age), count(DISTINCT ward), min(age), max(x), min(seen), sum(age) FROM p WHERE k = 2",
    "SELECT ward, k, count(DISTINCT age) AS d, max(seen) FROM p WHERE age > 10 GROUP BY ward, k",
    "SELECT ward, count(*) AS n FROM p GROUP BY ward ORDER BY n DESC, ward NULLS FIRST LIMIT 2",
    "SELECT p.ward, v.cost FROM p JOIN v ON p.id = v.id",
    "SELECT p.ward, count(*), sum(v.cost), sum(p.pay), avg(v.cost) FROM p, v WHERE p.id = v.id AND p.age > 20 GROUP BY p.ward",
    "SELECT count(DISTINCT p.id) FROM p JOIN v ON p.id = v.id AND p.seen <= v.day WHERE v.cost > 2",
    "SELECT p.ward, max(v.day), count(*) FILTER (WHERE v.cost > 3) FROM p JOIN v ON p.id = v.id WHERE v.day - p.seen BETWEEN -10 AND 20 GROUP BY p.ward HAVING count(*) >= 1",
    "SELECT a.ward, count(*) FROM p a JOIN p b ON a.ward = b.ward AND a.id < b.id WHERE NOT (a.age > b.age OR a.k IS NULL) GROUP BY 1",
    "SELECT ward, sum(age) FROM p JOIN n ON n.k = p.k WHERE n.name = 'X' OR p.age < 30 GROUP BY ward",
    "SELECT DISTINCT ward FROM p WHERE x >= 0",
    "SELECT id, age, seen FROM p ORDER BY age DESC NULLS FIRST, id LIMIT 4",
    "SELECT coalesce(ward, '?') AS w, sum(CASE WHEN age > 30 THEN pay ELSE 0 END) / count(*) AS r FROM p GROUP BY 1",
]
QUICK = (1, 3, 11)
days = st.dates(datetime.date(2024, 1, 1), datetime.date(2024, 3, 1))
people = st.tuples(
    st.integers(0, 9), st.sampled_from(["A", "B", "Cä", "a long name of a ward", ""]) | st.none(), st.integers(1, 3) | st.none(), st.integers(-5, 90) | st.none(),
    st.decimals(-999, 999, places=2) | st.none(), st.sampled_from([0.0, -0.0, 1.5, -2.25, 1e300]), days | st.none(),
)  # fmt: skip
visits = st.tuples(st.integers(0, 9) | st.none(), st.integers(-9, 9), days)
sites = st.lists(st.tuples(st.lists(people, max_size=6), st.lists(visits, max_size=5)), min_size=2, max_size=4)


def sources(drawn: Any) -> dict[str, TableSource]:
    fixed = ({"k": "INTEGER", "name": "VARCHAR"}, [(1, "X"), (2, "Y"), (4, None)])
    return {f"s{k}": TableSource({"p": (PEOPLE, p), "v": (VISITS, v), "n": fixed}) for k, (p, v) in enumerate(drawn)}


def require_equal(drawn: Any, texts: list[str]) -> None:
    made = sources(drawn)
    with connected(made, POLICY) as db, pooled(made, replicated=("n",)) as oracle:
        for text in texts:
            found = db.sql(text, strategy="smcql")
            assert found.strategy == "smcql"
            expected = oracle.execute(text)
            assert found.columns == tuple(one[0] for one in expected.description), text
            same_rows(found.rows, expected.fetchall(), ordered="ORDER BY age" in text, what=text)


def person(number: int) -> tuple[Any, ...]:
    """A row of few values, with ties and gaps."""
    ward = [None, "A", "B", "Cä", "a long name of a ward"][number % 5]
    age = None if number % 7 == 0 else number * 13 % 40
    return number % 11, ward, None if number % 6 == 5 else number % 3 + 1, age, Decimal(number * 37 % 100) / 10, [0.0, 1.5, -2.25][number % 3], None if number % 8 == 3 else datetime.date(2024, 1, 1) + datetime.timedelta(number * 17 % 50)  # fmt: skip


def visit(number: int) -> tuple[Any, ...]:
    return number * 5 % 13, number % 7, datetime.date(2024, 1, 1) + datetime.timedelta(number * 29 % 50)


FIXED = [([person(k) for k in range(j, 24, 3)], [visit(k) for k in range(j, 15, 3)]) for j in range(3)]


@pytest.mark.parametrize("place", [k if k in QUICK else pytest.param(k, marks=pytest.mark.slow) for k in range(len(STATEMENTS))])  # fmt: skip
def test_a_statement_equals_duckdb_on_the_union(place: int) -> None:
    require_equal(FIXED, [STATEMENTS[place]])


@pytest.mark.slow
@settings(max_examples=25)
@given(sites, st.lists(st.sampled_from(STATEMENTS), min_size=2, max_size=3))
def test_drawn_tables_equal_duckdb_on_the_union(drawn: Any, texts: list[str]) -> None:
    require_equal(drawn, texts)


def test_two_sites_and_a_helper_and_a_silo_without_rows() -> None:
    require_equal([FIXED[0], ([], [])], [STATEMENTS[0]])
    with connected(sources(FIXED[:2]), POLICY) as db:
        with pytest.raises(CompositionError, match="2 sites, and shares need three parties"):
            Smcql("shares").require_parties(2, helper=False)
        assert db.sql("SELECT count(*) FROM p").strategy == "sums"


def test_frames_follow_from_sizes_alone() -> None:
    """Two federations whose tables are alike in size and in nothing else: shares and parts of the answer have the same lengths, and no cell shows.

    How many comparisons a sort makes is random, by the shuffle before it.
    """
    text = "SELECT ward, count(DISTINCT age) AS n FROM p GROUP BY ward ORDER BY n DESC LIMIT 1"
    seen = []
    for turn in range(2):
        rows = [[(k + 7919 * j, f"ward{'abc'[k % (3 - 2 * turn)]}", 1, 424242 + k % (1 + 4 * turn), Decimal(1), 0.5, datetime.date(2024, 1, 1)) for k in range(6)] for j in range(3)]  # fmt: skip
        engine = RecordingEngine()
        with connected(sources([(one, []) for one in rows]), POLICY) as db:
            db.engine = engine
            db.sql(text, strategy="smcql")
        between = {link: messages for link, messages in engine.heard.items() if "coordinator" not in link}
        sizes = {link: [len(one) for one in messages] for link, messages in engine.heard.items() if link[0] != "coordinator"}  # fmt: skip
        seen.append({link: found if "coordinator" in link else found[:3] for link, found in sizes.items()})
        heard = b"".join(one for messages in between.values() for one in messages)
        assert b"ward" not in heard.replace(b"p.ward", b"")
        assert np.uint64(424242 ^ (1 << 63)).tobytes() not in heard
    assert seen[0] == seen[1]
    assert len(seen[0]) == 9


@pytest.mark.parametrize(
    ("text", "error", "match"),
    [
        ("SELECT pay FROM p", PolicyError, "shows values of p.pay, which is private"),
        ("SELECT max(pay) FROM p", PolicyError, "shows values of p.pay"),
        ("SELECT ward, rank() OVER (ORDER BY pay) FROM p", PolicyError, "shows values of p.pay"),
        ("SELECT ward FROM p ORDER BY pay", PolicyError, "shows values of p.pay"),
        ("SELECT p.ward, CASE WHEN p.pay > v.cost THEN 1 END FROM p JOIN v ON p.id = v.id", PolicyError, "shows values of p.pay"),
        ("SELECT p.ward FROM p JOIN v ON p.id = v.id WHERE p.x * v.cost > 1", CompositionError, "is a double, and parties compute with whole numbers"),
        ("SELECT p.ward FROM p JOIN v ON p.id = v.id WHERE p.age / v.cost > 1", CompositionError, "divides by a value of a row"),
        ("SELECT p.ward FROM p ASOF JOIN v ON p.id >= v.id", CompositionError, "ASOF JOIN"),
        ("SELECT sum(x) FROM p", CompositionError, "adds doubles, and parties add whole numbers"),
        ("SELECT mode(age) FROM p", CompositionError, "under shares"),
        ("SELECT sum(p.age * 1000000000 * v.cost * 1000000000) FROM p JOIN v ON p.id = v.id", DataError, "might leave 64 bits"),
        ("SELECT sum(1000000000000000000 + age) FROM p", DataError, r"might leave 64 bits.*SUM\(CAST\(x / 1000 AS DECIMAL\(18,2\)\)\)"),
        ("SELECT max(9223372036854775807 + k) FROM p", AtollError, r"64 bits, so MAX\(x::DOUBLE \* 2\), or SUM\(\(x // 1000\) \* 2\)"),
    ],
)  # fmt: skip
def test_what_parties_cannot_or_may_not_compute_is_refused(text: str, error: type[AtollError], match: str) -> None:
    with connected(sources(FIXED), POLICY) as db, pytest.raises(error, match=match):
        db.sql(text, strategy="smcql")


def test_remedies_of_numbers_beyond_64_bits_answer_and_decimals_fill_their_digits() -> None:
    require_equal(FIXED, [
        "SELECT sum(CAST((1000000000000000000 + age) / 1000 AS DECIMAL(18,2))) FROM p", "SELECT max((9223372036854775807 + 0)::DOUBLE + k) FROM p",
        "SELECT sum(((9223372036854775807 + 0 * k) // 1000) * 2) FROM p", "SELECT sum(CAST(age * 1000000 AS DECIMAL(10,2)) * 9.9999), max(CAST(age * 1000000 AS DECIMAL(10,2)) * 9.9999) FROM p",
    ])  # fmt: skip


@pytest.mark.parametrize("text", [
    "SELECT count(*) FROM p WHERE EXISTS (SELECT 1 FROM v WHERE v.id = p.id OFFSET 1)",
    "SELECT count(*) FROM p WHERE EXISTS (SELECT 1 FROM v WHERE v.id = p.id LIMIT 0)",
    "SELECT count(*) FROM p WHERE EXISTS (SELECT 1 FROM v WHERE v.id = p.id QUALIFY row_number() OVER (ORDER BY v.cost) > 1)",
    "SELECT count(*) FROM p WHERE id IN (SELECT id FROM v ORDER BY cost OFFSET 1)",
    "SELECT count(*) FROM (SELECT id FROM v ORDER BY cost OFFSET 1)",
    "SELECT count(*) FROM (SELECT id FROM v UNION ALL SELECT id FROM p OFFSET 1)",
    "SELECT count(*) FROM (SELECT DISTINCT ON (id) id, cost FROM v)",
    "SELECT count(*) FROM p WHERE k < ANY (SELECT DISTINCT ON (id) cost FROM v ORDER BY id, cost)",
    "SELECT id, (SELECT count(*) FROM v WHERE v.id = p.id HAVING count(*) > 1) FROM p",
])  # fmt: skip
def test_what_cuts_the_rows_of_a_subquery_is_never_passed_over(text: str) -> None:
    with connected(sources([([], []), ([], [])]), POLICY) as db, pytest.raises(CompositionError, match=r"OFFSET|LIMIT|QUALIFY|HAVING|DISTINCT ON"):  # fmt: skip
        db.sql(f"EXPLAIN {text}", strategy="smcql")


@pytest.mark.parametrize("text", [
    "SELECT DISTINCT ward FROM p GROUP BY ward, k ORDER BY ward LIMIT 2",
    "SELECT DISTINCT ON (ward) ward, k FROM p ORDER BY ward, k FETCH FIRST 2 ROWS ONLY",
])  # fmt: skip
def test_a_limit_counts_the_rows_that_distinct_leaves(text: str) -> None:
    made = sources([([(1, "A", k, 1, None, 0.0, None) for k in (1, 2)], []), ([(1, w, 3, 1, None, 0.0, None) for w in "AB"], [])])  # fmt: skip
    with connected(made, POLICY) as db, pooled(made) as oracle:
        expected = oracle.execute(text.replace("FETCH FIRST 2 ROWS ONLY", "LIMIT 2")).fetchall()
        same_rows(db.sql(text, strategy="smcql").rows, expected, ordered=True, what=text)


def test_limits_that_keep_nothing_and_tables_of_which_no_column_is_read() -> None:
    require_equal([([person(1)], [visit(0)]), ([person(2)], []), ([], [visit(1)])], [
        "SELECT count(*) FROM p, v", "SELECT id FROM p WHERE id IN (SELECT id FROM v ORDER BY cost LIMIT 0)",
        "SELECT count(*) FROM (SELECT id, row_number() OVER (ORDER BY id) FROM v ORDER BY id LIMIT 2 OFFSET 50) z",
    ])  # fmt: skip


def test_a_scale_lets_doubles_add_up() -> None:
    scaled = {**POLICY, "tables": {**POLICY["tables"], "p": {"columns": {"x": {"level": "protected", "scale": 0.01}}}}}
    with connected(sources(FIXED), scaled) as db:
        assert db.sql("SELECT sum(x), avg(x) FROM p", strategy="smcql").rows == [(pytest.approx(-6.0), pytest.approx(-0.25))]  # fmt: skip


def test_rows_that_change_between_measuring_and_sharing_give_a_named_error(monkeypatch: pytest.MonkeyPatch) -> None:
    made = sources(FIXED)
    with connected(made, POLICY) as db:
        plain = Federation.session

        async def session(fed: Any, roles: Any) -> Any:
            source = made["s1"]
            source.tables["p"] = (PEOPLE, [person(k) for k in range(40)])
            db.silos["s1"].kept = None  # as another statement in between leaves it
            return await plain(fed, roles)

        monkeypatch.setattr(Federation, "session", session)
        with pytest.raises(DataError, match="its rows have changed since"):
            db.sql("SELECT id FROM p", strategy="smcql")


# ---------------------------------------------------------------- the queries of SMCQL (Bater et al. 2017, section 6.2), on generated data

DIAGNOSES = {"patient": "BIGINT", "diagnosis": "VARCHAR", "day": "DATE"}
MEDICATIONS = {"patient": "BIGINT", "medication": "VARCHAR", "day": "DATE"}
HOSPITALS = {
    "policy": {"min_count": 1},
    "tables": {"diagnoses": {"columns": "protected"}, "medications": {"columns": "protected"}},
}
SMCQL = {
    "comorbidity": "SELECT diagnosis, count(*) AS n FROM diagnoses WHERE patient IN (SELECT patient FROM diagnoses WHERE diagnosis = 'c. diff') AND diagnosis <> 'c. diff' GROUP BY diagnosis ORDER BY n DESC, diagnosis LIMIT 3",
    "aspirin count": "SELECT count(DISTINCT d.patient) FROM diagnoses d JOIN medications m ON d.patient = m.patient WHERE d.diagnosis = 'heart disease' AND lower(m.medication) LIKE '%aspirin%' AND d.day <= m.day",
    "recurrent c. diff": "WITH rcd AS (SELECT patient, day, row_number() OVER (PARTITION BY patient ORDER BY day) AS r FROM diagnoses WHERE diagnosis = 'c. diff') SELECT DISTINCT a.patient FROM rcd a JOIN rcd b ON a.patient = b.patient AND b.r = a.r + 1 WHERE b.day - a.day >= 15 AND b.day - a.day <= 56",
}


def hospitals() -> dict[str, TableSource]:
    """Patients of 12, each of whom may be treated at all three sites; no two diagnoses of one patient are of one day."""
    rng, found, start = np.random.default_rng(3), {}, datetime.date(2024, 1, 1)
    for site in range(3):
        diagnoses = [
            (
                int(rng.integers(12)),
                ["c. diff", "c. diff", "heart disease", "gout", "flu"][int(rng.integers(5))],
                start + datetime.timedelta(3 * k + site),
            )
            for k in range(15)
        ]
        medications = [
            (
                int(rng.integers(12)),
                ["Aspirin 100", "baby aspirin", "statin"][int(rng.integers(3))],
                start + datetime.timedelta(int(rng.integers(60))),
            )
            for _ in range(7)
        ]
        found[f"s{site}"] = TableSource(
            {"diagnoses": (DIAGNOSES, diagnoses), "medications": (MEDICATIONS, medications)}
        )
    return found


@pytest.mark.parametrize("name", [k if k == "comorbidity" else pytest.param(k, marks=pytest.mark.slow) for k in SMCQL])
def test_the_queries_of_the_paper_are_answered_and_equal(name: str) -> None:
    with connected(hospitals(), HOSPITALS) as db:
        found = db.try_strategies(SMCQL[name], check=True)
    assert found["smcql"]["answered"]
    assert all(found[one]["equal"] for one in ("smcql", "conclave", "senate")), name
    assert "is computed by two" in found["smcql:mode=garbled"]["refused"]
    assert found["sums"]["refused"]
