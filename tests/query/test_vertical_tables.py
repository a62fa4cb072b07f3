"""A table whose columns lie apart answers as one: the answer is DuckDB's on the parts joined by the key, whatever order, gaps and sites without rows there are, and each part keeps its own site's policy."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import CompositionError, ConfigError, DataError, PolicyError
from atoll.query import QueryPolicy, Silo, SqlConnection
from atoll.query.local import message_of, names_of, plan_of
from atoll.query.secure.plan import make_secure_plan
from atoll.query.statement import parse_statement
from atoll.query.strategies.strategy import strategy_of
from tests.support.silos import TableSource, fill_table, same_rows

PARTS = ({"id": "BIGINT", "age": "BIGINT"}, {"pay": "BIGINT", "id": "BIGINT"}, {"id": "BIGINT", "ward": "VARCHAR"})
VISITS = {"who": "BIGINT", "cost": "BIGINT"}
EVENT = {"columns": {"who": {"level": "protected", "at_most": 9}, "cost": "protected"}}


def declare(least: int = 1, **table: Any) -> dict[str, Any]:
    """One policy for all sites: each has some of these columns."""
    whole = {"mode": "vertical", "key": "id", "columns": dict.fromkeys(("id", "age", "pay", "ward"), "protected"), **table}  # fmt: skip
    return {"policy": {"min_count": least, "unrecorded": "joins"}, "tables": {"patients": whole, "visits": EVENT}}


def opened(sources: Any, policy: Any) -> SqlConnection:
    policies = policy if isinstance(policy, list) else [policy] * len(sources)
    return SqlConnection({f"s{k}": Silo(one, QueryPolicy.of(own), f"s{k}") for k, (one, own) in enumerate(zip(sources, policies, strict=True))})  # fmt: skip


def parts_of(rows: Any, visits: Any = ((), (), ())) -> list[TableSource]:
    return [TableSource({"patients": (types, list(own)), "visits": (VISITS, list(more))}) for types, own, more in zip(PARTS, rows, visits, strict=True)]  # fmt: skip


def expected(sources: list[TableSource], text: str) -> list[Any]:
    """DuckDB's answer on the parts joined by the key."""
    import duckdb

    with duckdb.connect() as made:
        for k, one in enumerate(sources):
            fill_table(made, f"part{k}", one.tables["patients"])
            fill_table(made, "visits", one.tables["visits"])
        made.execute("CREATE VIEW patients AS SELECT part0.id, age, pay, ward FROM part0 JOIN part1 ON part0.id = part1.id JOIN part2 ON part0.id = part2.id")  # fmt: skip
        return list(made.execute(text).fetchall())


ROWS = [
    [(5, 30), (1, 41), (2, 62), (None, 9), (7, 20)],
    [(10, 1), (20, 2), (30, None), (31, None), (None, 7), (80, 8)],
    [(7, "B"), (2, "A"), (1, "A"), (None, "A"), (5, "B")],
]
SOME = [[(1, 4), (7, 1)], [(7, 3), (8, 9)], [(None, 5)]]
TEXTS = [
    "SELECT ward, count(*) AS n, sum(pay), max(age) FROM patients WHERE age > 3 OR age IS NULL GROUP BY ward", "SELECT count(*) FROM patients",
    "SELECT p.ward, sum(v.cost) FROM patients AS p LEFT JOIN visits v ON v.who = p.id GROUP BY p.ward", "SELECT a.id, b.* FROM patients a JOIN patients b ON a.id = b.id",
]  # fmt: skip


numbers = st.integers(-9, 99) | st.none()
keys = st.lists(st.integers(0, 6), unique=True, max_size=5)
gaps = st.integers(0, 2)


@st.composite
def drawn_parts(draw: Any) -> list[TableSource]:
    """Each part has keys of its own, in its own order, some missing, or no row at all."""
    values = (numbers, numbers, st.sampled_from(["A", "B"]) | st.none())
    rows = []
    for k, value in enumerate(values):
        own = [*draw(keys), *[None] * draw(gaps)]
        rows.append([(draw(value), key) if k == 1 else (key, draw(value)) for key in draw(st.permutations(own))])
    return parts_of(rows, SOME)


