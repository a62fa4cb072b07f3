"""Owners drawn by their counts: estimates that are right on average over all draws, cells that lose no row, and what a circle's count gives away."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import AtollError, CompositionError, DataError, PolicyError
from atoll.core.federation.federation import Federation
from atoll.query import connect
from atoll.query.owner_draws import CircleGrid, _read_rows, combine_draws, count_drawn, draw_owners

POLICY: dict[str, Any] = {"policy": {"min_count": 1}, "tables": {"t": {"columns": {"id": "protected", "x": "protected", "y": "protected", "kind": "private"}, "points": {"p": {"x": "x", "y": "y", "extent": 100, "precision": 1e-3}}}}}  # fmt: skip
COUNT = "SELECT count(*) AS n FROM t WHERE DWithin(p, POINT(0.5, 0.25), 2)"


@st.composite
def shares(draw: Any) -> tuple[Any, Any]:
    """Rows of owners in cells, and how many of them are asked for."""
    owners, cells = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    rows = draw(st.lists(st.lists(st.integers(0, 50), min_size=cells, max_size=cells), min_size=owners, max_size=owners))  # fmt: skip
    asked = [[draw(st.integers(0, one)) for one in line] for line in rows]
    return np.array(rows, np.int64), np.array(asked, np.int64)


@settings(max_examples=60)
@given(shares(), st.integers(0, 3))
def test_the_mean_over_all_draws_is_the_count(drawn: Any, level: int) -> None:
    """Every owner of every cell, by its probability. A level changes nothing, if as many rows are counted as it keeps on average."""
    rows, asked = drawn
    totals, mean = rows.sum(axis=0), 0.0
    for owners in itertools.product(*([-1] if not total else range(len(rows)) for total in totals)):
        place = np.array([owners], np.int64)
        odds = math.prod(rows[k, c] / totals[c] for c, k in enumerate(owners) if k >= 0)
        told = np.array([[asked[k, c] if k >= 0 else 0 for c, k in enumerate(owners)]]) / 2.0**level
        mean += odds * combine_draws(rows, place, told, level).value if odds else 0.0
    assert mean == pytest.approx(asked.sum(), rel=1e-9, abs=1e-9)


def test_owners_are_drawn_by_their_counts() -> None:
    rows = np.repeat(np.array([[1], [0], [3]]), 20_000, axis=1)
    rows[:, 0] = 0
    found = draw_owners(rows, np.random.default_rng(5))
    assert found[0] == -1
    assert np.bincount(found[1:], minlength=3) / len(found) == pytest.approx([0.25, 0, 0.75], abs=0.015)


@given(st.sampled_from([0.0, 1e9, -3e4]), st.floats(-5, 5), st.floats(0.01, 100), st.floats(0.05, 3), st.integers(0, 2**31))  # fmt: skip
def test_cells_lose_no_row_of_the_circle(offset: float, x: float, radius: float, part: float, seed: int) -> None:
    grid = CircleGrid(offset + x, offset - x, radius, max(radius * part, 1e-6 * abs(offset)))
    cells = grid.cells()
    known = {tuple(one): bool(whole) for one, whole in zip(cells.tolist(), grid.inside(cells).tolist(), strict=True)}
    rng = np.random.default_rng(seed)
    spots = rng.uniform(-1.2, 1.2, (200, 2)) * radius + [grid.x, grid.y]
    within = np.sqrt((spots[:, 0] - grid.x) ** 2 + (spots[:, 1] - grid.y) ** 2) <= radius
    for (a, b), inside in zip(np.floor(spots / grid.side).astype(int).tolist(), within.tolist(), strict=True):
        assert not inside or (a, b) in known
        assert inside or not known.get((a, b), False)


def test_two_draws_tell_how_far_they_err() -> None:
    """Shares that differ between owners, in a hundred cells: the variance of two draws is right or larger, and that of one is an upper bound."""
    rng = np.random.default_rng(2)
    rows = rng.integers(1, 60, (4, 100))
    asked = np.array([rng.binomial(rows[k], 0.2 + 0.2 * k) for k in range(4)])

    def count(draws: int) -> Any:
        drawn = np.array([draw_owners(rows, rng) for _ in range(draws)])
        return combine_draws(rows, drawn, np.take_along_axis(asked, drawn, axis=0))

    found = [count(draws) for draws in (1, 2) for _ in range(300)]
    for draws, some in ((1, found[:300]), (2, found[300:])):
        spread = np.var([one.value for one in some])
        said = np.mean([one.variance for one in some])
        assert 0.8 * spread < said < (4 if draws == 1 else 2) * spread


@pytest.fixture(scope="module")
def silos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Four owners with different middles."""
    folder, made = tmp_path_factory.mktemp("owners"), {}
    for owner in range(4):
        spots = np.random.default_rng(owner).normal(0.7 * owner - 1, 2, (4000, 2))
        (folder / f"o{owner}").mkdir()
        lines = "".join(f"{owner}-{k},{a:.4f},{b:.4f},{k % 3}\n" for k, (a, b) in enumerate(spots.tolist()))
        (folder / f"o{owner}" / "t.csv").write_text(f"id,x,y,kind\n{lines}{owner}-none,,1,0\n")
        made[f"o{owner}"] = str(folder / f"o{owner}")
    return made


