"""Shared numbers compute what plain ones do, to the bit, and a party's parts say nothing."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task
from atoll.vertical.trees.numbers import PlainNumbers, SharedNumbers, run_plain

PARTIES = ("bank", "shop")


async def compute_all(by, x, y, bits, small):
    """Every operation, on numbers and bits in the form of ``by``."""
    shape = x.shape
    rows = x.reshape(-1, 1)
    return {
        "product": await by.show(await by.multiply(x, y)),
        "rows": await by.show(await by.multiply_rows(np.concatenate([rows, rows], axis=1), y.ravel())),
        "cuts": [await by.show(await by.cut(x, k)) for k in (0, 1, 17, 40)],
        "negative": await by.show_bits(await by.find_negative(x)),
        "leading": np.stack([await by.show_bits(one) for one in await by.find_leading(small, 12)]),
        "and": await by.show_bits(await by.meet(bits, by.flip(bits) ^ by.lowest(small))),
        "chosen": await by.show(await by.choose(bits.ravel(), np.concatenate([rows, rows], axis=1))),
        "lifted": await by.show(await by.lift(bits)),
        "scaled": await by.show(by.scaled(x, -3) + by.constant(np.full(shape, 7))),
    }


def split(values, rng):
    if values.dtype == np.bool_:
        mine = rng.integers(0, 2, values.shape).astype(np.bool_)
        return mine, mine ^ values
    mine = rng.integers(0, 2**64, values.shape, dtype=np.uint64)
    return mine, values.astype(np.uint64) - mine


@task
async def compute(island, peers, me, parts):
    first = me == PARTIES[0]
    by = await SharedNumbers.begin(island.secret, peers, peers, PARTIES[first], first=first)
    return await compute_all(by, *(np.asarray(part) for part in parts))


def shared(values, seed=0):
    rng = np.random.default_rng(seed)
    halves = list(zip(*(split(value, rng) for value in values), strict=True))

    async def talk(fed):
        roles = {me: (me, compute.with_args(me=me, parts=list(half))) for me, half in zip(PARTIES, halves, strict=True)}
        return await fed.session(roles)

    return atoll.simulate(talk, Community(dict.fromkeys(PARTIES)), engine="inline", progress=False, secret_seed=seed)


sizes = st.integers(0, 61).flatmap(lambda bits: st.integers(-(1 << bits), 1 << bits))


@settings(max_examples=5, deadline=None)
@given(
    st.lists(st.tuples(sizes, sizes, st.booleans(), st.integers(0, 4095)), min_size=1, max_size=12), st.integers(0, 99)
)
def test_shared_numbers_compute_what_plain_ones_do(rows, seed):
    x, y, bits, small = (np.array(column) for column in zip(*rows, strict=True))
    with np.errstate(over="ignore"):
        plain = run_plain(compute_all(PlainNumbers(), x, y, bits, small))
    for found in shared((x, y, bits, small), seed).values():
        for name, expected in plain.items():
            np.testing.assert_array_equal(np.asarray(found[name]), np.asarray(expected), err_msg=name)


def test_edges():
    x = np.array([0, -1, 1, 2**61, -(2**61), 2**62 - 1, -(2**62), 2**17, -(2**17)])
    small = np.array([0, 1, 2, 3, 4, 2047, 2048, 4095, 7])
    values = (x, x[::-1].copy(), x > 0, small)
    with np.errstate(over="ignore"):
        plain = run_plain(compute_all(PlainNumbers(), *values))
    found = shared(values)["shop"]
    for name, expected in plain.items():
        np.testing.assert_array_equal(np.asarray(found[name]), np.asarray(expected), err_msg=name)
