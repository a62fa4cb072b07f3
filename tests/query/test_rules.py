"""Rules: a call in FROM is the SQL that it stands for, and that SQL is what a person would compute row by row."""

from __future__ import annotations

import itertools
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import ConfigError
from atoll.query.rules import Rewriting, RuleCall, known_rules, rule
from atoll.query.statement import Catalog, parse_statement
from tests.support.silos import TableSource, connected, fill_table

HOTELS = {"id": "BIGINT", "price": "INTEGER", "stars": "DOUBLE", "city": "VARCHAR"}
EDGES = {"src": "BIGINT", "dst": "BIGINT"}
CATALOG = Catalog({"hotels": HOTELS, "edges": EDGES, "rates": {"id": "BIGINT", "stars": "DOUBLE"}})
KEYS = {name: {column: {"level": "protected", **({"key": True} if column == "id" else {})} for column in types} for name, types in CATALOG.tables.items()}  # fmt: skip
POLICY: dict[str, Any] = {"policy": {"min_count": 1}, "tables": {name: {"columns": columns} for name, columns in KEYS.items()}}  # fmt: skip
Hotel = tuple[int, int | None, float | None, str]
Edge = tuple[int | None, int | None]

hotels = st.lists(st.tuples(st.integers(1, 4) | st.none(), st.sampled_from([-0.0, 0.0, 1.5, 2.0, 1e9]) | st.none(), st.sampled_from("xy")), max_size=8).map(lambda rows: [(k, *row) for k, row in enumerate(rows)])  # fmt: skip
edges = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4) | st.none()), max_size=9)


def skyline(rows: list[Hotel]) -> list[Hotel]:
    """Cheap and with many stars, by comparing every row with every other one."""
    here = [row for row in rows if row[1] is not None and row[2] is not None]
    return [a for a in here if not any(b[1] <= a[1] and b[2] >= a[2] and (b[1] < a[1] or b[2] > a[2]) for b in here)]  # type: ignore[operator]


def subgraphs(rows: list[Edge], pattern: list[tuple[str, str, bool]]) -> set[tuple[int, ...]]:
    """All assignments of different nodes to names whose edges are there."""
    known = {row for row in rows if None not in row}
    names = list(dict.fromkeys(name for a, b, _ in pattern for name in (a, b)))
    nodes = sorted({node for row in rows for node in row if node is not None})
    found = set()
    for chosen in itertools.permutations(nodes, len(names)):
        at = dict(zip(names, chosen, strict=True))
        if all((at[a], at[b]) in known or (not directed and (at[b], at[a]) in known) for a, b, directed in pattern):
            found.add(chosen)
    return found


PATTERNS = {
    "a->b": [("a", "b", True)],
    "a->b->c, a->c": [("a", "b", True), ("b", "c", True), ("a", "c", True)],
    "x-y<-z": [("x", "y", False), ("z", "y", True)],
    "a-b-c-a": [("a", "b", False), ("b", "c", False), ("c", "a", False)],
    "c->d, a->b, b->c, b->a": [("c", "d", True), ("a", "b", True), ("b", "c", True), ("b", "a", True)],
    "hub->p, hub->q, q->r": [("hub", "p", True), ("hub", "q", True), ("q", "r", True)],
}


def pooled(text: str, tables: dict[str, Any]) -> list[Any]:
    with duckdb.connect() as made:
        for name, rows in tables.items():
            fill_table(made, name, (CATALOG.tables[name], rows))
        return made.execute(parse_statement(text, CATALOG).pooled).fetchall()


@settings(max_examples=6)
@given(hotels, edges, st.sampled_from(sorted(PATTERNS)))
def test_what_a_call_stands_for_is_what_a_person_would_compute(rows: Any, graph: Any, pattern: str) -> None:
    best = skyline(rows)
    assert sorted(pooled("SELECT id FROM Skyline(hotels, price, -stars)", {"hotels": rows})) == [(row[0],) for row in best]  # fmt: skip
    text = "SELECT count(*) FROM Skyline((SELECT * FROM hotels WHERE city = 'x') AS h, h.price, -stars) AS s WHERE s.price > 1"
    assert pooled(text, {"hotels": rows}) == [(sum(row[1] > 1 for row in skyline([row for row in rows if row[3] == "x"])),)]  # type: ignore[operator]  # fmt: skip
    expected = subgraphs(graph, PATTERNS[pattern])
    found = pooled(f"SELECT * FROM subgraph(edges, src, dst, '{pattern}')", {"edges": graph})
    assert sorted(found) == sorted(expected)
    assert pooled(f"SELECT count(*) FROM Subgraph(edges, src, dst, '{pattern}') AS g", {"edges": graph}) == [(len(expected),)]  # fmt: skip


