"""Nothing of fewer than ``min_count`` units shows: not in a group, not by a difference, and not through a column that the policy keeps."""

from __future__ import annotations

import threading
from decimal import Context, Decimal
from typing import Any

import pytest

from atoll.core.errors import AtollError, CompositionError, ConfigError, PolicyError
from atoll.query import Query, QueryPolicy, Silo, SqlConnection
from atoll.simulation import simulate
from atoll.statistics.answered import AnswerRecord
from tests.support.silos import TableSource, connected

AGGREGATED = {"level": "private", "release": "aggregate"}


def policy_of(least: int, **columns: Any) -> dict[str, Any]:
    return {"policy": {"min_count": least}, "tables": {"p": {"columns": columns}}}


def site(rows: list[tuple[Any, ...]], **types: str) -> TableSource:
    return TableSource({"p": (types, rows)})


def test_small_groups_are_withheld_and_counted() -> None:
    """The issue's golden: ages 20 19 32 30 30 25 25 25 25, min_count 4."""
    made = {
        "north": site([(20,), (19,), (32,), (25,), (25,)], age="INTEGER"),
        "south": site([(30,), (30,), (25,), (25,)], age="INTEGER"),
    }
    with connected(made, policy_of(4, age="public")) as db:
        found = db.sql("SELECT age, count(*) FROM p GROUP BY age")
        assert (found.rows, found.withheld_groups) == ([(25, 4)], 4)
        again = db.sql("SELECT age, count(*) FROM p GROUP BY age")
        assert (again.rows, again.withheld_groups) == (found.rows, 4)


def people(count: int, first: int = 0) -> list[tuple[Any, ...]]:
    return [(first + k, "AB"[k % 2], 20 + k, 100.0 + k) for k in range(count)]


PEOPLE = {"id": "INTEGER", "ward": "VARCHAR", "age": "INTEGER", "pay": "DOUBLE"}
ALLOWED = {"id": "protected", "ward": "public", "age": AGGREGATED, "pay": AGGREGATED}


@pytest.fixture
def hospitals() -> Any:
    made = {"north": site(people(20), **PEOPLE), "south": site(people(20, 100), **PEOPLE)}
    with connected(made, policy_of(5, **ALLOWED)) as db:
        yield db


def test_of_two_statements_at_once_one_answers(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has read the record before the other one wrote: without a second look, both sums would leave, and their difference is one person's pay."""
    made = {"north": site(people(20), **PEOPLE), "south": site(people(20, 100), **PEOPLE)}
    first, second = (SqlConnection({name: Silo(one, QueryPolicy.of(policy_of(5, **ALLOWED)), name) for name, one in made.items()}, folder=tmp_path) for _ in range(2))  # fmt: skip
    keep, late = AnswerRecord.keep, [lambda: second.sql("SELECT sum(pay) FROM p WHERE id <> 3").rows]
    answers: list[Any] = []

    def keep_late(self: AnswerRecord, island: Any) -> None:
        if late:
            run = late.pop()
            thread = threading.Thread(target=lambda: answers.append(run()))
            thread.start()
            thread.join()
        keep(self, island)

    monkeypatch.setattr(AnswerRecord, "keep", keep_late)
    with first, second:
        for _ in range(2):
            with pytest.raises(AtollError, match="fewer than min_count=5 rows"):
                first.sql("SELECT sum(pay) FROM p")
        assert len(answers) == 1


@pytest.mark.parametrize(
    "later",
    [
        "SELECT sum(pay) FROM p WHERE age <> 25",
        "SELECT ward, sum(pay) FROM p WHERE id <> 3 GROUP BY ward",
        "SELECT sum(pay) FROM (SELECT pay, id FROM p WHERE id <> 3) q",
    ],
)
def test_an_answer_that_differs_from_an_earlier_one_by_few_rows_is_refused(hospitals: Any, later: str) -> None:
    whole = hospitals.sql("SELECT sum(pay) FROM p")
    with pytest.raises(AtollError, match="fewer than min_count=5 rows"):
        hospitals.sql(later)
    assert hospitals.sql("SELECT sum(pay) FROM p").rows == whole.rows
    assert hospitals.sql("SELECT count(*) FROM p WHERE age >= 30").rows == [(20,)]


def test_totals_less_groups_are_refused() -> None:
    """The released groups leave 2 rows of north over, which a total would show."""
    rows = [(k, "A", 30, 1.0) for k in range(6)] + [(7, "B", 30, 5.0), (8, "B", 30, 6.0)]
    made = {"north": site(rows, **PEOPLE), "south": site(people(10, 50), **PEOPLE)}
    with connected(made, policy_of(9, **ALLOWED)) as db:
        assert db.sql("SELECT ward, sum(pay) FROM p GROUP BY ward").withheld_groups == 1
        with pytest.raises(AtollError, match="fewer than min_count=9 rows"):
            db.sql("SELECT sum(pay) FROM p")


@pytest.mark.parametrize(
    "shown",
    [
        "sum(pay) FILTER (WHERE id <> 3)",
        "sum(pay) FILTER (WHERE id = 3)",
        "sum(CASE WHEN id = 3 THEN pay ELSE 0 END)",
        "sum(CASE WHEN id <> 3 THEN pay END)",
        "sum(pay + 0 * nullif(id, 3))",
        "count(nullif(id, 3))",
        "count(*) FILTER (WHERE id = 3)",
        "sum(pay * CAST(id = 3 AS INTEGER))",
        "sum(coalesce(nullif(id, 3) * 0, pay))",
    ],
)
def test_a_condition_inside_an_aggregate_hides_few_rows_too(hospitals: Any, shown: str) -> None:
    found = hospitals.sql(f"SELECT count(*), {shown} FROM p")
    assert (found.rows, found.withheld_values) == ([(40, None)], 1)


def test_two_conditions_that_differ_by_few_rows_are_not_both_answered(hospitals: Any) -> None:
    found = hospitals.sql("SELECT count(*) FILTER (WHERE age > 29), count(*) FILTER (WHERE age > 30) FROM p")
    assert found.rows == [(20, None)]


@pytest.mark.parametrize("shown", ["sum(pay / (id - 3.5))", "sum(abs(pay))", "avg(pay * pay * age * age * age)", "sum(greatest(pay, 0))"])  # fmt: skip
def test_expressions_that_could_single_out_a_row_are_refused(hospitals: Any, shown: str) -> None:
    with pytest.raises(CompositionError, match="single out"):
        hospitals.sql(f"SELECT {shown} FROM p")


def test_groups_come_from_public_columns_before_any_condition(hospitals: Any) -> None:
    """Which wards have a row of high pay is not for the coordinator: sites name all wards."""
    from atoll.query.local import LocalCells

    asked: list[Any] = []
    plain = LocalCells._keys_text

    def watched(cells: LocalCells) -> str:
        asked.append(cells.plan.key_body)
        return plain(cells)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalCells, "_keys_text", watched)
        found = hospitals.sql("SELECT ward, count(*) FROM p WHERE pay > 110 AND ward = 'A' GROUP BY ward")
    assert found.rows == [("A", 8)]
    assert set(asked) == {'FROM "@p" AS "p" WHERE (TRY("p"."ward" = \'A\'))'}


