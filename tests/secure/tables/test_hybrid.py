"""Joins and groups whose keys a party reads: what pandas gives, and the reader alone sees keys, in no order."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import ConfigError, DataError, LetterError
from atoll.secure.tables import (
    KeyReader,
    RowAggregate,
    SharedTable,
    SortKey,
    attach_rows_by_reader,
    group_rows_by_reader,
    join_many_by_reader,
    open_table,
)
from tests.support.trios import among_three


def shared(trio, columns, valid):
    """A table of 40-bit keys, words and numbers; keys of 0 are missing."""
    made = {name: trio.numbers.constant(x) if name.startswith("n") else trio.constant(x, 40) for name, x in columns.items()}  # fmt: skip
    return SharedTable(made, trio.constant(valid, 1))


def keys_of(trio, columns, name):
    return SortKey(trio.constant(columns[name], 40), null=trio.constant((columns[name] == 0).astype(np.uint8), 1))


def drawn(seed, n, low=0, distinct=False):
    rng = np.random.default_rng(seed)
    keys = rng.permutation(3 * n)[:n] + 1 if distinct else rng.integers(low, n + 1, n)
    return keys << 20, rng.integers(1, 1 << 30, n), rng.integers(-99, 99, n), rng.integers(0, 4, n).clip(0, 1)


@among_three
async def attached(trio, values):
    place, one, other = values
    left = {"a": one[0], "b": one[1], "n": one[2]}
    right = {"k": other[0], "w": other[1]}
    table = shared(trio, right, other[3])
    reader = KeyReader(trio, place)
    found, columns, matched, repeated = await attach_rows_by_reader(reader, shared(trio, left, one[3]), table, [(keys_of(trio, left, "a"), keys_of(trio, right, "k"))], ["b", "n"])  # fmt: skip
    opened = await open_table(found.with_columns({**columns, "m": matched}))
    return opened, await trio.open(repeated)


@settings(max_examples=6, deadline=None)
@given(st.sampled_from([None, 0, 1, 2]), st.integers(1, 40), st.integers(1, 40), st.booleans(), st.integers(0, 999))
def test_each_row_gets_its_match(place, n, m, distinct, seed):
    one, other = drawn(seed, n, distinct=distinct), drawn(seed + 1, m)
    left = pd.DataFrame({"k": one[0], "b": one[1], "n": one[2]})[(one[3] == 1) & (one[0] > 0)]
    right = pd.DataFrame({"k": other[0], "w": other[1]})[other[3] == 1]
    expected = right.merge(left.drop_duplicates("k"), on="k", how="left").fillna(0)
    for (found, repeated), _ in attached((place, one, other), seed=seed):
        assert repeated[0] == left.k.duplicated().any()
        if not repeated[0]:
            rows = pd.DataFrame(found).sort_values(["k", "w"])
            wanted = expected.sort_values(["k", "w"])
            for name in ("k", "w", "b", "n"):
                assert (rows[name].to_numpy() == wanted[name].to_numpy()).all(), name
            assert rows.m.tolist() == right.sort_values(["k", "w"]).k.isin(left.k).astype(int).tolist()


@among_three
async def joined(trio, values):
    place, one, other, most = values
    left, right = {"a": one[0], "b": one[1], "n": one[2]}, {"k": other[0], "w": other[1]}
    pair = [(keys_of(trio, left, "a"), keys_of(trio, right, "k"))]
    made = await join_many_by_reader(KeyReader(trio, place), shared(trio, left, one[3]), shared(trio, right, other[3]), pair, most=most)  # fmt: skip
    return await open_table(made), len(made)


@settings(max_examples=6, deadline=None)
@given(st.sampled_from([None, 0, 1, 2]), st.integers(1, 30), st.integers(1, 30), st.integers(0, 999))
def test_a_join_of_many_with_many_is_that_of_pandas(place, n, m, seed):
    one, other = drawn(seed, n), drawn(seed + 1, m)
    one[0][:] %= 5 << 20
    other[0][:] %= 6 << 20
    left = pd.DataFrame({"a": one[0], "b": one[1], "n": one[2]})[(one[3] == 1) & (one[0] > 0)]
    right = pd.DataFrame({"a": other[0], "w": other[1]})[(other[3] == 1) & (other[0] > 0)]
    expected = left.merge(right, on="a")
    for (found, rows), _ in joined((place, one, other, 4096), seed=seed):
        names = ["a", "b", "n", "w"]
        assert sorted(zip(*(found[name].tolist() for name in names), strict=True)) == sorted(expected[names].itertuples(index=False, name=None))  # fmt: skip
        assert rows == 1 << max(0, len(expected) - 1).bit_length()


@among_three
async def grouped(trio, values):
    place, one = values
    columns = {"k": one[0], "w": one[1], "n": one[2]}
    table = shared(trio, columns, one[3])
    made = await group_rows_by_reader(KeyReader(trio, place), table, [keys_of(trio, columns, "k")], {"c": RowAggregate("count"), "s": RowAggregate("sum", "n"), "m": RowAggregate("max", "w")}, keep=["k"])  # fmt: skip
    return await open_table(made), len(made)


@settings(max_examples=6, deadline=None)
@given(st.sampled_from([None, 0, 1, 2]), st.integers(1, 50), st.integers(0, 999))
def test_groups_are_those_of_pandas(place, n, seed):
    one = drawn(seed, n)
    one[0][:] %= 7 << 20
    frame = pd.DataFrame({"k": one[0], "w": one[1], "n": one[2]})[one[3] == 1]
    expected = frame.groupby("k").agg(c=("n", "size"), s=("n", "sum"), m=("w", "max")).reset_index()
    for (found, rows), _ in grouped((place, one), seed=seed):
        names = ["k", "c", "s", "m"]
        assert sorted(zip(*(found[name].tolist() for name in names), strict=True)) == sorted(expected[names].itertuples(index=False, name=None))  # fmt: skip
        assert rows == (n if place is not None else max(1, len(expected)))


@among_three
async def read(trio, values):
    """What a party reads of shuffled keys, several times, and how many messages it gets for that."""
    place, times = values
    reader, found, got = KeyReader(trio, place), [], 0
    for _ in range(times):
        (moved,) = await reader.shuffle(3).move([trio.constant(np.array([5, 6, 7]), 40)])
        before = len(trio.numbers.peers.seen)
        found += [tuple(one.tolist()) for one in await reader.read([moved])]
        got += len(trio.numbers.peers.seen) - before
    return found, got


def require_uniform(seen, times):
    """Six orders of three rows: chi squared of 5 degrees is above 25.7 once in 10,000 times, and the seed is fixed."""
    counts = pd.Series(seen).value_counts()
    assert len(seen) == times
    assert len(counts) == 6
    assert ((counts - times / 6) ** 2 / (times / 6)).sum() < 25.7


@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_reader_alone_gets_keys_in_a_uniform_order(place):
    for party, ((found, got), _) in enumerate(read((place, 120))):
        assert got == (120 if party == place else 0)
        if party == place:
            require_uniform(found, 120)
        else:
            assert not found


def test_public_keys_are_read_by_all_in_their_order():
    assert [found for (found, _), _ in read((None, 2))] == [[(5, 6, 7)] * 2] * 3


@among_three
async def orders(trio, values):
    """What the parties other than the reader learn of an order that it chooses."""
    found = []
    reader = KeyReader(trio, 0)
    for _ in range(values):
        order = np.array([2, 0, 1]) if reader.reads else None
        moved = await (await reader.arrange(order, 3)).move([trio.constant(np.arange(3), 8)])
        found.append(await trio.open(moved[0]))
    return found


def test_an_order_that_the_reader_chooses_is_uniform_to_the_party_that_gets_it():
    found = orders(300)
    assert all((row == [2, 0, 1]).all() for row in found[0][0])
    told = [tuple(x.tolist()) for role, x in found[2][1].seen if isinstance(x, np.ndarray) and x.dtype == np.uint32 and len(x) == 3]  # fmt: skip
    require_uniform(told, 300)


def test_more_pairs_than_parties_make_and_places_that_are_none_are_refused():
    one = (np.full(9, 1 << 20), np.arange(9), np.arange(9), np.ones(9, np.int64))
    with pytest.raises(DataError, match="a join of 128 rows, and parties make 64"):
        joined((None, one, one, 64))
    with pytest.raises(ConfigError, match="place=3"):
        KeyReader(None, 3)  # type: ignore[arg-type]


@among_three
async def lied_to(trio, values):
    """What the second party says to a message of the first that is no order, or no number of rows."""
    if trio.place == 0:
        await trio.numbers.peers.send(trio.numbers.parties[1], values)
    elif trio.place == 1:
        source = trio.numbers.parties[0]
        await (trio.receive_order(source, 3) if len(values) == 3 else trio.receive_rows(source, 1, 8))


@pytest.mark.parametrize(
    ("message", "match"),
    [
        (np.array([0, 2, 2], np.uint32), "no order of 3 rows"),
        (np.array([0, 1, 3], np.uint32), "no order of 3 rows"),
        (np.array([0, 1, 2], np.int64), "in place of words"),
        (np.array([9], np.uint64), "a table of 9 rows in place of 1 to 8"),
        (np.array([0], np.uint64), "a table of 0 rows"),
    ],
)
def test_orders_and_numbers_that_are_none_are_refused(message, match):
    with pytest.raises(LetterError, match=match):
        lied_to(message)
