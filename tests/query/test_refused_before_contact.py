"""What a statement may not ask is refused before any site is asked for rows, with the place where it stands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from atoll.core.errors import AtollError
from atoll.query import Silo, strategies
from atoll.query.strategies.strategy import known_strategies, strategy_of
from tests.support.silos import TableSource, connected

TYPES = {"id": "BIGINT", "ward": "VARCHAR", "pay": "DOUBLE", "x": "DOUBLE", "y": "DOUBLE"}
POINTS = {"place": {"x": "x", "y": "y"}}


@pytest.fixture
def db() -> Iterator[Any]:
    """Silos that fail if a row is read."""
    policy = {"policy": {"min_count": 1}, "tables": {"p": {"columns": {"id": "protected", "ward": "public", "pay": "private", "x": "private", "y": "private"}, "points": POINTS}}}  # fmt: skip
    made = {f"s{k}": TableSource({"p": (TYPES, [(k, "A", 1.0, 0.0, 0.0)])}) for k in range(3)}
    with pytest.MonkeyPatch.context() as patch, connected(made, policy) as connection:
        patch.setattr(Silo, "run_all", lambda *given, **more: pytest.fail("a row was read"))
        yield connection


@pytest.mark.parametrize("strategy", ["auto", "sums", "smcql", "hufu"])
@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("SELECT wrad FROM p", r"no column wrad in p\. Did you mean ward\?\nLINE 1: SELECT wrad FROM p\n {15}\^"),
        ("SELECT count(*)\nFROM q", r"no table q is at all sites\.(?s:.*)LINE 2: FROM q\n {13}\^"),
        ("SELECT ward + 1 FROM p WHERE ward > DATE '2024-01-01' + id", "(?i)no function matches|cannot|could not"),
        ("DELETE FROM p", r"DELETE is not allowed: silos are only read\nLINE 1: DELETE FROM p"),
        ("CREATE TABLE z AS SELECT 1", "CREATE is not allowed"),
        ("COPY p TO '/tmp/p.csv'", "COPY is not allowed"),
        ("SELECT * FROM read_csv('/etc/passwd')", r"is not allowed(?s:.*)LINE 1: SELECT \* FROM read_csv"),
        ("SELECT * FROM '/etc/passwd'", "no table /etc/passwd is at all sites"),
        ("SELECT getenv('HOME') FROM p", "the function getenv is not one that silos run"),
        ("SELECT 1 FROM p; SELECT 2 FROM p", "these are 2 statements"),
        ("WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r, p", "it may never end"),
        (f"SELECT {'(' * 900}1{')' * 900} FROM p", "nested too deeply to be read.*write fewer parentheses"),
        ("SELECT count(*) FROM p WHERE id = 1 OR id = 2 AND getenv('HOME') = ''", "the function getenv is not one that silos run"),
    ],
)  # fmt: skip
def test_no_row_is_read_for_what_is_no_query(db: Any, strategy: str, text: str, match: str) -> None:
    with pytest.raises(AtollError, match=match):
        db.sql(text, strategy=strategy)


@pytest.mark.parametrize(
    "value",
    ["repeat('a', 1000000000)", "lpad('a', 100000000, 'b')", "rpad('a', id, 'b')", "repeat(repeat(ward, 1000), 1000)",
     "replace(replace(replace(replace(replace(ward, 'A', 'AAAAAAAAAA'), 'A', 'AAAAAAAAAA'), 'A', 'AAAAAAAAAA'), 'A', 'AAAAAAAAAA'), 'A', 'AAAAAAAAAA')"],
)  # fmt: skip
def test_a_text_that_is_long_for_one_row_alone_is_refused(db: Any, value: str) -> None:
    """It takes a minute where somebody has a value, and none where not; also with an epsilon, and free if it fails."""
    with pytest.raises(AtollError, match="tells of rows"):
        db.sql(f"SELECT count(*) FROM p WHERE CASE WHEN id = 3 AND pay > 102 THEN length({value}) ELSE 0 END = 0")


def test_doubled_texts_are_refused_whatever_stands_between(db: Any) -> None:
    steps = "".join(f", t{k + 1} AS (SELECT x || x AS x FROM t{k})" for k in range(14))
    with pytest.raises(AtollError, match="texts become more than 10,000 times longer"):
        db.sql(f"WITH t0 AS (SELECT ward AS x FROM p){steps} SELECT count(*) FROM t14 WHERE length(x) > 1")
    assert db.sql(
        "EXPLAIN SELECT count(*) FROM p WHERE lpad(replace(ward, 'A', 'aa'), 8, '0') || ' ' || ward = 'x'"
    ).plan


@pytest.mark.parametrize(
    ("strategy", "text", "match"),
    [
        ("auto", "SELECT pay FROM p", "shows values of p.pay, which is private"),
        ("sums", "SELECT sum(pay) FROM p", "p.pay is private and only counts rows"),
        ("smcql", "SELECT sum(pay) FROM p", "p.pay is private and only counts rows"),
        ("smcql", "SELECT max(9223372036854775807 + 1) FROM p", "(?i)64 bits|overflow"),
        ("smcql", "SELECT ward FROM p ORDER BY pay", "shows values of p.pay, which is private"),
        ("hufu", "SELECT ward FROM p ORDER BY Distance(place, POINT(0, 0)) LIMIT 1", "private"),
        ("sums", "SELECT count(*) FROM p a JOIN p b ON a.id < b.id", "may need rows of two sites"),
    ],
)
def test_no_row_is_read_for_what_policies_keep(db: Any, strategy: str, text: str, match: str) -> None:
    with pytest.raises(AtollError, match=match):
        db.sql(text, strategy=strategy)


def test_types_that_do_not_fit_together_are_refused() -> None:
    made = {"a": TableSource({"p": ({"k": "DATE"}, [])}), "b": TableSource({"p": ({"k": "BIGINT"}, [])})}
    with pytest.MonkeyPatch.context() as patch, connected(made, {"tables": {"p": {"columns": "public"}}}) as db:
        patch.setattr(Silo, "run_all", lambda *given, **more: pytest.fail("a row was read"))
        with pytest.raises(AtollError, match="column k of p is DATE at a and BIGINT at b"):
            db.sql("SELECT count(*) FROM p")


def test_a_name_finds_the_strategy_of_its_own_module_and_no_other_module() -> None:
    listed = {getattr(strategies, name) for name in strategies.__all__ if hasattr(getattr(strategies, name), "predict_cost")}  # fmt: skip
    named = {strategy_of(f"{name}:option=1") for name in known_strategies()[1:]}
    assert named == listed - {strategies.Strategy}
    assert {strategy_of(name) for name in ("auto", "", "strategy", "garbled", "..sums", "os", "sums.os")} == {None}
