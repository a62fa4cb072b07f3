"""Parts of a plan that some owners compute among themselves: the answer is that of all rows in one place, whoever holds which; all owners check what they take over, and name the group that cheats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import LetterError
from atoll.query.circuits.subplans import Division
from atoll.query.strategies import senate
from atoll.query.strategies.senate import OwnerChecks
from atoll.secure.shares import AuthenticatedBits
from tests.query.test_garbled import BILLS, OPEN, bills
from tests.support.owners import answer_in_clear
from tests.support.silos import TableSource, connected, pooled, same_rows

NOTES = {"who": "BIGINT", "word": "VARCHAR"}
SPLIT: dict[str, Any] = {"policy": {"min_count": 1}, "tables": {name: {"columns": "protected"} for name in ("bills", "notes")}}  # fmt: skip
GROUPED = "SELECT ward, sum(cost), count(*) FROM bills GROUP BY ward"
JOINED = "SELECT b.ward, n.word, b.cost FROM bills b JOIN notes n ON n.who = b.who AND b.cost > n.who"
TEXTS = [
    GROUPED,
    "SELECT who, lag(cost) OVER (PARTITION BY ward ORDER BY who DESC, cost) FROM bills",
    "SELECT who, ward, cost FROM bills ORDER BY cost DESC, who NULLS FIRST LIMIT 3",
    JOINED,
    "SELECT count(DISTINCT who), max(word) FROM notes",
    "SELECT b.ward, count(*) FROM bills b JOIN (SELECT who + 1 AS w FROM notes WHERE word > 'a') n ON n.w = b.who WHERE b.cost < 5 GROUP BY b.ward",
    "SELECT n.word FROM notes n WHERE EXISTS (SELECT 1 FROM bills b WHERE b.who = n.who)",
]

wards, numbers = st.sampled_from(["A", "B", None]), st.one_of(st.none(), st.integers(-3, 6))
owners = st.lists(st.tuples(st.lists(st.tuples(numbers, wards, numbers), max_size=3), st.lists(st.tuples(numbers, wards), max_size=2)), min_size=2, max_size=6)  # fmt: skip


def sites(rows: list[Any]) -> dict[str, TableSource]:
    return {f"s{k}": TableSource({"bills": (BILLS, one), "notes": (NOTES, other)}) for k, (one, other) in enumerate(rows)}  # fmt: skip


divisions = st.sampled_from([Division(2), Division(3, joins=True), Division(0, joins=True)])


@settings(max_examples=2)
@given(owners, st.sampled_from(TEXTS), divisions)
def test_any_division_gives_duckdbs_answer(rows: list[Any], text: str, division: Division) -> None:
    require_equal(rows, text, division)


@pytest.mark.slow
@settings(max_examples=40)
@given(owners, st.sampled_from(TEXTS), divisions)
def test_any_of_many_divisions_gives_duckdbs_answer(rows: list[Any], text: str, division: Division) -> None:
    require_equal(rows, text, division)


def require_equal(rows: list[Any], text: str, division: Division) -> None:
    with connected(sites(rows), SPLIT) as db, pooled(sites(rows)) as oracle:
        same_rows(answer_in_clear(db, text, OwnerChecks, division)[0], oracle.execute(text).fetchall(), what=text)


def test_unions_go_up_by_twos_and_those_join_whom_it_concerns() -> None:
    rows = [([(k, "A", k)], [(k, "x")] if k in (1, 4) else []) for k in range(5)]
    met: list[Any] = []
    with connected(sites(rows), SPLIT) as db:
        answer_in_clear(db, GROUPED, OwnerChecks, Division(2), met)
        assert {one.owners for one in met} == {("s0", "s1", "s2"), ("s0", "s1"), ("s3", "s4"), tuple(f"s{k}" for k in range(5))}  # fmt: skip
    apart = [([(k, "A", k)] if k < 2 else [], [(k, "x")] if k == 1 else []) for k in range(3)]
    apart[2] = ([], [])
    with connected(sites(apart), SPLIT) as db:
        met.clear()
        answer_in_clear(db, JOINED, OwnerChecks, Division(0, joins=True), met)
        assert [(one.owners, one.join is not None) for one in met] == [(("s0", "s1"), True), (("s0", "s1", "s2"), False)]  # fmt: skip


# ---------------------------------------------------------------- between owners

THREE = bills([(2, "B", 4)], [(3, "A", 3)], [(1, "A", 2)])


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(senate, "_DIVISIONS", (Division(2),))
    return monkeypatch


def test_a_pair_and_a_third_owner_answer_and_cost_what_was_predicted(pair: pytest.MonkeyPatch) -> None:
    with connected(THREE, OPEN) as db:
        found = db.sql(GROUPED, strategy="senate")
        assert db.check(found)
        assert abs(found.predicted / found.bytes - 1) < 0.1


def test_explain_compares_with_the_plan_of_all_owners() -> None:
    many = bills(*([(1, "A", 1)] for _ in range(8)))
    with connected(many, OPEN) as db:
        plan = db.sql(f"EXPLAIN {GROUPED}", strategy="senate").plan
        (said,) = (one["what"] for one in plan if one["place"] == "some of the owners")
        assert "merge the sorted rows of" in said
        assert "in place of" in said
    with connected(bills([(1, "A", 1)], [(2, "B", 1)]), OPEN) as db:
        assert all(one["place"] != "some of the owners" for one in db.sql(f"EXPLAIN {GROUPED}", strategy="senate").plan)


def both_let_rows_fall(patch: pytest.MonkeyPatch) -> None:
    """Two owners skip their own checks, and hand on a union that falls."""
    plain = AuthenticatedBits.lend

    async def lend(self: Any, x: Any) -> Any:
        return await plain(self, x if "s0" not in self.parties else x[:, ::-1])

    patch.setattr(AuthenticatedBits, "lend", lend)


def one_says_another_result(patch: pytest.MonkeyPatch) -> None:
    plain = AuthenticatedBits.borrow

    async def borrow(self: Any, shown: Any, *args: Any, **said: Any) -> Any:
        return await plain(self, shown ^ np.uint8(4) if self.me == "s1" and shown is not None else shown, *args, **said)

    patch.setattr(AuthenticatedBits, "borrow", borrow)


def alter_before_lending(patch: pytest.MonkeyPatch) -> None:
    plain = AuthenticatedBits.lend

    async def lend(self: Any, x: Any) -> Any:
        if self.me == "s1":
            x.data[..., 0] ^= np.uint64(1)
        return await plain(self, x)

    patch.setattr(AuthenticatedBits, "lend", lend)


@pytest.mark.parametrize(
    ("cheat", "match"),
    [
        (both_let_rows_fall, "s0, s1: the union of their rows is not in order"),
        (one_says_another_result, r"s[01](?: or s1)? says another result of what s0, s1 computed"),
        (alter_before_lending, "an opened bit does not have its code"),
    ],
)
def test_a_group_that_hands_on_something_else_is_found_out(cheat: Any, match: str, pair: pytest.MonkeyPatch) -> None:
    with connected(THREE, OPEN) as db:
        cheat(pair)
        with pytest.raises(LetterError, match=match):
            db.sql(GROUPED, strategy="senate")


def test_pairs_that_belong_into_no_join_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two owners join their tables, and let all pairs of rows count."""
    monkeypatch.setattr(senate, "_DIVISIONS", (Division(0, joins=True),))
    rows = [([(7, "A", 9)], []), ([], [(7, "x"), (2, "y")]), ([], [])]
    text = "SELECT b.ward, n.word, o.who FROM bills b JOIN notes n ON n.who = b.who JOIN others o ON o.word = n.word"
    made = {name: TableSource({**one.tables, "others": (NOTES, [(1, "x")] if name == "s2" else [])}) for name, one in sites(rows).items()}  # fmt: skip
    policy = {**SPLIT, "tables": {**SPLIT["tables"], "others": {"columns": "protected"}}}
    with connected(made, policy) as db:
        assert db.check(db.sql(text, strategy="senate"))
        plain = AuthenticatedBits.lend

        async def lend(self: Any, x: Any) -> Any:
            return await plain(self, x.by.flip(x, np.arange(len(x))[:, None] == np.full(x.shape, len(x) - 1)))

        monkeypatch.setattr(AuthenticatedBits, "lend", lend)
        with pytest.raises(LetterError, match="s0, s1: a pair of rows does not belong into their join"):
            db.sql(text, strategy="senate")