@settings(max_examples=4)
@given(drawn_parts(), st.sampled_from(TEXTS))
def test_parts_answer_as_their_join(made: list[TableSource], text: str) -> None:
    with opened(made, declare()) as db:
        same_rows(db.sql(text, strategy="smcql").rows, expected(made, text), what=text)


@pytest.mark.parametrize("strategy", ["conclave", "senate", "opaque", "opaque:mode=encryption"])
def test_strategies_that_join_answer_as_one_table(strategy: str) -> None:
    made = parts_of(ROWS, SOME)
    policy = declare()
    policy["policy"]["enclave"] = {"simulated": True}
    with opened(made, policy) as db:
        found = db.sql(TEXTS[0], strategy=strategy)
        same_rows(found.rows, expected(made, TEXTS[0]))
        assert db.check(found)


def test_two_sites_garble_the_join_and_a_third_may_hold_more_rows_of_a_part() -> None:
    made = parts_of(ROWS)[:2]
    text = "SELECT count(*), sum(pay), min(age) FROM patients"
    with opened(made, declare()) as db:
        found = db.sql(text, strategy="smcql:mode=garbled")
        assert found.rows == [(3, 30, 20)]
        assert db.check(found)
    more = TableSource({"patients": (PARTS[0], [(8, 50)]), "visits": (VISITS, [])})
    with opened([*made, more], declare()) as db:
        assert db.sql(text, strategy="smcql").rows == [(4, 110, 20)]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_key_that_repeats_at_a_site_is_refused_whatever_the_plan_rests_on(place: int) -> None:
    rows = [list(one) for one in ROWS]
    rows[place].append(rows[place][0])
    with opened(parts_of(rows), declare()) as db:
        with pytest.raises(DataError, match=r"a value of patients \(\w+\).id is in more than 1 row") as caught:
            db.sql("SELECT count(*), sum(pay) FROM patients", strategy="smcql")
        assert "correct key" in caught.value.remedy


def test_no_part_is_left_out_unless_the_statement_names_it() -> None:
    """Key 8 has no age, and two rows of pay no key: the table lacks them, and the part has them."""
    made = parts_of(ROWS)
    with opened(made, declare()) as db:
        assert db.sql("SELECT sum(pay) FROM patients", strategy="smcql").rows == [(30,)]
        alone = db.sql('SELECT sum(pay) FROM "patients (pay)"')
        assert (alone.strategy, alone.rows) == ("sums", [(171,)])


def test_the_plan_shows_the_join_and_the_catalog_one_table() -> None:
    made = parts_of(ROWS)
    with opened(made, declare()) as db:
        found = db.sql("EXPLAIN SELECT sum(pay) FROM patients")
        said = " ".join(step["what"] for step in found.plan)
        assert "patients stands for SELECT" in said
        assert "join patients (ward) on" in said
        assert any("how many rows of patients (age) and of patients (pay)" in one["sees"] for one in found.leakage)
        assert "use the strategy smcql" in found.rejected["sums"]
        assert ("patients", 4, "vertical", "rows", 1) in db.sql("SHOW TABLES").rows
        assert [row[0] for row in db.sql("DESCRIBE patients").rows] == ["id", "age", "pay", "ward"]
        with pytest.raises(ConfigError, match=r"no column wrd in patients\. Did you mean ward"):
            db.sql("SELECT wrd FROM patients")
        with pytest.raises(ConfigError, match="WITH patients has the name of a table"):
            db.sql("WITH patients AS (SELECT id FROM patients) SELECT count(*) FROM patients")
        with pytest.raises(CompositionError, match="no silo has a whole row of patients"):
            db.islands("SELECT age, pay FROM patients", target="pay")


