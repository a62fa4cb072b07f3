"""Domains are rings: their arithmetic is Python's modulo the order, on whole arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.errors import ConfigError, DataError
from atoll.core.requests.island import Secret
from atoll.secure.shares import Binary, Field, WordRing
from atoll.secure.shares.domain import MERSENNE
from atoll.secure.shares.sharing import domain_of

DOMAINS = [WordRing(64), WordRing(32), WordRing(13), Field(), Field(4294967291), Field(101)]


def python(x):
    return np.vectorize(int, otypes=[object])(x)


@pytest.mark.parametrize("domain", DOMAINS, ids=repr)
@given(seed=st.integers(0, 2**32), edge=st.booleans())
def test_arithmetic_is_pythons(domain, seed, edge):
    rng = np.random.default_rng(seed)
    x, y = (rng.integers(0, domain.order - 1, 40, dtype=np.uint64, endpoint=True) for _ in range(2))
    if edge:
        x[:4], y[:4] = domain.order - 1, [domain.order - 1, 0, 1, domain.order // 2]
    a, b, order = python(x), python(y), domain.order
    assert python(domain.add(x, y)).tolist() == ((a + b) % order).tolist()
    assert python(domain.sub(x, y)).tolist() == ((a - b) % order).tolist()
    assert python(domain.mul(x, y)).tolist() == ((a * b) % order).tolist()
    assert python(domain.neg(x)).tolist() == ((-a) % order).tolist()
    assert int(domain.total(x)) == sum(a.tolist()) % order
    if isinstance(domain, Field):
        for factor in (0, 1, 7, 9, 2**29 - 1):
            assert python(domain.times(x, factor)).tolist() == ((a * factor) % order).tolist()
    left, right = x.reshape(5, 8), y.reshape(8, 5)
    assert python(domain.dot(left, right)).tolist() == ((python(left) @ python(right)) % order).tolist()


@pytest.mark.parametrize("domain", DOMAINS[:4], ids=repr)
def test_large_matrix_products_are_exact(domain):
    rng = np.random.default_rng(0)
    x = rng.integers(0, domain.order - 1, (9, 2100), dtype=np.uint64, endpoint=True)
    y = rng.integers(0, domain.order - 1, (2100, 7), dtype=np.uint64, endpoint=True)
    x[0], y[:, 0] = domain.order - 1, domain.order - 1
    assert python(domain.dot(x, y)).tolist() == ((python(x) @ python(y)) % domain.order).tolist()


@pytest.mark.parametrize("prime", [MERSENNE, 4294967291, 2**31 - 1, 65537, 65521, 3])
@pytest.mark.parametrize("inner", [1, 511, 512, 513, 16384, 16385])
def test_the_largest_entries_are_exact_at_the_edges_of_blocks(prime, inner):
    field = Field(prime)
    x = np.full((2, inner), prime - 1, dtype=np.uint64)
    x[1, ::2] = prime // 2
    expected = [inner % prime, ((inner // 2) + (inner - inner // 2) * (-(prime // 2))) % prime]
    assert field.dot(x, x[:1].T).ravel().tolist() == expected


@pytest.mark.parametrize("domain", DOMAINS, ids=repr)
def test_signed_numbers_come_back(domain):
    most = domain.order // 2 - 1
    numbers = np.array([0, 1, -1, most, -most], dtype=np.int64)
    assert domain.signed(domain.of(numbers)).tolist() == numbers.tolist()
    assert domain_of(domain.spec()) == domain


@pytest.mark.parametrize("domain", [Field(101), Field(), WordRing(5)], ids=repr)
def test_random_elements_are_uniform(domain):
    drawn = domain.random(Secret(3), (20_000,))
    assert int(drawn.max()) < domain.order
    edges = [-(-domain.order * i // 16) for i in range(17)]
    counts = np.histogram(drawn, bins=np.array(edges, dtype=np.uint64))[0]
    expected = np.diff(np.array(edges, dtype=object)).astype(float) * 20_000 / domain.order
    assert ((counts - expected) ** 2 / expected).sum() < 60  # chi-square with 15 degrees: 5e-7


@given(n=st.integers(0, 200), seed=st.integers(0, 2**32))
def test_bits_are_packed_in_words(n, seed):
    bits = np.random.default_rng(seed).integers(0, 2, (3, n)).astype(bool)
    words = Binary.packed(bits)
    assert words.shape == (3, -(-n // 64))
    np.testing.assert_array_equal(Binary.unpacked(words, n), bits)


def test_what_does_not_fit_is_refused_in_words():
    with pytest.raises(DataError, match=r"float64.*fixed point"):
        WordRing(64).of(np.array([1.5]))
    with pytest.raises(DataError, match=r"size 200.*Field\(prime=101\).*below 50"):
        Field(101).of(np.array([200]))
    with pytest.raises(ConfigError, match=r"prime=91.*odd prime"):
        Field(91)
    with pytest.raises(ConfigError, match=r"k=65"):
        WordRing(65)
    assert Field(MERSENNE).bits == 61
