"""Cuckoo hashing: a placement wherever there is one, and no more failures than the bound says."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.secure.psi import cuckoo
from atoll.secure.psi.cuckoo import FAILURE_BITS, bins_for, candidate_bins, failure_bits, place_items


def candidates_of(rng, items, bins):
    return candidate_bins(rng.integers(2**64, size=(items, 3), dtype=np.uint64), bins)


def require_placed(table, candidates):
    taken = np.flatnonzero(table >= 0)
    np.testing.assert_array_equal(np.sort(table[taken]), np.arange(len(candidates)))
    assert (candidates[table[taken]] == taken[:, None]).any(axis=1).all()


def can_be_placed(candidates):
    """Hall's condition, over all sets of items."""
    sets = (
        rows for size in range(1, len(candidates) + 1) for rows in itertools.combinations(candidates.tolist(), size)
    )
    return all(len(set(itertools.chain(*rows))) >= len(rows) for rows in sets)


@given(items=st.integers(0, 7), size=st.integers(1, 4), seed=st.integers(0, 999), rounds=st.sampled_from([0, 3, 1000]))
def test_there_is_a_placement_exactly_where_hall_says(items, size, seed, rounds):
    candidates = candidates_of(np.random.default_rng(seed), items, 3 * size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuckoo, "_ROUNDS", rounds)
        table = place_items(candidates, 3 * size)
    assert (table is not None) == can_be_placed(candidates)
    if table is not None:
        require_placed(table, candidates)


@pytest.mark.parametrize("rounds", [0, 1000])
def test_a_full_table_is_placed_by_walks_and_by_search_alone(monkeypatch, rounds):
    monkeypatch.setattr(cuckoo, "_ROUNDS", rounds)
    for seed in range(3):
        candidates = candidates_of(np.random.default_rng(seed), 1500, 3 * 560)  # 1.12 bins an item
        require_placed(place_items(candidates, 3 * 560), candidates)


@pytest.mark.parametrize("items", [0, 1, 3, 4, 5, 10, 100, 999, 2500, 16383, 16384, 100_000])
def test_bins_keep_the_bound_and_are_few(items):
    bins = bins_for(items)
    assert bins % 3 == 0
    assert bins >= max(3, items)
    assert failure_bits(items, bins) >= FAILURE_BITS
    if 4 <= items < 16384:
        assert failure_bits(items, bins - 3) < FAILURE_BITS
    if items >= 2500:
        assert bins <= 1.33 * items


def test_the_bound_holds_where_failures_can_be_counted():
    """Four items in tables of two bins: all 8^4 cases; the items fail exactly if all are at the same three bins: 8 cases."""
    every = np.array(list(itertools.product(range(2), repeat=3))) + 2 * np.arange(3)
    failed = sum(place_items(np.array(rows), 6) is None for rows in itertools.product(every, repeat=4))
    assert failed == 8
    assert failed / 8**4 <= 2 ** -failure_bits(4, 6) == pytest.approx(8 / 8**4)


def test_the_bound_holds_where_failures_are_frequent():
    rng = np.random.default_rng(0)
    failed = sum(place_items(candidates_of(rng, 5, 9), 9) is None for _ in range(3000)) / 3000
    assert 0 < failed < 2 ** -failure_bits(5, 9) < 0.1


def test_factorials_are_exact_enough():
    x = np.array([0.0, 1, 2, 9, 10, 11, 50, 1e3, 1e6])
    np.testing.assert_allclose(cuckoo._log_factorial(x), [math.lgamma(v + 1) for v in x], rtol=1e-13, atol=1e-10)


def test_candidates_are_one_in_each_table_and_uniform():
    candidates = candidates_of(np.random.default_rng(1), 30_000, 30)
    assert (candidates // 10 == np.arange(3)).all()
    counts = np.bincount(candidates.ravel(), minlength=30)
    assert abs(counts - 3000).max() < 5 * np.sqrt(3000)
