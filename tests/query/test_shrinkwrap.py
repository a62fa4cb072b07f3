"""``shrinkwrap``: sizes have noise of the law that is said, cut tables lose no row, and one unit moves a size by no more than is hidden."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import AtollError, CompositionError, ConfigError, DataError, PolicyError
from atoll.engines.recording import RecordingEngine
from atoll.query.strategies import shrinkwrap
from atoll.query.strategies.shrinkwrap import draw_padding, padding_shift
from atoll.statistics.disclosure import rate_of
from tests.query.test_shares_law import FIXED, POLICY, N, P, Q, TableSource, V, connected, pooled, same_rows, statements
from tests.query.test_shares_law import sites as drawn_sites
from tests.query.test_shares_law import sources as sources_of

# ---------------------------------------------------------------- noise


class Numbers:
    """Entropy of a test."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def integer(self, below: int) -> int:
        return int(self._rng.integers(below))


def law(epsilon: float, delta: float, moves: int, shift: float | None = None) -> np.ndarray:
    """The probabilities of eta, from -2,000 to 6,000."""
    rate, x = epsilon / moves, np.arange(-2000, 6001)
    at = padding_shift(epsilon, delta, moves) if shift is None else shift
    return math.expm1(rate) / (math.exp(rate) + 1) * np.exp(-rate * np.abs(x - at))


def test_golden_numbers_of_a_padding() -> None:
    """Epsilon 0.5, delta 1e-4, one row: 17.47, rounded up; a shift that is not whole has not the mass of a law."""
    exact = 1 - math.log((math.exp(0.5) + 1) * 1e-4) / 0.5
    assert exact == pytest.approx(17.47, abs=5e-3)
    assert padding_shift(0.5, 1e-4, 1) == 18
    assert law(0.5, 1e-4, 1).sum() == pytest.approx(1, abs=1e-12)
    assert law(0.5, 1e-4, 1, exact).sum() == pytest.approx(0.970, abs=5e-4)
    assert law(0.5, 1e-4, 1)[:2001].sum() == pytest.approx(7.7e-5, rel=5e-3)


@settings(max_examples=60, deadline=None)
@given(st.floats(0.05, 8), st.floats(1e-9, 1e-2), st.integers(1, 20))
def test_a_padding_hides_one_unit(epsilon: float, delta: float, moves: int) -> None:
    """For sizes that differ by 1 to ``moves`` rows, in either direction, no event is likelier by more than ``e^epsilon`` times and ``delta``."""
    p = law(epsilon, delta, moves)
    p = np.concatenate([[p[:2001].sum()], p[2001:]])  # max(0, eta)
    assert padding_shift(epsilon, delta, moves) < 5000 or epsilon / moves < 0.02
    for apart in {1, moves}:
        more = np.concatenate([np.zeros(apart), p])
        less = np.concatenate([p, np.zeros(apart)])
        for one, other in ((more, less), (less, more)):
            assert np.maximum(0, one - math.exp(epsilon) * other).sum() <= delta * (1 + 1e-6) + (1 - p.sum())


def test_drawn_paddings_have_their_law() -> None:
    drawn = draw_padding(0.5, 1e-4, 3, Numbers(1), 3000)
    at, rate = padding_shift(0.5, 1e-4, 3), float(rate_of(0.5, 3))
    assert drawn.min() >= 0
    std = math.sqrt(2 * math.exp(-rate)) / -math.expm1(-rate)
    assert abs(drawn.mean() - at) < 5 * std / math.sqrt(len(drawn))
    assert 0.85 < drawn.std() / std < 1.15


# ---------------------------------------------------------------- answers

PEOPLE = {"people": {"anna": {"epsilon": 1e6, "delta": 0.5}}}


def policy_of(**columns: Any) -> dict[str, Any]:
    """All columns that join or divide have few rows of one value."""
    few = {"p": ("id", "ward", "k", "age", "seen"), "v": ("id", "cost", "day"), "q": ("score", "name")}
    tables = {name: dict(table) for name, table in POLICY["tables"].items()}
    for name, found in few.items():
        given = tables[name]["columns"] if isinstance(tables[name]["columns"], dict) else {}
        tables[name]["columns"] = {**given, **{one: {"level": "protected", "at_most": 40} for one in found}, **columns.get(name, {})}  # fmt: skip
    return {"policy": {"min_count": 1, "privacy": PEOPLE}, "tables": tables}