def test_units_count_and_not_their_rows() -> None:
    """Three patients with ten visits each are three."""
    rows = [(k, 1.0) for k in range(3) for _ in range(10)]
    made = {"north": site(rows, id="INTEGER", cost="DOUBLE"), "south": site([], id="INTEGER", cost="DOUBLE")}
    policy = policy_of(5, id="protected", cost=AGGREGATED)
    with connected(made, policy) as db:
        assert db.sql("SELECT avg(cost) FROM p").rows == [(1.0,)]
    policy["tables"]["p"]["unit"] = "id"
    with connected(made, policy) as db:
        found = db.sql("SELECT avg(cost) FROM p")
        assert (found.rows, found.withheld_groups) == ([], 1)


def test_a_join_counts_each_row_once() -> None:
    """Two patients joined to ten rows of a table that every site has are two."""
    codes = ({"k": "INTEGER", "name": "VARCHAR"}, [(1, "x")] * 10)
    types = {"k": "INTEGER", "pay": "DOUBLE"}
    made = {name: TableSource({"p": (types, [(1, 2.0)]), "n": codes}) for name in ("north", "south")}
    policy = policy_of(5, k="public", pay=AGGREGATED)
    policy["tables"]["n"] = {"mode": "replicated", "columns": "public"}
    with connected(made, policy) as db:
        found = db.sql("SELECT name, avg(pay) FROM p JOIN n USING (k) GROUP BY name")
        assert (found.rows, found.withheld_groups) == ([], 1)


