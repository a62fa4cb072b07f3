"""Sums over encrypted numbers: the right sums, and nobody sees more than its part."""

from __future__ import annotations

import builtins
import sys

import numpy as np
import pytest

from atoll.core.errors import ConfigError, DataError, MissingExtraError, PolicyError
from atoll.secure.encrypted import squares

try:
    import tenseal  # noqa: F401

    missing = False
except ImportError:
    missing = True
needs_he = pytest.mark.skipif(missing, reason='TenSEAL is not installed: pip install "atoll[secure]"')


@needs_he
@pytest.mark.parametrize("q", [1, 300])
def test_the_sum_is_that_of_the_weighted_squares(q):
    rng = np.random.default_rng(q)
    secret, public = squares.make_keys()
    numbers, centre, weight = rng.normal(size=q), rng.normal(size=q), rng.uniform(0.0, 1.0 / q, q)
    terms, scale = squares.masked_squares(public, squares.encrypt(public, numbers), centre, weight)
    assert scale * squares.open_sum(secret, terms) == pytest.approx(weight @ (numbers - centre) ** 2, abs=2e-4)


@needs_he
def test_the_key_holder_sees_masks():
    """What it decrypts is spread over the masks' range, while the terms themselves are below 1."""
    import tenseal as ts

    rng = np.random.default_rng(0)
    numbers, centre, weight = rng.normal(size=64), rng.normal(size=64), np.full(64, 1.0 / 128)
    secret, public = squares.make_keys()
    terms, _ = squares.masked_squares(public, squares.encrypt(public, numbers), centre, weight, mask_bits=12)
    seen = np.array(ts.ckks_vector_from(ts.context_from(secret.tobytes()), terms.tobytes()).decrypt())
    assert 0.4 < np.abs(seen[:-1]).mean() / 2**12 < 0.6
    again, _ = squares.masked_squares(public, squares.encrypt(public, numbers), centre, weight, mask_bits=12)
    other = np.array(ts.ckks_vector_from(ts.context_from(secret.tobytes()), again.tobytes()).decrypt())
    assert np.abs(seen - other)[:-1].mean() > 2**10
    assert seen.sum() == pytest.approx(other.sum(), abs=1e-3)


@needs_he
def test_the_server_must_not_hold_the_key():
    secret, public = squares.make_keys()
    sealed = squares.encrypt(public, np.ones(3))
    centre, weight = np.zeros(3), np.ones(3) / 6
    with pytest.raises(PolicyError, match="the server received a secret key"):
        squares.masked_squares(secret, sealed, centre, weight)
    with pytest.raises(PolicyError, match="a client received a secret key"):
        squares.encrypt(secret, np.ones(3))
    with pytest.raises(PolicyError, match="a public key cannot decrypt"):
        squares.open_sum(public, squares.masked_squares(public, sealed, centre, weight)[0])


@needs_he
def test_numbers_that_the_scheme_cannot_carry():
    _, public = squares.make_keys()
    with pytest.raises(DataError, match="1 numbers up to 300"):
        squares.encrypt(public, [300.0])
    with pytest.raises(DataError, match="5000 numbers up to 0"):
        squares.encrypt(public, np.zeros(5000))
    two = squares.encrypt(public, np.ones(2))
    with pytest.raises(DataError, match="the ciphertext has 2 numbers, but the server has 3"):
        squares.masked_squares(public, two, np.zeros(3), np.ones(3))


def without_the_library(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.partition(".")[0] == "tenseal":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setitem(sys.modules, "tenseal", None)
    monkeypatch.setattr(builtins, "__import__", without)


def test_a_missing_library_says_what_to_install(monkeypatch):
    without_the_library(monkeypatch)
    with pytest.raises(MissingExtraError, match=r'needs tenseal.*pip install "atoll\[secure\]"'):
        squares.make_keys()


@needs_he
def test_masks_that_the_scheme_cannot_carry():
    _, public = squares.make_keys()
    with pytest.raises(ConfigError, match="mask_bits=19"):
        squares.masked_squares(public, squares.encrypt(public, np.ones(2)), np.zeros(2), np.ones(2), mask_bits=19)
