"""Submodular functions of sets of clients, and greedy choice, against exhaustive search."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import ConfigError
from atoll.learn.selection.submodular import (
    Coverage,
    FacilityLocation,
    LogDeterminant,
    closeness,
    cosines,
    distances,
    divergences,
    lazy_greedy,
)


def made(kind: str, clients: int, seed: int) -> Coverage:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(clients, 3)) * rng.exponential(size=(clients, 1))
    if kind == "location":
        return FacilityLocation(closeness(distances(vectors)), rng.integers(1, 9, clients).astype(float))
    if kind == "any":
        return FacilityLocation(rng.exponential(size=(clients, clients)))
    return LogDeterminant(cosines(vectors), scale=5.0)


cases = st.tuples(st.sampled_from(["location", "any", "determinant"]), st.integers(2, 8), st.integers(0, 10_000))


@given(cases, st.data())
def test_never_falls_and_adds_less_and_less(case, data):
    coverage = made(*case)
    n = len(coverage)
    large = data.draw(st.sets(st.integers(0, n - 1), max_size=n - 1))
    small = data.draw(st.sets(st.sampled_from(sorted(large)))) if large else set()
    client = data.draw(st.sampled_from(sorted(set(range(n)) - large)))
    values = [coverage.value(sorted(s)) for s in (small, small | {client}, large, large | {client})]
    assert coverage.value([]) == 0.0
    assert values[1] - values[0] >= values[3] - values[2] - 1e-9 >= -2e-9
    assert coverage.value(sorted(large, reverse=True)) == pytest.approx(values[2], abs=1e-9)


@given(cases)
def test_values_are_what_the_formulas_say(case):
    coverage = made(*case)
    for size in range(1, len(coverage) + 1):
        chosen = list(range(size))
        if isinstance(coverage, FacilityLocation):
            weights = np.ones(len(coverage)) if coverage.weights is None else coverage.weights
            expected = weights @ coverage.similarity[:, chosen].max(axis=1)
        else:
            expected = np.linalg.slogdet(np.eye(size) + 5.0 * coverage.kernel[:size, :size])[1]
        assert coverage.value(chosen) == pytest.approx(expected)


@settings(max_examples=60)
@given(cases, st.integers(1, 4))
def test_greedy_is_within_its_guarantee(case, count):
    coverage = made(*case)
    count = min(count, len(coverage))
    chosen, gains = lazy_greedy(coverage, count)
    best = max(coverage.value(s) for s in itertools.combinations(range(len(coverage)), count))
    assert gains.sum() == pytest.approx(coverage.value(chosen))
    assert (1 - 1 / math.e) * best - 1e-9 <= gains.sum() <= best + 1e-9
    assert (np.diff(gains) <= 1e-9).all()
    if count == 1:
        assert gains.sum() == pytest.approx(best)


@given(cases)
def test_lazy_is_greedy(case):
    coverage = made(*case)
    chosen, gains = lazy_greedy(coverage, len(coverage))
    state, left = coverage.start(), list(range(len(coverage)))
    for client, gain in zip(chosen.tolist(), gains, strict=True):
        assert gain == pytest.approx(max(coverage.gain(state, other) for other in left), abs=1e-9)
        state = coverage.add(state, client)
        left.remove(client)
    assert left == []


def test_lazy_asks_for_few_gains():
    """The point of laziness: with 300 clients in ten clusters far fewer than 300 gains a choice are computed."""
    rng = np.random.default_rng(0)
    vectors = np.repeat(rng.normal(size=(10, 5)) * 20, 30, axis=0) + rng.normal(size=(300, 5)) * 0.1
    asked = []

    class Counted(FacilityLocation):
        def gain(self, state, client):
            asked.append(client)
            return super().gain(state, client)

    chosen, _ = lazy_greedy(Counted(closeness(distances(vectors))), 10)
    assert sorted(chosen // 30) == list(range(10))  # one of each cluster
    assert len(asked) < 300 + 9 * 300 / 2


def test_diverse_before_alike():
    vectors = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.01], [0.0, 1.0]])
    assert lazy_greedy(LogDeterminant(cosines(vectors), 10.0), 2)[0].tolist() == [0, 3]
    assert cosines(np.zeros((2, 3))).tolist() == [[0, 0], [0, 0]]


@given(st.integers(2, 6), st.integers(0, 999))
def test_distances_of_vectors_and_profiles(clients, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(clients, 4))
    expected = np.linalg.norm(x[:, None] - x[None], axis=2)
    np.testing.assert_allclose(distances(x), expected, atol=1e-7)
    variances = rng.exponential(size=(clients, 4)) + 0.1
    found = divergences(x, variances)

    def kl(k, j):
        ratio = variances[k] / variances[j]
        return (-np.log(ratio) + ratio + (x[k] - x[j]) ** 2 / variances[j] - 1).mean() / 2

    for k, j in itertools.product(range(clients), repeat=2):
        assert found[k, j] == pytest.approx((kl(k, j) + kl(j, k)) / 2, abs=1e-12)


def test_bad_input():
    with pytest.raises(ConfigError, match="a negative similarity"):
        FacilityLocation(np.array([[1.0, -1.0], [0.0, 1.0]]))
    with pytest.raises(ConfigError, match=r"a matrix of shape \(2, 3\)"):
        FacilityLocation(np.zeros((2, 3)))
    with pytest.raises(ConfigError, match=r"weights of shape \(3,\) for 2 clients"):
        FacilityLocation(np.eye(2), np.ones(3))
    with pytest.raises(ConfigError, match="not positive semi-definite"):
        LogDeterminant(np.array([[0.0, 1.0], [1.0, 0.0]]))
    with pytest.raises(ConfigError, match=r"scale=0\.0"):
        LogDeterminant(np.eye(2), 0.0)
    with pytest.raises(ConfigError, match="count=3 of 2 clients"):
        lazy_greedy(FacilityLocation(np.eye(2)), 3)