@contextmanager
def padded_by(monkeypatch: pytest.MonkeyPatch, rows: int) -> Any:
    with monkeypatch.context() as patch:
        patch.setattr(shrinkwrap, "draw_padding", lambda *args: np.full(args[-1], rows))
        yield


def ask(db: Any, text: str, more: str = "", epsilon: float = 4.0) -> Any:
    return db.sql(text, strategy=f"shrinkwrap:epsilon={epsilon},delta=0.001,analyst=anna{more}")


EXAMPLES = [
    "SELECT p.ward, count(*), sum(v.cost), max(p.seen) FROM p JOIN v ON p.id = v.id AND p.age > v.cost WHERE p.k IN (1, 2) AND v.cost > 1 GROUP BY p.ward",
    "SELECT p.id, p.age, v.cost FROM p LEFT JOIN v ON p.id = v.id AND v.cost > 1 WHERE p.age > 5 AND p.id IN (SELECT w.id FROM v w WHERE w.cost < 5) ORDER BY p.age, p.id, v.cost LIMIT 5",
    "WITH d AS (SELECT id, sum(cost) AS s FROM v WHERE cost > 1 GROUP BY id) SELECT x.id, y.ward FROM d x JOIN p y ON y.id = x.id WHERE x.s > 2",
    "SELECT count(DISTINCT a.id) FROM (SELECT id, row_number() OVER (PARTITION BY id ORDER BY age, k, seen) AS r FROM p WHERE age > 3) a JOIN v ON v.id = a.id WHERE a.r < 3 AND v.cost > a.r",
]  # fmt: skip


def require_equal(drawn: Any, texts: list[str], split: str = "uniform") -> int:
    """Answers are DuckDB's; returns how many tables were cut."""
    made, cut = sources_of(drawn), 0
    with connected(made, policy_of()) as db, pooled(made, replicated=("n",)) as oracle:
        for text in texts:
            try:
                found = ask(db, text, f",split={split}")
            except PolicyError:
                assert "OVER" in text  # ranks and sums of windows show by what rows are ordered
                continue
            except CompositionError as error:
                assert error.what.startswith("no size can be told")  # noqa: PT017 - both are allowed
                continue
            same_rows(found.rows, oracle.execute(text).fetchall(), what=text)
            for one in found.privacy["sizes"]:
                cut += one["after"] < one["before"]
                assert 1 <= one["after"] <= one["before"]
    return cut