ROWS: list[Hotel] = [(k, None if k == 5 else k * 7 % 11, float(k * 5 % 6), "xy"[k % 2]) for k in range(12)]
GRAPH: list[Edge] = [(1, 2), (2, 3), (3, 1), (3, 1), (4, 1), (2, 4), (5, 2), (1, 5)]


@pytest.mark.parametrize(("text", "expected"), [
    ("SELECT id FROM Skyline(hotels, price, -stars)", {(row[0],) for row in skyline(ROWS)}),
    ("SELECT count(*) FROM Subgraph(edges, src, dst, 'a->b->c->a')", {(len(subgraphs(GRAPH, [("a", "b", True), ("b", "c", True), ("c", "a", True)])),)}),
    pytest.param("SELECT x, y, z FROM Subgraph(edges, src, dst, 'x-y<-z')", subgraphs(GRAPH, PATTERNS["x-y<-z"]), marks=pytest.mark.slow),
    pytest.param("SELECT h.id FROM Skyline((SELECT p.id, p.price, r.stars FROM hotels p JOIN rates r ON p.id = r.id) AS h, price, -stars)", {(row[0],) for row in skyline(ROWS)}),
])  # fmt: skip
def test_sites_answer_a_call_under_shares(text: str, expected: set[Any]) -> None:
    """Rows of an answer lie at different sites, and edges of a match too; of the last statement the stars are at another site than the prices."""
    rates = [(row[0], row[2]) for row in ROWS]
    sites = {f"s{j}": TableSource({"hotels": (HOTELS, ROWS[j::2] if j < 2 else []), "edges": (EDGES, GRAPH[j::3]), "rates": (CATALOG.tables["rates"], rates if j == 2 else [])}) for j in range(3)}  # fmt: skip
    with connected(sites, POLICY) as db:
        found = db.sql(text)
        assert (found.strategy, set(found.rows), len(found)) == ("smcql", expected, len(expected))
        assert db.check(found)
        assert (
            "JOIN" in text or abs(found.predicted / found.bytes - 1) < 0.1
        )  # of joins of all pairs it is a guess from fewer rows


def test_explain_shows_what_a_call_stands_for() -> None:
    sites = {f"s{j}": TableSource({name: (types, []) for name, types in CATALOG.tables.items()}) for j in range(3)}
    with connected(sites, POLICY) as db:
        plan = db.sql("EXPLAIN SELECT id FROM Skyline(hotels, price)").plan
    assert plan[0]["place"] == "coordinator"
    assert plan[0]["what"].startswith(
        'Skyline(hotels, price) stands for "hotels" AS "hotels" WHERE ("hotels"."price") IS NOT NULL'
    )
    assert "NOT EXISTS" in plan[0]["what"]


