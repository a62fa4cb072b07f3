"""Coarse values: every order statistic of them rests on the minimum count of rows, whatever edges and ranks are asked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.statistics.disclosure import coarsen, public_edges, reach

numbers = st.lists(
    st.one_of(st.integers(-20, 20).map(float), st.floats(allow_nan=True, allow_infinity=True, width=64)), max_size=80
)


@given(values=numbers, least=st.integers(2, 12))
def test_each_coarse_value_stands_for_enough_values(values: list[float], least: int) -> None:
    x = np.array(values, np.float64)
    coarse = coarsen(x, least)
    assert len(coarse) in (0, int(np.isfinite(x).sum()))
    found, counts = np.unique(coarse, return_counts=True)
    assert (counts >= least).all()
    assert np.isfinite(found).all()
    order = np.argsort(x[np.isfinite(x)], kind="stable") if len(coarse) else []
    assert (np.diff(coarse[order]) >= 0).all()  # the order stays


@given(values=numbers, least=st.integers(2, 12))
def test_coarse_values_are_points_of_a_public_grid_or_shared(values: list[float], least: int) -> None:
    x = np.array(values, np.float64)
    for point in np.unique(coarsen(x, least)):
        shared = int((x == point).sum()) >= least
        assert shared or point == 0.0 or _dyadic(point)


def _dyadic(point: float) -> bool:
    """Whether a number has a short binary fraction, as middles of halved intervals have."""
    fraction = abs(np.frexp(point)[0])
    return float(fraction * 2**52) == int(fraction * 2**52)


@given(values=numbers, low=st.integers(-25, 25), gap=st.floats(0.0, 3.0), least=st.integers(2, 12))
def test_edges_that_move_tell_no_difference_of_few_values(
    values: list[float], low: int, gap: float, least: int
) -> None:
    coarse = coarsen(np.array(values, np.float64), least)
    moved = int((coarse < low + gap).sum()) - int((coarse < low).sum())
    assert moved == 0 or moved >= least


def test_equal_values_stay_and_ranks_err_by_less_than_an_interval() -> None:
    draw = np.random.default_rng(0)
    ages = np.floor(draw.normal(60, 12, 4000))
    coarse = coarsen(ages, 10)
    assert (coarse == ages).mean() > 0.9  # ages that ten share are told
    x = draw.lognormal(3, 1, 2000)
    for share in (0.1, 0.5, 0.9):
        rank = float((x < np.quantile(coarsen(x, 10), share)).mean())
        assert abs(rank - share) < 20 / 2000
    assert np.array_equal(coarsen(x, 1), x)
    assert len(coarsen(x[:9], 10)) == 0
    assert coarsen(np.full(10, 61.0), 10).tolist() == [61.0] * 10


def test_one_far_value_neither_shows_nor_spoils_the_others() -> None:
    x = np.random.default_rng(1).normal(50, 10, 300)
    for far in (1e9, -1e9, 1e300):
        coarse = coarsen(np.append(x, far), 10)
        assert np.abs(coarse).max() < 256
        assert len(np.unique(coarse)) > 10
        assert reach(np.append(x, far), 10) == reach(x, 10)


@pytest.mark.parametrize(
    ("low", "high", "bins"), [(16.5, 95.0, 7), (0.0, 0.0, 3), (-3.2, 4.1, 5), (1e6 - 3, 1e6 + 3, 7), (-5.0, -5.0, 1)]
)
def test_edges_are_multiples_of_a_power_of_two_around_the_range(low: float, high: float, bins: int) -> None:
    edges = public_edges(low, high, bins)
    width = edges[1] - edges[0]
    assert np.frexp(width)[0] == 0.5
    assert (edges / width == np.rint(edges / width)).all()
    assert edges[0] <= low <= high <= edges[-1]
    assert len(edges) - 1 <= max(bins, 2)