def test_without_a_policy_only_counts_of_ten_answer() -> None:
    made = {"north": site(people(8), **PEOPLE), "south": site(people(8, 100), **PEOPLE)}
    with connected(made, None) as db:
        assert db.sql("SELECT count(*) FROM p WHERE age >= 20").rows == [(16,)]
        few = db.sql("SELECT count(*) FROM p WHERE age = 20")
        assert (few.rows, few.withheld_groups) == ([], 1)
        for text in ("SELECT sum(pay) FROM p", "SELECT ward, count(*) FROM p GROUP BY ward", "SELECT max(age) FROM p"):
            with pytest.raises(PolicyError, match=r"private|value of one row"):
                db.sql(text)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("SELECT count(*) FROM p WHERE age > 3", "p.age is never released"),
        ("SELECT sum(pay) FROM p", "p.pay is private and only counts rows"),
        ("SELECT sum(x) FROM (SELECT pay * 2 AS x FROM p LIMIT 5) q", "LIMIT in a subquery"),
        ("SELECT max(id) FROM p", "value of one row"),
        ("SELECT id, count(*) FROM p GROUP BY id", "groups by p.id, which is protected"),
        ("SELECT id FROM p", "it asks for rows"),
        ("SELECT median(id) FROM p", "is no sum over sites"),
        ("SELECT count(*) FROM p AS a JOIN p AS b USING (id)", "may need rows of two sites"),
        ("SELECT count(*) FROM p WHERE id > (SELECT avg(id) FROM p)", "groups rows of several sites"),
        ("SELECT count(*) FROM p WHERE id IN (SELECT id FROM p WHERE id < 9)", "sees rows of all sites"),
        ("SELECT rank() OVER (ORDER BY count(*)) FROM p GROUP BY ward", "window"),
    ],
)
def test_what_the_policy_keeps_is_refused_before_a_row_is_read(text: str, match: str) -> None:
    made = {name: site(people(9, k), **PEOPLE) for k, name in enumerate(("north", "south"))}
    columns = {"id": "protected", "ward": "public", "age": {"level": "private", "release": "never"}}
    with connected(made, policy_of(1, **columns)) as db, pytest.raises(AtollError, match=match):
        db.sql(text, strategy="sums")


@pytest.mark.parametrize("strategy", ["sums", "smcql"])
@pytest.mark.parametrize(("text", "match"), [
    ("SELECT sum(p.pay) FROM p JOIN n ON n.k = 1 OR p.id = 3", "reads several tables"),
    ("SELECT count(*) FROM p, n WHERE n.k = 1 OR (p.id = 3 AND p.age > 20)", "reads several tables"),
    ("SELECT sum(p.pay) FROM p JOIN n ON n.k <= p.age", "reads several tables"),
    ("SELECT count(*) FROM p a JOIN p b ON a.id = b.id OR (b.id = 3 AND b.age > 20)", "reads several tables"),
    ("SELECT count(*) FROM p LEFT JOIN n ON p.id = 3 AND p.age > 20", "decides which rows of a LEFT JOIN meet others"),
    ("SELECT count(*) FROM n RIGHT JOIN p ON n.k = 1 AND p.id = 3", "decides which rows of a RIGHT JOIN meet others"),
    ("SELECT sum(p.pay) FROM p JOIN (VALUES (20), (21), (21)) x(i) ON x.i = p.age", "the rows of x are written in the statement"),
    ("SELECT sum(p.pay * n.k) FROM p JOIN n ON n.k = p.age", "adds values of n"),
    ("SELECT sum(pay) FROM (SELECT id, pay FROM p UNION ALL SELECT id, pay FROM p WHERE id = 3)", "UNION reads rows of p on both sides"),
    ("SELECT count(*) FROM (SELECT id FROM p EXCEPT SELECT id FROM p WHERE id = 3 AND age > 20)", "EXCEPT reads rows of p on both sides"),
    ("WITH q AS (SELECT id FROM p) SELECT count(*) FROM (SELECT id FROM q EXCEPT SELECT id FROM q WHERE id = 3)", "EXCEPT reads rows of p on both sides"),
    ("WITH q AS (SELECT id FROM p) SELECT count(*) FROM (SELECT id FROM p UNION ALL (SELECT id FROM q WHERE id = 3))", "UNION reads rows of p on both sides"),
])  # fmt: skip
def test_no_row_counts_more_often_than_others(text: str, match: str, strategy: str) -> None:
    """The units behind these are those of a total, and the number is the total with one row many times: less the total, it is that row's."""
    made = {name: TableSource({"p": (PEOPLE, []), "n": ({"k": "INTEGER"}, [])}) for name in ("north", "south")}
    policy = policy_of(5, **ALLOWED)
    policy["tables"]["n"] = {"mode": "replicated", "columns": "public"}
    with connected(made, policy) as db, pytest.raises(CompositionError, match=rf"{match}.* more often than others"):
        db.sql(f"EXPLAIN {text}", strategy=strategy)


