"""Galois rings: products by Python integers and polynomials, inverses, and codes whose any U shares give the message."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.errors import ConfigError
from atoll.secure.masking.one_shot import GaloisRing


def product(ring, a, b):
    """Schoolbook, with Python integers."""
    wide = [0] * (2 * ring.m)
    for i, x in enumerate(map(int, a)):
        for j, y in enumerate(map(int, b)):
            wide[i + j] += x * y
    for top in range(2 * ring.m - 1, ring.m - 1, -1):
        high, wide[top] = wide[top], 0
        for i in range(ring.m):
            wide[top - ring.m + i] -= high * (ring.modulus >> i & 1)
    return [w % 2**64 for w in wide[: ring.m]]


@given(m=st.integers(1, 10), seed=st.integers(0, 2**32))
def test_products_and_inverses(m, seed):
    ring, rng = GaloisRing(m), np.random.default_rng(seed)
    a, b = rng.integers(0, 2**64 - 1, (2, 3, m), dtype=np.uint64, endpoint=True)
    got = ring.mul(a, b)
    assert got.tolist() == [product(ring, x, y) for x, y in zip(a, b, strict=True)]
    np.testing.assert_array_equal((ring.matrices(a) @ b[..., None])[..., 0], got)
    a[:, 0] |= np.uint64(1)
    np.testing.assert_array_equal(ring.mul(a, ring.inverse(a)), ring.one((3,)))


@given(n=st.integers(2, 40), seed=st.integers(0, 2**32), data=st.data())
def test_any_shares_as_many_as_coefficients_give_them_back(n, seed, data):
    k = data.draw(st.integers(1, min(n, 9)))
    some = sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=k, max_size=k)))
    ring, rng = GaloisRing.with_points(n), np.random.default_rng(seed)
    message = rng.integers(0, 2**64 - 1, (k * ring.m, 5), dtype=np.uint64, endpoint=True)
    shares = (ring.vandermonde(ring.points(n), k) @ message).reshape(n, ring.m, 5)
    back = ring.interpolation(ring.points(n)[some]) @ shares[some].reshape(-1, 5)
    np.testing.assert_array_equal(back, message)


def test_what_has_no_inverse_and_too_many_points_are_refused():
    with pytest.raises(ConfigError, match="has no inverse"):
        GaloisRing(3).inverse(np.array([2, 4, 6], dtype=np.uint64))
    with pytest.raises(ConfigError, match=r"8 points.*m=4"):
        GaloisRing(3).points(8)
