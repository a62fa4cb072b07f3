"""Circuits in the clear: equal to NumPy for drawn numbers, widths and rows, with the ANDs that the page says."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import ConfigError, DataError
from atoll.secure.garbled import (
    GateCounter,
    add_wires,
    choose_wires,
    compact_rows,
    equal_wires,
    join_wires,
    larger_wires,
    less_wires,
    merge_rows,
    multiply_wires,
    number_bits,
    read_numbers,
    reduce_rows,
    scale_wires,
    scan_groups,
    sort_rows,
    subtract_wires,
    sum_groups,
    sum_rows,
)
from tests.support.plain_gates import PlainGates, compute

widths, blocks, sizes, seeds = st.integers(1, 64), st.sampled_from([1, 2, 3, 4, 64]), st.integers(1, 40), st.integers(0, 2**32)  # fmt: skip


def drawn(seed: int, bits: int, rows: int) -> np.ndarray:
    """Numbers of so many bits, half of them near each other."""
    rng = np.random.default_rng(seed)
    wide = rng.integers(0, 1 << bits, rows, dtype=np.uint64, endpoint=False) if bits < 64 else rng.integers(0, 2**64 - 1, rows, dtype=np.uint64, endpoint=True)  # fmt: skip
    return np.where(rng.random(rows) < 0.5, wide, wide & np.uint64(3))


@settings(max_examples=40)
@given(widths, blocks, sizes, seeds)
def test_sums_comparisons_and_choices_are_those_of_numpy(bits, block, rows, seed):
    x, y = drawn(seed, bits, rows), drawn(seed + 1, bits, rows)
    mask = np.uint64((1 << bits) - 1)

    async def program(gates):
        a, b = await gates.share(x, bits=bits), await gates.share(y, bits=bits)
        less = await less_wires(a, b)
        made = [await add_wires(a, b), await subtract_wires(a, b), less.reshape(1, -1), (await equal_wires(a, b)).reshape(1, -1)]  # fmt: skip
        made += [await choose_wires(less, a, b), (await less_wires(a, b, signed=True)).reshape(1, -1)]
        return [await gates.reveal(one) for one in made]

    total, difference, less, same, least, below = compute(program, block)[0]
    np.testing.assert_array_equal(total, (x + y) & mask)
    np.testing.assert_array_equal(difference, (x - y) & mask)
    np.testing.assert_array_equal(less, x < y)
    np.testing.assert_array_equal(same, x == y)
    np.testing.assert_array_equal(least, np.minimum(x, y))
    signed = [read_numbers(number_bits(values, bits), signed=True) for values in (x, y)]
    np.testing.assert_array_equal(below, signed[0] < signed[1])


@settings(max_examples=20)
@given(widths, sizes, seeds, st.integers(-(2**40), 2**40) | st.sampled_from([0, 1, -1, 10**9, 2**63]))
def test_products_are_those_of_whole_numbers(bits, rows, seed, factor):
    x, y = drawn(seed, bits, rows), drawn(seed + 1, bits, rows)

    async def program(gates):
        a, b = await gates.share(x, bits=bits), await gates.share(y, bits=bits)
        return [await gates.reveal(one) for one in (await multiply_wires(a, b), await scale_wires(a, factor))]

    product, scaled = compute(program)[0]
    assert product.tolist() == [(int(a) * int(b)) % 2**bits for a, b in zip(x, y, strict=True)]
    assert scaled.tolist() == [(factor * int(a)) % 2**bits for a in x]


@settings(max_examples=20)
@given(st.integers(1, 20), sizes, seeds)
def test_the_largest_of_groups_and_of_all_rows(bits, rows, seed):
    x, follows = drawn(seed, bits, rows), np.random.default_rng(seed).random(rows) < 0.6

    async def program(gates):
        wires = gates.constant(number_bits(x, bits))
        made = await scan_groups(wires, larger_wires, gates.constant(follows)), await reduce_rows(wires, larger_wires)
        return [await gates.reveal(one) for one in made]

    running, largest = compute(program)[0]
    expected = []
    for place, value in enumerate(x.tolist()):
        expected.append(max(value, expected[-1] if place and follows[place] else 0))
    assert running.tolist() == expected
    assert largest.tolist() == [x.max()]


@settings(max_examples=30)
@given(st.integers(1, 12), blocks, sizes, sizes, seeds)
def test_networks_merge_sort_and_move_whole_records(bits, block, rows, more, seed):
    first, second = (np.sort(drawn(seed + i, bits, n)) for i, n in enumerate((rows, more)))
    mixed = drawn(seed + 2, bits, rows)

    async def program(gates):
        def records(keys, start):  # a key, and which row it was
            numbers = np.arange(start, start + len(keys))
            return join_wires([gates.constant(number_bits(keys, bits)), gates.constant(number_bits(numbers, 7))])

        merged = await merge_rows(records(first, 0), records(second, rows), bits)
        ordered = await sort_rows(records(mixed, 0), bits)
        return [await gates.reveal(one) for wires in (merged, ordered) for one in (wires[:bits], wires[bits:])]

    keys, places, ordered, rows_of = compute(program, block)[0]
    everything = np.concatenate([first, second])
    np.testing.assert_array_equal(keys, np.sort(everything))
    np.testing.assert_array_equal(everything[places.astype(int)], keys)
    assert sorted(places.tolist()) == list(range(rows + more))
    np.testing.assert_array_equal(ordered, np.sort(mixed))
    np.testing.assert_array_equal(mixed[rows_of.astype(int)], ordered)


@settings(max_examples=30)
@given(st.integers(1, 20), sizes, seeds)
def test_groups_totals_and_compaction_are_those_of_loops(bits, rows, seed):
    rng = np.random.default_rng(seed)
    x, follows, counts = drawn(seed, bits, rows), rng.random(rows) < 0.6, rng.random(rows) < 0.5

    async def program(gates):
        wires, flags, keep = gates.constant(number_bits(x, bits)), gates.constant(follows), gates.constant(counts)
        moved = await compact_rows(keep, wires)
        made = [await sum_groups(wires, flags), await sum_groups(wires), await sum_rows(wires), await sum_rows(keep.reshape(1, -1))]  # fmt: skip
        return [await gates.reveal(one) for one in (*made, moved[0].reshape(1, -1), moved[1])]

    grouped, running, total, number, kept, moved = compute(program)[0]
    mask, sums = (1 << bits) - 1, []
    for place, value in enumerate(x.tolist()):
        sums.append(((sums[-1] if place and follows[place] else 0) + value) & mask)
    assert grouped.tolist() == sums
    assert running.tolist() == [int(one) & mask for one in np.cumsum(x)]
    assert total.tolist() == [sum(x.tolist())]
    assert number.tolist() == [counts.sum()]
    assert kept.tolist() == sorted(counts.tolist(), reverse=True)
    assert moved.tolist() == [*x[counts].tolist(), *[0] * int((~counts).sum())]


@pytest.mark.parametrize(("bits", "block", "ands", "layers"), [(64, 64, 64, 64), (64, 4, 64 + 45 + 26, 8), (32, 4, 32 + 21 + 11, 7), (10, 4, 10 + 4 + 2, 6), (1, 4, 1, 1)])  # fmt: skip
def test_a_comparison_takes_the_ands_that_it_should(bits, block, ands, layers):
    async def program(gates):
        both = [await gates.share(np.zeros(3, dtype=int), owner="a", bits=bits, rows=3) for _ in range(2)]
        return await less_wires(*both)

    gates = compute(program, block)[1]
    counted = asyncio.run(GateCounter.measure(program, ["a", "b"], block))
    assert (gates.ands, gates.layers) == (3 * ands, layers) == (counted.ands, counted.layers)


def test_what_does_not_fit_is_refused_in_words():
    for values, bits, words in (([4], 2, "does not fit 2 bits"), ([-3], 2, "does not fit 2 bits"), ([0.5], 8, "values of type float64"), ([[1]], 8, r"shape \(1, 1\)")):  # fmt: skip
        with pytest.raises(DataError, match=words):
            number_bits(np.array(values), bits)
    assert number_bits(np.array([-2, 3]), 2).tolist() == [[False, True], [True, True]]
    gates = GateCounter(["a", "b"])
    with pytest.raises(ConfigError, match=r"shapes \(2,\) and \(3,\)"):
        asyncio.run(gates.conjoin(gates.zeros((2,)), gates.zeros((3,))))
    with pytest.raises(ConfigError, match="wires of two computations"):
        PlainGates().zeros((2,)) ^ PlainGates().zeros((2,))
