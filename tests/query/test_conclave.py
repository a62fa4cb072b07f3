"""``conclave``: answers are those of DuckDB on the union, the party that policies trust reads keys and nobody else does, and a coordinator that says more than a policy opens nothing."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import ConfigError, DataError, LetterError, PolicyError
from atoll.engines.recording import RecordingEngine
from atoll.query import QueryPolicy, Silo, SqlConnection, policy
from atoll.query.statement import parse_statement
from atoll.query.strategies import conclave
from atoll.secure.tables import KeyReader
from tests.query.test_shares_law import FIXED, POLICY, P, Q, V, sites, sources, statements
from tests.support.silos import TableSource, connected, pooled, same_rows

KEY = {"level": "protected", "trusted": ["s1", "s2"]}


def trusting(**columns: Any) -> dict[str, Any]:
    """The policy of the statements under shares, with other words for some columns: ``p_id`` is column id of table p."""
    tables = {name: dict(one) for name, one in POLICY["tables"].items()}
    for name, value in columns.items():
        table, column = name.split("_")
        tables[table] = {"columns": {**tables[table]["columns"], column: value}}
    return {"policy": {"min_count": 1}, "tables": tables}


HYBRID = trusting(p_id=KEY, p_ward=KEY, p_k=KEY, p_age=KEY, p_seen=KEY, v_id={**KEY, "at_most": 9}, v_cost=KEY, v_day=KEY, q_id={**KEY, "key": True}, q_name=KEY, q_score=KEY)  # fmt: skip
PUBLIC = trusting(p_id="public", p_ward="public", p_k="public", v_id={"level": "public", "at_most": 9}, q_id={"level": "public", "key": True}, q_name="public")  # fmt: skip
STATEMENTS = [
    "SELECT p.ward, count(*), sum(p.age), min(p.age), max(p.seen), avg(p.pay) FROM p GROUP BY p.ward",
    "SELECT p.ward, v.cost FROM p JOIN v ON p.id = v.id WHERE v.cost > 1",
    "SELECT q.name, count(*), sum(p.age) FROM p JOIN q ON p.k = q.id GROUP BY q.name ORDER BY 2 DESC, 1 LIMIT 1",
    "SELECT p.k, q.score FROM p LEFT JOIN q ON p.k = q.id WHERE p.id IN (SELECT v.id FROM v WHERE v.cost > 0)",
    "SELECT p.ward, sum(v.cost * p.age) FROM p JOIN v ON p.id = v.id AND p.age > v.cost GROUP BY p.ward HAVING count(*) > 1",
    "SELECT sum(r * r) AS squares, sum(r) AS total FROM (SELECT ward, sum(pay) AS r FROM p GROUP BY ward) x",
    "SELECT p.k, count(*) AS n FROM p GROUP BY p.k ORDER BY p.k DESC LIMIT 2",
]


def require_equal(drawn: Any, texts: list[str], words: dict[str, Any], strategy: str = "conclave") -> None:
    made = sources(drawn)
    with connected(made, words) as db, pooled(made, replicated=("n",)) as oracle:
        for text in texts:
            try:
                found = db.sql(text, strategy=strategy)
            except PolicyError:
                assert "OVER" in text  # ranks and sums of windows show by what rows are ordered
                continue
            same_rows(found.rows, oracle.execute(text).fetchall(), what=text)


@pytest.mark.parametrize("words", [HYBRID, PUBLIC], ids=["hybrid", "public"])
def test_a_statement_of_each_kind_equals_duckdb(words: dict[str, Any]) -> None:
    require_equal(FIXED, [STATEMENTS[k] for k in ((0, 1) if words is HYBRID else (2, 3))], words)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["conclave", "conclave:trusted=none", "conclave:trusted=s2"])
@pytest.mark.parametrize("words", [HYBRID, PUBLIC], ids=["hybrid", "public"])
def test_all_statements_equal_duckdb_with_each_reader(words: dict[str, Any], strategy: str) -> None:
    require_equal(FIXED, STATEMENTS, words, strategy)


@settings(max_examples=1)
@given(sites, statements())
def test_drawn_statements_equal_duckdb_on_the_union(drawn: Any, text: str) -> None:
    require_equal(drawn, [text], HYBRID, "conclave:trusted=s1")


@pytest.mark.slow
@settings(max_examples=12)
@given(sites, st.lists(statements(), min_size=1, max_size=2), st.sampled_from([HYBRID, PUBLIC, POLICY]))
def test_many_drawn_statements_equal_duckdb_on_the_union(drawn: Any, texts: list[str], words: dict[str, Any]) -> None:
    require_equal(drawn, texts, words, "conclave:trusted=s1")


# ---------------------------------------------------------------- who reads what


def leaks(text: str, words: dict[str, Any], trusted: str = "auto") -> dict[str, list[str]]:
    with connected(sources(FIXED), words) as db:
        catalog = db.catalog()
        plan = conclave.planner_of(trusted)(parse_statement(text, catalog), catalog, db.policy())
    found: dict[str, list[str]] = {}
    for one in conclave.Conclave().exposures(plan):
        if one.kind == "keys":
            found.setdefault(one.who, []).append(one.sees)
    return found


@pytest.mark.parametrize(
    ("text", "words", "who", "reads"),
    [
        ("SELECT count(*) FROM p JOIN v ON p.id = v.id", HYBRID, "s1", "the values of p.id, v.id of the rows that count, of all"),
        ("SELECT count(*) FROM p JOIN v ON p.id = v.id WHERE p.age > 3", HYBRID, "s1", "p.id, v.id of the rows that count, as p.age decide"),
        ("SELECT count(*) FROM p JOIN v ON p.id = v.id WHERE p.pay > 3", HYBRID, "", ""),  # nobody may see by pay which rows count
        ("SELECT ward, count(*) FROM p WHERE p.pay > 3 GROUP BY ward", PUBLIC, "", ""),
        ("SELECT ward, count(*) FROM p GROUP BY ward", PUBLIC, "three parties", "the values of p.ward"),
        ("SELECT count(*) FROM p JOIN v ON p.id = v.id", POLICY, "", ""),
        ("SELECT count(*) FROM p JOIN (SELECT id, sum(cost) AS s FROM v GROUP BY id) d ON d.s = p.age", {**HYBRID, "tables": {**HYBRID["tables"], "v": {"columns": {"id": KEY, "cost": "protected"}}}}, "s1", "v.id of"),
        ("SELECT count(*) FROM p JOIN v ON p.id + v.cost * 0 = v.id", trusting(p_id=KEY, v_id=KEY), "", ""),
        ("SELECT count(*) FROM p WHERE EXISTS (SELECT 1 FROM v WHERE v.id = p.id)", HYBRID, "s1", "p.id, v.id"),
        ("SELECT count(*) FROM p JOIN v ON p.id = v.id", trusting(p_id={"level": "protected", "trusted": ["s1"]}, v_id={"level": "protected", "trusted": ["s2"]}), "", ""),
    ],
)  # fmt: skip
def test_trust_follows_from_all_that_a_key_and_its_rows_depend_on(text: str, words: Any, who: str, reads: str) -> None:
    found = leaks(text, words)
    assert list(found) == ([who] if who else [])
    if who:
        assert reads in found[who][0]
        assert leaks(text, words, "none") == ({} if who == "s1" else found)


def test_a_sort_of_public_groups_is_left_to_the_coordinator() -> None:
    made = {}
    for name, words in (("public", PUBLIC), ("hybrid", HYBRID)):
        with connected(sources(FIXED), words) as db:
            catalog = db.catalog()
            made[name] = conclave.planner_of("s1")(parse_statement(STATEMENTS[6], catalog), catalog, db.policy())
    assert (made["public"].limit, made["public"].ordered) == (None, False)
    assert (made["hybrid"].limit, made["hybrid"].ordered) == (2, True)
    assert [type(one).__name__ for one in made["public"].leaves] == ["GroupedLeaf"]


def large(rows: int = 20) -> dict[str, TableSource]:
    """Keys that are no other values."""
    made = {}
    for j in range(3):
        p = [(7_000_000_000 + 3 * k + j, "AB"[k % 2], k % 3, k, None, None) for k in range(rows)]
        v = [(7_000_000_000 + 5 * k + j, k, None) for k in range(rows)]
        made[f"s{j}"] = TableSource({"p": (P, p), "v": (V, v), "q": (Q, []), "n": ({"k": "INTEGER", "name": "VARCHAR"}, [])})  # fmt: skip
    return made


TEXT = "SELECT p.ward, count(*), sum(v.cost) FROM p JOIN v ON p.id = v.id GROUP BY p.ward"
UNIQUE = trusting(p_id={**KEY, "key": True}, v_id=KEY)


def test_only_the_reader_gets_keys_and_its_transcript_says_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a party reads is all in `KeyReader.read`; all other frames are shares, whose bytes have no key in them, and sizes that follow from those of tables."""
    read: dict[str, list[Any]] = {}
    before = KeyReader.read

    async def spied(self: Any, columns: Any) -> Any:
        found = await before(self, columns)
        if self.trio.numbers.island is not None:  # no rehearsal
            read.setdefault(self.trio.numbers.me, []).extend(found)
        return found

    monkeypatch.setattr(KeyReader, "read", spied)
    engine = RecordingEngine()
    with connected(large(), UNIQUE) as db:
        db.engine = engine
        found = db.sql(TEXT, strategy="conclave")
        assert db.check(found)
        assert abs(found.predicted / found.bytes - 1) < 0.1
    assert sorted(read) == ["s0", "s1", "s2"]
    assert read["s0"] == read["s2"] == []
    # Two bits and two keys: those of the 60 rows of each table, in no order; filling rows are 0.
    (mine, theirs) = (np.sort(one[one > 0] ^ np.uint64(1 << 63)) for one in read["s1"] if one.dtype == np.uint64)
    assert mine.tolist() == sorted(row[0] for source in large().values() for row in source.tables["p"][1])
    assert theirs.tolist() == sorted(row[0] for source in large().values() for row in source.tables["v"][1])
    key = np.uint64(7_000_000_000 ^ (1 << 63)).tobytes()[4:]
    assert not any(key in one for link, messages in engine.heard.items() if "coordinator" not in link for one in messages)  # fmt: skip