def test_drawn_owners_count_for_all(silos: dict[str, str]) -> None:
    with connect(silos=silos, policy=POLICY) as db:
        exact = db.sql(COUNT, strategy="hufu")
        n = exact.rows[0][0]
        grid = db.sql(COUNT, strategy="hufu:owners=grid")
        assert (grid.strategy, grid.approximate["owners"] <= 4, grid.approximate["cells"] < 60) == ("hufu", True, True)
        assert abs(grid.rows[0][0] - n) < 0.06 * n
        assert 0.9 < grid.predicted / grid.bytes < 1.1
        whole = db.sql(COUNT, strategy="hufu:owners=whole")
        assert (whole.approximate["owners"], abs(whole.rows[0][0] - n) < 0.5 * n) == (1, True)
        level = db.sql(COUNT, strategy="hufu:owners=grid,level=3")
        assert 0 < abs(level.rows[0][0] - n) < 0.3 * n
        low, high = level.approximate["intervals"]["n"][0]
        assert low <= level.rows[0][0] <= high
        some = db.sql(f"{COUNT} AND kind = 1", strategy="hufu:owners=grid,cell=0.8")
        assert abs(some.rows[0][0] - n / 3) < 0.1 * n
        assert "how many rows each site has in each cell" in some.leakage[0]["sees"]


