"""Tags: what the holder of a key accepts as the sum of the parties' numbers."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.core.errors import DataError
from atoll.core.requests.island import Secret
from atoll.secure.encrypted.agreement import PRIMES, pads, right, tags
from atoll.secure.encrypted.party_steps import _require_pads

SEED = b"t" * 32


def parties(count=3):
    rng, secret = np.random.default_rng(0), Secret(b"s" * 32)
    rows = [
        [rng.integers(0, 2**33, size=5, dtype=np.uint64), rng.integers(0, 2, size=4, dtype=np.uint64)]
        for _ in range(count)
    ]
    padding = [pads(secret) for _ in rows]
    tagged = sum(tags(SEED, row, pad) for row, pad in zip(rows, padding, strict=True))
    return rows, padding, tagged, [np.sum([row[i] for row in rows], axis=0) for i in range(2)]


def test_the_sum_of_all_is_right():
    _, padding, tagged, sums = parties()
    assert right(SEED, sums, tagged, padding)
    assert not right(SEED, sums, tagged, padding[:-1])


@pytest.mark.parametrize("prime", sorted(set(PRIMES)))
def test_a_multiple_of_one_prime_is_seen(prime):
    """Sums that also hold ``prime`` times the numbers of one party, which a server makes without opening anything."""
    rows, padding, tagged, sums = parties()
    for party in rows:
        assert any(row.any() for row in party)
        forged = [total + np.uint64(prime) * (row & np.uint64(1)) for total, row in zip(sums, party, strict=True)]
        assert not right(SEED, forged, tagged, padding)


def test_a_single_number_that_is_off_by_one_is_seen():
    _, padding, tagged, sums = parties()
    for place in range(5):
        forged = [sums[0].copy(), sums[1]]
        forged[0][place] += np.uint64(1)
        assert not right(SEED, forged, tagged, padding)


@pytest.mark.parametrize(
    "letter",
    [
        None,
        {},
        {"pads": np.zeros(4, np.uint64)},
        {"pads": np.zeros(2, np.uint64), "layout": b""},
        {"pads": "0000", "layout": b""},
    ],
)
def test_a_letter_without_pads_names_its_sender(letter):
    with pytest.raises(DataError, match="site-3 sealed a letter without pads"):
        _require_pads("site-3", letter)
