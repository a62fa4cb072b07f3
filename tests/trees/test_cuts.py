"""Cuts by counting: quantiles of all parties' rows, the same for every partition."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from atoll.core.errors import MessageError
from atoll.trees.blocks import _by_feature, runs_before, runs_of, sorted_blocks
from atoll.trees.histogram import CutSearch
from atoll.trees.sketch import SketchSizes, binned, count_parts, cuts_of_blocks, ordered, value_of

NUMBERS = hnp.arrays(np.float32, st.integers(2, 60), elements=st.floats(-(2.0**99), 2.0**99, width=32))


def searched(parts, bins, exact=False):
    search = CutSearch(parts[0].shape[1], bins, exact)
    while not search.done:
        asked = search.asked()
        search.take(sum(count_parts(part, **asked) for part in parts))
    return search


def cuts_of(parts, bins, exact=False):
    return searched(parts, bins, exact).cuts()


@given(NUMBERS)
def test_whole_numbers_have_the_order_of_what_they_stand_for(values):
    keys = ordered(values)
    assert ((keys[:, None] < keys) == (values[:, None] < values)).all()
    assert (value_of(keys) == values).all()


@given(NUMBERS, st.integers(2, 12), st.randoms())
def test_cuts_do_not_depend_on_who_has_which_rows(values, bins, random):
    column = values[:, None]
    place = random.randrange(len(values))
    whole, (split,) = cuts_of([column], bins), cuts_of([column[:place], column[place:]], bins)
    np.testing.assert_array_equal(whole[0], split)
    assert len(split) < bins
    assert (np.diff(split) > 0).all()


@pytest.mark.parametrize("draw", ["normal", "exponential", "cauchy", "lognormal"])
def test_bins_hold_equally_many_rows_whatever_the_distribution(draw):
    rng = np.random.default_rng(0)
    x = {"normal": rng.normal, "exponential": rng.exponential, "cauchy": rng.standard_cauchy, "lognormal": lambda size: rng.lognormal(0, 6, size)}[draw](size=(20_000, 1))  # fmt: skip
    (cuts,) = cuts_of(np.split(x, 4), 64)
    rows = np.bincount(binned(x, [cuts])[:, 0], minlength=64)
    assert len(cuts) == 63
    assert rows.max() <= len(x) / 64 + 2
    np.testing.assert_allclose(cuts, np.quantile(x, np.arange(1, 64) / 64), rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("shares", [[0.999, 0.001], [0.001, 0.999], [0.5, 0.49, 0.01], [0.01, 0.3, 0.01, 0.68]])
def test_common_values_have_bins_of_their_own(shares):
    x = np.repeat(np.arange(len(shares), dtype=float), (np.array(shares) * 10_000).astype(int))[:, None]
    made = binned(x, cuts_of([x], 256))
    assert len(np.unique(made)) == len(shares)
    assert (np.diff(made[:, 0].astype(int)) >= 0).all()


def test_infinite_ends_have_no_cut():
    x = np.array([[np.finfo(np.float32).max], [-np.finfo(np.float32).max]])
    (cuts,) = cuts_of([x], 4)
    assert np.isfinite(cuts).all()
    assert binned(x, [cuts])[0, 0] > binned(x, [cuts])[1, 0]


def drawn(kind, n, seed=0):
    rng = np.random.default_rng(seed)
    x = np.sinh(rng.permutation(np.linspace(-2.5, 2.5, n))).astype(np.float32)  # all values are different
    zero = rng.random(n) < 0.6
    holes = np.where(rng.random(n) < 0.3, np.nan, x)
    return {
        "different": x, "rounded": np.round(np.exp(x), 2), "coarse": np.round(x, 1), "half": np.maximum(x, 0), "zeros inside": np.where(zero, 0, x),
        "zeros below": np.where(zero, 0, np.exp(x / 2)), "whole": np.floor(900 * np.abs(x)), "skewed": np.round(np.exp(1.2 * x)), "missing": holes, "empty": x * np.nan,
    }[kind].astype(np.float32)  # fmt: skip


def theirs(columns, bins):
    xgboost = pytest.importorskip("xgboost")
    starts, values = xgboost.QuantileDMatrix(columns, max_bin=bins, nthread=1).get_quantile_cut()
    return [values[a + 1 : b - 1] for a, b in itertools.pairwise(starts)]


KINDS = ("different", "rounded", "coarse", "half", "zeros inside", "zeros below", "whole", "skewed", "missing")
"""With up to 2,048 rows, or among at most 2,048 different values, ranks alone say what XGBoost chooses; the others repeat some of very many values."""


@pytest.mark.quick("5-256", "257-256", "1600-256", "801-100")
@pytest.mark.parametrize("bins", [256, 100])
@pytest.mark.parametrize("n", [1, 2, 5, 256, 257, 300, 801, 1600])
def test_cuts_of_few_rows_are_xgboosts_on_the_union(n, bins):
    x = np.column_stack([drawn(kind, n) for kind in KINDS])
    found = cuts_of(np.array_split(x, 3), bins)
    if n > 8 * bins:  # beyond, XGBoost's choice depends on rows that are no cuts
        found = cuts_of(np.array_split(x, 3), bins, exact=True)
    for kind, ours, pooled in zip(KINDS, found, theirs(x, bins), strict=True):
        np.testing.assert_array_equal(ours, pooled, err_msg=f"{kind}, {n} rows")


@pytest.mark.quick("4099", "8194")
@pytest.mark.parametrize("n", [2048, 4098, 4099, 8194])
def test_cuts_are_xgboosts_as_long_as_the_order_of_the_rows_does_not_matter(n):
    kinds = ("different", "coarse", "half", "zeros inside", "zeros below", "skewed", "missing", "empty")
    x = np.column_stack([drawn(kind, n) for kind in kinds])
    search = searched(np.array_split(x, 3), 256)
    for kind, ours, pooled in zip(kinds, search.cuts(), theirs(x, 256), strict=True):
        np.testing.assert_array_equal(ours, pooled, err_msg=f"{kind}, {n} rows")
    assert search.contacts <= 12


@pytest.mark.quick("5000")
@pytest.mark.parametrize("n", [4098, 5000, 8194])
def test_where_some_of_many_values_repeat_all_of_them_say_what_xgboost_chooses(n):
    kinds = ("rounded", "whole")
    x = np.column_stack([drawn(kind, n) for kind in kinds])
    for kind, ours, pooled in zip(kinds, cuts_of(np.array_split(x, 3), 256, exact=True), theirs(x, 256), strict=True):
        np.testing.assert_array_equal(ours, pooled, err_msg=f"{kind}, {n} rows")


def test_of_many_rows_with_few_values_the_cuts_are_xgboosts_too():
    rng = np.random.default_rng(0)
    x = np.column_stack((rng.integers(0, 900, 20_000), rng.integers(0, 3000, 20_000))).astype(np.float32)
    pooled = theirs(x, 256)
    np.testing.assert_array_equal(cuts_of([x], 256)[0], pooled[0])
    np.testing.assert_array_equal(cuts_of([x], 256, exact=True)[1], pooled[1])


def test_beyond_the_queue_cuts_are_near_xgboosts_which_depend_on_the_order():
    x = drawn("different", 20_000)[:, None]
    (ours,), (pooled,), (other,) = cuts_of([x], 256), theirs(x, 256), theirs(np.sort(x, axis=0), 256)
    ranks = [np.searchsorted(np.sort(x[:, 0]), cuts) for cuts in (ours, pooled, other)]
    assert np.abs(ranks[1] - ranks[2]).max() > 0
    assert np.abs(ranks[0] - ranks[1]).max() <= 20_000 / 256 / 4


def in_blocks(parts, bins):
    """The cuts of one feature by what parties say of its queues."""
    runs = [runs_of(part) for part in parts]
    ends = [[ordered(values[[0, -1]]) if len(values) else np.zeros(2, np.uint32)] for values, _ in runs]
    before = runs_before(np.array([[len(values)] for values, _ in runs]), np.array(ends).transpose(0, 2, 1))
    queue = SketchSizes.of(sum(int(rows.sum()) for _, rows in runs), bins).queue
    blocks = [sorted_blocks(*mine, start, queue) for mine, start in zip(runs, before[:, 0], strict=True)]
    return cuts_of_blocks(*(np.concatenate(column) for column in zip(*blocks, strict=True)), bins)


def many(kind, n):
    rng = np.random.default_rng(1)
    x = rng.normal(size=n)
    return {
        "normal": x, "rounded": np.round(10 * x, 2), "coarse": np.round(np.exp(x), 1), "missing": np.where(rng.random(n) < 0.3, np.nan, x), "half": np.maximum(x, 0),
        "ascending": np.sort(x), "skewed": np.round(np.exp(3 * x)), "runs": np.repeat(x[: n // 2], 2),
    }[kind].astype(np.float32)  # fmt: skip


MANY = ("normal", "rounded", "coarse", "missing", "half", "ascending", "skewed", "runs")


@pytest.mark.quick("20000-256")
@pytest.mark.parametrize("bins", [256, 20])
@pytest.mark.parametrize("n", [9_000, 20_000, 150_000])
def test_what_queues_hold_gives_the_cuts_of_xgboost_on_any_number_of_rows(n, bins):
    x = np.column_stack([many(kind, n) for kind in MANY])
    for kind, column, pooled in zip(MANY, x.T, theirs(x, bins), strict=True):
        parts = np.split(
            column, [0, n // 5, n // 5 + 1, n - 3]
        )  # the first has no row; one value may go on from one party to the next
        np.testing.assert_array_equal(in_blocks(parts, bins), pooled, err_msg=f"{kind}, {n} rows")


def test_the_order_inside_a_queue_is_not_sent_and_that_across_queues_matters():
    x, queue = many("normal", 20_000), SketchSizes.of(20_000, 256).queue
    rng, parts = np.random.default_rng(2), [slice(0, queue), slice(queue, None)]
    inside = np.concatenate([rng.permutation(x[part]) for part in parts])
    for ours, other in zip(*(sorted_blocks(*runs_of(rows), 0, queue) for rows in (x, inside)), strict=True):
        np.testing.assert_array_equal(ours, other)
    pooled, same, shuffled = theirs(np.column_stack((x, inside, rng.permutation(x))), 256)
    np.testing.assert_array_equal(pooled, same)
    assert not np.array_equal(pooled, shuffled)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("sizes", [3]), ("sizes", [1, 1]), ("values", [np.nan, 1.0]), ("rows", [0, 1]), ("block", [-1, 0])],
)
def test_values_of_another_form_are_refused(name, wrong):
    reply = {"block": [0, 0], "values": [1.0, 2.0], "rows": [1, 4], "sizes": [2]}
    assert len(_by_feature(reply, 1)) == 1
    with pytest.raises(MessageError, match="another form"):
        _by_feature({**reply, name: wrong}, 1)


def test_a_search_that_parties_leave_ends():
    x = drawn("zeros below", 5000)[:, None]
    search = CutSearch(1, 256)
    while not search.done:
        search.take(count_parts(x[: 5000 - 400 * search.contacts], **search.asked()))
    (cuts,) = search.cuts()
    assert len(cuts) > 0
    assert (np.diff(cuts) > 0).all()
