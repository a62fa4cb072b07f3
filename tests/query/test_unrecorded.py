"""What parties choose is in no site's record: conditions move to the sites, and what is left is refused as far as policies say by ``unrecorded``."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlglot import parse_one
from sqlglot.optimizer.qualify import qualify

from atoll.core.errors import AtollError, CompositionError, ConfigError
from atoll.engines.recording import RecordingEngine
from atoll.query import QueryPolicy, job
from atoll.query.policy import strictest
from atoll.query.scopes import merge_derived
from atoll.query.secure.limits.selections import push_conditions
from tests.support.silos import TableSource, connected, same_rows

AGGREGATED = {"level": "private", "release": "aggregate"}
TYPES = {"id": "INTEGER", "ward": "VARCHAR", "age": "INTEGER", "pay": "DECIMAL(9,2)", "icu": "INTEGER"}
COLUMNS = {
    "id": {"level": "protected", "at_most": 1},
    "ward": "protected",
    "age": AGGREGATED,
    "pay": AGGREGATED,
    "icu": AGGREGATED,
}
TOTALS = "(SELECT id, ward, sum(pay) AS s, count(*) AS n FROM p GROUP BY id, ward) AS q"


def policy_of(unrecorded: str | None = "joins") -> dict[str, Any]:
    said = {} if unrecorded is None else {"unrecorded": unrecorded}
    tables = {"p": {"columns": COLUMNS}, "r": {"columns": COLUMNS}, "code": {"mode": "replicated", "columns": "public"}}
    return {"policy": {"min_count": 4, **said}, "tables": tables}


def three() -> dict[str, TableSource]:
    rows = [(k, "AB"[k % 2], 20 + k, 100 + k, int(k == 3)) for k in range(30)]
    code = ({"k": "INTEGER", "word": "VARCHAR"}, [(k, f"w{k}") for k in range(9)])
    return {f"s{k}": TableSource({"p": (TYPES, rows[k::3]), "r": (TYPES, rows[k::3]), "code": code}) for k in range(3)}


def ask(text: str, unrecorded: str | None = "joins", before: str = "") -> Any:
    with connected(three(), policy_of(unrecorded)) as db:
        if before:
            assert db.sql(before, strategy="smcql").rows
        found = db.sql(text, strategy="smcql")
        return found.plan if text.startswith("EXPLAIN") else found.rows


# ---------------------------------------------------------------- conditions move to the sites


@pytest.mark.parametrize("text", [
    f"SELECT sum(s) FROM {TOTALS} WHERE id <> 3",
    "SELECT sum(s) FROM (SELECT id, sum(pay) AS s FROM p GROUP BY id HAVING id <> 3) q",
    "WITH q AS (SELECT id, sum(pay) AS s FROM p GROUP BY id) SELECT sum(s) FROM q WHERE id <> 3",
    pytest.param("SELECT sum(s) FROM (SELECT * FROM (SELECT id AS k, sum(pay) AS s FROM p GROUP BY id) a) q(x, s) WHERE x <> 3", marks=pytest.mark.slow),
])  # fmt: skip
def test_a_condition_on_what_a_subquery_passes_on_is_in_the_records(text: str) -> None:
    """The sum less the sum without one person is that person's pay; both were answered."""
    with pytest.raises(AtollError, match="fewer than min_count=4 rows"):
        ask(text, before=f"SELECT sum(s) FROM {TOTALS}")


