"""Metrics are commutative monoids, and agree with NumPy on all the data."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.algebra.metric import Average, Extremes, Histogram, Moments
from atoll.core.errors import ConfigError

METRICS = [Average(), Extremes(), Moments(), Histogram(-100.0, 100.0, 16)]
numbers = st.lists(st.floats(-100, 100, allow_nan=False), max_size=8)


def close(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=1e-9, atol=1e-6)


@given(st.sampled_from(METRICS), numbers, numbers, numbers)
def test_monoid_laws(metric, a, b, c):
    x, y, z = (metric.of(v) for v in (a, b, c))
    close(metric.merge(x, y), metric.merge(y, x))
    close(metric.merge(metric.merge(x, y), z), metric.merge(x, metric.merge(y, z)))
    close(metric.merge(x, metric.zero()), x)
    close(metric.merge(metric.zero(), x), x)
    if a + b or metric.additive:
        close(metric.merge(x, y), metric.of(a + b))


@given(st.lists(numbers, min_size=1, max_size=6).filter(lambda parts: any(parts)))
def test_merged_results_are_those_of_the_pooled_data(parts):
    pooled = np.concatenate([np.array(p) for p in parts])

    def merged(metric):
        return metric.result(functools.reduce(metric.merge, [metric.of(p) for p in parts], metric.zero()))

    np.testing.assert_allclose(merged(Average()), pooled.mean(), rtol=1e-9, atol=1e-9)
    assert merged(Extremes()) == (pooled.min(), pooled.max())
    moments = merged(Moments())
    np.testing.assert_allclose(moments["mean"], pooled.mean(), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(moments["variance"], pooled.var(), rtol=1e-9, atol=1e-7)
    assert moments["n"] == len(pooled)


def test_moments_do_not_cancel():
    """Mean 1e9, spread 1: sums of squares in float64 lose every digit of the variance."""
    x = 1e9 + np.random.default_rng(0).normal(size=(1000, 2))
    m = Moments()
    merged = functools.reduce(m.merge, [m.of(part) for part in np.array_split(x, 7)], m.zero())
    np.testing.assert_allclose(m.result(merged)["sample_variance"], x.var(axis=0, ddof=1), rtol=1e-6)
    naive = (x**2).mean(0) - x.mean(0) ** 2
    assert abs(naive - x.var(axis=0)).max() > 1


def test_weighted_average():
    a = Average()
    assert a.result(a.merge(a.of([1.0], 3.0), a.of([5.0, 5.0], [1.0, 0.0]))) == 2.0


def test_no_data_has_no_value():
    assert math.isnan(Average().result(Average().zero()))
    assert all(math.isnan(v) for v in Extremes().result(Extremes().zero()))
    assert math.isnan(Moments().result(Moments().of([]))["mean"])
    assert math.isnan(Moments().result(Moments().of([1.0]))["sample_variance"])
    h = Histogram()
    assert math.isnan(h.quantile(h.zero(), 0.5))
    assert math.isnan(h.tail_mean(h.zero(), 0.1))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60), st.floats(0, 1))
def test_a_quantile_is_right_to_a_bin(values, q):
    h = Histogram(0.0, 1.0, 20)
    exact = float(np.quantile(values, q, method="inverted_cdf"))
    assert abs(h.quantile(h.of(values), q) - exact) <= 1 / 20 + 1e-9


@given(st.lists(st.floats(0, 1), min_size=10, max_size=60))
def test_tail_means_are_right_to_a_bin(values):
    h = Histogram(0.0, 1.0, 20)
    ordered = np.sort(values)
    k = len(values) // 2
    summary = h.of(values)
    assert abs(h.tail_mean(summary, k / len(values)) - ordered[:k].mean()) <= 1 / 20 + 1e-9
    assert abs(h.tail_mean(summary, k / len(values), highest=True) - ordered[-k:].mean()) <= 1 / 20 + 1e-9


def test_numbers_outside_the_range_count_at_its_ends():
    h = Histogram(0.0, 1.0, 4)
    assert h.result(h.of([-5.0, 0.0, 0.99, 1.0, 7.0])).tolist() == [2.0, 0.0, 0.0, 3.0]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Histogram(1.0, 1.0), "low=1.0, high=1.0"),
        (lambda: Histogram(0.0, math.inf), "high=inf"),
        (lambda: Histogram(bins=0), "bins=0"),
        (lambda: Histogram().quantile(Histogram().zero(), 1.5), "q=1.5"),
        (lambda: Histogram().tail_mean(Histogram().zero(), 0.0), "share=0.0"),
    ],
)
def test_bad_input(make, text):
    with pytest.raises(ConfigError, match=text):
        make()
