"""Groups of joined rows along a join tree: they are DuckDB's, no policy bounds how often a key repeats, and cycles stay as they are."""

from __future__ import annotations

import itertools
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import CompositionError
from atoll.query.secure.yannakakis import find_cycle
from tests.support.silos import TableSource, connected, pooled, same_rows

A = {"k": "BIGINT", "g": "VARCHAR", "x": "BIGINT"}
B = {"k": "BIGINT", "j": "INTEGER", "y": "DECIMAL(9,2)"}
C = {"j": "BIGINT", "h": "VARCHAR", "z": "BIGINT"}
D = {"k": "BIGINT", "name": "VARCHAR", "w": "BIGINT"}
POLICY: dict[str, Any] = {
    "policy": {"min_count": 1},
    "tables": {
        **{t: {"columns": "protected"} for t in "abc"},
        "d": {"columns": {"k": {"level": "protected", "key": True}, "name": "protected", "w": "protected"}},
    },
}

keys = st.integers(0, 2) | st.none()
numbers = st.integers(-9, 9) | st.none()
a_rows = st.tuples(keys, st.sampled_from(["P", "Q", "a long name of a ward"]) | st.none(), numbers)
b_rows = st.tuples(keys, keys, st.decimals(-9, 9, places=2) | st.none())
c_rows = st.tuples(keys, st.sampled_from(["u", "v"]) | st.none(), numbers)
sites = st.lists(st.tuples(st.lists(a_rows, max_size=3), st.lists(b_rows, max_size=3), st.lists(c_rows, max_size=3)), min_size=3, max_size=3)  # fmt: skip


def sources(drawn: Any) -> dict[str, TableSource]:
    dims = [[(0, "zero", 5)], [(2, None, None)], []]
    return {f"s{k}": TableSource({"a": (A, a), "b": (B, b), "c": (C, c), "d": (D, dims[k])}) for k, (a, b, c) in enumerate(drawn)}  # fmt: skip


# Acyclic joins, and the tables whose columns they have.
FROMS = [
    ("a JOIN b ON a.k = b.k", "ab"),
    ("a JOIN b ON a.k = b.k JOIN c ON b.j = c.j", "abc"),
    ("c JOIN b ON b.j = c.j JOIN a ON a.k = b.k AND a.x > 0", "abc"),
    ("a JOIN b ON a.k = b.k JOIN c ON c.j = a.k", "abc"),
    ("a, b WHERE a.k = b.k AND b.j = a.x", "ab"),
    ("a, c WHERE a.x > 0", "ac"),
    ("a JOIN d ON a.k = d.k JOIN b ON b.k = a.k", "abd"),
    ("d JOIN a ON a.k = d.k JOIN c ON c.j = d.k", "acd"),
    ("a JOIN (SELECT k, count(*) AS n FROM b GROUP BY k) e ON e.k = a.k JOIN c ON c.j = a.k", "ac"),
]
AGGREGATES = {
    "": ["count(*)"],
    "a": ["sum(a.x)", "count(a.x)", "min(a.x)", "max(a.g)", "count(DISTINCT a.x)", "avg(a.x)", "count(*) FILTER (WHERE a.x > 0)"],
    "b": ["sum(b.y)", "min(b.y)", "sum(b.y) FILTER (WHERE b.j = 1)", "var_pop(b.y)"],
    "c": ["sum(c.z)", "max(c.h)", "min(c.z) FILTER (WHERE c.h = 'u')", "sum(DISTINCT c.z)"],
    "d": ["max(d.name)", "sum(d.w)"],
    "ab": ["sum(a.x * b.y)", "sum(a.x - b.y)", "count(a.x + b.y)", "corr(a.x, b.y)", "sum(CASE WHEN a.x > b.y THEN 1 ELSE 0 END)", "max(a.x) FILTER (WHERE b.y > 0)"],
    "ac": ["sum(a.x * (2 - c.z))", "sum(a.x) FILTER (WHERE c.z > 0 AND a.x > 0)", "min(a.x + c.z)", "sum((a.x - 1) * (a.x + c.z))"],
    "abc": ["sum(a.x * b.y * c.z)", "sum(b.y * c.z - a.x)", "count(*) FILTER (WHERE b.y > 0 AND c.z > 0)"],
    "bd": ["sum(d.w * b.y)"],
}  # fmt: skip
GROUPS = {"a": ["a.g", "a.k"], "b": ["b.k", "b.j"], "c": ["c.h"], "d": ["d.name", "d.k"]}