@pytest.mark.parametrize(("condition", "strategies"), [
    ("EXISTS (SELECT 1 FROM q WHERE q.ward = p.ward AND q.id = 3)", ("sums", "smcql")), ("p.ward IN (SELECT ward FROM q WHERE q.id = 3)", ("sums", "smcql")),
    ("p.ward NOT IN (SELECT ward FROM q WHERE q.id = 3)", ("sums", "smcql")), ("(SELECT max(pay) FROM q WHERE q.ward = p.ward) > 100", ("sums", "smcql")),
    ("EXISTS (SELECT 1 FROM q JOIN r ON q.ward = r.ward WHERE q.id = p.id AND r.id = 3)", ("sums", "smcql")), ("EXISTS (SELECT 1 FROM q WHERE q.id = 3)", ("smcql",)), ("p.id IN (SELECT a.id FROM q AS a JOIN q AS b ON a.ward = b.ward WHERE b.id = 3)", ("smcql",)),
    ("90 < (SELECT max(pay) FROM q)", ("smcql",)), ("90 < (SELECT sum(CASE WHEN id = 3 THEN pay END) FROM q)", ("smcql",)), ("EXISTS (SELECT 1 FROM p AS p2 WHERE p.ward = p2.ward AND p2.id = 3)", ("smcql",)),
    ("90 < (SELECT sum(x) FROM (SELECT CASE WHEN id = 3 THEN pay END AS x FROM q) AS t)", ("smcql",)), ("90 < (SELECT avg(pay) FILTER (WHERE id = 3) FROM q)", ("smcql",)),
])  # fmt: skip
def test_no_row_of_a_subquery_decides_about_many(condition: str, strategies: tuple[str, ...]) -> None:
    """The count of the others is the same whoever they are, and says something of the row."""
    table = {"level": "protected", "join": "local"}
    columns = {**ALLOWED, "ward": table, "id": {**table, "key": True}}
    policy = {"policy": {"min_count": 5}, "tables": {name: {"columns": columns} for name in "pqr"}}
    made = {name: TableSource(dict.fromkeys("pqr", (PEOPLE, []))) for name in ("north", "south")}
    with connected(made, policy) as db:
        for strategy in strategies:
            with pytest.raises(CompositionError, match=r"one row of \w+ could decide about many rows.*min_count is 5"):
                db.sql(f"EXPLAIN SELECT count(*) FROM p WHERE {condition}", strategy=strategy)
            with pytest.raises(CompositionError, match="could decide about many rows"):
                db.sql(f"EXPLAIN SELECT count(*) FROM p WHERE id < 9 OR {condition}", strategy="smcql")


def test_rows_of_a_subquery_that_each_decide_about_few_are_conditions() -> None:
    """A key relates them, or the unit of the table; a value over all rows is one of enough units. Patients may be ranked among their own visits."""
    visit = {"level": "protected", "join": "local", "at_most": 9}
    columns = {
        "p": {**ALLOWED, "id": {"level": "protected", "join": "local", "key": True}},
        "v": {"who": visit, "pay": AGGREGATED, "age": AGGREGATED},
    }
    policy = {
        "policy": {"min_count": 5, "unrecorded": "anything"},
        "tables": {name: {"columns": one, "unit": "who" if name == "v" else ""} for name, one in columns.items()},
    }
    made = {
        name: TableSource({"p": (PEOPLE, []), "v": ({"who": "INTEGER", "pay": "DOUBLE", "age": "INTEGER"}, [])})
        for name in ("north", "south")
    }
    texts = {
        "SELECT count(*) FROM p WHERE EXISTS (SELECT 1 FROM v WHERE v.who = p.id AND v.pay > 90)": "sums",
        "SELECT count(*) FROM v WHERE v.who NOT IN (SELECT id FROM p WHERE age < 50)": "sums",
        "SELECT count(*) FROM p WHERE age < (SELECT avg(age) FROM v)": "smcql",
        "SELECT count(*) FROM (SELECT who, pay, row_number() OVER (PARTITION BY who ORDER BY age) AS n FROM v) t WHERE n = 1": "smcql",
    }
    with connected(made, policy) as db:
        for text, strategy in texts.items():
            assert db.sql(f"EXPLAIN {text}", strategy=strategy).plan
        with pytest.raises(CompositionError, match="one row of v could decide"):
            db.sql("EXPLAIN SELECT count(*) FROM p SEMI JOIN v ON v.age = p.age", strategy="smcql")


@pytest.mark.parametrize("text", [
    "SELECT sum(pay) FROM (SELECT pay FROM p ORDER BY id LIMIT 10) t", "SELECT sum(pay) FROM (SELECT pay, row_number() OVER (ORDER BY id) AS n FROM p) t WHERE n <= 10",
    "SELECT count(*) FROM (SELECT id, max(pay) OVER (PARTITION BY ward) AS m FROM p) t WHERE m > 100",
])  # fmt: skip
def test_no_subquery_chooses_rows_by_their_places_among_others(text: str) -> None:
    """The first 11 less the first 10 are one, of which no site knows who it is."""
    made = {name: TableSource({"p": (PEOPLE, [])}) for name in ("north", "south")}
    with connected(made, policy_of(5, **ALLOWED)) as db, pytest.raises(CompositionError, match="could differ by one row, and min_count is 5"):  # fmt: skip
        db.sql(f"EXPLAIN {text}", strategy="smcql")


