"""Shares of seeds, pairs' seeds and commitments."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.errors import ConfigError, LetterError
from atoll.core.requests.island import Secret
from atoll.secure.masking.unmasking import PRIME, SHARE, commitment, open_secret, pair_seed, public_key, shares_of


@given(st.binary(min_size=32, max_size=32), st.integers(1, 7), st.data())
def test_any_threshold_of_shares_opens_the_secret(secret, holders, data):
    threshold = data.draw(st.integers(1, holders))
    shares = shares_of(secret, holders, threshold, Secret(1))
    assert all(len(share) == SHARE for share in shares)
    for some in itertools.islice(itertools.combinations(range(holders), threshold), 8):
        assert open_secret({i: shares[i] for i in some}) == secret


def test_fewer_shares_fit_every_secret():
    """Perfect secrecy: for each secret there is a polynomial through the shares that are known."""
    shares = shares_of(bytes(range(32)), 5, 3, Secret(2))
    known = {0: int.from_bytes(shares[0], "little"), 3: int.from_bytes(shares[3], "little")}
    for other in (0, 1, 2**255):
        x, y = 5, None  # a third share that makes the secret `other`: solve the Lagrange equation for it
        points = [*known, x]

        def factor(place, points=points):
            over = under = 1
            for p in points:
                if p != place:
                    over, under = over * (p + 1) % PRIME, under * (p - place) % PRIME
            return over * pow(under, -1, PRIME) % PRIME

        rest = sum(factor(p) * v for p, v in known.items())
        y = (other - rest) * pow(factor(x), -1, PRIME) % PRIME
        made = {p: v.to_bytes(SHARE, "little") for p, v in {**known, x: y}.items()}
        assert int.from_bytes(open_secret(made), "little") == other


def test_shares_are_uniform_by_chi_square():
    secret = bytes(32)
    raw = np.array([list(shares_of(secret, 3, 2, Secret(seed))[1][:32]) for seed in range(1500)], dtype=np.uint8)
    counts = np.bincount(raw.ravel(), minlength=256)
    expected = raw.size / 256
    assert ((counts - expected) ** 2 / expected).sum() < 370


def test_a_wrong_share_gives_another_secret_and_another_commitment():
    shares = shares_of(bytes(32), 4, 3, Secret(3))
    bad = (int.from_bytes(shares[1], "little") ^ 1).to_bytes(SHARE, "little")
    bad = (int.from_bytes(shares[1], "little") ^ 1).to_bytes(SHARE, "little")
    with pytest.raises(LetterError, match="do not fit together"):
        open_secret({0: (PRIME - 1).to_bytes(SHARE, "little")})
    assert commitment("own", bad) != commitment("own", shares[1]) != commitment("key", shares[1])


def test_both_ends_of_a_pair_agree_and_no_other_context_does():
    alice = bytes(range(32))
    bob = bytes(range(1, 33))
    assert pair_seed(alice, public_key(bob), b"round") == pair_seed(bob, public_key(alice), b"round")
    assert pair_seed(alice, public_key(bob), b"round") != pair_seed(alice, public_key(bob), b"other")
    with pytest.raises(LetterError, match="public key is not usable"):
        pair_seed(alice, bytes(32), b"")


@pytest.mark.parametrize(("size", "holders", "threshold"), [(31, 3, 2), (32, 3, 4), (32, 3, 0)])
def test_what_cannot_be_shared(size, holders, threshold):
    with pytest.raises(ConfigError, match=f"{size} bytes for {holders} holders with a threshold of {threshold}"):
        shares_of(bytes(size), holders, threshold, Secret(0))
