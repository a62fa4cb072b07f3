"""Statements of several groupings are those of DuckDB over all rows in one place: GROUPING SETS, ROLLUP and CUBE, and subqueries beside aggregates. What two groupings differ by is a difference as between two statements."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import AtollError, CompositionError, PolicyError
from atoll.engines.recording import RecordingEngine
from atoll.query.strategies.sums import MaskedSums
from tests.support.silos import TableSource, connected, pooled, same_rows

TYPES = {"id": "INTEGER", "g": "VARCHAR", "k": "INTEGER", "x": "INTEGER", "d": "DECIMAL(12,2)"}
AGGREGATED = {"level": "private", "release": "aggregate"}
row = st.tuples(st.sampled_from("AB") | st.none(), st.integers(1, 3) | st.none(), st.none() | st.integers(-9, 9), st.none() | st.decimals(-9, 9, places=2))  # fmt: skip
tables = st.lists(st.lists(row, max_size=6), min_size=2, max_size=3)
SETS = ["ROLLUP (g, k)", "CUBE (g, k)", "GROUPING SETS (g, (k, g), (), ())", "g, ROLLUP (k)", "GROUPING SETS ((g), ROLLUP (k))", "ROLLUP ((g, k))", "CUBE (g), ROLLUP (k)", "GROUPING SETS ((g))"]  # fmt: skip
BESIDE = ["(SELECT sum(d) FROM p)", "(SELECT count(*) FROM p AS q WHERE q.x > 0)", "(SELECT count(*) FROM n)", "(SELECT count(x) + 1 FROM p JOIN n USING (k))"]  # fmt: skip
AGGREGATES = ["count(*)", "sum(d)", "count(x) FILTER (k > 1)"]
FEW = ["min(x)", "max(d)"]


@st.composite
def statements(draw: Any, shared: bool) -> str:
    aggregates = st.sampled_from(AGGREGATES + (FEW if shared else ["avg(x)", "var_samp(d)"]))
    sets, beside = draw(st.sampled_from(["g, k", *SETS])), "2" if shared else draw(st.sampled_from(BESIDE))
    written = sets not in ("g, k", "GROUPING SETS ((g))")
    keys = ["g"] if sets == "GROUPING SETS ((g))" else ["g", "k"]
    shown = [*draw(st.sampled_from([keys, [f"coalesce({keys[-1]}, '?')" if keys == ["g"] else "k + 1", *keys]])), draw(aggregates), f"1.5 * count(*) - {beside}"]  # fmt: skip
    if written:
        shown.append(draw(st.sampled_from(["grouping(g, k)", "grouping_id(k) + 1", "grouping(k, g)"])))
    text = f"SELECT {', '.join(f'{one} AS c{place}' for place, one in enumerate(shown))} FROM p GROUP BY {sets}"
    text += draw(st.sampled_from(["", " HAVING count(*) > 1", f" HAVING sum(x) > {beside} - 9"]))
    return text + draw(st.sampled_from(["", " ORDER BY ALL", " ORDER BY ALL LIMIT 3"]))


def silos(drawn: Any) -> dict[str, TableSource]:
    fixed = ({"k": "INTEGER", "name": "VARCHAR"}, [(1, "A"), (2, "C"), (4, None)])
    return {f"s{j}": TableSource({"p": (TYPES, [(10 * j + k, *one) for k, one in enumerate(site)]), "n": fixed}) for j, site in enumerate(drawn)}  # fmt: skip


def policy(least: int = 1, level: Any = "public") -> dict[str, Any]:
    columns = {"id": "protected", "g": level, "k": level, "x": AGGREGATED, "d": AGGREGATED}
    if level != "public":
        columns |= {"x": "protected", "d": "protected"}
    return {"policy": {"min_count": least}, "tables": {"p": {"columns": columns}, "n": {"mode": "replicated", "columns": "public"}}}  # fmt: skip


def require_equal(drawn: Any, texts: list[str], strategy: str = "sums") -> None:
    made = silos(drawn)
    with connected(made, policy(level="public" if strategy == "sums" else "protected")) as db, pooled(made, replicated=("n",)) as oracle:  # fmt: skip
        for text in texts:
            found, expected = db.sql(text, strategy=strategy), oracle.execute(text)
            assert found.columns == tuple(one[0] for one in expected.description), text
            same_rows(found.rows, expected.fetchall(), ordered=text.endswith(("ALL", "LIMIT 3")), what=text)
            assert strategy != "sums" or abs(found.predicted / found.bytes - 1) < 0.1, text


@settings(max_examples=3)
@given(tables, st.lists(statements(shared=False), min_size=2, max_size=2))
def test_drawn_groupings_equal_duckdb_on_the_union(drawn: Any, texts: list[str]) -> None:
    require_equal(drawn, texts)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(tables, st.lists(statements(shared=False), min_size=3, max_size=3))
def test_many_drawn_groupings_equal_duckdb_on_the_union(drawn: Any, texts: list[str]) -> None:
    require_equal(drawn, texts)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(tables, st.lists(statements(shared=True), min_size=2, max_size=2))
def test_drawn_groupings_under_shares_equal_duckdb_on_the_union(drawn: Any, texts: list[str]) -> None:
    require_equal(drawn, texts, "smcql")


ROWS = [[("AB"[k % 2], k % 3, 7 * k % 5, None) for k in range(7)], [], [("B", None, k, 2) for k in range(3)]]
WRITTEN = [
    "SELECT g, sum(x) / (SELECT sum(x) FROM p) AS part FROM p GROUP BY ROLLUP (g) ORDER BY part DESC, g",
    "SELECT g, count(*) FROM p GROUP BY g HAVING count(*) > (SELECT count(*) / 4 FROM p) ORDER BY (SELECT count(*) FROM n) - count(*)",
    "SELECT g, g IN (SELECT name FROM n GROUP BY name) AS here, NOT EXISTS (SELECT count(*) FROM p HAVING count(*) > 99) FROM p GROUP BY ALL",
    "SELECT g, count(*) FILTER (k = 1) * 1.0 / (SELECT count(*) FROM p) FROM p GROUP BY g",
    "WITH t AS (SELECT g, k, count(*) AS n FROM p GROUP BY ROLLUP (1, 2)) SELECT g, n / 2 FROM t WHERE n > 1",
    "WITH u AS (SELECT * FROM p WHERE x > 1) SELECT k, count(*) * 1.0 / (SELECT count(*) FROM u) FROM u GROUP BY k",
    "SELECT g, n * 1.0 / (SELECT count(*) FROM p) FROM (SELECT g, count(*) AS n FROM p GROUP BY g) AS t",
    "SELECT DISTINCT g FROM p GROUP BY ROLLUP (g, k)",
    "SELECT g AS w, count(*) AS n FROM p GROUP BY GROUPING SETS (w, ()) ORDER BY grouping(g), n DESC LIMIT 2",
    "SELECT k, count(*) FROM p WHERE g = 'nowhere' GROUP BY GROUPING SETS ((k), ())",
    "SELECT g FROM p WHERE x > 99 GROUP BY ROLLUP (g)",
    "SELECT coalesce(g, '?') AS a, g, coalesce(g, '?') || '!', count(*) FROM p GROUP BY ROLLUP (coalesce(g, '?'), g) HAVING coalesce(g, '?') <> 'A' ORDER BY ALL",
    "SELECT k + 1, k, sum(x) FROM p GROUP BY CUBE (k + 1, k) ORDER BY k + 1, k",
]


def test_shares_of_totals_and_groupings_equal_duckdb_on_the_union() -> None:
    require_equal(ROWS, WRITTEN)


def test_groupings_of_rows_of_several_sites_are_computed_under_shares_and_in_circuits() -> None:
    text = "SELECT g, k, count(*), max(x), grouping(g, k) FROM p GROUP BY GROUPING SETS ((g, k), ()) HAVING count(*) > 1 ORDER BY ALL"  # fmt: skip
    inside = "SELECT k + 1 AS a, k, count(*) FROM p GROUP BY ROLLUP (k + 1, k) ORDER BY ALL"
    require_equal(ROWS, [text, inside], "smcql")
    require_equal([ROWS[0][:3], ROWS[2][:1]], ["SELECT g, count(*) FROM p GROUP BY ROLLUP (g) ORDER BY ALL"], "smcql:mode=garbled")  # fmt: skip


def people(*few: str) -> dict[str, TableSource]:
    """Two sites of 12 people each in groups A and B, and further ones at the first."""
    rows = [("AB"[k % 2], 1, k, 1) for k in range(12)]
    return silos([[*rows, *((g, 1, 3, 1) for g in few)], rows])


def test_groupings_of_enough_units_are_shown_and_asked_again() -> None:
    with connected(people(), policy(5)) as db:
        text = "SELECT g, count(*), sum(x) / (SELECT sum(x) FROM p) FROM p GROUP BY ROLLUP (g) ORDER BY ALL"
        found = db.sql(text)
        assert db.check(found)
        assert (found.withheld_groups, found.withheld_values, len(found.rows)) == (0, 0, 3)
        assert db.sql(text).rows == found.rows


@pytest.mark.parametrize(
    "text",
    [
        "SELECT g, count(*) FROM p GROUP BY ROLLUP (g)",  # C is left out, and the total less A and B shows it
        "SELECT g, k, count(*) FROM p GROUP BY CUBE (g, k)",
        "SELECT g, sum(x), (SELECT sum(x) FROM p) FROM p GROUP BY g",
        "SELECT sum(x) - (SELECT sum(x) FROM p WHERE id <> 3) FROM p",
        "SELECT count(*) FROM p HAVING count(*) > (SELECT count(*) FROM p WHERE id <> 3)",
    ],
)
def test_a_total_less_its_groups_does_not_isolate_few(text: str) -> None:
    with connected(people("C"), policy(5)) as db, pytest.raises(AtollError, match=r"the difference between .* is fewer than min_count=5 rows"):  # fmt: skip
        db.sql(text, strategy="sums")


def test_a_total_of_few_is_null_and_of_a_grouping_is_left_out() -> None:
    with connected(people(), policy(5)) as db:
        found = db.sql("SELECT g, count(*), (SELECT sum(x) FROM p WHERE id < 3) FROM p GROUP BY g ORDER BY g")
        assert (found.rows, found.withheld_groups) == ([("A", 12, None), ("B", 12, None)], 1)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("SELECT g, (SELECT count(*) FROM p AS q WHERE q.g = p.g), count(*) FROM p GROUP BY g", r'reads "p"\."g" of the statement around it.*statement of their own, or use the strategy smcql'),
        ("SELECT g, count(*) FROM p GROUP BY g HAVING count(*) > ALL (SELECT count(*) FROM p)", "comparison with ALL of the subquery.*compare with a subquery that stands for one value"),
        ("SELECT g, rank() OVER (ORDER BY count(*)) FROM p GROUP BY ROLLUP (g)", "window function beside GROUP BY ROLLUP"),
        ("SELECT count(*) FROM p GROUP BY CUBE (k, k+1, k+2, k+3, k+4, k+5, k+6)", "makes 128 groupings.*at most 64 of them with GROUPING SETS"),
        (f"SELECT count(*) FROM p GROUP BY CUBE ({', '.join(f'k+{n}' for n in range(15))})", "makes 32,768 groupings.*at most 64"),
        ("SELECT max(x), (SELECT max(x) FROM p) FROM p", "the value of one row"),
        ("SELECT g IN (SELECT name FROM n GROUP BY name), k, count(*) FROM p GROUP BY ALL", "GROUP BY ALL has the key"),
        ("SELECT (SELECT count(*) FROM p) FROM p GROUP BY ALL", "GROUP BY ALL has the key .*write GROUP BY and columns"),
        ("SELECT g, count(*), (SELECT max(n) FROM (SELECT count(*) AS n FROM p GROUP BY g)) FROM p GROUP BY g", "subquery|value of one row"),
    ],
)  # fmt: skip
def test_what_sums_cannot_put_together_is_refused_before_contact(text: str, match: str) -> None:
    with connected(people(), policy()) as db:
        db.engine = RecordingEngine()
        with pytest.raises((CompositionError, PolicyError), match=match):
            db.sql(text, strategy="sums")
        assert all(len(heard) == 1 for heard in db.engine.heard.values())  # the tables and policies


def test_shares_refuse_groupings_where_few_must_not_show_and_averages_of_them() -> None:
    with connected(people(), policy(5, "protected")) as db, pytest.raises(CompositionError, match=r"ROLLUP .*min_count is 5.*use the strategy sums"):  # fmt: skip
        db.sql("SELECT g, count(*) FROM p GROUP BY ROLLUP (g)", strategy="smcql")
    with connected(people(), policy(1, "protected")) as db, pytest.raises(CompositionError, match=r"UNION of averages.*ask for SUM and COUNT"):  # fmt: skip
        db.sql("SELECT g, avg(x) FROM p GROUP BY ROLLUP (g)", strategy="smcql")
    with connected(people(), policy()) as db, pytest.raises(CompositionError, match=r"GROUP BY ROLLUP.*use the strategy sums"):  # fmt: skip
        db.sql("SELECT g, count(*) FROM p GROUP BY ROLLUP (g)", strategy="hufu")


def test_a_site_answers_for_the_groupings_of_its_own_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that asks for one grouping more, or one less, hears nothing."""
    plain = MaskedSums._add

    async def lie(self: MaskedSums, fed: Any, what: Any, message: Any) -> Any:
        return await plain(self, fed, what, {**message, "cells": message["cells"][:-1]})

    monkeypatch.setattr(MaskedSums, "_add", lie)
    with connected(people(), policy()) as db, pytest.raises(AtollError, match="1 groupings are asked for, and the statement has 2"):  # fmt: skip
        db.sql("SELECT g, count(*) FROM p GROUP BY ROLLUP (g)")


def test_explain_says_what_each_grouping_takes_and_all_of_them_take_one_sum() -> None:
    with connected(people(), policy(5)) as db:
        found = db.sql("EXPLAIN SELECT g, count(*) FROM p GROUP BY ROLLUP (g)")
        assert [one["what"] for one in found.plan if one["form"] == "masked"][1:] == ['COUNT(*) by "p"."g": 16 bytes a group', "COUNT(*) by nothing: 16 bytes a group"]  # fmt: skip
        answer = db.sql("EXPLAIN ANALYZE SELECT g, count(*) FROM p GROUP BY ROLLUP (g)")
        assert found.expected["rounds"] == answer.expected["rounds"] == 3
