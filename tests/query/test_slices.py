"""Slices by public keys: each is computed alone, those of one site in plaintext there, and the answer is that of DuckDB on the union; who learns which values is told, and nothing else follows from rows."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import AtollError
from atoll.engines.recording import RecordingEngine
from atoll.query.circuits.slice_wires import reduce_slices
from atoll.query.slices import SliceSizes, pair_slices, place_rows
from atoll.secure.garbled import add_wires, number_bits, read_numbers
from tests.support.plain_gates import PlainGates
from tests.support.silos import TableSource, connected, pooled, same_rows

P = {"id": "BIGINT", "ward": "VARCHAR", "age": "BIGINT"}
V = {"id": "BIGINT", "cost": "BIGINT"}
PUBLIC: dict[str, Any] = {
    "policy": {"min_count": 1},
    "tables": {
        "p": {"columns": {"id": "public", "ward": "protected", "age": "protected"}},
        "v": {"columns": {"id": "public", "cost": "protected"}},
    },
}
STATEMENTS = [
    "SELECT p.ward, v.cost FROM p JOIN v ON p.id = v.id AND p.age > v.cost WHERE p.age <> 7",
    "SELECT p.ward, count(*), sum(v.cost), max(p.age) FROM p JOIN v ON p.id = v.id WHERE v.cost > 1 GROUP BY 1",
    "SELECT p.id, v.cost FROM p LEFT JOIN v ON p.id = v.id AND v.cost < p.age",
    "WITH r AS (SELECT id, cost, row_number() OVER (PARTITION BY id ORDER BY cost) AS n FROM v) SELECT DISTINCT a.id FROM r a JOIN r b ON a.id = b.id AND b.n = a.n + 1 WHERE b.cost > a.cost",
    "SELECT ward, age FROM p WHERE EXISTS (SELECT 1 FROM v WHERE v.id = p.id AND v.cost < p.age)",
    "SELECT count(DISTINCT p.ward) FROM p JOIN v ON p.id = v.id",
    "SELECT id, count(*), sum(age) FROM p GROUP BY id ORDER BY 2 DESC, 1 LIMIT 2",
    "SELECT ward, (SELECT sum(cost) FROM v WHERE v.id = p.id) AS s FROM p",
    "SELECT id, sum(x) FROM (SELECT id, age AS x FROM p UNION ALL SELECT id, cost FROM v) u GROUP BY id",
]
people = st.tuples(st.integers(0, 5) | st.none(), st.sampled_from(["A", "Bä", "a longer name", None]), st.integers(0, 9) | st.none())  # fmt: skip
visits = st.tuples(st.integers(0, 5) | st.none(), st.integers(0, 9) | st.none())
sites = st.lists(st.tuples(st.lists(people, max_size=4), st.lists(visits, max_size=4)), min_size=3, max_size=4)


def sources(drawn: Any) -> dict[str, TableSource]:
    return {f"s{k}": TableSource({"p": (P, p), "v": (V, v)}) for k, (p, v) in enumerate(drawn)}


FIXED = sources([([(k % 7, "ABC"[k % 3], k) for k in range(j, 9, 3)], [(k * 3 % 8, k % 6) for k in range(j, 9, 3)]) for j in range(3)])  # fmt: skip
ALONE = sources([([(10 * j + k, "AB"[k % 2], 5) for k in range(2)], [(10 * j + k, k) for k in range(2)]) for j in range(3)])  # fmt: skip


@pytest.mark.parametrize("place", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(1, 9))])
def test_a_sliced_statement_equals_duckdb_and_sends_less(place: int) -> None:
    text = STATEMENTS[place]
    with connected(FIXED, PUBLIC) as db, pooled(FIXED) as oracle:
        found, whole = db.sql(text, strategy="smcql"), db.sql(text, strategy="smcql:slices=none")
        assert found.bytes < whole.bytes
        assert any("name the values of" in step["what"] for step in found.plan)
        assert not any("name the values of" in step["what"] for step in whole.plan)
        for one in (found, whole):
            same_rows(one.rows, oracle.execute(text).fetchall(), what=text)


@settings(max_examples=2)
@given(sites, st.sampled_from(STATEMENTS))
def test_drawn_slices_equal_duckdb_on_the_union(drawn: Any, text: str) -> None:
    """Sites without rows, rows without a value, values of one site and of all."""
    made = sources(drawn)
    with connected(made, PUBLIC) as db, pooled(made) as oracle:
        found = db.sql(text, strategy="smcql").rows
        expected = oracle.execute(text).fetchall()
        same_rows(found, expected[:2] if "LIMIT" in text else expected, what=text)


@pytest.mark.slow
@settings(max_examples=20)
@given(sites, st.sampled_from(STATEMENTS))
def test_many_drawn_slices_equal_duckdb_on_the_union(drawn: Any, text: str) -> None:
    made = sources(drawn)
    with connected(made, PUBLIC) as db, pooled(made) as oracle:
        same_rows(db.sql(text, strategy="smcql").rows, oracle.execute(text).fetchall(), what=text)


# ---------------------------------------------------------------- two owners and a circuit

GARBLED = "smcql:mode=garbled"
TWO = sources([([(k % 5, "ABC"[k % 3], k) for k in range(j, 6, 2)], [(k * 3 % 7, k % 6) for k in range(j, 6, 2)]) for j in range(2)])  # fmt: skip
WITHIN = [
    "SELECT ward, age, id IN (SELECT id FROM v WHERE cost > 2) FROM p WHERE NOT EXISTS (SELECT 1 FROM v WHERE v.id = p.id AND v.cost = p.age)",
    "SELECT id, ward, count(*), max(age) FROM p GROUP BY id, ward",
    "SELECT id, count(DISTINCT ward), count(DISTINCT id), min(ward) FROM p GROUP BY id",
    "SELECT id, age, rank() OVER (PARTITION BY id, ward ORDER BY age DESC), sum(age) OVER (PARTITION BY id ORDER BY age), lag(ward) OVER (PARTITION BY id ORDER BY age DESC, ward) FROM p",
    "SELECT a.id, sum(a.n) FROM (SELECT id, ward, count(*) AS n FROM p GROUP BY id, ward) a JOIN v ON v.id = a.id AND v.cost >= a.n GROUP BY a.id",
]
"""Statements that sort within slices, or ask whether a slice has a row."""
SORTED = (6, 8)
"""Statements of one group a value: without slices each owner sorts its rows, and they merge."""


@pytest.mark.parametrize("place", [1, 8, *(pytest.param(k, marks=pytest.mark.slow) for k in (0, 2, 3, 4, 5, 6, 7))])
def test_a_circuit_in_slices_equals_duckdb_and_sends_what_was_predicted(place: int) -> None:
    text = STATEMENTS[place]
    with connected(TWO, PUBLIC) as db, pooled(TWO) as oracle:
        found, whole = db.sql(text, strategy=GARBLED), db.sql(text, strategy=f"{GARBLED},slices=none")
        expected = oracle.execute(text).fetchall()
        for one in (found, whole):
            same_rows(one.rows, expected, what=text)
            assert abs(one.predicted / one.bytes - 1) < 0.1
        assert place in SORTED or found.bytes < whole.bytes
        assert any("slice by slice of" in step["what"] and step["form"] == "garbled" for step in found.plan)
        seen = [any(one["who"] == "coordinator, every site" and "how many rows each has" in one["sees"] for one in told.leakage) for told in (found, whole)]  # fmt: skip
        assert seen == [True, False]


@settings(max_examples=2)
@given(st.lists(st.tuples(st.lists(people, max_size=4), st.lists(visits, max_size=4)), min_size=2, max_size=2), st.sampled_from([*STATEMENTS, *WITHIN]))  # fmt: skip
def test_drawn_slices_of_a_circuit_equal_duckdb(drawn: Any, text: str) -> None:
    require_circuit(drawn, text)


@pytest.mark.slow
@settings(max_examples=30)
@given(st.lists(st.tuples(st.lists(people, max_size=5), st.lists(visits, max_size=5)), min_size=2, max_size=2), st.sampled_from([*STATEMENTS, *WITHIN]))  # fmt: skip
def test_many_drawn_slices_of_a_circuit_equal_duckdb(drawn: Any, text: str) -> None:
    require_circuit(drawn, text)


@pytest.mark.parametrize("place", [3, *(pytest.param(k, marks=pytest.mark.slow) for k in (0, 1, 2, 4))])
def test_a_circuit_sorts_within_slices(place: int) -> None:
    """Slices of one, two and three rows, some of which a condition leaves out."""
    p, v = (
        [(k * k % 7 if k % 5 else None, "AB"[k % 2], k * 5 % 7) for k in range(14)],
        [(k % 4, k % 3) for k in range(6)],
    )
    require_circuit([(p[::2], v[::2]), (p[1::2], v[1::2])], WITHIN[place])


def require_circuit(drawn: Any, text: str) -> None:
    made = sources(drawn)
    with connected(made, PUBLIC) as db, pooled(made) as oracle:
        found, expected = db.sql(text, strategy=GARBLED), oracle.execute(text).fetchall()
        same_rows(found.rows, expected[:2] if "LIMIT" in text else expected, what=text)
        assert abs(found.predicted / found.bytes - 1) < 0.1


def test_large_numbers_of_one_owner_are_added_to_small_ones_of_both() -> None:
    """What an owner has made alone is wider than what the circuit makes: negative sums, longer texts, and values of 60 bits."""
    big = 1 << 59
    made = sources([([(1, "A", 1), (2, "A", -big), (2, "a name of thirty letters or so", big - 1)], [(1, 2), (2, -big)]), ([(1, None, 3)], [(1, -1)])])  # fmt: skip
    with connected(made, PUBLIC) as db:
        for text in (STATEMENTS[7], STATEMENTS[6].partition(" ORDER")[0]):
            assert db.check(db.sql(text, strategy=GARBLED)), text


def test_circuits_follow_from_public_values_alone() -> None:
    seen = []
    for turn in range(2):
        made = sources([([(k % 3 + 6 * j * (k % 2), f"nook{'ab'[(k + turn) % 2]}", 424242 + k * turn) for k in range(4)], [(k % 3, (k + 2 * turn) % 4) for k in range(3)]) for j in range(2)])  # fmt: skip
        engine = RecordingEngine()
        with connected(made, PUBLIC) as db:
            db.engine = engine
            assert db.check(db.sql(STATEMENTS[0], strategy=GARBLED))
        between = {link: messages for link, messages in engine.heard.items() if "coordinator" not in link}
        seen.append({link: [len(one) for one in messages] for link, messages in between.items()})
        heard = b"".join(one for messages in between.values() for one in messages)
        assert b"nook" not in heard
        assert b"koon" not in heard
    assert seen[0] == seen[1]
    assert seen[0]


@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(0, 15)), min_size=1, max_size=12))
def test_rows_of_a_slice_are_joined_into_one(drawn: list[tuple[int, int]]) -> None:
    rows = sorted(drawn, key=lambda pair: pair[0])
    places, gates = np.array([place for place, _ in rows]), PlainGates()
    x = gates.constant(number_bits(np.array([value for _, value in rows]), 8))

    async def work() -> Any:
        return await reduce_slices(x, places, add_wires)

    made = read_numbers(asyncio.run(work()).data[0].astype(bool))
    assert made.tolist() == [sum(value for place, value in rows if place == one) for one in sorted(set(places.tolist()))]  # fmt: skip


# ---------------------------------------------------------------- who computes which


def test_slices_of_one_site_are_computed_there() -> None:
    """No value is at two sites: no row is joined under shares, only the results are added."""
    with connected(ALONE, PUBLIC) as db:
        found = db.sql(STATEMENTS[0], strategy="smcql")
        assert db.check(found)
        assert len(found.rows) == 6
        whole = db.sql(STATEMENTS[0], strategy="smcql:slices=none")
        assert found.bytes < whole.bytes / 3


def test_rows_that_meet_by_two_public_columns_are_equal_in_both() -> None:
    """Either column would make slices; the one that does not is compared."""
    text = "SELECT a.ward, b.ward, count(*) FROM p a JOIN p b ON a.age = b.age AND a.id = b.id GROUP BY 1, 2"
    public = {"policy": {"min_count": 1}, "tables": {table: {"columns": "public"} for table in "pv"}}
    made = sources([([(k % 2, "AB"[k % 2], k % 3) for k in range(j, 6 + j)], [(k % 2, k % 3 + j) for k in range(2)]) for j in range(2)])  # fmt: skip
    with connected(made, public) as db, pooled(made) as oracle:
        found = db.sql(text, strategy="smcql")
        assert any("name the values of" in step["what"] for step in found.plan)
        same_rows(found.rows, oracle.execute(text).fetchall(), what=text)


def test_plans_say_what_slices_give_away_and_only_public_columns_make_them() -> None:
    with connected(FIXED, PUBLIC) as db:
        [seen] = [
            one
            for one in db.sql(f"EXPLAIN {STATEMENTS[0]}", strategy="smcql").leakage
            if "the values of" in one["sees"]
        ]
        assert seen["who"] == "coordinator, every site"
        assert seen["sees"] == "the values of p.id, v.id at each site, and how many rows each has, up to the next power of two"  # fmt: skip
    for column, least in (("protected", 1), ("public", 2)):
        tables = {**PUBLIC["tables"], "v": {"columns": {"id": column, "cost": "protected"}}}
        with connected(FIXED, {"policy": {"min_count": least, "unrecorded": "joins"}, "tables": tables}) as db:
            plan = db.sql(f"EXPLAIN {STATEMENTS[0]}", strategy="smcql")
            assert not any("the values of" in one["sees"] for one in plan.leakage)


def test_messages_follow_from_public_values_alone() -> None:
    """Two federations with equal public values and other private ones: all messages have the same lengths, and no private cell is in one between sites."""
    seen = []
    for turn in range(2):
        made = sources([([(k % 5 + 6 * j * (k % 2), f"nook{'ab'[(k + turn) % 2]}", 424242 + k * turn) for k in range(6)], [(k * 3 % 5, (k + 2 * turn) % 4) for k in range(4)]) for j in range(3)])  # fmt: skip
        engine = RecordingEngine()
        with connected(made, PUBLIC) as db:
            db.engine = engine
            assert db.check(db.sql(STATEMENTS[0], strategy="smcql"))
        seen.append({link: [len(one) for one in messages] for link, messages in engine.heard.items()})
        heard = b"".join(one for link, messages in engine.heard.items() if link[1] != "coordinator" for one in messages)
        assert b"nook" not in heard
        assert b"koon" not in heard
        assert np.uint64(424242 ^ (1 << 63)).tobytes() not in heard
    assert seen[0] == seen[1]


@pytest.mark.parametrize(("strategy", "sites"), [("smcql", 3), (GARBLED, 2)])
@pytest.mark.parametrize("lie", ["that a value is at one site alone", "that a site has fewer rows of a value", "another site's values"])  # fmt: skip
def test_a_coordinator_that_lies_about_slices_gets_an_error(
    lie: str, strategy: str, sites: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = SliceSizes.told

    def told(self: Any) -> Any:
        said = plain(self)
        if lie == "another site's values":
            return {**said, "counts": dict(reversed(said["counts"].items()))}
        row = said["counts"]["s1"][0]
        at = max(range(len(row)), key=row.__getitem__)
        row[at] = 0 if "alone" in lie else row[at] + 1
        return said

    monkeypatch.setattr(SliceSizes, "told", told)
    made = FIXED if sites == 3 else TWO
    with connected(made, PUBLIC) as db, pytest.raises(AtollError, match=r"told other values of|not those of the sites that are asked|are asked for"):  # fmt: skip
        db.sql(STATEMENTS[0], strategy=strategy)


@given(st.lists(st.integers(-1, 4), min_size=1, max_size=9), st.lists(st.integers(-1, 4), min_size=1, max_size=9))
def test_rows_of_one_slice_are_paired(left: list[int], right: list[int]) -> None:
    keys = [None, "a", "b", "c", "d"]
    one, other, places = pair_slices(np.array(left), np.array(right), keys)
    assert sorted(zip(one, other, strict=True)) == [(i, j) for i, a in enumerate(left) for j, b in enumerate(right) if a == b > 0]  # fmt: skip
    assert [left[i] for i in one] == places.tolist()


def test_rows_lie_in_their_slice() -> None:
    made = SliceSizes(_Sliced(), ("1", "2", "3"), {"a": np.array([[2, 4, 1]]), "b": np.array([[1, 0, 1]])})  # type: ignore[arg-type]
    assert made.joint.tolist() == [True, False, True]
    rows, places = place_rows(["3", "2", "1", "1"], made, "a", 0)
    assert (rows.tolist(), places.tolist()) == ([2, 3, 0], [0, 1, 2])
    assert made.leaf_places(0).tolist() == [0, 0, 2, 0, 2]


class _Sliced:
    places = (0,)
    columns = ((0, "id"),)
