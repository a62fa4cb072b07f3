"""Packed shares: several values of a polynomial, fewer shares, and fewer colluders."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import ConfigError, DataError
from atoll.core.requests.island import Secret
from atoll.secure.shares import Field, correct_shamir, expand_share, open_packed, split_packed, split_shamir

SMALL = Field(11)


def expanded(values, n, threshold, pack, field, seed, **more):
    made = split_packed(values, n, threshold, pack, field, Secret(seed), **more)
    width = -(-values.size // pack)
    return {place: expand_share(share, width, field) for place, share in enumerate(made)}


@settings(max_examples=25, deadline=None)
@given(
    pack=st.integers(1, 5), threshold=st.integers(1, 4), spare=st.integers(0, 3), count=st.integers(1, 11),
    prime=st.sampled_from([2**32 - 5, 2**61 - 1]), seeds=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_any_of_enough_shares_open_the_sum_of_several_splits(pack, threshold, spare, count, prime, seeds, seed):
    field, needed = Field(prime), threshold + pack - 1
    n = needed + spare
    rng = np.random.default_rng(seed)
    values = [rng.integers(0, prime, count, dtype=np.uint64) for _ in range(3)]
    split = [expanded(one, n, threshold, pack, field, seed + i, seeds=seeds) for i, one in enumerate(values)]
    added = {place: field.total(np.stack([one[place] for one in split])) for place in range(n)}
    assert {len(row) for row in added.values()} == {-(-count // pack)}
    wanted = field.total(np.stack(values))
    for places in itertools.islice(itertools.combinations(range(n), needed), 8):
        found = open_packed({place: added[place] for place in places}, threshold, pack, count, field)
        np.testing.assert_array_equal(found, wanted)
    with pytest.raises(DataError, match=f"{needed - 1} shares, and {needed} are needed"):
        open_packed({place: added[place] for place in range(needed - 1)}, threshold, pack, count, field)


def test_with_one_value_a_polynomial_they_are_those_of_shamir():
    field, values = Field(), np.arange(7, dtype=np.uint64)
    shares = expanded(values, 5, 3, 1, field, 1)
    assert correct_shamir(shares, 3, field, Secret(2)).values.tolist() == values.tolist()
    other = dict(enumerate(split_shamir(values, 5, 3, field, Secret(1))))
    np.testing.assert_array_equal(open_packed(other, 3, 1, 7, field), values)


def test_shares_below_the_threshold_are_uniform_whatever_the_values():
    """Chi-square over pairs of shares of a small field; one share more tells values apart."""
    pairs = {}
    for name, values in (("zeros", np.zeros(2 * 12_100, np.uint64)), ("others", np.tile(np.array([3, 9], np.uint64), 12_100))):  # fmt: skip
        values = values.reshape(-1, 2).T.ravel()  # a column is a polynomial's
        shares = expanded(values, 6, 3, 2, SMALL, 5, seeds=False)
        counts = np.bincount((shares[3] * np.uint64(11) + shares[5]).astype(np.int64), minlength=121)
        assert float(((counts - 100) ** 2 / 100).sum()) < 121 + 5 * np.sqrt(242)
        pairs[name] = counts, shares
    # Three shares fix a linear combination of the two values: among zeros and others it is another one.
    found = [open_packed({p: shares[p] for p in (0, 2, 3, 5)}, 3, 2, 4, SMALL) for _, shares in pairs.values()]
    assert found[0].tolist() != found[1].tolist()


def test_wrong_packed_shares_are_found():
    field, values = Field(), np.arange(9, dtype=np.uint64)
    shares = expanded(values, 9, 2, 3, field, 4)
    shares[5] = field.add(shares[5], np.ones_like(shares[5]))
    found = correct_shamir(shares, 2 + 3 - 1, field, Secret(7))
    assert found.wrong == (5,)
    left = {place: row for place, row in shares.items() if place != 5}
    np.testing.assert_array_equal(open_packed(left, 2, 3, 9, field), values)


@pytest.mark.parametrize(("n", "threshold", "pack"), [(4, 3, 3), (4, 0, 1), (4, 2, 0), (9, 2, 2)])
def test_settings_that_give_nothing_back_are_refused(n, threshold, pack):
    with pytest.raises(ConfigError, match="use threshold \\+ pack - 1 of at most"):
        split_packed(np.zeros(4, np.uint64), n, threshold, pack, SMALL, Secret(1))
