"""Histograms are NumPy's to the number, correlations pandas', and distances between distributions SciPy's."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.spatial.distance
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from atoll.statistics.histogram import Drift, counts_in, drift_of, edges_of, largest
from atoll.statistics.moments import Relations


@given(
    values=st.lists(st.floats(-100, 100), max_size=80),
    bins=st.integers(1, 40),
    width=st.sampled_from([0.1, 1.0, 1 / 3, 7.0]),
)
def test_counts_are_those_of_numpy(values: list[float], bins: int, width: float) -> None:
    x = np.array([*values, *(np.arange(-5, 6) * width)])  # many of them on the edges
    edges = edges_of(-5 * width, 5 * width, bins)
    assert counts_in(x, edges).tolist() == np.histogram(x, bins, (-5 * width, 5 * width))[0].tolist()


def test_chunks_add_up_and_one_value_has_a_bin() -> None:
    x = np.random.default_rng(0).normal(size=200_000)
    x[::50] = np.nan
    there = x[np.isfinite(x)]
    assert counts_in(x, edges_of(-3, 3, 20)).tolist() == np.histogram(there, 20, (-3, 3))[0].tolist()
    assert counts_in(np.full(5, 7.0), edges_of(7.0, 7.0, 4)).tolist() == np.histogram(np.full(5, 7.0), 4)[0].tolist()
    assert counts_in(np.zeros(0), edges_of(0, 1, 3)).tolist() == [0, 0, 0]


@given(seed=st.integers(0, 2**32 - 1), parts=st.integers(1, 5), share=st.sampled_from([0.0, 0.3]))
def test_correlations_are_those_of_pandas(seed: int, parts: int, share: float) -> None:
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(60, 4)) @ draw.normal(size=(4, 4)) + 1e5
    x[draw.random(x.shape) < share] = np.nan
    means = np.nanmean(x, axis=0).tolist()
    pieces = [Relations.of(list(part.T), means) for part in np.array_split(x, parts)]
    found = pieces[0]
    for piece in pieces[1:]:
        found = found.merge(piece)
    np.testing.assert_allclose(found.correlations(), pd.DataFrame(x).corr(), rtol=1e-7, atol=1e-9)


def test_a_constant_column_correlates_with_nothing_and_few_rows_are_hidden() -> None:
    x = np.stack([np.arange(5.0), np.full(5, 0.1), [1.0, np.nan, np.nan, 2.0, np.nan]])
    found = Relations.of(list(x), [2.0, 0.1, 1.5])
    assert np.isnan(found.correlations()[0, 1])
    assert found.correlations()[0, 2] == pytest.approx(1.0)
    assert np.isnan(found.keeping(found.visible(3)).correlations()[0, 2])


@given(p=st.lists(st.integers(0, 50), min_size=3, max_size=3), q=st.lists(st.integers(1, 50), min_size=3, max_size=3))
def test_distances_are_those_of_scipy(p: list[int], q: list[int]) -> None:
    found = drift_of(p, q, ["a", "b", "c"], ordered=True)
    if not sum(p):
        assert found is None
        return
    assert found is not None
    assert found.js == pytest.approx(scipy.spatial.distance.jensenshannon(p, q, base=2), abs=1e-9)
    rows = [np.repeat([0, 1, 2], counts) for counts in (p, q)]
    assert found.ks == pytest.approx(scipy.stats.ks_2samp(*rows, method="asymp").statistic)
    shares = [np.maximum(np.array(counts) / sum(counts), 1e-4) for counts in (p, q)]
    psi = scipy.stats.entropy(*shares) * 0 + sum((a - b) * np.log(a / b) for a, b in zip(*shares, strict=True))
    assert found.psi == pytest.approx(psi)
    assert found.verdict == ("stable" if psi < 0.1 else "moderate" if psi <= 0.25 else "large")


def test_equal_distributions_do_not_drift_and_the_largest_comes_first() -> None:
    same = drift_of([1, 2], [10, 20], ["f", "m"], ordered=False)
    far = drift_of([9, 1], [10, 20], ["f", "m"], ordered=False)
    assert same is not None
    assert far is not None
    assert same.plain() == {"psi": 0.0, "ks": None, "js": 0.0, "verdict": "stable"}
    assert [row[:2] for row in largest({"a": {"sex": same}, "b": {"sex": far}})] == [("b", "sex"), ("a", "sex")]


def test_an_empty_bin_counts_as_a_ten_thousandth_on_either_side() -> None:
    """By hand: ``(.5 - .0001) ln(.5 / .0001)`` for a category that one side lacks; the index is symmetric."""
    expected = (0.5 - 1e-4) * np.log(0.5 / 1e-4) + (0.5 - 1.0) * np.log(0.5 / 1.0)
    lacks = drift_of([4, 0], [6, 6], ["f", "m"], ordered=False)
    other = drift_of([6, 6], [4, 0], ["f", "m"], ordered=False)
    assert lacks is not None
    assert other is not None
    assert [lacks.psi, other.psi] == pytest.approx([expected, expected], rel=1e-12)


@pytest.mark.parametrize(
    ("psi", "verdict"), [(0.0999, "stable"), (0.1, "moderate"), (0.25, "moderate"), (0.2501, "large")]
)
def test_verdicts_change_where_the_table_says(psi: float, verdict: str) -> None:
    shares = np.array([0.5, 0.5])
    assert Drift(psi, None, 0.0, ("f", "m"), shares, shares).verdict == verdict
