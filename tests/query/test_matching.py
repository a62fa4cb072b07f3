"""Matching: riders and drivers of several fleets are paired as one dispatcher who sees all of them would pair them."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from atoll.core.errors import AtollError, CompositionError, ConfigError, DataError, PolicyError
from atoll.engines.recording import RecordingEngine
from atoll.secure.tables import match_rows, matching
from tests.support.silos import TableSource, connected
from tests.support.trios import among_three

# ---------------------------------------------------------------- the auction


@among_three
async def matched(trio: Any, weights: Any) -> Any:
    held = await match_rows(trio, trio.numbers.constant(np.array(weights)))
    return (await trio.open(held)).astype(bool).tolist(), trio.noted


def require_heaviest(weights: Any) -> dict[str, list[int]]:
    """A matching, of positive weights alone, as heavy as SciPy's."""
    (held, noted), _ = matched(weights.tolist())[0]
    pairs = np.array(held).reshape(weights.shape)
    assert pairs.sum(0).max(initial=0) <= 1
    assert pairs.sum(1).max(initial=0) <= 1
    assert (weights[pairs] > 0).all()
    likely = np.maximum(weights, 0)
    assert weights[pairs].sum() == likely[linear_sum_assignment(likely, maximize=True)].sum()
    return noted


@st.composite
def matrices(draw: Any) -> Any:
    """Few rows, with ties, without edges, of one weight, in products of a row and a column, and large."""
    n, m = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    top, scale = draw(st.sampled_from([1, 3, 50])), draw(st.sampled_from([1, 1, 10**9]))
    cells = st.integers(-1, top)
    if draw(st.booleans()):
        return np.array(draw(st.lists(st.lists(cells, min_size=m, max_size=m), min_size=n, max_size=n))) * scale
    rows, columns = (draw(st.lists(cells, min_size=k, max_size=k)) for k in (n, m))
    return np.outer(rows, columns) * scale


@settings(max_examples=3)
@given(matrices())
def test_drawn_weights_are_matched_as_scipy_matches_them(weights: Any) -> None:
    require_heaviest(weights)


@pytest.mark.slow
@settings(max_examples=40)
@given(matrices())
def test_many_drawn_weights_are_matched_as_scipy_matches_them(weights: Any) -> None:
    require_heaviest(weights)


def test_what_parties_open_says_how_long_an_auction_takes_and_nothing_else() -> None:
    """Weights of nothing end at once; those that are all alike end as soon as each row has bid for another one."""
    assert require_heaviest(np.full((3, 2), -7)) == {"weights": [0]}
    noted = require_heaviest(np.full((4, 4), 50))
    assert noted["weights"] == [(50 * 9).bit_length()]
    assert noted["bidding rows"] == [4, 0, 4, 0]
    assert noted["bidding columns"] == [0, 0]


@among_three
async def two_best(trio: Any, values: Any) -> Any:
    best, second = await matching._two_best(trio, trio.places.constant(np.array(values)))
    return (await trio.open(best)).tolist(), (await trio.open(second)).tolist()


def test_the_two_best_of_groups_are_those_of_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ties, negative values, and groups that are filled up; of equal ones the first is larger."""
    values = np.random.default_rng(3).integers(-4, 3, (6, 21))
    values[0], values[1, 20] = -(2**28), 2**28
    expected = [np.argsort(-values, axis=1, kind="stable")[:, place, None] == np.arange(21) for place in (0, 1)]
    for few in (0, 1 << 20):
        monkeypatch.setattr(matching, "_FEW_PAIRS", few)
        found, sent = two_best(values.tolist())[0]
        assert [np.array(one).tolist() for one in found] == [one.astype(int).tolist() for one in expected]
        assert len(sent.sent) == {0: 24, 1 << 20: 13}[few]


@pytest.mark.slow
def test_a_street_of_riders_and_drivers() -> None:
    rng = np.random.default_rng(4)
    riders, drivers = rng.uniform(0, 100, (2, 24, 2))
    apart = np.hypot(*(riders[:, None] - drivers[None]).transpose(2, 0, 1))
    require_heaviest(np.maximum(0, (60 - apart) * 10).astype(int))


def test_a_side_that_is_too_large_is_refused() -> None:
    with pytest.raises(AtollError, match="a matching of 1 and 513 rows"):
        matched([[1] * 513])


# ---------------------------------------------------------------- in SQL

RIDERS = {"id": "BIGINT", "x": "INTEGER", "fare": "DECIMAL(9,2)", "city": "VARCHAR"}
DRIVERS = {"plate": "VARCHAR", "x": "INTEGER", "cost": "DECIMAL(9,2)"}
POLICY: dict[str, Any] = {
    "policy": {"min_count": 1},
    "tables": {"riders": {"columns": "protected"}, "drivers": {"columns": {**dict.fromkeys(DRIVERS, "protected"), "cost": {"level": "private", "release": "aggregate"}}}},
}  # fmt: skip
WEIGHT = "riders.fare - drivers.cost - (riders.x - drivers.x) * (riders.x - drivers.x)"
rider_rows = [(k, 7 * k % 10, Decimal(5 + 3 * k), "ab"[k % 2]) for k in range(5)]
driver_rows = [(f"car {k}", 3 * k % 10, Decimal(k) / 4) for k in range(4)]


def fleets(riders: Any = rider_rows, drivers: Any = driver_rows) -> dict[str, TableSource]:
    return {f"s{j}": TableSource({"riders": (RIDERS, riders[j::3]), "drivers": (DRIVERS, drivers[j::3])}) for j in range(3)}  # fmt: skip


def weight(rider: Any, driver: Any) -> Decimal:
    return rider[2] - driver[2] - (rider[1] - driver[1]) ** 2


def heaviest(riders: Any, drivers: Any) -> Decimal:
    likely = np.array([[max(0, int(4 * weight(a, b))) for b in drivers] for a in riders])
    return Decimal(int(likely[linear_sum_assignment(likely, maximize=True)].sum())) / 4


def test_fleets_share_their_riders_and_drivers() -> None:
    """Of pairs, WHERE chooses; of who takes part, a subquery. Their weights add up to SciPy's optimum."""
    with connected(fleets(), POLICY) as db:
        found = db.sql(f"SELECT riders.id, drivers.plate FROM Matching(riders, drivers, {WEIGHT})")
        assert found.strategy == "smcql"
        assert {"hufu", "saqe", "sums"} <= set(found.rejected)
        assert "it asks for a matching" in found.rejected["sums"]
        by_id, by_plate = {row[0]: row for row in rider_rows}, {row[0]: row for row in driver_rows}
        assert len({row[0] for row in found.rows}) == len({row[1] for row in found.rows}) == len(found.rows)
        assert sum(weight(by_id[i], by_plate[plate]) for i, plate in found.rows) == heaviest(rider_rows, driver_rows)
        assert db.check(found) is None
        assert abs(found.predicted / found.bytes - 1) < 0.1
        told = json.dumps(found.leakage)
        assert "in a secret order, bid in each round of an auction" in told
        assert "match riders and drivers by an auction" in json.dumps(found.plan)


