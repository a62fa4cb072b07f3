"""``smcql`` of two owners without a helper: the circuit of a plan gives DuckDB's answer on the union, its messages depend on sizes alone, and it costs what was predicted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import AtollError, CompositionError, ConfigError, DataError, LetterError, PolicyError
from atoll.engines.recording import RecordingEngine
from atoll.query.strategies.garbled import OwnerAnswer
from atoll.secure.garbled import Garbler
from tests.query import test_shares_law as law
from tests.query.test_few_rows_under_shares import ALLOWED, PEOPLE, people, policy_of
from tests.support.owners import answer_in_clear
from tests.support.silos import TableSource, connected, pooled, same_rows
from tests.support.tpch import POLICY as ORDERS
from tests.support.tpch import QUERIES, make_sources

GARBLED = "smcql:mode=garbled"
BILLS = {"who": "BIGINT", "ward": "VARCHAR", "cost": "DECIMAL(9,2)"}
OPEN: dict[str, Any] = {"policy": {"min_count": 1}, "tables": {"bills": {"columns": "protected"}}}


def bills(*sites: list[tuple[Any, ...]]) -> dict[str, TableSource]:
    return {f"s{k}": TableSource({"bills": (BILLS, rows)}) for k, rows in enumerate(sites)}


TWO = bills([(1, "A", 3.5), (2, "B", None), (3, None, 1)], [(4, "A", 2.25), (2, "B", 7)])


# ---------------------------------------------------------------- what circuits compute, in the clear


def require_equal(made: Any, policy: Any, texts: list[str], replicated: tuple[str, ...] = ("n",)) -> None:
    with connected(made, policy) as db, pooled(made, replicated=replicated) as oracle:
        for text in texts:
            try:
                found, _ = answer_in_clear(db, text)
            except PolicyError:
                assert "OVER" in text  # ranks and sums of windows show by what rows are ordered
                continue
            same_rows(found, oracle.execute(text).fetchall(), what=text)


SMALL = [law.site(0), ([], [], []), law.site(1)]


@pytest.mark.parametrize("place", [3, *(pytest.param(k, marks=pytest.mark.slow) for k in (0, 1, 2, 4, 5))])
def test_a_statement_of_each_kind_equals_duckdb(place: int) -> None:
    require_equal(law.sources(SMALL), law.POLICY, [law.EXAMPLES[place]])


@settings(max_examples=2)
@given(law.sites, law.statements())
def test_drawn_statements_equal_duckdb_on_the_union(drawn: Any, text: str) -> None:
    require_equal(law.sources(drawn[:2]), law.POLICY, [text])


@pytest.mark.slow
@settings(max_examples=12)
@given(law.sites, st.lists(law.statements(), min_size=2, max_size=2))
def test_many_drawn_statements_equal_duckdb_on_the_union(drawn: Any, texts: list[str]) -> None:
    require_equal(law.sources(drawn), law.POLICY, texts)


@pytest.mark.parametrize("number", [k if k in (4, 12) else pytest.param(k, marks=pytest.mark.slow) for k in QUERIES])
def test_tpch_equals_duckdb(number: int) -> None:
    require_equal(make_sources(), ORDERS, [QUERIES[number]], ("region", "nation"))


def test_limits_that_keep_nothing_and_tables_without_columns() -> None:
    texts = [
        "SELECT count(*) FROM bills a, bills b",
        "SELECT count(*) FROM (SELECT who, row_number() OVER (ORDER BY who) FROM bills ORDER BY who LIMIT 2 OFFSET 50) z",
        "SELECT who FROM bills WHERE cost IN (SELECT cost FROM bills ORDER BY who LIMIT 0)",
        "SELECT who FROM bills WHERE EXISTS (SELECT 1 FROM bills WHERE cost > 5) ORDER BY who LIMIT 1 OFFSET 3",
    ]
    require_equal(TWO, OPEN, texts, ())


# ---------------------------------------------------------------- two owners


def test_two_sites_without_a_helper_garble_by_themselves() -> None:
    text = "SELECT ward, count(*) AS n, avg(cost), min(who) FROM bills GROUP BY ward ORDER BY n DESC, ward LIMIT 2"
    with connected(TWO, OPEN) as db:
        found = db.sql(text)
        assert (found.strategy, db.check(found)) == ("smcql", True)
        assert "two" in found.rejected["conclave"] or "three parties" in found.rejected["conclave"]
        assert {"place": "the two owners", "form": "garbled"}.items() <= found.plan[2].items()
        assert {"who": "the two owners", "sees": "nothing else", "assuming": "both owners follow the protocol"} in found.leakage  # fmt: skip
        assert abs(found.predicted / found.bytes - 1) < 0.01
        explained = db.sql(f"EXPLAIN {text}", strategy=GARBLED)
        assert explained.predicted > found.bytes  # of 256 rows


def test_messages_follow_from_sizes_alone_and_nobody_but_the_coordinator_reads_the_answer() -> None:
    """Two federations whose tables are alike in size and in nothing else: an owner hears as many bytes of each message, and no cell."""
    seen = []
    for wards in ("pqr", "ppp"):
        sites = [[(424242 + k * j, 8 * wards[(k + j) % 3], k) for k in range(3 + j)] for j in range(2)]
        engine = RecordingEngine()
        with connected(bills(*sites), OPEN) as db:
            db.engine = engine
            found = db.sql("SELECT a.ward, count(*) FROM bills a JOIN bills b ON a.who = b.who GROUP BY a.ward", strategy=GARBLED)  # fmt: skip
            assert db.check(found)
        seen.append({link: [len(one) for one in messages] for link, messages in engine.heard.items() if link[0] != "coordinator" and link != ("s0", "s0")})  # fmt: skip
        heard = b"".join(one for link, messages in engine.heard.items() for one in messages if "coordinator" not in link)  # fmt: skip
        assert b"pppppppp" not in heard
        assert b"qqqqqqqq" not in heard
    assert seen[0] == seen[1]
    assert len(seen[0]) == 4


def test_groups_of_few_units_are_withheld() -> None:
    rows = people(12)
    made = {f"s{k}": TableSource({"p": (PEOPLE, [*rows[k::2], *([(50, "C", 1, 1)] if k else [])])}) for k in range(2)}
    text = "SELECT ward, count(*), sum(pay) FROM p GROUP BY ward ORDER BY ward"
    with connected(made, policy_of(4, **ALLOWED)) as db:
        rows_in_clear, _ = answer_in_clear(db, text)
        found = db.sql(text, strategy=GARBLED)
        assert found.rows == rows_in_clear
        assert [row[:2] for row in found.rows] == [("A", 6), ("B", 6)]
        assert found.withheld_groups is None  # one unit alone


def test_what_a_policy_claims_of_a_key_is_checked() -> None:
    keyed = {"policy": {"min_count": 1}, "tables": {"bills": {"columns": {**dict.fromkeys(BILLS, "protected"), "who": {"level": "protected", "key": True}}}}}  # fmt: skip
    with connected(TWO, keyed) as db, pytest.raises(DataError, match="declare to be in few rows"):
        db.sql("SELECT count(*) FROM bills a JOIN bills b ON a.who = b.who WHERE a.cost < b.cost + 5", strategy=GARBLED)


@pytest.mark.parametrize(
    ("sites", "strategy", "text", "error", "match"),
    [
        (3, GARBLED, "SELECT who FROM bills", CompositionError, "3 sites, and a garbled circuit is computed by two"),
        (2, "smcql:mode=loud", "SELECT who FROM bills", ConfigError, "use mode=auto, shares, garbled"),
        (2, "conclave:mode=garbled", "SELECT who FROM bills", ConfigError, "there is no option 'mode'"),
        (2, GARBLED, "SELECT b.who FROM Matching(bills AS a, bills AS b, a.cost)", CompositionError, "a matching is an auction of three parties.*helper"),
        (2, GARBLED, "SELECT mode(who) FROM bills", CompositionError, "under shares"),
    ],
)  # fmt: skip
def test_what_owners_cannot_compute_is_refused(sites: int, strategy: str, text: str, error: type[AtollError], match: str) -> None:  # fmt: skip
    with connected(bills(*[[(1, "A", 2)]] * sites), OPEN) as db, pytest.raises(error, match=match):
        db.sql(text, strategy=strategy)


def test_circuits_that_are_too_large_are_refused_before_a_row_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "SELECT a.who FROM bills a JOIN bills b ON a.who = b.who"
    with connected(TWO, OPEN) as db:
        for name, match in (("MOST_ROWS", "36 rows, filled up"), ("GarbledSmcql.most_gates", r"a circuit of [\d,]+ ANDs, and owners compute 20")):  # fmt: skip
            with monkeypatch.context() as patch:
                patch.setattr(f"atoll.query.strategies.garbled.{name}", 20)
                with pytest.raises(CompositionError, match=match):
                    db.sql(text, strategy=GARBLED)


def test_parts_that_do_not_fit_give_no_row() -> None:
    rng = np.random.default_rng(0)
    tags, bits = rng.integers(0, 2**63, (2, 9)).astype(np.uint64), rng.integers(0, 2, 9).astype(bool)
    own = np.where(bits, tags[1], tags[0])
    np.testing.assert_array_equal(Garbler.read_parts([tags.ravel(), own], 9), bits)
    own[4] ^= np.uint64(1)
    for parts, match in (([tags.ravel(), own], "1 of 9 labels"), ([tags.ravel()], "another form"), ([own, own], "another form")):  # fmt: skip
        with pytest.raises(LetterError, match=match):
            Garbler.read_parts(parts, 9)
    reply = {"parts": [own], "layouts": [{"a": 8, "b": 1}], "rows": [1]}
    for other in ({**reply, "layouts": [{"b": 1, "a": 8}]}, {**reply, "rows": [2]}):
        with pytest.raises(LetterError, match="rows of different forms"):
            OwnerAnswer.of_replies([reply, other], "smcql")