def test_a_site_drawn_for_the_circle_tells_one_number(silos: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """EXPLAIN names a number of the circle: where in it a site's rows lie that the statement asks for stays there."""
    heard: list[Any] = []

    def read(told: Any, cells: int, name: str) -> Any:
        heard.append(np.asarray(told["rows"]).shape)
        return _read_rows(told, cells, name)

    monkeypatch.setattr("atoll.query.owner_draws._read_rows", read)
    with connect(silos=silos, policy=POLICY) as db:
        db.sql(f"{COUNT} AND kind = 1", strategy="hufu:owners=whole")
    assert heard[-1] == (1,)


LIES: dict[str, Any] = {
    "cells that are not there": lambda one: {**one, "cells": np.array([9_999])},
    "cells before the first": lambda one: {**one, "cells": np.array([-1])},
    "one cell twice": lambda one: {**one, "cells": np.repeat(one["cells"][:1], 2)},
    "places that are no numbers": lambda one: {**one, "cells": one["cells"] + 0.5},
    "cells that are known without a draw": lambda one: {**one, "cells": np.arange(60)},
    "other lots": lambda one: {**one, "lots": one["lots"] + 1},
}


@pytest.mark.parametrize("lie", LIES)
def test_a_site_counts_no_cells_but_those_of_one_draw(lie: str, silos: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """Cells that no draw can name are refused, and lots that were named before anybody told a count cannot be others afterwards."""
    before = Federation.ask

    async def ask(fed: Any, party: Any, task: Any, message: Any = None, **terms: Any) -> Any:
        return await before(fed, party, task, LIES[lie](message) if task is count_drawn else message, **terms)

    monkeypatch.setattr(Federation, "ask", ask)
    match = r"this site is drawn for cells|something else in 'lots of the statement"
    with connect(silos=dict(list(silos.items())[:2]), policy=POLICY) as db, pytest.raises(AtollError, match=match):
        db.sql(COUNT, strategy="hufu:owners=grid")


def test_a_second_draw_is_refused_and_cells_are_told_to_their_site_alone(silos: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """Counts of a second choice of cells would be those of more cells; the same choice again is the same."""
    before, heard = Federation.ask, []

    async def ask(fed: Any, party: Any, task: Any, message: Any = None, **terms: Any) -> Any:
        if task is count_drawn:
            heard.append(message["cells"])
            await before(fed, party, task, message, **terms)
            message = {**message, "cells": message["cells"][:-1]}
        return await before(fed, party, task, message, **terms)

    monkeypatch.setattr(Federation, "ask", ask)
    match = "something else in 'cells drawn for the statement"
    with connect(silos=dict(list(silos.items())[:2]), policy=POLICY) as db, pytest.raises(AtollError, match=match):
        db.sql(COUNT, strategy="hufu:owners=grid")
    assert all(isinstance(one, np.ndarray) for one in heard)


def test_an_error_that_draws_do_not_meet_lets_all_owners_count(silos: dict[str, str]) -> None:
    with connect(silos=silos, policy=POLICY) as db:
        near = db.sql(COUNT, strategy="hufu:owners=grid", error=0.1)
        assert near.approximate["intervals"]["n"][0][1] <= 1.1 * near.rows[0][0]
        exact = db.sql(COUNT, strategy="hufu:owners=grid", error=1e-4)
        assert (exact.approximate, db.check(exact)) == (None, True)
        assert 0.9 < exact.predicted / exact.bytes < 1.1
        auto = db.sql(COUNT, error=1e-4)  # between four sites the exact count is cheaper, between twelve the grid
        assert (auto.approximate, db.check(auto)) == (None, True)
    many = {f"{name}{copy}": path for name, path in silos.items() for copy in range(3)}
    with pytest.warns(RuntimeWarning, match="are both"):
        among = connect(silos=many, policy=POLICY)
    with among as db:
        found = db.sql(f"EXPLAIN {COUNT}", error=0.05)
        assert (found.strategy, "draw two sites for each cell" in found.plan[1]["what"]) == ("hufu", True)
        assert "draw" not in db.sql(f"EXPLAIN {COUNT}", strategy="hufu:owners=all", error=0.05).plan[1]["what"]


@pytest.mark.parametrize(("text", "strategy", "error", "match"), [
    ("SELECT kind, count(*) FROM t WHERE DWithin(p, POINT(0, 0), 2) GROUP BY kind", "hufu:owners=grid", AtollError, "which is private|within one circle"),
    ("SELECT count(*) FROM t WHERE kind = 1", "hufu:owners=grid", CompositionError, "within one circle"),
    ("SELECT count(*) FROM t WHERE DWithin(p, POINT(0, 0), 2) AND DWithin(p, POINT(1, 0), 2)", "hufu:owners=grid", CompositionError, "within one circle"),
    ("SELECT count(*) FROM t WHERE NOT DWithin(p, POINT(0, 0), 2)", "hufu:owners=grid", CompositionError, "within one circle"),
    ("SELECT count(*) FROM t WHERE DWithin(p, POINT(0, 0), -2)", "hufu:owners=grid", CompositionError, "within one circle"),
    ("SELECT count(*) FILTER (WHERE kind = 1) FROM t WHERE DWithin(p, POINT(0, 0), 2)", "hufu:owners=grid", CompositionError, "within one circle"),
    ("SELECT 2 * count(*) FROM t WHERE DWithin(p, POINT(0, 0), 2)", "hufu:owners=grid", CompositionError, "within one circle"),
    ("SELECT id FROM t WHERE DWithin(p, POINT(0, 0), 2)", "hufu:owners=whole", CompositionError, "it asks for rows"),
    (COUNT, "hufu:owners=grid,cell=0.001", CompositionError, "use larger ones, such as cell=0.25"),
    (COUNT, "hufu:owners=few", AtollError, "use auto or all or whole or grid"),
    (COUNT, "hufu:owners=all,level=2", AtollError, "use owners=whole or grid"),
])  # fmt: skip
def test_what_owners_cannot_be_drawn_for_is_refused(silos: dict[str, str], text: str, strategy: str, error: type[AtollError], match: str) -> None:  # fmt: skip
    with connect(silos=silos, policy=POLICY) as db, pytest.raises(error, match=match):
        db.sql(text, strategy=strategy)


def test_private_coordinates_and_few_rows_draw_no_owner(silos: dict[str, str]) -> None:
    table = POLICY["tables"]["t"]
    for policy, match in (({**POLICY, "policy": {"min_count": 3}}, "cells tell of few rows"), ({**POLICY, "tables": {"t": {**table, "columns": {"x": "protected"}}}}, r"t\.y is private")):  # fmt: skip
        with connect(silos=silos, policy=policy) as db, pytest.raises(PolicyError, match=match):
            db.sql(COUNT, strategy="hufu:owners=grid")


@pytest.mark.parametrize("told", [np.zeros(3, np.float64), np.zeros(2, np.int64), np.array([1, -1, 0])])
def test_a_site_that_sends_something_else_is_named(told: Any) -> None:
    with pytest.raises(DataError, match="north sent"):
        _read_rows({"rows": told}, 3, "north")


def test_a_key_of_its_own_draws_a_level(silos: dict[str, str]) -> None:
    """Over some statements the estimates lie around the count: no seed of the coordinator's fixes which rows are kept."""
    with connect(silos=silos, policy=POLICY) as db:
        n = db.sql(COUNT, strategy="hufu").rows[0][0]
        found = [db.sql(COUNT, strategy="hufu:owners=grid,level=4,cell=2").rows[0][0] for _ in range(6)]
    assert len(set(found)) > 3
    assert abs(np.mean(found) - n) < 0.3 * n