@pytest.mark.parametrize("strategy", ["sums", "smcql"])
@pytest.mark.parametrize(("first", "later"), [
    ("SELECT sum(pay) FROM v WHERE visit = 1", "SELECT sum(pay) FROM v WHERE visit = 1 OR (patient = 3 AND visit = 2)"),
    ("SELECT count(*) FROM v WHERE visit < 3", "SELECT count(*) FROM v WHERE visit < 3 OR (patient = 3 AND pay > 100)"),
    ("SELECT count(*) FROM v a JOIN v b ON a.patient = b.patient AND b.visit = 1", "SELECT count(*) FROM v a JOIN v b ON a.patient = b.patient AND (b.visit = 1 OR b.patient = 3)"),
    ("SELECT ward, sum(pay) FROM v GROUP BY ward", "SELECT ward, sum(pay) FROM v WHERE NOT (patient = 3 AND visit = 2) GROUP BY ward"),
])  # fmt: skip
def test_other_rows_of_one_unit_are_another_answer(first: str, later: str, strategy: str) -> None:
    """The units behind both are the same; the difference is a row of one of them."""
    types = {"patient": "INTEGER", "visit": "INTEGER", "ward": "VARCHAR", "pay": "INTEGER"}
    made = {f"s{k}": TableSource({"v": (types, [(50 * k + p, i, "AB"[i % 2], 100 * p + i) for p in range(8) for i in range(1, 4)])}) for k in range(2)}  # fmt: skip
    columns = {"patient": {"level": "protected", "join": "local", "at_most": 3}, "visit": "protected", "ward": "public", "pay": AGGREGATED}  # fmt: skip
    policy = {"policy": {"min_count": 5}, "tables": {"v": {"unit": "patient", "columns": columns}}}
    with connected(made, policy) as db:
        found = db.sql(first, strategy=strategy)
        assert db.check(found)
        assert not found.withheld_values
        with pytest.raises(AtollError, match="fewer than min_count=5 rows"):
            db.sql(later, strategy=strategy)
        assert sorted(db.sql(first, strategy=strategy).rows) == sorted(found.rows)


CARRIED = [
    "SELECT sum(x.i) FROM p JOIN {ages} ON x.i = p.age", "SELECT sum(x.i) FROM p, {ages} WHERE p.age + 1 = x.i + 1", "SELECT count(*) FROM p JOIN {ages} ON x.i <= p.age",
    "SELECT count(*) FILTER (WHERE x.i <= p.age) FROM p CROSS JOIN {ages}", "SELECT sum(CASE WHEN x.i = p.age THEN x.i END) FROM p CROSS JOIN {ages}",
    "SELECT sum(n.k) FROM p JOIN {ages} ON x.i = p.age JOIN n ON n.k = x.i", "SELECT sum(z.i) FROM (SELECT x.i FROM p JOIN {ages} ON x.i = p.age) z",
    "SELECT avg(n.k) FROM p JOIN n ON n.k = p.age", "SELECT n.k, count(*) FROM p JOIN n ON n.k = p.age GROUP BY n.k", "SELECT sum(n.k) FROM p LEFT JOIN n ON n.k BETWEEN p.age AND p.age",
]  # fmt: skip


@pytest.mark.parametrize("strategy", ["sums", "smcql"])
def test_a_column_that_only_counts_rows_is_not_carried_by_a_join(strategy: str) -> None:
    """The sum of ages, from ages 20 to 28 written as VALUES, or as a table that every site has."""
    numbers = [(k,) for k in range(20, 29)]
    made = {name: TableSource({"p": (PEOPLE, people(9, k)), "n": ({"k": "INTEGER"}, numbers)}) for k, name in enumerate(("north", "south"))}  # fmt: skip
    policy = policy_of(1, id="protected", ward="public", age="private", pay=AGGREGATED)
    policy["tables"]["n"] = {"mode": "replicated", "columns": "public"}
    ages = f"(VALUES {', '.join(f'({k})' for (k,) in numbers)}) x(i)"
    with connected(made, policy) as db:
        for text in [*CARRIED, *(["SELECT x.i FROM p JOIN {ages} ON x.i = p.age"] if strategy == "smcql" else [])]:
            with pytest.raises(
                PolicyError, match=r"rows of . would carry the values of p\.age, which only counts rows"
            ):
                db.sql(text.format(ages=ages), strategy=strategy)
        # The remedy, and what the policy releases.
        assert db.sql("SELECT count(*) FROM p WHERE age IN (SELECT k FROM n WHERE k > 25)", strategy=strategy).rows == [(6,)]  # fmt: skip
        assert db.sql("SELECT sum(n.k) FROM p JOIN n ON n.k = p.id + 20", strategy=strategy).rows == [(412,)]