@pytest.mark.parametrize("place", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 2, 3))])
def test_tables_without_padding_lose_no_row(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with padded_by(monkeypatch, 0):
        assert require_equal(FIXED, [EXAMPLES[place]]) >= 1


@pytest.mark.slow
@settings(max_examples=10)
@given(drawn_sites, st.lists(statements(), min_size=2, max_size=2), st.sampled_from(["uniform", "eager", "optimal"]), st.integers(0, 3))  # fmt: skip
def test_drawn_statements_equal_duckdb_on_the_union(drawn: Any, texts: list[str], split: str, rows: int) -> None:
    with pytest.MonkeyPatch.context() as patch, padded_by(patch, rows):
        require_equal(drawn, texts, split)


def small(rows: list[list[tuple[int, int]]], visits: list[list[tuple[int, int]]]) -> dict[str, TableSource]:
    made = {}
    for j, (own, other) in enumerate(zip(rows, visits, strict=True)):
        p = [(i, "A", k, 10, None, None) for i, k in own]
        made[f"s{j}"] = TableSource({"p": (P, p), "v": (V, [(i, c, None) for i, c in other]), "q": (Q, []), "n": N})
    return made


JOINED = "SELECT k, count(*) FROM p JOIN v ON p.id = v.id WHERE p.k > 1 AND v.cost > 2 GROUP BY k"


def true_sizes(made: Any, policy: Any, text: str) -> dict[int, tuple[int, int]]:
    with pytest.MonkeyPatch.context() as patch, padded_by(patch, 0), connected(made, policy) as db:
        told = ask(db, text, ",split=uniform").privacy["sizes"]
    return {one["number"]: (one["after"], one["moves"]) for one in told}


@pytest.mark.slow
@settings(max_examples=8)
@given(drawn_sites, st.sampled_from(EXAMPLES), st.sampled_from(["p", "v"]), st.integers(0, 2), st.data())
def test_one_unit_moves_a_size_by_no_more_than_is_hidden(drawn: Any, text: str, table: str, site: int, data: Any) -> None:  # fmt: skip
    """With and without a row; a table keeps one row at least, so 0 and 1 look alike."""
    place = site % len(drawn)
    kept = [list(map(list, one)) for one in drawn]
    rows = kept[place][0 if table == "p" else 1]
    if rows:
        del rows[data.draw(st.integers(0, len(rows) - 1))]
    policy = policy_of(p={"id": {"level": "protected", "at_most": 30}}, v={"id": {"level": "protected", "at_most": 20}})
    one, other = (true_sizes(sources_of(both), policy, text) for both in (drawn, kept))
    assert all(abs(one[k][0] - other[k][0]) <= one[k][1] for k in one)


def test_a_unit_moves_as_many_rows_as_its_table_and_its_joins_allow() -> None:
    """Three rows of a person in one table, joined with up to two of another, of which a person has four: 3 * 2 + 4 * 3 rows, and all are reached."""
    people = {"p": {"id": {"level": "protected", "at_most": 3}}, "v": {"id": {"level": "protected", "at_most": 4}}}
    made = policy_of(**people)
    for name in "pv":
        made["tables"][name] = {**made["tables"][name], "unit": "id"}
    rows = [[(1, 2), (1, 3), (1, 2)], [(2, 2)], [(3, 3)]]
    visits = [[(1, 5)] * 4, [(2, 4)], [(4, 3)]]
    sizes = true_sizes(small(rows, visits), made, JOINED)
    assert [moves for _, moves in sizes.values()] == [3, 4, 3 * 4 + 4 * 3]
    assert [size for size, _ in sizes.values()] == [5, 6, 13]
    without = true_sizes(small([[], *rows[1:]], [[], *visits[1:]]), made, JOINED)
    assert [size for size, _ in without.values()] == [2, 2, 1]
    with connected(small(rows, [[(1, 5)] * 5, [], []]), made) as db, pytest.raises(DataError, match=r"v.id is in more than 4 rows"):  # fmt: skip
        ask(db, JOINED)


def test_a_claim_of_a_key_across_sites_is_checked_before_a_size_rests_on_it() -> None:
    """Each site has two rows of id 1, as the policy allows, and all together six."""
    made = policy_of(p={"id": {"level": "protected", "at_most": 2}})
    rows = [[(1, 2), (1, 3)] for _ in range(3)]
    with connected(small(rows, [[(1, 5)], [], []]), made) as db, pytest.raises(DataError, match="declare to be in few rows"):  # fmt: skip
        ask(db, JOINED, ",split=uniform")


def test_what_parties_see_follows_from_the_padded_sizes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six rows count and three are added, or nine and none: messages of the three parties have the same lengths until the first sort, and no key shows."""
    seen = []
    for turn in range(2):
        rows = [[(424242 + 10 * j + i, 2 if i < 2 + turn else 1) for i in range(4)] for j in range(3)]
        visits = [[(424242 + 10 * j + i, 3 if i < 2 + turn else 0) for i in range(4)] for j in range(3)]
        engine = RecordingEngine()
        with padded_by(monkeypatch, 2 - turn), connected(small(rows, visits), policy_of(p={"id": {"level": "protected", "key": True}})) as db:  # fmt: skip
            db.engine = engine
            found = ask(db, JOINED, ",split=uniform")
        assert found.rows == [(2, 6 + 3 * turn)]
        assert [one["after"] for one in found.privacy["sizes"]][:2] == [12, 12]
        between = {link: messages for link, messages in engine.heard.items() if "coordinator" not in link}
        seen.append({link: [len(one) for one in messages][:6] for link, messages in between.items()})
        heard = b"".join(one for messages in between.values() for one in messages)
        assert np.uint64(424242 ^ (1 << 63)).tobytes() not in heard
    assert seen[0] == seen[1]


# ---------------------------------------------------------------- budgets


def few(epsilon: float = 5.0) -> dict[str, Any]:
    made = policy_of(p={"id": {"level": "protected", "key": True}})
    made["policy"] = {"min_count": 1, "privacy": {"people": {"anna": {"epsilon": epsilon, "delta": 0.01}}}}
    return made


ROWS, VISITS = [[(10 * j + i, 2) for i in range(3)] for j in range(3)], [[(10 * j + i, i + 2) for i in range(3)] for j in range(3)]  # fmt: skip


def test_the_same_statement_costs_once_and_is_of_the_same_rows_until_another_edition_is_paid_for() -> None:  # fmt: skip
    """A repeated statement tells nothing of whether rows have changed: answer, sizes and cost are the same; an edition costs in either case."""
    made = small(ROWS, VISITS)
    with connected(made, few()) as db:
        first, again = ask(db, JOINED, ",split=uniform"), ask(db, JOINED, ",split=uniform")
        assert db.check(first) is db.check(again) is True
        assert first.privacy["sizes"] == again.privacy["sizes"]
        assert (first.privacy["epsilon"], first.privacy["noise_std"]) == (4.0, {})
        made["s1"].tables["v"] = (V, [(1, 9, None)])
        after = ask(db, JOINED, ",split=uniform")
        assert (after.rows, after.privacy, db.check(after)) == (first.rows, first.privacy, False)
        with pytest.raises(AtollError, match=r"the epsilon of anna is 5 here: 4 is spent, and this answer takes 4"):
            ask(db, JOINED, ",split=uniform,edition=later")
    with connected(made, few(9.0)) as db:
        later = ask(db, JOINED, ",split=uniform,edition=later")
        assert (db.check(later), later.rows != first.rows) == (True, True)
        with pytest.raises(AtollError, match="nobody by name has no budget"):
            db.sql(JOINED, strategy="shrinkwrap:epsilon=0.5,split=uniform")
    with connected(made, {**few(), "policy": {"min_count": 1}}) as db:
        with pytest.raises(PolicyError, match="not all sites have a budget for sizes"):
            ask(db, JOINED)
        uncut = db.sql(JOINED, strategy="shrinkwrap")
        assert (db.check(uncut), uncut.privacy) == (True, None)


def test_a_lost_answer_is_charged_once_and_nothing_is_shared_that_nobody_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    async def dies(*args: Any) -> Any:
        raise DataError("the coordinator dies", where="test")

    async def skips(fed: Any, parties: Any, task: Any, message: Any, *, before: Any) -> Any:
        return await before(fed, parties, task, message) if task is not shrinkwrap.charge_sizes else await before(fed, parties, shrinkwrap.measure_states, message["message"])  # fmt: skip

    from atoll.core.federation.federation import Federation

    with connected(small(ROWS, VISITS), few()) as db:
        asked = Federation.ask_all
        with monkeypatch.context() as patch:
            patch.setattr(Federation, "ask_all", lambda fed, parties, task, message: skips(fed, parties, task, message, before=asked))  # fmt: skip
            with pytest.raises(AtollError, match="nobody has paid for"):
                ask(db, JOINED, ",split=uniform")
        with monkeypatch.context() as patch:
            patch.setattr(shrinkwrap.Shrinkwrap, "open_rows", dies)
            with pytest.raises(DataError, match="dies"):
                ask(db, JOINED, ",split=uniform")
        found = ask(db, JOINED, ",split=uniform")
        assert db.check(found)
        with pytest.raises(AtollError, match="4 is spent"):
            ask(db, JOINED, ",split=eager")


# ---------------------------------------------------------------- plans


def test_a_plan_says_each_size_and_what_cannot_be_told_is_refused() -> None:
    made = few()
    with connected(small(ROWS, VISITS), made) as db:
        plan = ask(db, f"EXPLAIN {JOINED}", ",split=uniform")
        cuts = [one["what"] for one in plan.plan if one["form"] == "noised"]
        assert len(cuts) == 3
        assert cuts[0].startswith("cut p: 768 rows become about")
        assert "epsilon 1.33, delta 0.00033" in cuts[0]
        assert any("bytes, and" in one["what"] for one in plan.plan)
        assert any("with noise for epsilon=4, delta=0.001 of a row at one site" in one["sees"] for one in plan.leakage)
        assert db.sql(f"EXPLAIN {JOINED}", strategy="smcql").predicted > 1.2 * plan.predicted
        eager = ask(db, f"EXPLAIN {JOINED}", ",split=eager")
        assert len([one for one in eager.plan if one["form"] == "noised"]) == 1
        assert "it adds noise, and no epsilon is given" in str(db.sql(f"EXPLAIN {JOINED}").rejected["shrinkwrap"])
        with pytest.raises(CompositionError, match="no size can be told with noise: none is made of another"):
            ask(db, "SELECT count(*) FROM p")
        with pytest.raises(ConfigError, match="split=best"):
            ask(db, JOINED, ",split=best")
        for epsilon in (-1.0, 1e-9, math.inf):
            with pytest.raises(ConfigError, match=r"epsilon of 0\.001 or more"):
                ask(db, JOINED, "", epsilon)
    loose = {**made, "tables": POLICY["tables"]}
    with connected(small(ROWS, VISITS), loose) as db:
        found = ask(db, f"EXPLAIN {JOINED}", ",split=uniform")
        assert len([one for one in found.plan if one["form"] == "noised"]) == 2  # nothing bounds p.id
        with pytest.raises(CompositionError, match="nothing bounds how many rows one row is joined with"):
            ask(db, "SELECT p.k FROM p JOIN v ON p.id = v.id JOIN q ON q.id = p.k")
    units = {**made, "tables": {**made["tables"], "p": {"unit": "k", "columns": "protected"}}}
    with connected(small(ROWS, VISITS), units) as db, pytest.raises(CompositionError, match="nothing bounds how many rows of p one k has"):  # fmt: skip
        ask(db, "SELECT p.k FROM p JOIN q ON q.id = p.k WHERE p.id > 1")


def test_counts_that_are_opened_can_have_noise() -> None:
    text = "SELECT count(*), count(DISTINCT p.id) FROM p JOIN v ON p.id = v.id WHERE v.cost > 2"
    with connected(small(ROWS, VISITS), policy_of(p={"id": {"level": "protected", "key": True}})) as db:
        exact = ask(db, text)
        noisy = ask(db, text, ",answer=noisy", 400.0)
        assert (db.check(exact), db.check(noisy)) == (True, None)
        std = noisy.privacy["noise_std"]["COUNT(*)"]
        assert 0.2 < std < 2
        assert all(abs(a - b) < 20 * std for a, b in zip(exact.rows[0], noisy.rows[0], strict=True))
        assert db.sql(text, strategy="shrinkwrap:answer=noisy", epsilon=400.0, delta=0.001, analyst="anna").rows == noisy.rows  # fmt: skip
        with pytest.raises(CompositionError, match="more than counts of one group"):
            ask(db, "SELECT sum(v.cost) FROM p JOIN v ON p.id = v.id", ",answer=noisy")


@pytest.mark.parametrize("split", ["uniform", pytest.param("optimal", marks=pytest.mark.slow)])
def test_the_predicted_bytes_are_those_that_are_sent(split: str) -> None:
    rows = [[(100 * j + i, 1 + (i % 12 == 0)) for i in range(60)] for j in range(3)]
    visits = [[(100 * j + i, 3 if i % 10 == 0 else 0) for i in range(60)] for j in range(3)]
    policy = policy_of(p={"id": {"level": "protected", "at_most": 2}}, v={"id": {"level": "protected", "at_most": 2}})
    with connected(small(rows, visits), policy) as db:
        found = ask(db, JOINED, f",split={split}", 24.0)
        plain = db.sql(JOINED, strategy="smcql")
        assert db.check(found)
        assert found.bytes < 0.75 * plain.bytes
        assert abs(found.predicted / found.bytes - 1) < 0.1