PASSED = [
    "SELECT count(*) AS n, sum(s) AS s FROM (SELECT k, sum(x) AS s FROM t GROUP BY k) AS q WHERE {0}",
    "SELECT count(*) AS n, sum(s) AS s FROM (SELECT k, sum(x) AS s FROM t GROUP BY k HAVING {1} AND count(*) > 1) AS q",
    "SELECT q.k AS k, u.x AS x FROM (SELECT DISTINCT k FROM t) AS q JOIN t AS u ON u.x = q.k AND {0}",
    "SELECT q.k AS k, u.x AS x FROM t AS u LEFT JOIN (SELECT k, max(x) AS s FROM t GROUP BY k) AS q ON u.x = q.k WHERE {0} OR q.k IS NULL",
    "SELECT q.k AS k, u.x AS x FROM (SELECT k, max(x) AS s FROM t GROUP BY k) AS q LEFT JOIN t AS u ON u.x = q.k WHERE {0}",
    "SELECT q.k AS k, u.x AS x FROM (SELECT k FROM t GROUP BY k) AS q FULL JOIN t AS u ON u.x = q.k WHERE {0}",
    "SELECT count(*) AS n FROM (SELECT k FROM t UNION ALL SELECT x FROM t) AS q WHERE {0}",
    "SELECT count(*) AS n FROM (SELECT k FROM t EXCEPT SELECT x FROM t) AS q WHERE {0}",
    "SELECT sum(n) AS n FROM (SELECT k, row_number() OVER (PARTITION BY k ORDER BY x) AS n FROM t) AS q WHERE {0}",
    "SELECT sum(k) AS n FROM (SELECT k FROM t ORDER BY k, x LIMIT 3) AS q WHERE {0}",
    "WITH q AS (SELECT k, count(*) AS s FROM t GROUP BY k) SELECT sum(q.s) AS n FROM q WHERE {0}",
    "WITH q AS (SELECT k, count(*) AS s FROM t GROUP BY k) SELECT sum(q.s + z.s) AS n FROM q JOIN q AS z ON q.k = z.k WHERE {0}",
    "SELECT sum(q.k) AS n FROM (SELECT k + 1 AS k, count(*) AS s FROM t GROUP BY k + 1) AS q WHERE {0}",
    "SELECT count(*) AS n FROM (SELECT k, x FROM t WHERE x > 0 OR x IS NULL) AS q WHERE {0} AND q.x > q.k",
    "SELECT count(*) AS n FROM (SELECT k FROM t GROUP BY ROLLUP (k)) AS q WHERE {0}",
    "SELECT count(*) AS n FROM t AS u ASOF JOIN (SELECT k FROM t GROUP BY k) AS q ON u.x >= q.k WHERE {0}",
    "SELECT sum(u.x) AS n FROM (SELECT k FROM t GROUP BY k) AS q ASOF JOIN t AS u ON q.k >= u.x WHERE {0}",
    "SELECT count(*) AS n FROM t AS v WHERE v.x > (SELECT count(*) FROM t GROUP BY () HAVING v.k > 1 OR v.k IS NULL)",
    "SELECT count(*) AS n FROM (SELECT k FROM t UNION ALL SELECT 0.5::DECIMAL(3, 1) FROM t) AS q WHERE {0} OR q.k::VARCHAR = '1.0'",
    "SELECT count(*) AS n FROM (SELECT k = 1 OR x = 1 AS k, count(*) AS s FROM t GROUP BY 1) AS q WHERE NOT q.k AND ({0})",
]  # fmt: skip
small = st.integers(-1, 3) | st.none()


CONDITIONS = ["{0}k <> 1", "{0}k IN (0, 2)", "{0}k IS NULL", "({0}k > 0 AND {0}k < 3)", "coalesce({0}k, 9) = 9"]


@given(st.sampled_from(PASSED), st.sampled_from(CONDITIONS), st.lists(st.tuples(small, small), max_size=9))
def test_a_condition_that_moves_leaves_the_answer_as_it_is(text: str, condition: str, rows: list[tuple[Any, ...]]) -> None:  # fmt: skip
    require_same(text.format(condition.format("q."), condition.format("")), rows)


@pytest.mark.parametrize("text", PASSED)
def test_no_condition_moves_where_it_would_change_the_answer(text: str) -> None:
    """Each kind of query once, over all pairs of values."""
    require_same(text.format("q.k <> 1", "k <> 1"), [(k, x) for k in (None, 0, 1, 2) for x in (None, 1, 2, 3)])


