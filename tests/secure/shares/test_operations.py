"""On every kind of shares, what parties open is what one of them would compute from all values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.secure.shares import bits_of, dot, equal, less, mul, number_of, opened, select, truncate
from tests.support.rooms import KINDS, computed, program

ALL = pytest.mark.parametrize("kind", KINDS)


@program
async def everything(it, values):
    shape = (2, 7)
    x = await it.share(values, owner="p0", shape=shape)
    y = await it.share(values, owner="p1", shape=shape)
    smaller = await less(x, y)
    return {
        "sum": await opened(x + y),
        "linear": await opened(3 * x - y * 2 + 5),
        "product": await opened(await mul(x, y)),
        "square of sums": await opened(await mul(x.sum(1), y.sum(1))),
        "matrix": await opened(await dot(x, y.T)),
        "less": await opened(smaller),
        "equal": await opened(await equal(x, y)),
        "smaller": await opened(await select(smaller, x, y)),
        "truncated": await opened(await truncate(x, 3)),
        "bits": await opened(await bits_of(x)),
        "again": await opened(number_of(await bits_of(y))),
        "constant": await opened(it.constant(np.arange(4)) - 1),
    }


def plain(x, y, order):
    def whole(values):
        values = np.vectorize(lambda v: (int(v) + order // 2) % order - order // 2, otypes=[object])(values)
        return values.astype(np.int64)

    big = np.vectorize(int, otypes=[object])
    a, b = big(x), big(y)
    k = (order - 1).bit_length()
    bits = np.array([[[(int(v) % order) >> i & 1 for v in row] for row in x] for i in range(k)])
    return {
        "sum": whole(a + b), "linear": whole(3 * a - b * 2 + 5), "product": whole(a * b),
        "square of sums": whole(a.sum(1) * b.sum(1)), "matrix": whole(a @ b.T), "less": x < y, "equal": x == y,
        "smaller": np.minimum(x, y), "bits": bits, "again": y, "constant": np.arange(4) - 1,
    }  # fmt: skip


def values_of(seed, order):
    rng = np.random.default_rng(seed)
    most = order // 4 - 1
    x, y = (rng.integers(-most, most, (2, 7), dtype=np.int64) for _ in range(2))
    x[0, :4], y[0, :4] = [0, most, -most, 5], [0, -most, most, 6]
    y[1, :3] = x[1, :3] + np.array([0, 1, -1])
    return x, y


def check(kind, seed):
    order = KINDS[kind][1].domain.order
    x, y = values_of(seed, order)
    expected = plain(x, y, order)
    for got in computed("everything", [x, y], kind, seed=seed):
        for name, value in expected.items():
            np.testing.assert_array_equal(got[name], value, err_msg=name)
        slack = 1 if "additive ring" in kind else 0
        assert ((got["truncated"] - (x >> 3) >= 0) & (got["truncated"] - (x >> 3) <= slack)).all()


@pytest.mark.every(3)
@ALL
def test_what_is_opened_is_what_one_would_compute(kind):
    check(kind, seed=1)


@pytest.mark.slow
@ALL
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_for_any_values(kind, seed):
    check(kind, seed)


@program
async def nothing_asked(it, values):
    x = await it.share(values, owner="p0", shape=(3,))
    y = await it.share(values, owner="p1", shape=(3,))
    return await opened(x + y * 7 - 2)


@ALL
def test_sums_need_no_dealer(kind):
    if "authenticated" in kind:
        pytest.skip("codes come from the dealer")
    for got in computed("nothing_asked", [np.array([1, 2, 3]), np.array([4, 5, 6])], kind, dealer=False):
        assert got.tolist() == [27, 35, 43]
