"""Relations that stay shared between statements: answers are those of the statement that is written out, whatever it refuses stays refused, and no party is led to use other shares."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import AtollError, CompositionError, ConfigError, PolicyError
from atoll.core.persistence.named_results import NamedResults
from atoll.query import Query, QueryPolicy, Silo, SqlConnection
from atoll.query.events import check_events, read_events
from atoll.query.kept_relations import KeptRelations, read_command
from atoll.query.policy import strictest
from atoll.query.strategies.kept_shares import STATE
from tests.support.silos import TableSource, pooled, same_rows

PEOPLE = {"id": "BIGINT", "ward": "VARCHAR", "age": "BIGINT", "pay": "DECIMAL(9,2)"}
VISITS = {"id": "BIGINT", "cost": "BIGINT", "day": "DATE"}
POLICY: dict[str, Any] = {
    "limits": {"kept": "10MiB"},
    "policy": {"min_count": 1},
    "tables": {
        "p": {"columns": {"id": {"level": "protected", "key": True}, "ward": "protected", "age": "protected", "pay": {"level": "private", "release": "aggregate"}}},
        "v": {"columns": {"id": {"level": "protected", "at_most": 3}, "cost": "protected", "day": "protected"}},
        "n": {"mode": "replicated", "columns": "public"},
    },
}  # fmt: skip
STAYS = "SELECT p.id, p.ward, p.age, p.pay, v.cost, v.day FROM p JOIN v ON p.id = v.id"
READS = [
    "SELECT ward, count(*), sum(cost), sum(pay), avg(age) FROM stays GROUP BY ward",
    "SELECT a.id, b.cost FROM stays a JOIN stays b ON a.id = b.id AND a.cost < b.cost",
    "SELECT count(*), max(day), min(cost) FROM stays WHERE cost > 2 AND ward IS NOT NULL",
    "SELECT id, cost, row_number() OVER (PARTITION BY ward ORDER BY cost, id, day) AS r FROM stays",
    "SELECT ward FROM stays UNION SELECT ward FROM p",
    "SELECT id FROM p EXCEPT SELECT id FROM stays",
    "SELECT p.ward, count(*) FROM p WHERE EXISTS (SELECT 1 FROM stays WHERE stays.id = p.id AND stays.cost > 1) GROUP BY 1",
    "SELECT ward FROM p WHERE id NOT IN (SELECT id FROM stays) AND age > (SELECT min(age) FROM stays)",
    "WITH t AS (SELECT ward, sum(cost) AS c FROM stays GROUP BY ward) SELECT a.ward, b.c FROM t a JOIN t b ON a.c = b.c",
    "SELECT n.name, count(*) FROM stays s JOIN n ON n.k = s.cost GROUP BY 1",
    "SELECT s.ward, v.cost FROM stays s LEFT JOIN v ON s.cost = v.id",
    "SELECT ward, cost FROM stays ORDER BY cost DESC, ward NULLS LAST LIMIT 3",
]
QUICK = (0, 1, 6)


def day(number: int) -> datetime.date:
    return datetime.date(2024, 1, 1) + datetime.timedelta(number)


def person(number: int) -> tuple[Any, ...]:
    return number, [None, "A", "B", "a long name of a ward"][number % 4], None if number % 5 == 0 else number * 13 % 40, Decimal(number * 37 % 100) / 10  # fmt: skip


ROWS = [([person(k) for k in range(j, 7, 3)], [(k * 5 % 8, k % 4, day(k * 29 % 50)) for k in range(j, 6, 3)]) for j in range(3)]  # fmt: skip
FIXED = ({"k": "INTEGER", "name": "VARCHAR"}, [(1, "X"), (2, "Y"), (3, None)])


def sources(rows: Any = ROWS) -> dict[str, TableSource]:
    return {f"s{k}": TableSource({"p": (PEOPLE, p), "v": (VISITS, v), "n": FIXED}) for k, (p, v) in enumerate(rows)}


def opened(made: Mapping[str, TableSource], policy: Any = POLICY, folder: Path | None = None) -> SqlConnection:
    return SqlConnection({name: Silo(source, QueryPolicy.of(policy), name) for name, source in made.items()}, folder=folder)  # fmt: skip


@pytest.fixture(scope="module")
def kept() -> Iterator[tuple[SqlConnection, Any]]:
    made = sources()
    with opened(made) as db, pooled(made, replicated=("n",)) as oracle:
        for one in (db.sql, oracle.execute):
            one(f"CREATE TEMP TABLE stays AS {STAYS}")
        yield db, oracle


# ---------------------------------------------------------------- answers


@pytest.mark.parametrize("place", [k if k in QUICK else pytest.param(k, marks=pytest.mark.slow) for k in range(len(READS))])  # fmt: skip
def test_a_statement_over_a_relation_equals_duckdb(kept: tuple[SqlConnection, Any], place: int) -> None:
    db, oracle = kept
    found = db.sql(READS[place])
    same_rows(found.rows, oracle.execute(READS[place]).fetchall(), what=READS[place])
    assert db.check(found)
    assert abs(found.predicted / found.bytes - 1) < 0.25  # of few rows, which a random sort reads in several ways


def test_only_what_is_not_kept_is_shared_again(kept: tuple[SqlConnection, Any]) -> None:
    """EXPLAIN shows what is taken as it is kept, and no leaf of it; the written-out statement has them all."""
    db, _ = kept
    plan = db.sql("EXPLAIN SELECT ward, count(*) FROM stays GROUP BY ward")
    assert [one["form"] for one in plan.plan] == ["kept", "shared", "plain"]
    assert "take the rows of stays: about" in plan.plan[0]["what"]
    told = str(plan.leakage)
    assert "that the statement reads stays, and its sizes when it was kept" in told
    assert "how many rows of" not in told
    whole = db.sql(f"EXPLAIN WITH stays AS ({STAYS}) SELECT ward, count(*) FROM stays GROUP BY ward", strategy="smcql")
    assert plan.predicted < whole.predicted / 2


def test_relations_are_listed_and_described(kept: tuple[SqlConnection, Any]) -> None:
    db, _ = kept
    assert db.sql("show tables;").rows[-1] == ("stays", 6, "kept", "", 1)
    assert [row[:3] for row in db.sql("DESCRIBE stays").rows][3] == ("pay", "DECIMAL(9,2)", "kept")
    assert len(db.sql("DESCRIBE p").rows) == 4


@pytest.mark.slow
@settings(max_examples=8)
@given(
    st.lists(st.tuples(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["A", "Bä", "", None]), st.integers(-3, 90) | st.none(), st.decimals(-99, 99, places=2)), max_size=3),
                       st.lists(st.tuples(st.integers(0, 9) | st.none(), st.integers(-9, 9), st.just(day(3))), max_size=3)), min_size=2, max_size=3),
    st.lists(st.sampled_from(READS), min_size=1, max_size=2),
)  # fmt: skip
def test_drawn_tables_equal_duckdb(rows: Any, texts: list[str]) -> None:
    loose = {**POLICY, "tables": {**POLICY["tables"], "p": {"columns": {**POLICY["tables"]["p"]["columns"], "id": "protected"}}, "v": {"columns": "protected"}}}  # fmt: skip
    made = sources(rows)
    with opened(made, loose) as db, pooled(made, replicated=("n",)) as oracle:
        for one in (db.sql, oracle.execute):
            one(f"CREATE TEMP TABLE stays AS {STAYS}")
        for text in texts:
            same_rows(db.sql(text).rows, oracle.execute(text).fetchall(), what=text)


def test_a_relation_of_a_relation_with_parameters_and_a_with() -> None:
    """Two silos and a helper, one without rows."""
    made = sources([ROWS[0], ([], [])])
    with opened(made) as db, pooled(made, replicated=("n",)) as oracle:
        made_as = "WITH q AS (SELECT id, cost FROM v WHERE cost >= ?) SELECT p.ward, count(*) AS n, sum(q.cost) AS c FROM p JOIN q ON p.id = q.id GROUP BY p.ward"
        first = db.sql(f"CREATE TEMPORARY TABLE Groups AS {made_as};", [0])
        assert (first.rows, first.columns, first.kept["parties"]) == ([], ("ward", "n", "c"), ["s0", "s1", "helper"])
        db.sql("CREATE TEMP TABLE most AS SELECT ward, c FROM groups WHERE n >= 1 ORDER BY c DESC LIMIT 2")
        db.sql("DROP TABLE groups")
        found = db.sql("SELECT ward, c FROM most WHERE c > ?", [-1])
        expected = oracle.execute(f"SELECT ward, c FROM ({made_as}) ORDER BY c DESC LIMIT 2", [0]).fetchall()
        same_rows(found.rows, [(ward, int(c)) for ward, c in expected])
        with pytest.raises(ConfigError, match="no table groups is at all sites"):
            db.sql("SELECT * FROM groups")
        with pytest.raises(ConfigError, match="no relation groups is kept"):
            db.sql("SELECT * FROM most, groups")


def test_a_relation_is_replaced_or_left_as_people_say() -> None:
    made = sources([([person(k)], []) for k in range(1, 4)])
    with opened(made) as db:
        db.sql("CREATE TEMP TABLE t AS SELECT age FROM p")
        before = db.relations.ids
        assert db.sql("CREATE TEMP TABLE IF NOT EXISTS t AS SELECT id FROM p").kept is None
        assert db.relations.ids == before
        with pytest.raises(ConfigError, match="t is a part of what it is made of"):
            db.sql("CREATE OR REPLACE TEMP TABLE t AS SELECT age + 1 AS age FROM t")
        assert db.relations.ids == before
        db.sql("CREATE OR REPLACE TEMP TABLE t AS SELECT age + 1 AS age FROM p")
        assert db.sql("SELECT sum(age) FROM t").rows == [(13 + 26 + 39 + 3,)]
        assert db.sql("DROP TABLE IF EXISTS u").rows == []
        assert db.relations.ids.keys() == {"t"}


def test_rules_read_relations_by_name(kept: tuple[SqlConnection, Any]) -> None:
    """The same as over the statement that is kept; no row is shared anew, and a relation may be made by a rule."""
    db, _ = kept
    for call in (
        "Skyline(stays, cost, -age)",
        "Skyline(stays AS s, s.cost, -age)",
        "Subgraph(stays, id, cost, 'a->b')",
    ):
        shown = "*" if call.startswith("Sub") else "id, cost, age"
        found = db.sql(f"SELECT {shown} FROM {call}")
        whole = db.sql(f"SELECT {shown} FROM {call.replace('stays AS s', 'stays').replace('s.', '').replace('stays', f'({STAYS}) AS stays')}", strategy="smcql")  # fmt: skip
        same_rows(found.rows, whole.rows, what=call)
        assert found.rows
        assert db.check(found)
        assert "kept" in {one["form"] for one in found.plan}
        assert "how many rows of" not in str(found.leakage)
    db.sql("CREATE TEMP TABLE best AS SELECT id, cost FROM Skyline(stays, cost, -age)")
    same_rows(db.sql("SELECT id, cost FROM best").rows, [row[:2] for row in db.sql("SELECT id, cost FROM Skyline(stays, cost, -age)").rows])  # fmt: skip
    db.sql("DROP TABLE best")
    with pytest.raises(ConfigError, match=r"stay is no table(.|\n)*use p, v, n"):
        db.sql("SELECT id FROM Skyline(stay, cost, -age)")


def test_a_table_whose_columns_lie_apart_is_joined_once() -> None:
    apart = {"limits": {"kept": "10MiB"}, "policy": {"min_count": 1}, "tables": {"c": {"mode": "vertical", "key": "id", "columns": dict.fromkeys(("id", "age", "ward"), "protected")}}}  # fmt: skip
    parts = {"age": [(1, 30), (2, 40), (3, 50)], "ward": [(1, "A"), (2, "B"), (4, "C")]}
    made = {f"s{k}": TableSource({"c": ({"id": "BIGINT", name: PEOPLE[name]}, rows)}) for k, (name, rows) in enumerate(parts.items())}  # fmt: skip
    with opened(made, apart) as db:
        db.sql("CREATE TEMP TABLE whole AS SELECT ward, age FROM c WHERE age > 20")
        found = db.sql("SELECT ward, max(age) FROM whole GROUP BY ward")
        same_rows(found.rows, [("A", 30), ("B", 40)])
        assert db.check(found)


def test_rows_are_those_of_the_moment_and_a_check_says_so() -> None:
    made = sources([([person(1)], []), ([person(2)], []), ([], [])])
    with opened(made) as db:
        db.sql("CREATE TEMP TABLE t AS SELECT ward, age FROM p")
        made["s0"].tables = {**made["s0"].tables, "p": (PEOPLE, [person(5)])}
        found = db.sql("SELECT ward, age FROM t")
        same_rows(found.rows, [("A", 13), ("B", 26)])
        assert db.changed_since(found) == ["s0"]
        assert db.check(found) is None


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("text", "more", "error", "match"),
    [
        ("CREATE TABLE t AS SELECT id FROM p", {}, ConfigError, "write CREATE TEMP TABLE"),
        ("CREATE TEMP TABLE stays AS SELECT id FROM p", {}, ConfigError, "stays is kept already"),
        ("CREATE TEMP TABLE p AS SELECT id FROM v", {}, ConfigError, "p is a table of the sites"),
        ("CREATE TEMP TABLE t AS SELECT count(*) FROM p", {}, ConfigError, "of t has no name"),
        ("CREATE TEMP TABLE t AS SELECT id, age AS id FROM p", {}, ConfigError, "two columns of t are called id"),
        ("CREATE TEMP TABLE t AS SELECT avg(age) AS a FROM p", {}, CompositionError, "keep SUM and COUNT, and divide"),
        ("CREATE TEMP TABLE t AS SELECT idd FROM p", {}, ConfigError, "no column idd in p"),
        ("CREATE TEMP TABLE t AS SELECT sum(", {}, ConfigError, "LINE 1: SELECT sum"),
        ("CREATE TEMP TABLE t AS SELECT 1) SELECT id FROM p --", {}, ConfigError, "LINE 1: SELECT 1"),
        ("CREATE TEMP TABLE t AS SELECT id FROM p; SELECT 1", {}, ConfigError, "these are 2 statements"),
        ("CREATE TEMP TABLE t AS WITH stays AS (SELECT id FROM v) SELECT id FROM stays", {}, ConfigError, "WITH stays has the name of another"),
        ("DROP TABLE stay", {}, ConfigError, "Did you mean 'stays'"),
        ("SELECT pay FROM stays", {}, PolicyError, "shows values of p.pay, which is private"),
        ("SELECT ward FROM stays ORDER BY pay", {}, PolicyError, "shows values of p.pay"),
        ("SELECT upper(ward) FROM stays", {}, CompositionError, r"UPPER.*put it into the relation \(stays\)"),
        ("SELECT count(*) FROM stays", {"strategy": "sums"}, CompositionError, "the strategy sums makes and reads no relation"),
        ("SELECT count(*) FROM stays", {"strategy": "smcql:mode=garbled"}, CompositionError, "a garbled circuit makes and reads no relation"),
        ("SELECT count(*) FROM stays", {"epsilon": 1.0, "analyst": "anna"}, ConfigError, "epsilon=1.0 of a statement that reads stays"),
    ],
)  # fmt: skip
def test_refused_before_a_site_shares_a_row(kept: tuple[SqlConnection, Any], text: str, more: Any, error: type[AtollError], match: str) -> None:  # fmt: skip
    db, _ = kept
    with pytest.raises(error, match=match):
        db.sql(text, **more)
    assert list(db.relations.ids) == ["stays"]


def test_sites_that_keep_nothing_say_so() -> None:
    bare = {name: value for name, value in POLICY.items() if name != "limits"}
    with opened(sources(), bare) as db, pytest.raises(PolicyError, match=r"limits: \{kept: 1GiB\}"):
        db.sql("CREATE TEMP TABLE t AS SELECT id FROM p")
    told = [
        QueryPolicy.of(one).told({"p": ["id"]})
        for one in (POLICY, {**POLICY, "limits": {"kept": "2MiB", "kept_days": 0.5}}, bare)
    ]
    assert [strictest(told[:2]).kept, strictest(told[:2]).kept_days, strictest(told).kept] == [2 << 20, 0.5, 0]
    for wrong in ({"kept": "much"}, {"kept_days": 0}, {"kept_days": "7"}):
        with pytest.raises(ConfigError, match=f"{next(iter(wrong))}: {next(iter(wrong.values()))!r}"):
            QueryPolicy.of({"limits": wrong})


def test_a_job_says_what_it_keeps_in_full() -> None:
    number = "0" * 32
    assert Query(sql="SELECT 1", kept={"t": number}).others(2) == {"helper": "shares"}
    for wrong in ({"kept": {"t": "1"}}, {"creates": "t"}, {"kept": {"t": number}, "creates": "u"}, {"drops": True}):
        with pytest.raises(ConfigError, match="CREATE TEMP TABLE"):
            Query(sql="SELECT 1", **wrong)


def test_texts_are_read_as_people_write_them() -> None:
    kind, found = read_command('-- first\nexplain analyze create or replace temporary table "T" as\nselect 1') or (
        "",
        None,
    )
    assert (kind, found and found[5]) == ("create", "T")
    assert read_command("SELECT 1 FROM create_temp") is None
    assert KeptRelations().write_out("SELECT * FROM stays") == ("SELECT * FROM stays", [])


# ---------------------------------------------------------------- min_count


def test_few_units_stay_hidden_behind_a_relation() -> None:
    """What is refused written out is refused, and the record sees statements of both kinds."""
    strict = {"limits": {"kept": "10MiB"}, "policy": {"min_count": 3}, "tables": {"p": {"columns": {**dict.fromkeys(PEOPLE, "protected"), "pay": {"level": "private", "release": "aggregate"}}}, "v": {"columns": "protected"}}}  # fmt: skip
    made = sources([([(k, "AAAB"[k % 4], 20 + k, k) for k in range(j, 12, 3)], []) for j in range(3)])
    with opened(made, strict) as db:
        db.sql("CREATE TEMP TABLE t AS SELECT id, ward, age, pay FROM p")
        found = db.sql("SELECT ward, count(*), sum(pay) FROM t GROUP BY ward")
        same_rows(found.rows, [("A", 9, Decimal(45)), ("B", 3, Decimal(21))])
        for text in ("SELECT count(*) FROM t WHERE age < 31", "SELECT count(*) FROM p WHERE age < 31"):
            with pytest.raises(PolicyError, match="is fewer than min_count=3 rows"):
                db.sql(text, strategy="smcql")
        for text in ("SELECT max(age) FROM t", "SELECT max(age) FROM p"):
            with pytest.raises(PolicyError, match="value of one row, and min_count is 3"):
                db.sql(text, strategy="smcql")
        made["s1"].tables = {**made["s1"].tables, "p": (PEOPLE, [(1, "A", 99, 1)])}
        with pytest.raises(PolicyError, match="rows of p have changed since t was kept"):
            db.sql("SELECT ward, count(*), sum(pay) FROM t GROUP BY ward")


# ---------------------------------------------------------------- whoever lies, loses or changes something


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[SqlConnection, NamedResults]]:
    """Four sites that keep two relations of one size, and what each party keeps."""
    made = sources([([person(k)], []) for k in range(1, 5)])
    with opened(made, folder=tmp_path) as db:
        for name in ("one", "two"):
            db.sql(f"CREATE TEMP TABLE {name} AS SELECT id, age FROM p WHERE age > {len(name)}")
        yield db, NamedResults(tmp_path)


def _state(db: SqlConnection, name: str = "one") -> str:
    return f"{STATE}-{db.relations.ids[name]}"


def _lose(db: SqlConnection, kept: NamedResults) -> None:
    kept.remove("s1", _state(db))


def _lose_shares(db: SqlConnection, kept: NamedResults) -> None:
    state = kept.get("s2", _state(db))
    kept.put("s2", _state(db), {name: value for name, value in state.items() if name != "tag"})


def _alter(db: SqlConnection, kept: NamedResults) -> None:
    name = f"{_state(db)}-rows"
    value = kept.get("s0", name)
    parts = [np.array(one) for one in value["columns"]["0.0"]]
    parts[1][0] ^= 1
    kept.put("s0", name, {**value, "columns": {**value["columns"], "0.0": parts}})


def _outlive(db: SqlConnection, kept: NamedResults) -> None:
    kept.put("s3", _state(db), {**kept.get("s3", _state(db)), "until": 1.0})


def _mix(db: SqlConnection, kept: NamedResults) -> None:
    """A coordinator that had a relation made twice, and one party kept the other making of it."""
    kept.put("s2", _state(db), {**kept.get("s2", _state(db)), "tag": kept.get("s2", _state(db, "two"))["tag"]})


def _other_analyst(db: SqlConnection, kept: NamedResults) -> None:
    del kept
    db.silos["s3"].asker = "eve"


def _other_policy(db: SqlConnection, kept: NamedResults) -> None:
    del kept
    db.silos["s0"].policy = QueryPolicy.of({**POLICY, "tables": {**POLICY["tables"], "p": {"columns": {"id": "protected", "age": "private"}}}})  # fmt: skip


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (_lose, "s1 no longer keeps one"),
        (_outlive, "s3 no longer keeps one"),
        (_lose_shares, "s2 keeps no shares of one"),
        (_alter, "keep shares of one that do not belong together"),
        (_mix, "keep shares of one that do not belong together"),
        (_other_analyst, "one was kept for another analyst"),
        (_other_policy, "one was kept, and since then the policies of the sites differ"),
    ],
)  # fmt: skip
def test_what_was_lost_or_changed_is_named(pair: Any, change: Callable[..., None], match: str) -> None:
    db, kept = pair
    change(db, kept)
    with pytest.raises(AtollError, match=match) as seen:
        db.sql("SELECT count(*) FROM one")
    assert "create it anew" in str(seen.value)
    db.relations.forget()


def _said(request: Any, **kept: Any) -> Any:
    message = request["message"]
    return {**request, "message": {**message, "kept": {**message["kept"], **kept}}}


@pytest.mark.parametrize("whom", ["all", "s1", "s3"])
@pytest.mark.parametrize("what", ["id", "owners"])
def test_a_coordinator_that_lies_about_relations_gets_nothing(pair: Any, monkeypatch: pytest.MonkeyPatch, whom: str, what: str) -> None:  # fmt: skip
    db, _ = pair
    ids = db.relations.ids
    change = {"id": {"ids": {"one": ids["two"]}}, "owners": {"owners": ["s0", "s1", "s3", "s2"]}}[what]
    _lie_to(monkeypatch, whom, lambda request: _said(request, **change))
    with pytest.raises(
        AtollError,
        match=r"was asked for something else|what the statement says that it is differ|the sites that take part|and the request names",
    ):
        db.sql("SELECT count(*) FROM one")
    db.relations.forget()


def test_a_relation_is_made_once_under_an_id(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    db, _ = pair
    again = {"new": db.relations.ids["two"]}
    _lie_to(monkeypatch, "all", lambda request: _said(request, ids=again))
    with pytest.raises(PolicyError, match="under the id of another relation"):
        db.sql("CREATE TEMP TABLE new AS SELECT id FROM p")
    db.relations.forget()


def test_what_was_signed_is_read_made_and_dropped_alone(pair: Any) -> None:
    db, _ = pair
    ids, text = db.relations.ids, db.relations.write_out("SELECT count(*) FROM one")[0]
    signed = Query(sql=text, kept={"one": ids["one"]})
    for other in ({"kept": {"one": ids["two"]}}, {"kept": {}}, {"creates": "one"}):
        db.silos["s2"].bind_jobs([replace(signed, **other)])
        with pytest.raises(AtollError, match="not the one that was signed"):
            db.sql("SELECT count(*) FROM one")
    db.silos["s2"].bind_jobs([signed])
    assert db.sql("SELECT count(*) FROM one").rows == [(4,)]
    with pytest.raises(AtollError, match="not what the job drops that was signed"):
        db.sql("DROP TABLE one")
    db.relations.forget()


def _lie_to(monkeypatch: pytest.MonkeyPatch, whom: str, change: Callable[[Any], Any]) -> None:
    from atoll.core.federation.federation import Federation

    session = Federation.session

    async def lying(self: Any, roles: Any, **more: Any) -> Any:
        made = {}
        for name, (party, task) in roles.items():
            args = dict(task.args)
            if whom in ("all", name):
                args["request"] = change(args["request"])
            made[name] = (party, task.with_args(**args))
        return await session(self, made, **more)

    monkeypatch.setattr(Federation, "session", lying)


def test_what_does_not_fit_is_not_kept(tmp_path: Path) -> None:
    made = sources([([person(k)], []) for k in range(1, 4)])
    with opened(made, folder=tmp_path) as db:
        db.silos["s1"].policy = replace(db.silos["s1"].policy, kept=1000)
        with pytest.raises(PolicyError, match="bytes here, and 1,000 of the limit of 1,000 are free"):
            db.sql("CREATE TEMP TABLE t AS SELECT id, ward, age, pay FROM p")
        assert not [one.name for one in NamedResults(tmp_path).all() if one.name.startswith(f"{STATE}-")]
        assert not db.relations.ids


def test_events_say_kept_read_and_dropped_and_closing_drops(tmp_path: Path) -> None:
    made = sources([([person(k)], []) for k in range(1, 4)])
    with opened(made, folder=tmp_path) as db:
        db.sql("CREATE TEMP TABLE t AS SELECT id, age FROM p")
        number = db.relations.ids["t"]
        assert db.sql("SELECT sum(age) FROM t").rows == [(13 + 26 + 39,)]
    kept = NamedResults(tmp_path)
    for party in ("s0", "s1", "s2"):
        assert kept.get(party, f"{STATE}-{number}") == {"dropped": True}
        assert kept.get(party, f"{STATE}-{number}-rows") == {}
        told = [one for one in read_events(lambda name, party=party: kept.get(party, name)) if one.what != "answered"]
        assert [(one.what, one.details["relations"]) for one in told] == [(what, {"t": number}) for what in ("kept", "read", "dropped")]  # fmt: skip
        plans = [one.details["plan"] for one in read_events(lambda name, party=party: kept.get(party, name)) if one.what == "answered"]  # fmt: skip
        assert ["share these rows" in str(one) for one in plans] == [
            True,
            True,
            False,
            False,
        ]  # it says sizes, then shares
        assert "take the rows of t" in str(plans[-1])
        check_events(lambda name, party=party: kept.get(party, name), party)


def test_numbers_that_would_leave_64_bits_are_refused_of_kept_rows() -> None:
    made = sources([([(k, "A", 1 << 40, 1)], []) for k in range(3)])
    with opened(made) as db:
        db.sql("CREATE TEMP TABLE t AS SELECT id, age FROM p")
        assert db.sql("SELECT max(age) FROM t").rows == [(1 << 40,)]
        with pytest.raises(AtollError, match="might leave 64 bits"):
            db.sql("SELECT sum(age * age) FROM t")