def require_same(text: str, rows: list[tuple[Any, ...]], change: Any = push_conditions) -> None:
    tree = qualify(parse_one(text, dialect="duckdb"), schema={"t": {"k": "INT", "x": "INT"}}, dialect="duckdb")
    with duckdb.connect() as made:
        made.execute("CREATE TABLE t (k INTEGER, x INTEGER)")
        if rows:
            made.executemany("INSERT INTO t VALUES (?, ?)", rows)

        def kind(select: Any, node: Any) -> str:
            return str(made.execute(f"DESCRIBE SELECT {node.sql('duckdb')} {select.args['from_'].sql('duckdb')}").fetchone()[1])  # fmt: skip

        moved = (change(tree) if change is not push_conditions else push_conditions(tree, kind)).sql("duckdb")
        same_rows(made.execute(moved).fetchall(), made.execute(text).fetchall(), what=moved)


def test_a_column_that_is_written_out_keeps_its_parentheses() -> None:
    """``NOT k`` of ``a OR b AS k`` is no ``NOT a OR b``, wherever derived tables are merged."""
    text = "SELECT NOT k AS no, n FROM (SELECT k = 1 OR x = 1 AS k, count(*) AS n FROM t GROUP BY 1) AS q"
    require_same(text, [(k, x) for k in range(3) for x in range(3)], merge_derived)


def test_a_condition_moves_as_far_as_a_table() -> None:
    text = "SELECT a.s FROM (SELECT b.j AS i, b.s FROM (SELECT k AS j, sum(x) AS s FROM t GROUP BY k) AS b) AS a WHERE a.i > 3"
    tree = qualify(parse_one(text, dialect="duckdb"), schema={"t": {"k": "INT", "x": "INT"}}, dialect="duckdb")
    moved = push_conditions(tree, lambda select, node: "").sql("duckdb")
    assert moved.count("WHERE") == 1
    assert 'FROM "t" AS "t" WHERE "t"."k" > 3 GROUP BY' in moved


# ---------------------------------------------------------------- what is left


CHOSEN = {
    f"SELECT sum(s) FROM {TOTALS} WHERE s > 110": "110",
    "SELECT sum(s) FROM (SELECT id, sum(pay) AS s FROM p GROUP BY id HAVING sum(pay) > 110) q": "110",
    f"SELECT sum(s) FILTER (WHERE id <> 3) FROM {TOTALS}": "3",
    f"SELECT count(CASE WHEN s > 110 THEN 1 END) FROM {TOTALS}": "110",
    "SELECT sum(s) FROM (SELECT id, sum(pay) FILTER (WHERE id <> 3) AS s FROM p GROUP BY id) q": "3",
    f"SELECT id = 3 AS k, sum(s) FROM {TOTALS} GROUP BY k": "3",
    "SELECT k, sum(s) FROM (SELECT id, max(id) = 3 AS k, sum(pay) AS s FROM p GROUP BY id) q GROUP BY k": "3",
    "SELECT sum(s) FROM (SELECT id, count(*) * 0 + 3 AS k, sum(pay) AS s FROM p GROUP BY id) q WHERE id <> k": "0",
    f"SELECT sum(s) FROM {TOTALS} WHERE s > (SELECT count(*) FROM p WHERE id < 9)": "9",
    f"WITH b AS (SELECT id FROM p WHERE id < 9) SELECT sum(s) FROM {TOTALS} WHERE s > (SELECT count(*) FROM b)": "9",
    f"SELECT sum(s) FROM {TOTALS} JOIN code ON code.k = q.id WHERE code.word <> 'w3'": "'w3'",
    "SELECT count(*) FROM p JOIN r ON p.id = r.id + 1": "1",
    "SELECT count(*) FROM p LEFT JOIN r ON p.id = r.id + 1": "1",
    "SELECT count(*) FROM p WHERE EXISTS (SELECT 1 FROM r WHERE r.id = p.id AND r.age < p.age - 1)": "1",
    "SELECT count(*) FROM (SELECT id FROM p EXCEPT SELECT k + 3 FROM code) q": "3",
    "SELECT sum(x) FROM (SELECT pay AS x FROM p UNION SELECT 103 FROM code) q": "103",
    "SELECT id < 9 AS k FROM p UNION ALL SELECT id < 40 FROM r": "9",
    "SELECT sum(pay) FROM (SELECT id, pay, row_number() OVER (PARTITION BY id ORDER BY age) AS n FROM p) q WHERE n < 7": "7",
}  # fmt: skip

