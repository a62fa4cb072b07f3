"""Words under XOR at three parties: circuits give NumPy's results, and messages have the sizes that the module says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import DataError
from atoll.secure.shares import equal, less, opened
from atoll.secure.shares.trio import SharedWords
from atoll.secure.shares.word_circuits import (
    add_words,
    choose_words,
    compare_limbs,
    equal_words,
    interleave,
    less_words,
    lift_bits,
    match_limbs,
    numbers_to_words,
    pack_fields,
    words_to_numbers,
)
from tests.support.trios import among_three


def drawn(rng, bits, n):
    """Words of some bits, with the smallest, the largest, and neighbours among them."""
    top = (1 << bits) - 1
    x, y = (rng.integers(0, top, n, dtype=np.uint64, endpoint=True) for _ in range(2))
    x[:4], y[:4] = [0, top, top, 0], [0, top, 0, top]
    y[4:7] = x[4:7] ^ (np.uint64(1) << rng.integers(0, bits, 3).astype(np.uint64))
    return x, y


@among_three
async def circuits(trio, values):
    bits, x, y, condition = values
    a, b = [await trio.share(one, owner=f"p{i}", shape=one.shape, bits=bits) for i, one in enumerate((x, y))]
    c = await trio.share(condition, owner="p2", shape=condition.shape, bits=1)
    chosen = await choose_words(c, [(a, b), (b, a)])
    numbers = await words_to_numbers(a)
    found = {
        "and": await trio.conjoin(a, b),
        "xor": a ^ b,
        "not": a.inverted(),
        "less": await less_words(a, b),
        "equal": await equal_words(a, b),
        "chosen": chosen[0],
        "other": chosen[1],
        "sum": await add_words(a, b),
        "bits of numbers": await numbers_to_words(numbers, trio),
        "constant": trio.constant(x, bits).xor_public(1),
    }
    opened_words = {name: await trio.open(one) for name, one in found.items()}
    lifted = await opened(await lift_bits(c, trio.numbers))
    for name, one in found.items():
        assert all(
            part.dtype == one.parts[0].dtype
            and not (part.astype(np.uint64) >> np.uint64(one.bits - 1) >> np.uint64(1)).any()
            for part in one.parts
        ), name
    return {**opened_words, "numbers": await opened(numbers), "lifted": lifted}


@settings(max_examples=6, deadline=None)
@given(bits=st.sampled_from([1, 7, 8, 13, 31, 32, 33, 63, 64]), n=st.integers(7, 40), seed=st.integers(0, 2**32))
def test_circuits_give_numpys_results(bits, n, seed):
    rng = np.random.default_rng(seed)
    x, y = drawn(rng, bits, n)
    condition = rng.integers(0, 2, n, dtype=np.uint64)
    top = np.uint64((1 << bits) - 1)
    expected = {
        "and": x & y, "xor": x ^ y, "not": x ^ top, "less": x < y, "equal": x == y, "sum": (x + y) & top,
        "chosen": np.where(condition, x, y), "other": np.where(condition, y, x), "constant": x ^ np.uint64(1),
        "bits of numbers": x, "numbers": x.view(np.int64), "lifted": condition,
    }  # fmt: skip
    for found, _ in circuits((bits, x, y, condition), seed=seed % 1000):
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)


@among_three
async def wide_keys(trio, values):
    widths, x, y = values
    fields = [[trio.constant(column, bits) for column, bits in zip(side, widths, strict=True)] for side in (x, y)]
    a, b = [pack_fields(side) for side in fields]
    smaller = await compare_limbs([interleave(limb) for limb in a], [interleave(limb) for limb in b])
    at = np.arange(len(x[0]))[::-1].copy()
    turned = await compare_limbs([interleave(limb) for limb in a], [interleave(limb) for limb in b], at, at)
    return [await trio.open(smaller), await trio.open(turned), await trio.open(await match_limbs(a, b))]


@settings(max_examples=5, deadline=None)
@given(widths=st.lists(st.integers(1, 64), min_size=1, max_size=5), seed=st.integers(0, 2**32))
def test_fields_side_by_side_compare_as_tuples(widths, seed):
    rng = np.random.default_rng(seed)
    n = 30
    x = [rng.integers(0, (1 << bits) - 1, n, dtype=np.uint64, endpoint=True) for bits in widths]
    same = rng.integers(0, len(widths) + 1, n)
    y = [np.where(i < same, column, column ^ np.uint64(1)) for i, column in enumerate(x)]
    pairs = list(
        zip(zip(*map(np.ndarray.tolist, x), strict=True), zip(*map(np.ndarray.tolist, y), strict=True), strict=True)
    )
    for (smaller, turned, equals), _ in wide_keys((widths, x, y)):
        assert smaller.tolist() == [a < b for a, b in pairs] == turned[::-1].tolist()
        assert equals.tolist() == [a == b for a, b in pairs]


@among_three
async def compared(trio, values):
    x, y = (trio.constant(one, 64) for one in values)
    if values.dtype == np.uint64:
        found = await compare_limbs([interleave(x)], [interleave(y)], distinct=True)
        return found.parts
    return (await less_words(x, y)).parts


def test_a_comparison_of_distinct_words_costs_16_bytes_in_six_messages():
    n = 4096
    values = np.random.default_rng(0).permutation(2 * n).astype(np.uint64).reshape(2, n)
    runs = compared(values)
    for _, peers in runs:
        assert [size / n for _, size in peers.sizes] == [8, 4, 2, 1, 0.5, 0.125]
    assert (np.bitwise_xor.reduce([found[0] for found, _ in runs]) == (values[0] < values[1])).all()


def test_what_a_party_sees_of_a_comparison_is_uniform():
    """Whatever the words are, each message is masked: its bits are ones as often as zeros, and so are the parts of the result."""
    n = 4096
    for values in (np.zeros((2, n), np.int64), np.full((2, n), 2**62, np.int64)):
        for found, peers in compared(values):
            for _, message in peers.seen:
                ones = np.unpackbits(message.view(np.uint8)).mean()
                assert abs(ones - 0.5) < 5 * 0.5 / np.sqrt(8 * message.nbytes)
            assert abs(found[1].mean() - 0.5) < 5 * 0.5 / np.sqrt(n)


@among_three
async def numbers_compared(trio, values):
    by = trio.numbers
    x, y = (by.constant(one) for one in values)
    peers = by.peers
    smaller = await less(x, y)
    spent = sum(size for _, size in peers.sizes)
    return spent, await opened(smaller), await opened(await equal(x, y))


def test_less_costs_forty_bytes_an_entry():
    """It was 112 bytes with all sums' bits; golden: 8 for the carries, 15.6 for the tree, 16 for the lift."""
    x = np.arange(-1024, 1024)
    y = x[::-1].copy()
    for (spent, smaller, same), _ in numbers_compared(np.stack([x, y])):
        assert spent / len(x) == 8 + 15.625 + 16
        assert (smaller == (x < y)).all()
        assert (same == (x == y)).all()


@among_three
async def unfit(trio, values):
    return trio.constant(values, 8)


@pytest.mark.parametrize(
    ("values", "match"),
    [([256], "the value 256 in words of 8 bits"), ([-1], "the value -1"), ([0.5], "values of type float64")],
)
def test_what_does_not_fit_is_named(values, match):
    with pytest.raises(DataError, match=match):
        unfit(np.array(values))


def test_widening_and_shifting_move_bits():
    class Place:
        holds_first = (True, False)

    x = np.array([1, 2, 255], np.uint8)
    words = SharedWords(Place(), (x, np.zeros_like(x)), 8)
    assert words.shifted(4, 16).parts[0].tolist() == [16, 32, 4080]
    assert words.shifted(-1, 7).parts[0].tolist() == [0, 1, 127]
    assert words.moved_down().parts[0].tolist() == [0, 1, 2]