def test_each_part_keeps_the_policy_of_its_own_site_and_min_count() -> None:
    made = parts_of(ROWS)
    own = [declare(columns={"id": "private", "age": "protected"}), declare(columns={"id": "protected", "pay": {"level": "private", "release": "never"}}), declare(3)]  # fmt: skip
    with opened(made, own) as db:
        with pytest.raises(PolicyError, match="pay"):
            db.sql("SELECT sum(pay) FROM patients")
        with pytest.raises(PolicyError, match=r"patients \(age\).id, which is private"):
            db.sql("SELECT id, count(*) FROM patients GROUP BY id")
        found = db.sql("SELECT ward, sum(age) FROM patients GROUP BY ward")
        assert found.rows == []  # of wards A and B, each has fewer than 3 patients


def test_a_site_reads_by_its_own_policy_whatever_a_coordinator_claims() -> None:
    made = parts_of(ROWS)
    site = Silo(made[0], QueryPolicy.of({"tables": {"patients": {"mode": "vertical", "key": "id", "columns": {"id": "private"}}}}), "s0")  # fmt: skip
    lax = Silo(made[0], QueryPolicy.of(declare()), "s0")
    other = Silo(TableSource({"patients (age)": made[0].tables["patients"]}), QueryPolicy.of({"policy": {"min_count": 1}}), "s1")  # fmt: skip
    with opened(made, declare()) as db:
        catalog, policy = db.catalog(), db.policy()
        statement = parse_statement("SELECT age FROM patients", catalog)
        message = message_of(statement, catalog, policy, "s0", strategy_of("smcql")())
        assert plan_of(lax, message, make_secure_plan, "smcql").statement.columns == ("age",)
        with pytest.raises(PolicyError, match=r"patients \(age\)"):
            plan_of(site, message, make_secure_plan, "smcql")
        plan = plan_of(other, message, make_secure_plan, "smcql")
        assert set(names_of(other, plan).values()) == {""}  # no part by its own policy, so none of its rows
    for one in (site, lax, other):
        one.close()


@pytest.mark.parametrize(
    ("table", "match"),
    [
        ({"mode": "vertical"}, "vertical without key"), ({"key": "id"}, "horizontal with key: id"),
        ({"mode": "vertical", "key": "id", "columns": {"id": {"join": "local"}}}, "join: local of the key"),
        ({"mode": "vertical", "key": "id", "columns": {"id": {"at_most": 7}}}, "at_most: 7 of the key"),
        ({"mode": "vertical", "key": "id", "points": {"home": {"x": "lon", "y": "lat"}}}, "points of a vertical table: home"),
    ],
)  # fmt: skip
def test_a_policy_without_a_true_key_is_refused(table: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        QueryPolicy.of({"tables": {"patients": table}})


def test_tables_that_do_not_fit_together_are_refused_before_a_row_is_read() -> None:
    made = parts_of(ROWS)
    text = "SELECT count(*) FROM patients"
    for types, rows, match in (
        ({"id": "BIGINT", "ward": "VARCHAR", "age": "BIGINT"}, [], "column age of patients is in"),
        ({"id": "VARCHAR", "ward": "VARCHAR"}, [], r"key id of patients is BIGINT in patients \(age\) and VARCHAR"),
        ({"number": "BIGINT", "ward": "VARCHAR"}, [], "no column 'id'"),
        ({"id": "BIGINT", "wards": "VARCHAR"}, [], "no column 'ward'. Did you mean 'wards'"),
    ):
        odd = TableSource({"patients": (types, rows), "visits": (VISITS, [])})
        with opened([*made[:2], odd], declare()) as db, pytest.raises(ConfigError, match=match):
            db.sql(text)
    plain = {"tables": {"patients": {"columns": "protected"}, "visits": EVENT}}
    with opened(made, [declare(), declare(), plain]) as db, pytest.raises(ConfigError, match="mode vertical at one site, and of another"):  # fmt: skip
        db.sql(text)