REFUSED_ANYWAY = ("SELECT sum(s) FROM (SELECT id, sum(pay) FILTER (WHERE id <> 3) AS s FROM p GROUP BY id) q",)


@pytest.mark.parametrize("text", CHOSEN)
def test_a_constant_chooses_no_rows_where_no_site_sees_which(text: str) -> None:
    """Whoever may choose by a constant may choose by the next one too."""
    with pytest.raises(CompositionError, match=rf"chooses rows by {CHOSEN[text]}, so that no site's record.*unrecorded: joins.*unrecorded: anything"):  # fmt: skip
        ask(f"EXPLAIN {text}")
    if text not in REFUSED_ANYWAY:
        assert ask(f"EXPLAIN {text}", "anything")


COMPUTED = {
    # The pay of the only person whose icu is not 0, in one statement, whatever policies say.
    "SELECT sum(s) FROM (SELECT id, sum(pay * icu) AS s FROM p GROUP BY id) q": "anything",
    "SELECT sum(s) FROM (SELECT id, sum(pay) * max(icu) AS s FROM p GROUP BY id) q": "anything",
    "SELECT sum(x) FROM (SELECT DISTINCT id, pay * icu AS x FROM p) q": "anything",
    "SELECT sum(s) FROM (SELECT id, pay AS s FROM p UNION ALL SELECT id, pay * icu FROM r) q": "anything",
    # There are 30 groups, or 29: by what person 3 is paid.
    "SELECT count(*) FROM (SELECT CASE WHEN id = 3 THEN pay ELSE id END AS k FROM p GROUP BY 1) q": "joins",
    "SELECT count(*) FROM (SELECT DISTINCT CASE WHEN id = 3 THEN pay ELSE id END AS k FROM p) q": "joins",
    # The sum less that of different values is what two are paid alike; the largest pay of a ward is that of one.
    "SELECT sum(k) FROM (SELECT DISTINCT pay AS k FROM p) q": "joins",
    "SELECT sum(m) FROM (SELECT ward, max(pay) AS m FROM p GROUP BY ward) q": "joins",
    # The product fails for the largest pay alone, which is then NULL; and who has a value may be chosen.
    "SELECT sum(s) FROM (SELECT id, sum(CAST(pay * 77.6 AS DECIMAL(6, 2))) AS s FROM p GROUP BY id) q": "joins",
    "SELECT count(s) FROM (SELECT id, max(CASE WHEN id < 9 AND pay > 103 THEN 1 END) AS s FROM p GROUP BY id) q": "joins",
    "SELECT sum(s) FROM (SELECT id, sum(CAST(pay AS DECIMAL(5, 3))) AS s FROM p GROUP BY id) q": "joins",
    "SELECT sum(s) FROM (SELECT id, pay AS s FROM p UNION ALL SELECT id, pay + 1000000000 FROM r) q": "joins",
    "SELECT count(*) FROM (SELECT DISTINCT ward, CAST(pay AS TINYINT) AS k FROM p) q": "joins",
    # By r.id, r.id * r.id and r.id * r.id * r.id they are equations for the pay of four.
    "SELECT sum(p.pay * r.id) FROM p JOIN r ON p.id = r.id": "joins",
    # Constants without digits.
    f"SELECT sum(s) FROM {TOTALS} WHERE s > CAST(TRUE AS INTEGER)": "joins",
    f"SELECT sum(s) FROM {TOTALS} WHERE s > n + n": "joins",
    f"SELECT sum(s) FROM {TOTALS} JOIN code ON code.k = q.id AND code.k <> length(code.word)": "joins",
    f"SELECT sum(s) FROM {TOTALS} WHERE id <> (SELECT count(*) FROM code)": "joins",
    f"SELECT sum(s) FROM {TOTALS} WHERE id <> (SELECT count(*) FROM r)": "joins",
    f"SELECT sum(s) FROM {TOTALS} WHERE id IN (SELECT a.k FROM code a JOIN code b ON a.k < b.k)": "joins",
    f"SELECT sum(s) FROM {TOTALS} WHERE id IN (SELECT a.k FROM code a JOIN code b ON a.k = b.k AND b.word <> 'w3')": "joins",
    f"SELECT sum(s) FROM {TOTALS} JOIN code a ON a.k = q.id WHERE EXISTS (SELECT 1 FROM code b WHERE b.k > a.k)": "joins",
    # What has nothing chosen, and is of single persons all the same.
    "SELECT avg(m) FROM (SELECT id, max(pay) AS m FROM p GROUP BY id) q": "nothing",
    "SELECT avg(x) FROM (SELECT DISTINCT id, pay AS x FROM p) q": "nothing",
    "SELECT avg(coalesce(s, 0)) FROM (SELECT id, sum(pay) AS s FROM p GROUP BY id) q": "nothing",
    "SELECT sum(n) FROM (SELECT id, count(pay) AS n FROM p GROUP BY id) q": "nothing",
    "SELECT count(s) FROM (SELECT id, sum(pay) AS s FROM p GROUP BY id) q": "nothing",
    "SELECT var_samp(s) FROM (SELECT id, sum(pay) AS s FROM p GROUP BY id) q": "nothing",
    "SELECT sum(s) FROM (SELECT id, sum(pay - age) AS s FROM p GROUP BY id) q": "nothing",
}  # fmt: skip
"""Statements, and the most permissive level that refuses them."""