def test_the_strictest_site_decides_and_a_site_believes_no_coordinator() -> None:
    from atoll.query import QueryPolicy, Silo
    from atoll.query.local import plan_of
    from atoll.query.strategies.sums import MaskedSums

    loose, strict = QueryPolicy.of(policy_of(1, **ALLOWED)), QueryPolicy.of(policy_of(5, ward="public"))
    silos = {"north": Silo(site(people(9), **PEOPLE), loose, "north"), "south": Silo(site(people(9), **PEOPLE), strict, "south")}  # fmt: skip
    with pytest.raises(AtollError, match="pay is private and only counts rows"):
        simulate(Query(sql="SELECT sum(pay) FROM p"), silos, engine="inline", progress=False)
    told = loose.told({"p": list(PEOPLE)})
    asked = {
        "sql": "SELECT SUM(pay) FROM p",
        "catalog": {"p": PEOPLE},
        "policy": told,
        "first": "north",
        "strategy": MaskedSums().told(),
    }
    assert plan_of(silos["north"], asked).words
    with pytest.raises(PolicyError, match="only counts rows"):
        plan_of(silos["south"], asked)
    for silo in silos.values():
        silo.close()


def test_explain_reads_no_row_and_says_who_learns_what(hospitals: Any) -> None:
    found = hospitals.sql("EXPLAIN SELECT ward, stddev(pay) FROM p WHERE age > 30 GROUP BY ward")
    assert (found.rows, found.bytes, found.explained) == ([], 0, True)
    assert [(one["who"], one.get("kind", "")) for one in found.leakage] == [
        ("coordinator", "keys"),
        ("coordinator", "count"),
        ("coordinator", "sum"),
        ("analyst", "sum"),
        ("coordinator, analyst", ""),  # time
    ]
    assert [step["form"] for step in found.plan] == ["plain", "masked", "plain", "masked", "plain"]
    assert all(silo.kept is None for silo in hospitals.silos.values())
    assert "EXPLAIN" in Query(sql="SELECT 1").explain().notes[0]