def choices(table: dict[str, list[str]], read: str) -> list[str]:
    return [one for names, found in table.items() if set(names) <= set(read) for one in found]


@st.composite
def statements(draw: Any) -> str:
    source, read = draw(st.sampled_from(FROMS))
    group = draw(st.lists(st.sampled_from(choices(GROUPS, draw(st.sampled_from(read)))), max_size=2, unique=True))
    shown = [*group, *draw(st.lists(st.sampled_from(choices(AGGREGATES, read)), min_size=0 if group else 1, max_size=3, unique=True))]  # fmt: skip
    by = f" GROUP BY {', '.join(group)}" if group else ""
    having = draw(st.sampled_from(["", "", " HAVING count(*) > 1", " HAVING sum(a.x) IS NOT NULL"]))
    return f"SELECT {', '.join(shown)} FROM {source}{by}{having if group and 'a' in read else ''}"


def require_equal(drawn: Any, texts: list[str], strategy: str = "smcql") -> list[Any]:
    made, answers = sources(drawn), []
    with connected(made, POLICY) as db, pooled(made) as oracle:
        for text in texts:
            answers.append(db.sql(text, strategy=strategy))
            same_rows(answers[-1].rows, oracle.execute(text).fetchall(), what=text)
    return answers


FIXED = [
    (
        [(0, "P", 3), (1, "Q", None), (0, "P", 3)],
        [(0, 1, Decimal("1.25")), (0, None, None), (2, 2, Decimal(-4))],
        [(1, "u", 2), (1, None, -7)],
    ),
    ([(None, "P", 5), (2, None, -1)], [(1, 1, Decimal(2)), (None, 2, Decimal(7))], [(2, "v", None), (None, "u", 4)]),
    ([(2, "a long name of a ward", 8)], [], [(1, "v", 9), (0, "v", 1)]),
]
EXAMPLES = [
    "SELECT a.g, count(*), sum(a.x * (1 - b.y) * c.z), count(b.y + c.z), min(c.z) FILTER (WHERE b.y > 0), count(DISTINCT a.x), max(b.y) FROM a JOIN b ON a.k = b.k JOIN c ON b.j = c.j GROUP BY a.g",
    "SELECT count(*), sum(a.x), sum(c.z), min(c.h), corr(a.x, c.z) FROM a, c WHERE a.x > 4 HAVING count(*) < 100",
    "SELECT DISTINCT b.j FROM a JOIN d ON a.k = d.k JOIN b ON b.k = a.k",
]  # fmt: skip


def test_each_way_of_adding_up_equals_duckdb() -> None:
    found = require_equal(FIXED, EXAMPLES)
    steps = ["\n".join(one["what"] for one in answer.plan) for answer in found]
    assert 'add up c by "c"."j", before it is joined' in steps[0]
    assert 'add up b by "b"."k", before it is joined' in steps[0]
    assert "c beside each row" in steps[1]
    assert "keep rows with a match: semijoin" in steps[2]


def test_no_rows_are_counted_as_none() -> None:
    empty = [([], [], [])] * 3
    found = require_equal(
        empty, ["SELECT count(*), sum(a.x), count(b.y) FROM a JOIN b ON a.k = b.k HAVING count(*) = 0"]
    )
    assert found[0].rows == [(0, None, 0)]


@settings(max_examples=2)
@given(sites, st.lists(statements(), min_size=1, max_size=1))
def test_drawn_acyclic_statements_equal_duckdb(drawn: Any, texts: list[str]) -> None:
    require_equal(drawn, texts)


@pytest.mark.slow
@settings(max_examples=40)
@given(sites, st.lists(statements(), min_size=4, max_size=4))
def test_many_drawn_acyclic_statements_equal_duckdb(drawn: Any, texts: list[str]) -> None:
    require_equal(drawn, texts)


# ---------------------------------------------------------------- what it saves, and where it stays away

SUM = "SELECT count(*), sum(a.x * b.y) FROM a JOIN b ON a.k = b.k"


def rows(count: int) -> Any:
    return [([(k % 2, "P", k) for k in range(count)], [(k % 2, 1, Decimal(k)) for k in range(count)], []) for _ in range(3)]  # fmt: skip


