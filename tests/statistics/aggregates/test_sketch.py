"""Sketches of quantiles: within the stated error of NumPy's, and the same whatever the partition; rounds find values to the bit."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from atoll.statistics import Sketch
from atoll.statistics.sketch import BITS, keys_of, middle_of, number_of, positions_of, refine_counts

numbers = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=60)


@given(values=numbers)
def test_keys_have_the_order_of_the_numbers_and_give_them_back(values: list[float]) -> None:
    x = np.array(values)
    keys = keys_of(x)
    assert np.array_equal(
        np.sort(x)[np.argsort(np.sort(x), kind="stable")], np.array([number_of(k) for k in np.sort(keys).tolist()])
    )


@given(values=numbers, share=st.floats(0, 1), digits=st.integers(0, 12))
def test_a_quantile_is_within_the_stated_error(values: list[float], share: float, digits: int) -> None:
    x = np.sort(np.array(values))
    low, high, _ = positions_of(share, len(x))
    found = Sketch.of(x, digits).quantile(share)
    with np.errstate(over="ignore", invalid="ignore"):
        exact = float(np.quantile(x, share))
    if np.isfinite(exact):
        tiny = np.finfo(np.float64).tiny
        assert abs(found - exact) <= 2.0 ** -(digits + 1) * max(abs(x[low]), abs(x[high])) * (1 + 1e-9) + tiny


@given(values=numbers, cuts=st.lists(st.integers(0, 60), max_size=4), seed=st.integers(0, 2**32 - 1))
def test_any_partition_and_order_gives_the_same_sketch(values: list[float], cuts: list[int], seed: int) -> None:
    x = np.array(values)
    whole = Sketch.of(x)
    parts = np.split(np.random.default_rng(seed).permutation(x), sorted(min(cut, len(x)) for cut in cuts))
    found = Sketch.union([Sketch.of(part) for part in parts])
    assert np.array_equal(found.buckets, whole.buckets)
    assert np.array_equal(found.counts, whole.counts)


@given(values=numbers, data=st.data())
def test_rounds_find_the_value_at_a_rank(values: list[float], data: st.DataObject) -> None:
    x = np.array(values) + 0.0
    rank = data.draw(st.integers(0, len(x) - 1))
    prefix, below = Sketch.of(x).bucket_at(rank)
    known = 19
    while known < BITS:
        bits = min(11, BITS - known)
        counts = refine_counts(x, prefix, known, bits)
        place = int(np.searchsorted(below + np.cumsum(counts), rank, side="right"))
        below += int(counts[:place].sum())
        prefix, known = (prefix << bits) | place, known + bits
    assert number_of(prefix) == middle_of(prefix, 0) == np.sort(x)[rank]


def test_many_chunks_and_wide_ranges_lose_nothing() -> None:
    x = np.concatenate([np.random.default_rng(0).normal(0, 1, 300_000), [1e300, -1e300, np.nan, np.inf]])
    found = Sketch.of(x)
    assert found.size == 300_002
    assert found.range()[0] <= -1e300
    assert found.range()[1] >= 1e300
    assert abs(found.quantile(0.9) / np.quantile(x[:300_000], 0.9) - 1) < found.error
    assert np.isnan(Sketch.none().quantile(0.5))
