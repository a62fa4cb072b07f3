"""``senate``: owners of whom all but one may cheat get DuckDB's answer on the union; whoever alters a share, its input, the order or range of its rows, or its part of the answer is found out, and no row is shown."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pytest

from atoll.core.errors import AtollError, CompositionError, ConfigError, LetterError
from atoll.engines.recording import RecordingEngine
from atoll.query.statement import parse_statement
from atoll.query.strategies import Senate
from atoll.query.strategies.senate import OwnerChecks
from atoll.secure.shares import AuthenticatedBits
from tests.query import test_shares_law as law
from tests.query.test_few_rows_under_shares import ALLOWED, PEOPLE, people, policy_of
from tests.query.test_garbled import BILLS, OPEN, TWO, bills
from tests.support.owners import answer_in_clear
from tests.support.silos import TableSource, connected, pooled, same_rows

THREE = bills([(1, "A", 3.5), (9, "B", 1)], [(2, "B", None), (3, "A", 3)], [(3, None, 1)])
GROUPED = "SELECT ward, sum(cost) FROM bills GROUP BY ward"
CHEAT = "s1"


@pytest.mark.parametrize("made", [TWO, THREE])
def test_owners_answer_as_duckdb_does_and_cost_what_was_predicted(made: Any) -> None:
    with connected(made, OPEN) as db:
        found = db.sql("SELECT ward, count(*) AS n, avg(cost), min(who) FROM bills GROUP BY ward ORDER BY n DESC, ward LIMIT 2", strategy="senate")  # fmt: skip
        assert (found.strategy, db.check(found)) == ("senate", True)
        assert abs(found.predicted / found.bytes - 1) < 0.1
        assert [one["who"] for one in found.leakage][:2] == ["helper", "the owners together"]
        assert any("colludes with nobody" in one["assuming"] for one in found.leakage if one["sees"] == "nothing else")
        assert {"place": "helper", "form": "dealt"}.items() <= found.plan[0].items()


def test_who_has_no_row_of_the_tables_takes_no_part() -> None:
    made = {f"s{k}": TableSource({"bills": (BILLS, rows), "notes": ({"who": "BIGINT"}, [])}) for k, rows in enumerate([[(1, "A", 3.5)], [], [(2, "A", 1)]])}  # fmt: skip
    engine = RecordingEngine()
    with connected(made, {**OPEN, "tables": {**OPEN["tables"], "notes": {"columns": "protected"}}}) as db:
        db.engine = engine
        found = db.sql(GROUPED, strategy="senate")
        assert db.check(found)
        assert {link for link in engine.heard if "s1" in link} == {("coordinator", "s1"), ("s1", "coordinator")}
        assert any("which sites have no row of bills" in one["sees"] for one in found.leakage)
        for text in ("SELECT count(*) FROM notes", "SELECT b.who FROM bills b LEFT JOIN notes n ON n.who = b.who AND n.who > b.cost"):  # fmt: skip
            assert db.check(db.sql(text, strategy="senate")), text


def test_tables_of_two_pairs_of_owners_are_joined_once_each_site_has_them() -> None:
    """What an error advises: a table without rows where a site lacks it. A garbled circuit has no second pair of owners."""
    types = {"trips": {"card": "BIGINT", "fare": "BIGINT"}, "cards": {"number": "BIGINT", "bank": "VARCHAR"}}
    rows: list[dict[str, list[Any]]] = [{"trips": [(1, 5), (2, 6)]}, {"trips": [(1, 7)]}, {"cards": [(1, "A")]}, {"cards": [(2, "B")]}]  # fmt: skip
    policy = {"policy": {"min_count": 1}, "tables": {table: {"columns": "protected"} for table in types}}
    text = "SELECT bank, sum(fare) FROM trips JOIN cards ON card = number GROUP BY bank"
    own = {f"s{k}": TableSource({table: (types[table], one[table]) for table in one}) for k, one in enumerate(rows)}
    with connected(own, policy) as db, pytest.raises(ConfigError, match="table trips is not at s2 and s3") as caught:
        db.sql(text, strategy="senate")
    assert "trips.csv with the line card,fare alone" in caught.value.remedy
    every = {f"s{k}": TableSource({table: (types[table], one.get(table, [])) for table in types}) for k, one in enumerate(rows)}  # fmt: skip
    with connected(every, policy) as db:
        assert sorted(db.sql(text, strategy="senate").rows) == [("A", 12), ("B", 6)]
        with pytest.raises(CompositionError, match="4 sites, and a garbled circuit is computed by two"):
            db.sql(text, strategy="smcql:mode=garbled")


def test_honest_rows_pass_all_checks() -> None:
    """Units are numbered rows, numbers have ranges, and owners sort texts, dates and gaps both ways."""
    made = {f"s{k}": TableSource({"p": (PEOPLE, people(12)[k::2])}) for k in range(2)}
    with connected(made, policy_of(4, **ALLOWED)) as db:
        found, _ = answer_in_clear(db, "SELECT ward, count(*), sum(pay), avg(age) FROM p GROUP BY ward", OwnerChecks)
        assert sorted(row[:2] for row in found) == [("A", 6), ("B", 6)]
    texts = [
        "SELECT ward, count(DISTINCT k), sum(age), max(seen) FROM p GROUP BY ward", "SELECT id, cost, day FROM v ORDER BY day DESC, id NULLS FIRST LIMIT 3",
        "SELECT id, lag(day) OVER (PARTITION BY id ORDER BY cost DESC) FROM v",
    ]  # fmt: skip
    made = law.sources([law.site(0), ([], [], []), law.site(1)])
    with connected(made, law.POLICY) as db, pooled(made, replicated=("n",)) as oracle:
        for text in texts:
            same_rows(answer_in_clear(db, text, OwnerChecks)[0], oracle.execute(text).fetchall(), what=text)


# ---------------------------------------------------------------- an owner cheats


def alter_share(patch: pytest.MonkeyPatch) -> None:
    plain = AuthenticatedBits.conjoin

    async def conjoin(self: Any, x: Any, y: Any) -> Any:
        made = await plain(self, x, y)
        if self.me == CHEAT:
            made.data[..., -1] ^= np.uint64(1)
        return made

    patch.setattr(AuthenticatedBits, "conjoin", conjoin)


def alter_part(patch: pytest.MonkeyPatch) -> None:
    plain = AuthenticatedBits.hand_out

    async def hand_out(self: Any, x: Any) -> Any:
        made = await plain(self, x)
        if self.me == CHEAT:
            made[1:] ^= made[0]  # as if its part of the key were the key
        return made

    patch.setattr(AuthenticatedBits, "hand_out", hand_out)


def change_input(patch: pytest.MonkeyPatch) -> None:
    plain = AuthenticatedBits._fix

    async def fix(self: Any, owner: str, difference: Any, shape: Any) -> Any:
        if owner != self.me or owner != CHEAT:
            return await plain(self, owner, difference, shape)
        send = self.peers.send

        class Changing:
            async def send(self, role: str, message: Any) -> None:
                shown = isinstance(message, list)
                await send(role, [message[0], message[1] ^ np.uint8(1)] if shown else message)

            recv = self.peers.recv

        kept, self.peers = self.peers, Changing()
        try:
            return await plain(self, owner, difference, shape)
        finally:
            self.peers = kept

    patch.setattr(AuthenticatedBits, "_fix", fix)


def alter_rows(change: Any) -> Any:
    """What an owner does who gives other rows into the circuit than its site has computed."""

    def attack(patch: pytest.MonkeyPatch) -> None:
        from atoll.query.strategies import garbled

        plain = garbled.own_rows

        def own_rows(island: Any, request: Any, place: int, **said: Any) -> Any:
            rows = plain(island, request, place, **said)
            return {name: change(name, np.array(values)) for name, values in rows.items()} if island.name == CHEAT else rows  # fmt: skip

        patch.setattr(garbled, "own_rows", own_rows)

    return attack


def keep_order(patch: pytest.MonkeyPatch) -> None:
    """The one who has A and B lets them fall."""
    from atoll.query.circuits import owner_rows

    plain = owner_rows.sort_own

    def sort_own(rows: Any, order: Any) -> Any:
        made = plain(rows, order)
        return {name: values[::-1] for name, values in made.items()} if len(next(iter(made.values()))) == 2 else made

    patch.setattr(owner_rows, "sort_own", sort_own)


def exceed(patch: pytest.MonkeyPatch) -> None:
    """Numbers have 64 bits, and one has them."""
    from atoll.query.strategies import garbled

    plain = garbled.measure_bits
    patch.setattr(garbled, "measure_bits", lambda leaf, rows, **more: dict.fromkeys(plain(leaf, rows, **more), 64))
    alter_rows(lambda name, x: np.where(x > 0, 1 << 62, x) if x.dtype == np.int64 else x)(patch)


ATTACKS = {
    "share": (alter_share, GROUPED, "an opened bit does not have its code"),
    "part": (alter_part, GROUPED, "a part of a result was altered"),
    "input": (change_input, GROUPED, "s1 showed another input than it had committed to"),
    "order": (keep_order, GROUPED, "s1: its rows are not in the order"),
    "range": (exceed, GROUPED, "s1: a number of .* lies outside its range"),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_owner_that_cheats_is_found_out(attack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, text, match = ATTACKS[attack]
    made = bills([(1, "A", 3.5)], [(2, "B", 4), (3, "A", 3)])
    with connected(made, OPEN) as db:
        with monkeypatch.context() as patch:
            change(patch)
            with pytest.raises(LetterError, match=match):
                db.sql(text, strategy="senate")
        assert db.check(db.sql(text, strategy="senate"))


def test_a_row_with_the_number_of_another_site_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    alter_rows(lambda name, x: x ^ np.uint64(1 << 41) if x.dtype == np.uint64 and (x >> np.uint64(40) == 1 ^ 1 << 23).all() else x)(monkeypatch)  # fmt: skip
    made = {f"s{k}": TableSource({"p": (PEOPLE, people(4)[k::2])}) for k in range(2)}
    with connected(made, policy_of(2, **ALLOWED)) as db, pytest.raises(LetterError, match="s1: a row has the number of another site"):  # fmt: skip
        db.sql("SELECT ward, count(*) FROM p GROUP BY ward", strategy="senate")


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("sites", "helper", "match"),
    [
        (1, True, "1 sites, and 2 to 16 owners"),
        (17, True, "17 sites, and 2 to 16 owners"),
        (3, False, "no party deals"),
    ],
)
def test_too_few_or_too_many_owners_and_none_that_deals_are_refused(sites: int, helper: bool, match: str) -> None:
    with pytest.raises(CompositionError, match=match):
        Senate().require_parties(sites, helper=helper)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("SELECT b.who FROM Matching(bills AS a, bills AS b, a.cost)", "a matching is an auction of three parties"),
        ("SELECT a.who FROM bills a, bills b, bills c, bills d, bills e WHERE a.ward < e.ward", r"a circuit of [\d,]+ ANDs, and owners compute"),
    ],
)  # fmt: skip
def test_what_owners_cannot_compute_is_refused(text: str, match: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.query.strategies.senate.Senate.most_gates", 1000)
    with connected(THREE, OPEN) as db, pytest.raises(AtollError, match=match):
        db.sql(text, strategy="senate")


# ---------------------------------------------------------------- hundreds of rows


_VISITS = {"patient": "BIGINT", "diagnosis": "VARCHAR", "day": "DATE"}
_HOSPITALS = {"policy": {"min_count": 1}, "tables": {table: {"columns": {"patient": {"level": "protected", "at_most": 8}, "diagnosis": "protected", "day": "protected"}} for table in ("d", "m")}}  # fmt: skip
_COMORBID = "SELECT diagnosis, count(*) AS n FROM d WHERE patient IN (SELECT patient FROM d WHERE diagnosis = 'k1') AND diagnosis <> 'k1' GROUP BY 1 ORDER BY n DESC, 1 LIMIT 10"
_JOINED = "SELECT count(DISTINCT d.patient) FROM d JOIN m ON d.patient = m.patient WHERE d.diagnosis = 'k1' AND lower(m.diagnosis) LIKE '%k2%' AND d.day <= m.day"
_RECURRENT = "WITH r AS (SELECT patient, day, row_number() OVER (PARTITION BY patient ORDER BY day) AS n FROM d WHERE diagnosis = 'k1') SELECT DISTINCT a.patient FROM r a JOIN r b ON a.patient = b.patient AND b.n = a.n + 1 WHERE b.day - a.day >= 15"


def hospitals(rows: int) -> dict[str, TableSource]:
    """Three, whose tables have so many rows: eight of a patient, anywhere."""
    start = datetime.date(2024, 1, 1)
    return {f"s{site}": TableSource({table: (_VISITS, [((3 * k + site) * 7 % (3 * rows) // 8, f"k{(5 * k + site) % 20}", start + datetime.timedelta(11 * k % 300)) for k in range(rows)]) for table in ("d", "m")}) for site in range(3)}  # fmt: skip


def test_three_owners_of_512_rows_are_within_the_limit() -> None:
    with connected(hospitals(0), _HOSPITALS) as db:
        catalog = db.catalog()
        for text in (_COMORBID, _JOINED, _RECURRENT):
            plan = Senate().plan(parse_statement(text, catalog), catalog, db.policy())
            columns = [column for leaf in plan.leaves for column in leaf.columns]
            widths = {column.name: 2 for column in columns if column.code.kind == "text"}
            bits = {column.name: 16 for column in columns if column.code.kind == "whole" and not column.row}
            sizes = {name: [512] * len(plan.leaves) for name in ("s0", "s1", "s2")}
            counted, _ = Senate().count(plan, sizes, widths, bits)
            assert 1 << 25 < sum(one.ands for one in counted) < Senate.most_gates, text


@pytest.mark.slow
def test_three_owners_of_hundreds_of_rows_answer_as_duckdb_does() -> None:
    with connected(hospitals(300), _HOSPITALS) as db:
        found = db.sql(_COMORBID, strategy="senate")
        assert (len(found), db.check(found)) == (10, True)
        assert abs(found.predicted / found.bytes - 1) < 0.01