@pytest.mark.parametrize("text", COMPUTED)
def test_columns_of_subqueries_single_nobody_out(text: str) -> None:
    """No site's record has what a subquery computes: each of these gave the value of one person, alone or less a second statement."""
    levels = ("nothing", "joins", "anything")
    for level in levels:
        if level in levels[: levels.index(COMPUTED[text]) + 1]:
            with pytest.raises(CompositionError, match=r"unrecorded: (nothing|joins)|is the product .* in a subquery"):
                ask(f"EXPLAIN {text}", level)
        else:
            assert ask(f"EXPLAIN {text}", level)


def test_sums_of_products_of_groups_are_equations_that_no_site_sees() -> None:
    text = f"SELECT sum(s * id) FROM {TOTALS}"
    with pytest.raises(CompositionError, match=r"multiplies .* of a subquery"):
        ask(text)
    assert ask(text, "anything") == [(sum(k * (100 + k) for k in range(30)),)]


ANSWERED = {
    "SELECT ward, sum(pay) FROM p WHERE id < 20 AND age > 21 GROUP BY ward": "nothing",
    "SELECT avg(n) FROM (SELECT ward, id, count(*) AS n FROM p WHERE age > 3 GROUP BY ward, id) q": "nothing",
    "SELECT sum(CASE WHEN id < 9 THEN pay END) FROM p": "nothing",
    f"SELECT sum(s) FROM {TOTALS} WHERE s > n": "joins",
    "SELECT sum(CASE WHEN s > n THEN s END) FROM (SELECT id, sum(pay) AS s, sum(age) AS n FROM p GROUP BY id) q": "joins",
    "SELECT sum(s) FROM (SELECT id, sum(CAST(pay AS DECIMAL(18, 4))) AS s FROM p GROUP BY id, CAST(age AS BIGINT)) q": "joins",
    "SELECT avg(s) FROM (SELECT id, sum(coalesce(pay, 0)) AS s FROM p GROUP BY id) q": "joins",
    f"SELECT ward, sum(s) FROM {TOTALS} GROUP BY ward": "joins",
    "SELECT count(*) FROM p JOIN r ON p.id = r.age WHERE p.id > 2 AND r.age < 60": "joins",
    "SELECT count(*) FROM p WHERE EXISTS (SELECT 1 FROM r WHERE r.id = p.id AND r.age > 22)": "joins",
    "SELECT count(*) FROM p WHERE pay > (SELECT avg(pay) FROM r)": "joins",
    "SELECT ward FROM p UNION ALL SELECT ward FROM r": "joins",
    "SELECT count(*) FROM (SELECT id, lag(age) OVER (PARTITION BY id ORDER BY age) AS b FROM p) q WHERE b IS NOT NULL": "joins",
}  # fmt: skip