def test_distinct_values_are_counted_where_each_lies_at_one_site() -> None:
    rows = [(k // 3, "AB"[k % 2], k, 1.0) for k in range(30)]
    local = {**ALLOWED, "id": {"level": "protected", "join": "local"}}
    with connected({"north": site(rows, **PEOPLE), "south": site([(k + 100, w, a, p) for k, w, a, p in rows], **PEOPLE)}, policy_of(5, **local)) as db:  # fmt: skip
        assert db.sql("SELECT ward, count(DISTINCT id), count(DISTINCT id) FILTER (WHERE age < 15) FROM p GROUP BY ward ORDER BY 1").rows == [("A", 20, 10), ("B", 20, 10)]  # fmt: skip
        assert db.sql("SELECT count(DISTINCT id) FILTER (WHERE age = 3) FROM p").rows == [(None,)]  # two rows
        with pytest.raises(CompositionError, match="one value may lie at two sites"):
            db.sql("SELECT count(DISTINCT age) FROM p", strategy="sums")
    policy = policy_of(5, **ALLOWED)
    policy["tables"]["p"]["mode"] = "replicated"
    with connected({name: site(rows, **PEOPLE) for name in ("north", "south")}, policy) as db:
        assert db.sql("SELECT count(DISTINCT age) FROM p", strategy="sums").rows == [(30,)]
        with pytest.raises(CompositionError, match="by those that are equal"):
            db.sql("SELECT count(DISTINCT (pay - 1) * age) FROM p", strategy="sums")


def test_no_error_tells_what_a_sum_would_be() -> None:
    """By constants beside it, a sum leaves the range of its type just when one person's pay is above 102; sums of large values are exact all the same."""
    rows = [(k, "A", 30, 100 + k) for k in range(30)]
    types, most = {**PEOPLE, "pay": "BIGINT"}, (1 << 127) - 1
    with connected({"north": site(rows, **types), "south": site([(k + 100, *one[1:]) for k, one in enumerate(rows)], **types)}, policy_of(5, **ALLOWED)) as db:  # fmt: skip
        for pay in (102, 103):
            value = f"CASE WHEN id = 3 THEN pay::HUGEINT * {10**20} WHEN id = 0 THEN {most - pay * 10**20}::HUGEINT ELSE 0 END"
            assert db.sql(f"SELECT sum({value}), avg({value.replace('HUGEINT', 'DECIMAL(38,0)')}) FROM p").rows == [(None, None)]  # fmt: skip
        large = f"pay::HUGEINT * {10**34} + 1"
        total = 10**34 * sum(one[3] for one in rows) * 2 + 60
        assert db.sql(f"SELECT sum({large}), sum({-(10**27)}::HUGEINT * age - 1) FROM p").rows == [(total, -(10**27) * 1800 - 60)]  # fmt: skip
        assert db.sql("SELECT sum(CAST(pay AS DECIMAL(38,10)) * 10000000000000000), sum(pay * 1e307) FROM p").rows == [(Decimal(sum(one[3] for one in rows) * 2 * 10**16).quantize(Decimal("1e-10"), context=Context(prec=60)), float("inf"))]  # fmt: skip


def test_a_missing_unit_is_a_unit() -> None:
    """Rows without a unit are not nobody's: one of them is few, and so are ten, which may be one person."""
    types = {"pid": "INTEGER", "ward": "VARCHAR", "cost": "INTEGER"}
    rows = [(k, "B", 10) for k in range(10)] + [(None, "D", 987)] + [(None, "C", 1)] * 10
    policy = policy_of(5, pid={"level": "private", "join": "local"}, ward="public", cost=AGGREGATED)
    policy["tables"]["p"]["unit"] = "pid"
    with connected({"north": site(rows, **types), "south": site([(k, "B", 10) for k in range(50, 60)], **types)}, policy) as db:  # fmt: skip
        assert db.sql("SELECT count(*), sum(cost) FROM p WHERE ward = 'D'").rows == []
        found = db.sql("SELECT ward, count(*) FROM p GROUP BY ward")
        assert (found.rows, found.withheld_groups) == ([("B", 20)], 2)


def test_a_unit_at_two_sites_may_be_one() -> None:
    """Three patients with rows at both sites count six times; without join: local, each number needs five for each site."""
    types = {"pid": "INTEGER", "cost": "INTEGER"}
    made = {name: site([(k, 1) for k in range(3)], **types) for name in ("north", "south")}
    policy = policy_of(5, pid="private", cost=AGGREGATED)
    policy["tables"]["p"]["unit"] = "pid"
    with connected(made, policy) as db:
        found = db.sql("SELECT count(*), sum(cost) FROM p")
        assert (found.rows, found.withheld_groups) == ([], 1)


@pytest.mark.parametrize("limit", [118, 119, 500])
def test_no_statement_tells_whether_one_row_is_there(limit: int) -> None:
    """Nobody and one person look alike; and a cast that fails for one row alone fails for nobody's eyes."""
    rows = [(k, "AB"[k % 2], 30, 100.0 + k) for k in range(25)]
    with connected({"north": site(rows, **PEOPLE), "south": site([], **PEOPLE)}, policy_of(5, **ALLOWED)) as db:
        found = db.sql(f"SELECT count(*) FROM p WHERE id = 18 AND pay > {limit}")
        assert (found.rows, found.withheld_groups) == ([], 1)
        wards = db.sql(f"SELECT ward, count(*) FROM p WHERE pay > {limit} + 4 AND pay < {limit} + 6 GROUP BY ward")
        assert (wards.rows, wards.withheld_groups) == ([], 2)
        told = db.sql(f"SELECT count(*) FROM p WHERE CAST(CASE WHEN id = 18 AND pay > {limit} THEN 'q' ELSE '0' END AS INT) = 1")  # fmt: skip
        assert (told.rows, told.withheld_groups) == ([], 1)


def test_a_policy_with_a_misspelt_column_is_refused() -> None:
    made = {"north": site(people(20), **PEOPLE), "south": site(people(20, 100), **PEOPLE)}
    with connected(made, policy_of(5, pya="private", ward="public")) as db, pytest.raises(ConfigError, match=r"tables\.p: there is no column 'pya'.*Did you mean 'pay'"):  # fmt: skip
        db.sql("SELECT count(*) FROM p")


COVARIATES = {"icu": "INTEGER", "old": "DOUBLE", "dead": "INTEGER"}
"""What others know of people: 0 but for one, 30 but for one, and of half of them 1."""


def known_people(first: int) -> list[tuple[Any, ...]]:
    return [(*row, int(k == 3), 30.0 + 1e-4 * (k == 3), k // 2 % 2) for k, row in enumerate(people(20, first))]


@pytest.mark.parametrize(("text", "told"), [
    ("sum(pay * icu)", "withheld"), ("sum(pay * (old - 30))", "withheld"), ("corr(pay, icu)", "withheld"), ("avg(pay * (2 - dead * dead - (1 - dead) * 2))", "answered"), ("sum(pay * old)", "refused"), ("covar_samp(old, pay)", "refused"),
    ("sum(CASE WHEN age < 90 THEN pay * old END)", "refused"), ("corr(pay, age)", "answered"), ("sum(pay * dead) FILTER (WHERE age < 90)", "answered"), ("stddev_samp(pay)", "answered"),
])  # fmt: skip
def test_a_sum_of_products_of_what_others_know_isolates_nobody(text: str, told: str) -> None:
    """``sum(pay * icu)`` is the pay of the only one in intensive care; ``sum(pay * old)`` less 30 times ``sum(pay)`` that of the only one of another age."""
    made = {name: site(known_people(100 * k), **PEOPLE, **COVARIATES) for k, name in enumerate(("north", "south"))}
    with connected(made, policy_of(5, **ALLOWED, **dict.fromkeys(COVARIATES, AGGREGATED))) as db:
        if told == "refused":
            with pytest.raises(AtollError, match="together show the sum of fewer than min_count=5 rows"):
                db.sql(f"SELECT {text} FROM p")
        else:
            assert db.sql(f"SELECT {text} FROM p").withheld_values == (told == "withheld")


@pytest.mark.parametrize("factor", ["1 + 8388593 * icu", "1000000000 + icu", "1000000000000000000 + icu", "1.0 + 1e-15 * icu", "CAST(1 + 0.00000000001 * icu AS DECIMAL(18, 11))", "1e300 * (1 + 1e-14 * icu)", "1 + CAST(70369017004127617991 AS HUGEINT) * icu"])  # fmt: skip
def test_a_factor_that_is_another_for_one_person_is_seen_however_little_it_differs(factor: str) -> None:
    """Less as many times ``sum(pay)`` it is the pay of one person; whole numbers that differ by a multiple of a known prime, or of several, differ as well."""
    made = {name: site(known_people(100 * k), **PEOPLE, **COVARIATES) for k, name in enumerate(("north", "south"))}
    with connected(made, policy_of(5, **ALLOWED, **dict.fromkeys(COVARIATES, AGGREGATED))) as db:
        with pytest.raises(AtollError, match="together show the sum of fewer than min_count=5 rows"):
            db.sql(f"SELECT sum(pay * ({factor})) FROM p")
        assert db.sql("SELECT sum(pay * (1000000000 + age)), sum(pay * (0.1 + age / 7)) FROM p").rows


def test_as_many_products_as_people_are_not_all_answered() -> None:
    """Of people whose ages are known each further power of the age is an equation for their pay."""
    rows = {
        name: site(known_people(100 * k)[4:12], **PEOPLE, **COVARIATES) for k, name in enumerate(("north", "south"))
    }
    with connected(rows, policy_of(5, **ALLOWED, **dict.fromkeys(COVARIATES, AGGREGATED))) as db:
        for power in range(4):  # four equations for eight numbers: three of these can be left out, and five stay
            db.sql(f"SELECT sum({'*'.join(['pay', *['age'] * power])}) FROM p")
        assert db.sql("SELECT corr(pay, age) FROM p").rows
        with pytest.raises(AtollError, match="together show the sum of fewer than min_count=5 rows"):
            db.sql("SELECT sum(pay * dead) FROM p")


THREE = [
    ("SELECT sum(pay) FROM p WHERE id < 10", 1),
    ("SELECT sum(pay) FROM p WHERE id BETWEEN 10 AND 19", 1),
    ("SELECT sum(pay) FROM p WHERE id <= 20", -1),
]


@pytest.mark.parametrize("guarded", [True, False])
def test_three_answers_that_isolate_a_row_together_are_not_all_given(guarded: bool, monkeypatch: Any) -> None:
    """No two of them differ by few; the third less the others is the pay of row 20. Without the guard the attack reads it."""
    from atoll.statistics.combined import CellClasses

    if not guarded:
        monkeypatch.setattr(CellClasses, "isolates", lambda classes, least, of=(): False)
    with connected({"north": site(people(40), **PEOPLE), "south": site(people(40, 100), **PEOPLE)}, policy_of(5, **ALLOWED)) as db:  # fmt: skip
        told = [db.sql(text).rows[0][0] * sign for text, sign in THREE[:2]]
        if guarded:
            with pytest.raises(
                AtollError, match="earlier answers together show the sum of fewer than min_count=5 rows"
            ):
                db.sql(THREE[2][0])
        else:
            assert -(sum(told) + db.sql(THREE[2][0]).rows[0][0] * THREE[2][1]) == 120.0


@pytest.mark.parametrize("shown", ["ward, sum(pay)", "sum(pay)"])
def test_a_row_among_rows_of_other_sites_is_not_left_out_of_a_second_answer(shown: str) -> None:
    """North has one of the 31 people of ward C, and knows not that the other 30 stand behind both answers."""
    made = {"north": site([(1, "C", 25, 77.0), *people(20, 10)], **PEOPLE), "south": site([(k, "C", 40, 2.0) for k in range(100, 130)], **PEOPLE)}  # fmt: skip
    by = " GROUP BY ward" if "ward" in shown else ""
    with connected(made, policy_of(5, **ALLOWED)) as db:
        assert db.sql(f"SELECT {shown} FROM p WHERE ward = 'C'{by}").rows[0][-1] == 137.0
        with pytest.raises(AtollError, match="fewer than min_count=5 rows"):
            db.sql(f"SELECT {shown} FROM p WHERE ward = 'C' AND age > 30{by}")
