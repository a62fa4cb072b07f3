"""Sorting gives pandas' order, and what it shows depends on the number of rows alone."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import ConfigError
from atoll.secure.tables import SortKey, find_order, find_partition, sort_by_network
from atoll.secure.tables.sorting import _Segments, exchange_pairs
from tests.support.trios import among_three


@among_three
async def both_sorts(trio, values):
    keys = [
        SortKey(
            trio.constant(words, bits),
            descending,
            None if null is None else trio.constant(null, 1),
            nulls_first,
        )
        for words, bits, descending, null, nulls_first in values
    ]
    rows = trio.constant(np.arange(len(keys[0].words)), 32)
    order = await find_order(keys)
    (moved,) = await order.move([rows])
    (by_network,) = await sort_by_network(keys, [rows])
    return await trio.open(moved), await trio.open(by_network)


def sorted_by_pandas(values):
    """The stable order: each key as a leading flag and ranks that ascend."""
    frame = pd.DataFrame(index=range(len(values[0][0])))
    for i, (words, _, descending, null, nulls_first) in enumerate(values):
        missing = np.zeros(len(words), bool) if null is None else null.astype(bool)
        frame[f"flag{i}"] = ~missing if nulls_first else missing
        ranks = pd.Series(words).rank(method="dense", ascending=not descending)
        frame[f"rank{i}"] = np.where(missing, 0, ranks)
    return frame.sort_values(list(frame.columns), kind="stable").index.to_numpy()


columns = st.tuples(st.sampled_from([1, 3, 8, 31, 64]), st.booleans(), st.booleans(), st.booleans())


@settings(max_examples=8, deadline=None)
@given(n=st.integers(1, 90), drawn=st.lists(columns, min_size=1, max_size=3), seed=st.integers(0, 999))
def test_rows_lie_as_pandas_sorts_them(n, drawn, seed):
    rng = np.random.default_rng(seed)
    values = []
    for bits, descending, nullable, nulls_first in drawn:
        words = rng.choice(rng.integers(0, (1 << bits) - 1, 9, dtype=np.uint64, endpoint=True), n)
        values.append((words, bits, descending, rng.integers(0, 2, n) if nullable else None, nulls_first))
    expected = sorted_by_pandas(values).tolist()
    for (moved, by_network), _ in both_sorts(values, seed=seed):
        assert moved.tolist() == expected
        assert by_network.tolist() == expected


def run_locally(values):
    """The comparisons of a sort of distinct values in the clear: the order, comparisons and levels."""
    sorting, compared, levels = _Segments(len(values)), 0, 0
    while sorting.unsorted:
        for at, to in sorting.levels():
            sorting.learn(values[at] < values[to])
            compared, levels = compared + len(at), levels + 1
    return sorting.order, compared, levels


def test_comparisons_are_near_the_least_possible():
    """log2(n!) = 1,516,704 for 100,000 rows; a quicksort with one pivot takes 2.0 million on about 45 levels."""
    values = np.random.default_rng(0).permutation(100_000)
    order, compared, levels = run_locally(values)
    assert (values[order] == np.arange(100_000)).all()
    assert compared < 1.19 * 1_516_704
    assert levels <= 37


@pytest.mark.parametrize("n", [0, 1, 2, 3, 5, 6, 7, 33, 1000])
def test_any_number_of_rows_is_sorted(n):
    values = np.random.default_rng(n).permutation(n)
    assert (values[run_locally(values)[0]] == np.arange(n)).all()
    rows = values.copy()
    for low, high in exchange_pairs(n):
        assert len(np.unique(np.concatenate([low, high]))) == 2 * len(low)
        rows[low], rows[high] = np.minimum(rows[low], rows[high]), np.maximum(rows[low], rows[high])
    assert (rows == np.arange(n)).all()


@among_three
async def sorted_often(trio, values):
    """The public orders that several sorts of the same keys open."""
    found = []
    for _ in range(600):
        order = await find_order([SortKey(trio.constant(values, 8))])
        found.append(tuple(order._steps[-1].tolist()))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("values", [[0, 1, 2, 3], [3, 2, 1, 0], [7, 7, 7, 7]])
def test_what_is_opened_is_a_uniform_order_for_sorted_reversed_and_equal_keys(values):
    """Chi squared on the 24 orders that all parties see; the 99.99 % point with 23 degrees is 57.1. Equal keys would open one order alone without row numbers."""
    found = sorted_often(np.array(values))[0][0]
    counts = np.unique(np.array(found) @ [64, 16, 4, 1], return_counts=True)[1]
    assert len(counts) == 24
    assert ((counts - 25) ** 2 / 25).sum() < 57.1


@among_three
async def sorted_equal(trio, values):
    order = await find_order([SortKey(trio.constant(values, 8))])
    return order._steps[-1].tolist()


def test_equal_keys_open_other_orders_with_other_seeds():
    """The quick sibling: what is opened is drawn, even of keys that are all equal."""
    opened = {tuple(sorted_equal(np.zeros(6, np.int64), seed=seed)[0][0]) for seed in range(4)}
    assert len(opened) == 4


@among_three
async def partitioned(trio, values):
    order = await find_partition(trio.constant(values, 1))
    (moved,) = await order.move([trio.constant(np.arange(len(values)), 32)])
    return await trio.open(moved)


@settings(max_examples=5, deadline=None)
@given(n=st.integers(1, 80), share=st.floats(0, 1), seed=st.integers(0, 999))
def test_a_partition_is_stable_and_always_sends_the_same_sizes(n, share, seed):
    bits = np.random.default_rng(seed).random(n) < share
    expected = np.argsort(~bits, kind="stable").tolist()
    transcripts = set()
    for values in (bits, np.zeros(n, bool)):
        runs = partitioned(values, seed=seed)
        transcripts.add(tuple(tuple(peers.sizes) for _, peers in runs))
        if values is bits:
            assert all(found.tolist() == expected for found, _ in runs)
    assert len(transcripts) == 1


@among_three
async def networked(trio, values):
    await sort_by_network([SortKey(trio.constant(values, 8))], [trio.constant(values, 64)])


def test_a_network_always_sends_the_same_sizes():
    sizes = [[peers.sizes for _, peers in networked(values)] for values in (np.zeros(9, np.int64), np.arange(9)[::-1])]
    assert sizes[0] == sizes[1]


@among_three
async def keyless(trio, values):
    await find_order([])


def test_a_sort_needs_a_key():
    with pytest.raises(ConfigError, match="no key"):
        keyless()