def test_a_sum_over_a_join_needs_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two keys is in 6 rows of both tables: 72 pairs, for which the parties would hold 12 x 12 = 144; they add up in tables of 12 rows."""
    monkeypatch.setattr("atoll.query.strategies.shared_rows.MOST_ROWS", 48)
    (early,) = require_equal(rows(4), [SUM])
    with connected(sources(rows(4)), POLICY) as db:
        with pytest.raises(CompositionError, match="144 rows, filled up"):
            db.sql("SELECT a.x, b.y FROM a JOIN b ON a.k = b.k", strategy="smcql")
        monkeypatch.undo()
        monkeypatch.setattr("atoll.query.secure.plan.aggregate_early", lambda plan: plan)
        pairs = db.sql(SUM.replace("a.x * b.y", "b.y * a.x"), strategy="smcql")
    assert pairs.rows == early.rows
    assert early.bytes < 0.5 * pairs.bytes


def test_a_cycle_stays_and_is_named() -> None:
    text = "SELECT a.k, count(*) FROM a JOIN b ON a.k = b.k JOIN c ON b.j = c.j AND c.z = a.x GROUP BY a.k"
    with connected(sources(FIXED), POLICY) as db:
        plan = db.sql(f"EXPLAIN {text}", strategy="smcql").plan
    assert any("the joins of a, b, c form a cycle" in one["what"] for one in plan)
    assert not any("add up" in one["what"] for one in plan)


def test_noise_on_sizes_counts_rows_of_a_join() -> None:
    """What one unit moves is a number of joined rows: of a sum over them one row would stand for many, and noise would be too small."""
    limited = {"columns": {"k": {"level": "protected", "at_most": 4}, "x": "protected"}}
    policy = {"policy": {"min_count": 1, "privacy": {"people": {"anna": {"epsilon": 4, "delta": 1e-6}}}}, "tables": {"a": limited, "b": limited}}  # fmt: skip
    text = "EXPLAIN SELECT count(*) FROM a JOIN b ON a.k = b.k WHERE a.x > 0 AND b.x > 0"
    tables = {f"s{j}": TableSource({"a": ({"k": "BIGINT", "x": "BIGINT"}, []), "b": ({"k": "BIGINT", "x": "BIGINT"}, [])}) for j in range(3)}  # fmt: skip
    steps = {}
    with connected(tables, policy) as db:
        steps["smcql"] = [one["what"] for one in db.sql(text, strategy="smcql").plan]
        steps["shrinkwrap"] = [one["what"] for one in db.sql(text, strategy="shrinkwrap:answer=noisy", epsilon=2.0, delta=1e-6, analyst="anna").plan]  # fmt: skip
    assert {name: any("add up" in one for one in own) for name, own in steps.items()} == {"smcql": True, "shrinkwrap": False}  # fmt: skip


# ---------------------------------------------------------------- cycles


def is_acyclic(edges: list[frozenset[int]]) -> bool:
    """By the definition: there is a tree of the tables in which those with a column are connected."""
    n = len(edges)
    pairs = list(itertools.combinations(range(n), 2))
    for links in itertools.combinations(pairs, n - 1):
        if all(_connected(tuple(k for k in range(n) if one in edges[k]), links) for one in {None}.union(*edges) - {None}) and _connected(tuple(range(n)), links):  # fmt: skip
            return True
    return False


def _connected(nodes: tuple[int, ...], links: tuple[tuple[int, int], ...]) -> bool:
    reached = set(nodes[:1])
    for _ in nodes:
        reached |= {b for pair in links for a, b in (pair, pair[::-1]) if a in reached and b in nodes}
    return reached == set(nodes)


@given(st.lists(st.frozensets(st.integers(0, 4), max_size=3), min_size=1, max_size=5))
def test_cycles_are_found_where_no_join_tree_exists(edges: list[frozenset[int]]) -> None:
    assert (not find_cycle(edges)) == is_acyclic(edges)


@pytest.mark.parametrize(
    ("edges", "cycle"),
    [
        ([{0}, {0, 1}, {1}], []),
        ([{0, 1}, {1, 2}, {2, 0}], [0, 1, 2]),
        ([{0, 1}, {1, 2}, {2, 0}, {0, 1, 2}], []),
        ([{0, 1}, {1, 2}, {2, 3}, {3, 0}, {0, 9}, {9}], [0, 1, 2, 3]),
        ([set(), {0}, {0}], []),
    ],
)
def test_known_cycles(edges: list[set[int]], cycle: list[int]) -> None:
    assert find_cycle([frozenset(one) for one in edges]) == cycle
