"""One tree: its splits against a search over all of them, its loops against NumPy, its whole against XGBoost."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.trees import kernel
from atoll.trees.histogram import Growth, TreeLimits
from atoll.trees.kernel import gradient_histogram, place_in_bins, split_rows

LIMITS = TreeLimits(eta=0.3, max_depth=3, reg_lambda=1.0, gamma=0.0, min_child_weight=1.0)


def table(seed, rows=200, features=4, width=7):
    rng = np.random.default_rng(seed)
    bins = rng.integers(0, width, (rows, features)).astype(np.uint8)
    pairs = np.stack([rng.normal(size=rows), rng.uniform(0.1, 1, rows)], axis=1).astype(np.float32)
    return bins, pairs


@given(st.integers(0, 10_000), st.integers(0, 60))
def test_compiled_loops_are_those_of_numpy(seed, n):
    if kernel.compiled() is None:
        pytest.skip("no C++ compiler")
    bins, pairs = table(seed)
    rows = np.sort(np.random.default_rng(seed).permutation(len(bins))[:n]).astype(np.int32)
    fast, sides = gradient_histogram(bins, pairs, rows, 7), split_rows(bins, 2, 3, rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "compiled", lambda: None)
        np.testing.assert_allclose(fast, gradient_histogram(bins, pairs, rows, 7), rtol=1e-12, atol=1e-12)
        for one, other in zip(sides, split_rows(bins, 2, 3, rows), strict=True):
            np.testing.assert_array_equal(one, other)


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_bins_are_those_of_a_search(seed, cuts):
    rng = np.random.default_rng(seed)
    values = rng.integers(-9, 9, 50).astype(np.float32) / 2
    edges = np.unique(rng.normal(scale=4, size=cuts).round(1).astype(np.float32))
    made = np.full((50, 3), 7, np.uint8)
    place_in_bins(values, edges, made, 1)
    np.testing.assert_array_equal(made[:, 1], np.searchsorted(edges, values, side="right"))
    assert (made[:, [0, 2]] == 7).all()


@given(st.integers(0, 10_000), st.sampled_from([np.uint8, np.uint16]), st.booleans())
def test_missing_values_have_a_bin_of_their_own_and_go_where_they_should(seed, kind, left):
    rng, absent = np.random.default_rng(seed), 255 if kind is np.uint8 else 256
    values = np.where(rng.random(50) < 0.3, np.nan, rng.normal(size=50)).astype(np.float32)
    edges = np.unique(rng.normal(size=absent - 1).astype(np.float32))
    pairs, rows = table(seed, rows=50)[1], np.sort(rng.permutation(50)[:40]).astype(np.int32)
    found = []
    for native in {True, kernel.compiled() is None}:
        with pytest.MonkeyPatch.context() as patch:
            if not native:
                patch.setattr(kernel, "compiled", lambda: None)
            bins = np.zeros((50, 2), kind)
            place_in_bins(values, edges, bins, 1, absent)
            sides = split_rows(bins, 1, 100, rows, absent if left else -1)
            found.append((bins, *sides, gradient_histogram(bins, pairs, rows, absent + 1)))
    for bins, goes, stays, sums in found:
        np.testing.assert_array_equal(bins[:, 1] == absent, np.isnan(values))
        below = np.isnan(values[rows]) if left else np.zeros(40, bool)
        np.testing.assert_array_equal(goes, rows[below | (bins[rows, 1] <= 100)])
        assert sorted([*goes, *stays]) == rows.tolist()
        np.testing.assert_allclose(sums[1, absent], pairs[rows[np.isnan(values[rows])]].sum(axis=0), atol=1e-5)


def grown(bins, pairs, limits, width=7, missing=False):
    """A tree grown on all rows here, and the rows at each leaf; if features may be missing, the last bin is theirs."""
    cuts = [np.arange(1, width - missing, dtype=np.float32)] * bins.shape[1]
    growth, at = Growth(limits, cuts, 0, missing), {0: np.arange(len(bins), dtype=np.int32)}
    while growth.asked:
        growth.take(np.stack([gradient_histogram(bins, pairs, at[node], width) for node in growth.asked]))
        for node in sorted(at.keys() & set(np.flatnonzero(np.array(growth.feature) >= 0).tolist())):
            child, also = growth.left[node], width - 1 if growth.default_left[node] else -1
            at[child], at[child + 1] = split_rows(bins, growth.feature[node], growth.cut[node], at.pop(node), also)
    return growth, at


def best_split(bins, pairs, rows, limits, absent=None):
    """The gain of the best split of some rows, by trying all, each with the rows of the bin ``absent`` on either side."""

    def score(part):
        g, h = pairs[part].astype(np.float64).sum(axis=0)
        return g * g / (h + limits.reg_lambda)

    gains = [0.0]
    for f in range(bins.shape[1]):
        for cut, also in itertools.product(range(-1, 7), (False, True) if absent else (False,)):
            goes = (bins[rows, f] <= cut) & (bins[rows, f] != absent) | (also & (bins[rows, f] == absent))
            left, right = rows[goes], rows[~goes]
            if min(pairs[left, 1].sum(), pairs[right, 1].sum()) >= limits.min_child_weight and len(left) and len(right):
                gains.append(score(left) + score(right) - score(rows))
    return max(gains)


@given(st.integers(0, 10_000), st.sampled_from([0.0, 1.0, 5.0]), st.sampled_from([0.0, 1.0, 20.0]))
def test_every_split_is_the_best_of_all(seed, reg_lambda, least):
    limits = TreeLimits(eta=0.3, max_depth=2, reg_lambda=reg_lambda, gamma=0.0, min_child_weight=least)
    bins, pairs = table(seed, rows=80)
    growth, at = grown(bins, pairs, limits)
    assert sorted(np.concatenate(list(at.values())).tolist()) == list(range(80))
    gain = best_split(bins, pairs, np.arange(80), limits)
    assert growth.gain[0] == pytest.approx(gain if gain > 1e-6 else 0.0, rel=1e-6, abs=1e-6)
    tree = growth.tree()
    for leaf, rows in at.items():
        g, h = pairs[rows].astype(np.float64).sum(axis=0)
        assert tree.value[leaf] == pytest.approx(-0.3 * g / (h + reg_lambda), rel=1e-5, abs=1e-6)


@given(st.integers(0, 10_000), st.sampled_from([0.0, 20.0]))
def test_every_split_is_the_best_of_all_with_missing_rows_on_either_side(seed, least):
    limits = TreeLimits(eta=0.3, max_depth=2, reg_lambda=1.0, gamma=0.0, min_child_weight=least)
    bins, pairs = table(seed, rows=80)
    growth, at = grown(bins, pairs, limits, missing=True)
    assert sorted(np.concatenate(list(at.values())).tolist()) == list(range(80))
    gain = best_split(bins, pairs, np.arange(80), limits, absent=6)
    assert growth.gain[0] == pytest.approx(gain if gain > 1e-6 else 0.0, rel=1e-6, abs=1e-6)
    tree = growth.tree()
    rows = np.where(bins == 6, np.nan, bins).astype(np.float32)
    for leaf, mine in at.items():
        assert (tree.leaves(rows[mine]) == leaf).all()
        g, h = pairs[mine].astype(np.float64).sum(axis=0)
        assert tree.value[leaf] == pytest.approx(-0.3 * g / (h + 1), rel=1e-5, abs=1e-6)


def test_a_gain_below_gamma_splits_nothing():
    bins, pairs = table(3)
    gain = grown(bins, pairs, LIMITS)[0].gain[0]
    limits = TreeLimits(eta=0.3, max_depth=3, reg_lambda=1.0, gamma=gain * 1.01, min_child_weight=1.0)
    assert len(grown(bins, pairs, limits)[0].tree()) == 1


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_tree_is_xgboosts(seed):
    xgboost = pytest.importorskip("xgboost")
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 7, (500, 4)).astype(np.float32)
    y = ((x[:, 0] > 2) ^ (x[:, 1] > 4) ^ (rng.random(500) < 0.2)).astype(np.float32)
    settings = {"objective": "binary:logistic", "tree_method": "hist", "max_depth": 3, "base_score": 0.5}
    theirs = xgboost.train(settings, xgboost.DMatrix(x, y), 1).predict(xgboost.DMatrix(x), output_margin=True)
    pairs = np.stack([0.5 - y, np.full(500, 0.25)], axis=1).astype(np.float32)
    growth, _ = grown(x.astype(np.uint8), pairs, LIMITS)
    tree = growth.tree()
    np.testing.assert_allclose(tree.value[tree.leaves(x)], theirs, rtol=1e-5)