@pytest.mark.slow
def test_conditions_choose_pairs_and_subqueries_choose_who_takes_part() -> None:
    some = [row for row in rider_rows if row[3] == "a"]
    with connected(fleets(), POLICY) as db:
        text = "SELECT sum(r.fare - drivers.cost - (r.x - drivers.x) * (r.x - drivers.x)) FROM Matching((SELECT * FROM riders WHERE city = 'a') AS r, drivers, r.fare - drivers.cost - (r.x - drivers.x) * (r.x - drivers.x))"
        assert db.sql(text).rows == [(heaviest(some, driver_rows),)]
        whole = db.sql(f"SELECT riders.id, drivers.plate FROM Matching(riders, drivers, {WEIGHT})")
        part = db.sql(f"SELECT count(*) FROM Matching(riders, drivers, {WEIGHT}) WHERE riders.city = 'a'")
        assert part.rows == [(sum(i in {row[0] for row in some} for i, _ in whole.rows),)]


def test_frames_of_a_matching_hold_no_row() -> None:
    engine = RecordingEngine()
    riders = [(k, 424242, Decimal(9), "a") for k in range(2)]
    with connected(fleets(riders, [("secretplate", 424242, Decimal(0))]), POLICY) as db:
        db.engine = engine
        found = db.sql(f"SELECT drivers.plate FROM Matching(riders, drivers, {WEIGHT})")
        assert found.rows == [("secretplate",)]
    heard = b"".join(one for link, messages in engine.heard.items() if "coordinator" not in link for one in messages)
    assert b"secret" not in heard
    assert b"424242" not in heard
    assert (424242).to_bytes(8, "little") not in heard


@pytest.mark.parametrize(("text", "error", "match"), [
    ("SELECT id FROM Matching(riders, riders, fare)", ConfigError, "both tables are called riders"),
    ("SELECT id FROM Matching(riders, drivers, x)", ConfigError, "x is a column of riders and of drivers"),
    ("SELECT id FROM riders JOIN drivers ON Matched(fare) AND id > 1", ConfigError, "Matched outside of its place"),
    ("SELECT id FROM riders LEFT JOIN drivers ON Matched(fare)", ConfigError, "Matched outside of its place"),
    ("SELECT drivers.cost FROM Matching(riders, drivers, fare)", PolicyError, r"drivers\.cost, which is private"),
    ("SELECT id FROM Matching(riders, drivers, (fare - cost) / 2)", CompositionError, "is a quotient"),
    ("SELECT id FROM Matching(riders, drivers, sqrt(fare - cost))", CompositionError, "lie at different sites"),
])  # fmt: skip
def test_what_cannot_be_matched_is_refused(text: str, error: type[AtollError], match: str) -> None:
    with connected(fleets(), POLICY) as db, pytest.raises(error, match=match):
        db.sql(f"EXPLAIN {text}", strategy="smcql")


def test_other_strategies_and_sizes_are_refused() -> None:
    text = "SELECT count(*) FROM Matching(riders, drivers, fare)"
    with connected(fleets(), POLICY) as db:
        with pytest.raises(CompositionError, match="it asks for a matching"):
            db.sql(text, strategy="sums")
        with pytest.raises(CompositionError, match="a matching needs the rows of all sites"):
            db.islands("SELECT fare, cost FROM Matching(riders, drivers, fare)", target="cost")
    many = [(k, 1, Decimal(1), "a") for k in range(600)]
    with (
        connected(fleets(many), POLICY) as db,
        pytest.raises(CompositionError, match="a matching of 768 rows, filled up"),
    ):
        db.sql(text)
    large = [(1, 1, Decimal("9999999.99"), "a")]
    with connected(fleets(large), POLICY) as db, pytest.raises(DataError, match="might leave 64 bits"):
        db.sql("SELECT count(*) FROM Matching(riders, drivers, fare * cost)")
