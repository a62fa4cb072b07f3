"""Moments: those of all rows in one place, for any partition and any order."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from atoll.statistics import CentralMoments

numbers = st.lists(
    st.one_of(st.floats(-1e6, 1e6), st.floats(999_999, 1_000_001), st.sampled_from([np.nan, np.inf, 0.0, -0.0])),
    max_size=60,
)


def merged(parts: list[np.ndarray]) -> CentralMoments:
    return CentralMoments.union([CentralMoments.of([part]) for part in parts], 1)


@given(values=numbers, cuts=st.lists(st.integers(0, 60), max_size=5), seed=st.integers(0, 2**32 - 1))
def test_any_partition_and_order_gives_the_moments_of_all_rows(values: list[float], cuts: list[int], seed: int) -> None:
    x = np.random.default_rng(seed).permutation(np.array(values, dtype=np.float64))
    found = merged(np.split(x, sorted(min(cut, len(x)) for cut in cuts)))
    there = x[np.isfinite(x)]
    assert (found.count[0], found.missing[0]) == (len(there), len(x) - len(there))
    if not len(there):
        assert found.low[0] > found.high[0]
        assert np.isnan(found.variance[0])
        return
    scale = np.abs(there).max() + 1
    assert abs(found.mean[0] - there.mean()) <= 1e-12 * scale
    assert abs(found.std[0] - there.std()) <= 1e-9 * (1 + there.std()) + 1e-8 * (there.std() < 1e-6 * scale)
    assert (found.low[0], found.high[0]) == (there.min(), there.max())
    assert abs(found.total[0] - there.sum()) <= 1e-11 * scale * len(there)


@given(a=numbers, b=numbers, c=numbers)
def test_they_are_a_commutative_monoid(a: list[float], b: list[float], c: list[float]) -> None:
    one, two, three = (CentralMoments.of([np.array(values, dtype=np.float64)]) for values in (a, b, c))
    close(one.merge(two), two.merge(one))
    close(one.merge(two).merge(three), one.merge(two.merge(three)))
    close(one.merge(CentralMoments.none(1)), one)
    close(CentralMoments.none(1).merge(one), one)


def close(one: CentralMoments, other: CentralMoments) -> None:
    assert np.array_equal(one.count, other.count)
    assert np.array_equal(one.missing, other.missing)
    assert np.array_equal(one.low, other.low)
    size = max(1.0, float(np.abs(one.mean).max()))
    np.testing.assert_allclose(one.mean, other.mean, atol=1e-12 * size)
    np.testing.assert_allclose(one.second, other.second, rtol=1e-9, atol=1e-18 * size**2)
    np.testing.assert_allclose(one.third, other.third, rtol=1e-7, atol=1e-11 * size**3)


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "bool", "uint8"])
def test_many_chunks_give_what_scipy_and_pandas_find(dtype: str) -> None:
    x = np.random.default_rng(1).gamma(2.0, 20.0, 150_001)
    x = x > 30 if dtype == "bool" else x.astype(dtype)
    found = CentralMoments.of([x])
    wide = x.astype(np.float64)
    np.testing.assert_allclose(found.mean[0], wide.mean(), rtol=1e-12)
    np.testing.assert_allclose(found.std[0], wide.std(), rtol=1e-12)
    np.testing.assert_allclose(found.sample_std[0], pd.Series(wide).std(), rtol=1e-12)
    np.testing.assert_allclose(found.skewness[0], scipy.stats.skew(wide), rtol=1e-9)


@pytest.mark.parametrize(("mean", "certified"), [(1_000_000.2, 1_000_000.2), (10_000_000.2, 10_000_000.2)])
def test_large_means_lose_no_digits(mean: float, certified: float) -> None:
    """NIST Statistical Reference Datasets, NumAcc3 and NumAcc4: 1,001 values, mean as given, standard deviation 0.1."""
    x = np.array([mean, *[mean - 0.1, mean + 0.1] * 500])
    found = merged(np.array_split(x, 7))
    assert abs(found.mean[0] - certified) < 1e-9 * certified
    assert abs(found.sample_std[0] - 0.1) < 1e-8  # decimals are not doubles: 0.1 at 1e7 has an error of 1e-9


def test_a_constant_column_has_no_skewness() -> None:
    assert np.isnan(CentralMoments.of([np.full(100_000, 0.1)]).skewness[0])
    assert CentralMoments.of([np.full(100_000, 0.1)]).std[0] < 1e-15


def test_a_message_takes_them_there_and_back() -> None:
    found = CentralMoments.of([np.arange(5.0), np.array([np.nan, 1.0])])
    close(CentralMoments.unpack(found.pack()), found)
