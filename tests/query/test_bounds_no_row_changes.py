"""With a ``min_count`` no statement reads a value from whether it is refused: how large numbers may be follows from policies and types (`atoll.query.secure.limits`)."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import AtollError, CompositionError
from atoll.query.policy import QueryPolicy
from atoll.query.secure.limits.value_bounds import longest_text
from atoll.query.secure.names import SelectNames
from atoll.query.secure.plan import SecurePlanner
from atoll.query.statement import Catalog, parse_statement, shadow
from tests.support.silos import TableSource, connected, pooled, same_rows

TYPES = {"id": "INTEGER", "name": "VARCHAR", "pay": "BIGINT", "fee": "DECIMAL(15,2)", "icu": "INTEGER"}
SUMMED = {"level": "private", "release": "aggregate"}


def people(pay: int, name: str = "ann", count: int = 12) -> dict[str, TableSource]:
    rows = [(k, name if k == 3 else "bob", pay if k == 3 else 100 + k, k, k == 3) for k in range(count)]
    return {f"s{k}": TableSource({"p": (TYPES, rows[k::3])}) for k in range(3)}


def policy_of(least: int = 4, **more: Any) -> dict[str, Any]:
    columns = {"id": "protected", "name": "protected", "pay": SUMMED, "fee": SUMMED, "icu": SUMMED} | more
    return {"policy": {"min_count": least}, "tables": {"p": {"columns": columns}}}


def outcome(made: dict[str, TableSource], text: str, strategy: str, policy: dict[str, Any]) -> str:
    """Whether a statement is answered, or how it is refused."""
    with connected(made, policy) as db:
        try:
            db.sql(text, strategy=strategy)
        except AtollError as error:
            return str(error)
    return "answered"


WALKS = [
    *(f"SELECT sum(pay * {10**k}) FROM p" for k in (3, 8, 12, 15)),
    *(f"SELECT sum((pay - {least}) * 1000000000000) FROM p" for least in (100, 100_000)),
    "SELECT sum(CASE WHEN id = 3 THEN pay ELSE 0 END * 1000000000000) FROM p",
    "SELECT sum(x * 1000000000000) FROM (SELECT pay - 100 AS x FROM p) q",
    "SELECT count(*) FROM (SELECT id, sum(pay * 1000000000000) AS s FROM p GROUP BY id) q WHERE s > 0",
    "SELECT var_samp(pay * 1000000) FROM p",
]


@pytest.mark.parametrize("text", [WALKS[2], WALKS[5], *(pytest.param(one, marks=pytest.mark.slow) for one in WALKS)])
def test_a_refusal_does_not_tell_how_large_one_number_is(text: str) -> None:
    """Of 10^6 most of these left 64 bits, and of 103 none: whoever tries further factors read the largest pay."""
    said = [outcome(people(pay), text, "smcql:mode=shares", policy_of()) for pay in (103, 100_000, 1_000_000)]
    assert len(set(said)) == 1


@pytest.mark.parametrize("strategy", ["conclave", "smcql:mode=garbled", "senate", "opaque:mode=oblivious-pad"])
def test_other_strategies_do_not_tell_it_either(strategy: str) -> None:
    policy = policy_of()
    policy["policy"]["enclave"] = {"simulated": True}
    sites = 2 if "garbled" in strategy else 3
    said = [outcome(dict(list(people(pay).items())[:sites]), WALKS[2], strategy, policy) for pay in (103, 1_000_000)]
    assert len(set(said)) == 1
    assert "range: [a, b] for p.pay" in said[0]


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        (WALKS[3], r"no range says how large p.pay may be.*Remedy: let the policies of all sites write range: \[a, b\] for p.pay"),
        ("SELECT sum(1000000000000000000 + icu) FROM p", "might leave 64 bits"),
        ("SELECT replace(name, 'n', name), count(*) FROM p GROUP BY 1", r"nothing bounds the length of REPLACE.*left\(REPLACE.*, 100\)"),
    ],
)  # fmt: skip
def test_what_is_refused_beforehand_names_the_column_and_the_remedy(text: str, remedy: str) -> None:
    """Before any site is asked: these have no rows."""
    said = outcome(people(103), text, "smcql:mode=shares", policy_of())
    assert re.search(remedy, said)


ORDINARY = [
    ("pay", "BIGINT", "SELECT sum(x), avg(x), var_samp(x), stddev(x) FROM p"),
    ("pay", "BIGINT", "SELECT corr(x, y), covar_pop(x, y), count(x) FROM p"),
    ("money", "DECIMAL(15,2)", "SELECT sum(x), avg(x), var_pop(x), sum(x * (1 - y)) FROM p"),
    ("day", "DATE", "SELECT count(*), sum(date_diff('day', x, DATE '2020-01-01')), sum(year(x)) FROM p"),
]


@pytest.mark.parametrize(("name", "kind", "text"), [ORDINARY[0], *(pytest.param(*one, marks=pytest.mark.slow) for one in ORDINARY[1:])])  # fmt: skip
def test_ordinary_statements_need_no_range(name: str, kind: str, text: str) -> None:
    """Of 4,000 rows: numbers up to 150,000 with two digits after the point, and whole ones up to ten millions."""
    import datetime

    def cell(k: int) -> Any:
        return datetime.date(1950 + k % 60, 1 + k % 12, 1 + k % 28) if kind == "DATE" else (k * 7919) % (10_000_000 if kind == "BIGINT" else 150_000)  # fmt: skip

    rows = [(cell(k), cell(k + 77)) for k in range(4000)]
    made = {f"s{k}": TableSource({"p": ({"x": kind, "y": kind}, rows[k::3])}) for k in range(3)}
    policy = {"policy": {"min_count": 5}, "tables": {"p": {"columns": {"x": SUMMED, "y": SUMMED}}}}
    with connected(made, policy) as db, pooled(made) as oracle:
        same_rows(db.sql(text, strategy="smcql:mode=shares").rows, oracle.execute(text).fetchall(), what=name)


def test_products_of_four_columns_need_ranges() -> None:
    """So with the money of TPC-H: price times discount times tax times quantity."""
    text = "SELECT sum(a * (1 - b) * (1 + c) * d) FROM p"
    rows = [(900.25 + k, 0.05, 0.08, 1 + k % 50) for k in range(40)]
    types = dict.fromkeys("abcd", "DECIMAL(15,2)")
    made = {f"s{k}": TableSource({"p": (types, rows[k::3])}) for k in range(3)}
    ranges = {"a": [0, 200_000], "b": [0, 1], "c": [0, 1], "d": [0, 100]}
    for known in ({}, ranges):
        columns = {name: {**SUMMED, **({"range": known[name]} if known else {})} for name in "abcd"}
        with connected(made, {"policy": {"min_count": 5}, "tables": {"p": {"columns": columns}}}) as db:
            if not known:
                with pytest.raises(CompositionError, match=r"write range: \[a, b\] for p.a, p.b, p.c, p.d"):
                    db.sql(text, strategy="smcql:mode=shares")
                continue
            with pooled(made) as oracle:
                ((expected,),) = oracle.execute(text).fetchall()
            ((found,),) = db.sql(text, strategy="smcql:mode=shares").rows
            assert found == expected


def test_a_column_without_a_range_keeps_a_cap_that_no_statement_chooses() -> None:
    """Of a whole table, so that no condition asks about one person; a range makes cells outside NULL, as always."""
    large = people(1 << 40)
    for text in ("SELECT sum(pay) FROM p", "SELECT sum(pay) FROM p WHERE id <> 3", "SELECT sum(pay * 1000) FROM p"):
        said = outcome(large, text, "smcql:mode=shares", policy_of())
        assert "s0" in said
        assert "a number of p.pay is larger than what parties compute with where no range is known" in said
    with connected(large, policy_of(pay={**SUMMED, "range": [0, 1000]})) as db:
        assert db.sql("SELECT sum(pay), count(pay) FROM p", strategy="smcql:mode=shares").rows == [(1163, 11)]


def test_sums_hold_larger_numbers_than_squares() -> None:
    with connected(people(1 << 39), policy_of()) as db:
        assert db.sql("SELECT sum(pay) FROM p", strategy="smcql:mode=shares").rows == [((1 << 39) + 1163,)]
        with pytest.raises(CompositionError, match=r"a number of p\.pay is larger than what parties compute with"):
            db.sql("SELECT var_pop(pay) FROM p", strategy="smcql:mode=shares")


TEXTS = ["SELECT name, count(*) FROM p WHERE id <> {} GROUP BY name", "SELECT upper(left(name, 9)) || 'x', count(*) FROM p WHERE id <> {} GROUP BY 1"]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_the_length_of_texts_is_that_of_whole_tables(text: str) -> None:
    """Where single rows may show, a condition that takes the one long name away makes the answer shorter."""
    sent = {}
    for least in (1, 4):
        for k in (2, 3):
            with connected(people(103, "anna" * 9), policy_of(least)) as db:
                sent[least, k] = db.sql(text.format(k), strategy="smcql:mode=shares").predicted
    assert sent[4, 2] == sent[4, 3]
    assert sent[1, 2] > sent[1, 3]


# ---------------------------------------------------------------- intervals

EXPRESSIONS = st.recursive(
    st.sampled_from(["a", "b", "c", "d", "t", "e", "7", "-3", "0.25", "NULL"]),
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*"]), inner),
        st.builds("({} / {})".format, inner, st.sampled_from(["4", "0.5", "-3"])),
        st.builds("({} // {})".format, inner, st.sampled_from(["4", "-3"])),
        st.builds("({} % {})".format, inner, st.sampled_from(["7", "5"])),
        st.builds("(-{})".format, inner),
        st.builds("abs({})".format, inner),
        st.builds("round({}, {})".format, inner, st.sampled_from(["0", "1", "-1"])),
        st.builds("CASE WHEN {} > {} THEN {} ELSE {} END".format, inner, inner, inner, inner),
        st.builds("coalesce({}, {})".format, inner, inner),
        st.builds("nullif({}, {})".format, inner, inner),
        st.builds("greatest({}, {})".format, inner, inner),
        st.builds("CAST({} AS {})".format, inner, st.sampled_from(["DECIMAL(9,2)", "INTEGER", "DOUBLE", "DECIMAL(18,4)"])),
    ),
    max_leaves=6,
)  # fmt: skip
KINDS = {"a": "INTEGER", "b": "BIGINT", "c": "DECIMAL(9,2)", "d": "DOUBLE", "t": "TINYINT", "e": "SMALLINT", "s": "VARCHAR"}  # fmt: skip
RANGED = {"b": [-50, 1000], "c": [0, 99.5], "d": [-2.5, 1e4]}


def read_bound(text: str) -> tuple[Any, Any]:
    """The bound that no row changes, and what codes the expression."""
    columns = {name: {**SUMMED, **({"range": RANGED[name]} if name in RANGED else {})} for name in KINDS}
    policy = QueryPolicy.of({"policy": {"min_count": 5}, "tables": {"p": {"columns": columns}}})
    catalog = Catalog({"p": KINDS})
    statement = parse_statement(f"SELECT count({text}) AS x FROM p", catalog)
    with shadow(catalog) as connection:
        planner = SecurePlanner(statement, catalog, policy, connection)
        node = planner.tree.expressions[0].unalias().this
        names = SelectNames(planner.tree, planner.scopes.root, None)
        kind = planner.kind(node, names)
        code = planner.code(kind, text)
        return planner.read_bound(node, names, code), (code, kind, node.sql("duckdb"))


@settings(max_examples=150, deadline=None)
@given(EXPRESSIONS, st.tuples(st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-50, 1000), st.integers(0, 9950), st.floats(-2.5, 1e4), st.integers(-128, 127), st.integers(-(1 << 15), (1 << 15) - 1)))  # fmt: skip
def test_no_row_passes_the_bound_of_an_expression(text: str, row: tuple[Any, ...]) -> None:
    """DuckDB computes the expression of a row whose columns have their types and ranges."""
    a, b, c, d, t, e = row
    try:
        bound, (code, kind, shown) = read_bound(text)
    except AtollError:  # no type that parties know
        return
    if code.kind != "whole" or not bound.most:
        return
    source = f"(SELECT {a}::INTEGER AS a, {b}::BIGINT AS b, ({c} / 100)::DECIMAL(9,2) AS c, {d!r}::DOUBLE AS d, {t}::TINYINT AS t, {e}::SMALLINT AS e, '' AS s) AS p"  # fmt: skip
    with shadow(Catalog({})) as connection:
        ((found,),) = connection.execute(f"SELECT TRY({code.local(f'TRY(CAST({shown} AS {kind}))')}) FROM {source}").fetchall()  # fmt: skip
    assert found is None or abs(found) <= bound.most[0]


@settings(max_examples=100, deadline=None)
@given(
    st.recursive(
        st.sampled_from(["s", "'wx'", "a", "NULL"]),
        lambda inner: st.one_of(
            st.builds("({} || {})".format, inner, inner),
            st.builds("upper(CAST({} AS VARCHAR))".format, inner),
            st.builds("left(CAST({} AS VARCHAR), {})".format, inner, st.integers(0, 9)),
            st.builds("coalesce(CAST({} AS VARCHAR), CAST({} AS VARCHAR))".format, inner, inner),
        ),
        max_leaves=5,
    ),
    st.text("aßéɐ漢🙂", max_size=12),
)
def test_no_text_passes_the_length_of_an_expression(text: str, value: str) -> None:
    bound, (code, _, shown) = read_bound(f"CAST({text} AS VARCHAR)")
    assert code.kind == "text"
    longest = longest_text(bound.length, {("p", "s"): 8 * -(-len(value.encode()) // 8)})
    with shadow(Catalog({})) as connection:
        ((found,),) = connection.execute(f"SELECT strlen({shown}) FROM (SELECT -12345::INTEGER AS a, ? AS s) AS p", [value]).fetchall()  # fmt: skip
    assert found is None or found <= longest


@pytest.mark.parametrize("text", ["b * xor(b, 3)", "replace(s, 'a', 'bb')", "upper(replace(s, 'a', 'bb'))"])
def test_a_part_that_is_not_looked_into_is_named(text: str) -> None:
    bound, _ = read_bound(text)
    assert bound.unknown.partition("(")[0].lower() in ("xor", "replace")