@pytest.mark.parametrize("text", ANSWERED)
def test_policies_say_what_parties_may_choose(text: str) -> None:
    for level in ("nothing", "joins", "anything"):
        if (ANSWERED[text], level) == ("joins", "nothing"):
            with pytest.raises(
                CompositionError, match=r"(the parties|chooses rows by) .*unrecorded: nothing.*unrecorded: joins"
            ):
                ask(f"EXPLAIN {text}", level)
        else:
            assert ask(f"EXPLAIN {text}", level)


@pytest.mark.parametrize("condition", [
    "NOT EXISTS (SELECT 1 FROM r WHERE r.id = p.id AND r.id = 3)", "p.id NOT IN (SELECT r.id FROM r WHERE r.id = 3)", "p.id IN (SELECT r.id FROM r WHERE r.id NOT IN (3, 27, 28, 29))",
])  # fmt: skip
def test_without_a_word_nobody_chooses_whom_a_lookup_leaves_out(condition: str) -> None:
    """The site of r records its own rows, the site of p all of its: with and without the condition the sum is one person's pay apart."""
    with pytest.raises(CompositionError, match=r"the parties decide .*unrecorded: nothing.*unrecorded: joins"):
        ask(f"SELECT sum(pay) FROM p WHERE id < 27 AND {condition}", None, "SELECT sum(pay) FROM p WHERE id < 27")


def test_a_site_believes_its_own_policy_and_the_strictest_counts() -> None:
    told = [QueryPolicy.of(policy_of(level)).told({"p": ["id"]}) for level in (None, "anything", "nothing")]
    assert [one.get("unrecorded") for one in told] == [None, "anything", None]
    assert strictest(told).unrecorded == "nothing"
    assert strictest(told[1:2]).unrecorded == "anything"
    assert QueryPolicy.of({}).unrecorded == "nothing"
    with pytest.raises(ConfigError, match=r"unrecorded: 'join'.*joins"):
        QueryPolicy.of(policy_of("join"))


@pytest.mark.parametrize("strategy", ["smcql", "opaque:mode=oblivious-pad"])
@pytest.mark.parametrize(
    "text", [f"SELECT sum(s) FROM {TOTALS} WHERE s > 110", "SELECT sum(p.pay * r.id) FROM p JOIN r ON p.id = r.id"]
)
def test_a_coordinator_that_says_anything_is_not_believed(text: str, strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """It answers sites' own words with a policy that allows all; each site plans by its own."""
    honest = job._policy
    policy = policy_of()
    policy["policy"]["enclave"] = {"simulated": True}
    monkeypatch.setattr(job, "_policy", lambda told, tables: {**honest(told, tables), "unrecorded": "anything"})
    engine = RecordingEngine()
    with connected(three(), policy) as db:
        db.engine = engine
        with pytest.raises(CompositionError, match=r"unrecorded: joins \(in few rows; .* at s[0-2]\)"):
            db.sql(text, strategy=strategy)
    between = [one for link, messages in engine.heard.items() if "coordinator" not in link for one in messages]
    assert len({len(one) for one in between}) <= 1, "more than digests"


def test_explain_says_what_no_record_sees() -> None:
    with connected(three(), policy_of()) as db:
        joined = db.sql("EXPLAIN SELECT count(*) FROM p JOIN r ON p.id = r.id", strategy="smcql")
        alone = db.sql("EXPLAIN SELECT count(*) FROM p", strategy="smcql")
    said = [next(one["assuming"] for one in found.leakage if one["sees"] == "the answer") for found in (joined, alone)]
    assert "it does not see" in said[0]
    assert "it does not see" not in said[1]