def test_a_coordinator_that_says_more_than_a_policy_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It tells all sites that s1 is trusted with all keys; of the sites, s0 does not trust it. The others do, and would open."""
    read = []

    before = KeyReader.read

    async def spied(self: Any, columns: Any) -> Any:
        if self.trio.numbers.island is not None:  # no rehearsal
            read.append(self)
        return await before(self, columns)

    lenient, strict = QueryPolicy.of(UNIQUE), QueryPolicy.of({**UNIQUE, "tables": {**UNIQUE["tables"], "v": {"columns": "protected"}}})  # fmt: skip
    monkeypatch.setattr(KeyReader, "read", spied)
    monkeypatch.setattr("atoll.query.job.strictest", lambda told: replace(policy.strictest(told), tables=lenient.tables))  # fmt: skip
    engine = RecordingEngine()
    silos = {name: Silo(source, strict if name == "s0" else lenient, name) for name, source in large().items()}
    with SqlConnection(silos, engine=engine) as db, pytest.raises(LetterError, match="or has another policy"):  # fmt: skip
        db.sql(TEXT, strategy="conclave")
    assert not read
    sent = [one for (source, target), messages in engine.heard.items() if "coordinator" not in (source, target) for one in messages]  # fmt: skip
    # Digests of 16 bytes, and no share of a row.
    assert len({len(one) for one in sent}) == 1
    assert len(set(sent)) == 2


def test_a_party_that_takes_no_part_and_words_that_are_none_are_refused() -> None:
    words = trusting(p_id={"level": "protected", "trusted": ["bank"]}, v_id={"level": "protected", "trusted": ["bank"]})
    with connected(sources(FIXED), words) as db:
        text = "EXPLAIN SELECT p.ward, v.cost FROM p JOIN v ON p.id = v.id"
        with pytest.raises(PolicyError, match="policies trust bank with keys, and it takes no part"):
            db.sql(text, strategy="conclave")
        found = db.sql(text)
        assert (found.strategy, found.rejected["conclave"][:35]) == ("smcql", "policies trust bank with keys, and ")
    with pytest.raises(ConfigError, match="give a list of names"):
        QueryPolicy.of({"tables": {"t": {"columns": {"id": {"trusted": "bank"}}}}})


def test_trust_is_that_of_all_sites_and_public_columns_have_all() -> None:
    words: list[Any] = [KEY, {"level": "protected", "trusted": ["s2", "s3"]}, "public", {"level": "private", "trusted": ["s2"]}]  # fmt: skip
    told = [QueryPolicy.of({"tables": {"t": {"columns": {"id": one}}}}).told({"t": ["id"]}) for one in words]
    found = [policy.strictest(told[:n]).table("t").column("id") for n in (1, 2, 3, 4)]
    assert [one.trusted for one in found] == [("s1", "s2"), ("s2",), ("s2",), ("s2",)]
    assert found[3].level == "private"
    assert policy.strictest([told[0], QueryPolicy.of({}).told({"t": ["id"]})]).table("t").column("id").trusted == ()


def test_a_key_that_is_none_is_noticed_by_the_reader() -> None:
    made = large(3)
    made["s0"].tables["p"][1].append((7_000_000_001, "A", 1, 1, None, None))  # type: ignore[attr-defined]
    with connected(made, UNIQUE) as db, pytest.raises(DataError, match="declare to be in few rows"):
        db.sql(TEXT, strategy="conclave")


def test_two_sites_and_a_helper_whom_policies_trust() -> None:
    words = trusting(p_id={"level": "protected", "trusted": ["helper"], "key": True}, v_id={"level": "protected", "trusted": ["helper"]})  # fmt: skip
    with connected({name: source for name, source in large(9).items() if name != "s2"}, words) as db:
        found = db.sql(TEXT, strategy="conclave")
        assert db.check(found)
        assert [one["who"] for one in found.leakage if one.get("kind") == "keys"] == ["helper"]


def test_auto_takes_the_cheaper_of_the_two_and_says_why() -> None:
    with connected(large(), UNIQUE) as db:
        found = db.sql(f"EXPLAIN {TEXT}")
    assert found.strategy == "conclave"
    assert "smcql" in found.rejected
    assert conclave.planner_of("auto") is conclave.planner_of("auto")
    assert functools.reduce(lambda n, one: n + ("keys at s1" in one["place"]), found.plan, 0) == 1
    with connected(large(), POLICY) as db:
        found = db.sql("EXPLAIN SELECT p.id, v.cost FROM p JOIN v ON p.id = v.id")
    assert (found.strategy, found.rejected["conclave"]) == ("smcql", "its plan is that of smcql")