@pytest.mark.parametrize(("text", "match"), [
    ("SELECT 1 FROM Skylin(hotels, price)", r"Skylin is not allowed in FROM: no rule has this name\. Did you mean Skyline\?\nLINE 1: .*\n +\^"),
    ("SELECT 1 FROM Skyline(hotels)", r"1 arguments(.|\n)*write Skyline\(table, value, …\)"),
    ("SELECT 1 FROM Skyline(hotel, price)", "hotel is no table. Did you mean hotels"),
    ("SELECT 1 FROM Skyline((SELECT id FROM hotels), id)", "a subquery without a name"),
    ("SELECT 1 FROM Skyline(hotels, prise)", r"no column prise in hotels. Did you mean price\?\nLINE 1: .*\n +\^"),
    ("SELECT 1 FROM Skyline(hotels, glob('*'))", "the function glob is not one that silos run"),
    ("SELECT 1 FROM Skyline((SELECT 1 AS id FROM read_csv('x')) AS h, id)", "READCSV is not allowed"),
    ("SELECT 1 FROM edges LEFT JOIN Skyline(hotels, price) ON id = src", "stands in a join that keeps other rows"),
    ("SELECT 1 FROM Subgraph(edges, src, to_, 'a->b')", "to_ is no column of edges"),
    ("SELECT 1 FROM Subgraph(edges, src, dst, a)", "a is no text"),
    ("SELECT 1 FROM Subgraph(edges, src, dst, 'a->b->c->d->e')", "has 5 nodes"),
    ("SELECT 1 FROM Subgraph(edges, src, dst, 'a->b, c->d')", "falls apart into two patterns"),
    ("SELECT 1 FROM Subgraph(edges, src, dst, 'a => b')", "cannot be read at 'a => b'"),
    ("SELECT 1 FROM Subgraph(edges, src, dst, 'a->a')", "from a to itself"),
])  # fmt: skip
def test_a_call_that_cannot_be_read_is_refused(text: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        parse_statement(text, CATALOG)


# ---------------------------------------------------------------- a rule of one's own


@rule("CheaperThan(table, value, most)")
def write_cheaper(call: RuleCall) -> Rewriting:
    """Rows below a value."""
    one = call.source(0)
    return Rewriting(one.text, f"{call.expression(1, one)} < {call.whole(2, 0, 10**6)}")


@rule("Bargain(table)")
def write_bargain(call: RuleCall) -> Rewriting:
    """A rule that writes a call of another one."""
    return Rewriting(f"CheaperThan({call.source(0).text}, price, 4)")


@rule("Endless(table)")
def write_endless(call: RuleCall) -> Rewriting:
    """A rule that never ends."""
    return Rewriting(f"Endless({call.source(0).inner})")


def test_a_rule_of_ones_own_answers_like_those_of_atoll() -> None:
    assert known_rules()["cheaperthan"].signature == "CheaperThan(table, value, most)"
    assert write_cheaper.__doc__ == "Rows below a value."
    cheap = [(row[0],) for row in ROWS if row[1] is not None and row[1] < 4]
    for call in ("CheaperThan(hotels, price, 4)", "Bargain(hotels)"):
        assert sorted(pooled(f"SELECT id FROM {call}", {"hotels": ROWS})) == cheap
    policy = {"policy": {"min_count": 1}, "tables": {"hotels": {"columns": "protected"}}}
    sites = {f"s{j}": TableSource({"hotels": (HOTELS, ROWS[j::2])}) for j in range(2)}
    with connected(sites, policy) as db:
        found = db.sql("SELECT count(*) FROM CheaperThan(hotels, price, 4)")
        assert (found.strategy, found.rows, db.check(found)) == ("sums", [(len(cheap),)], True)
        assert found.plan[0]["what"].startswith("CheaperThan(hotels, price, 4) stands for")


def test_rules_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"most is 1\.5"):
        parse_statement("SELECT 1 FROM CheaperThan(hotels, price, 1.5)", CATALOG)
    with pytest.raises(ConfigError, match="more than 100 calls of rules, the last of Endless"):
        parse_statement("SELECT 1 FROM Endless(hotels)", CATALOG)
    for wrong in ("Skyline", "Two words(table)", "Empty()"):
        with pytest.raises(ConfigError, match="write a name and arguments"):
            rule(wrong)
    with pytest.raises(ConfigError, match=r"a second rule SKYLINE: atoll\.query\.rules\.skyline has one"):
        rule("SKYLINE(table)")(write_bargain)


def test_a_rule_reads_what_with_names() -> None:
    """WITH may read what it names before, with a star or by columns; what it names later, or itself, it cannot."""
    rows = [(1, 3, 2.0, "x"), (2, 5, 4.0, "x"), (3, 9, 1.0, "x")]
    made: dict[str, Any] = {"hotels": rows, "edges": [], "rates": []}
    text = "WITH a AS (SELECT *, price + 1 AS more FROM hotels), b AS (SELECT * FROM a WHERE id < 3) SELECT id, more FROM Skyline({}, more, -stars) ORDER BY id"
    assert pooled(text.format("b"), made) == [(1, 4), (2, 6)]
    with pytest.raises(ConfigError, match=r"c is no table(.|\n)*use hotels, edges, rates, a, b, or a subquery"):
        pooled(text.format("c"), made)
    with pytest.raises(ConfigError, match="no column id in b"):
        pooled("WITH a AS (SELECT * FROM b), b AS (SELECT * FROM a) SELECT id FROM Skyline(b, id, -stars)", made)
