"""The parts of `Oprf` that need no peer: hashed keys, masks and how they are found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from atoll.secure.psi.oprf import HashedKeys, find_masks, mask_bytes, mask_rows, sort_masks

SALT = bytes(range(32))


def test_hashed_keys_follow_from_keys_and_salt_alone():
    one, other = HashedKeys(["a", "é", ""], SALT), HashedKeys(["", "a"], SALT)
    np.testing.assert_array_equal(one.words[[2, 0]], other.words)
    np.testing.assert_array_equal(one.candidates(30)[[2, 0]], other.candidates(30))
    assert one.digest != other.digest
    for salt in (b"\1" + SALT[1:], SALT[:-1] + b"\1"):  # both halves count
        assert not (HashedKeys(["a"], salt).words == one.words[0]).all()
    many = HashedKeys([str(i) for i in range(70_000)], SALT)  # more than one block
    assert len(np.unique(many.words, axis=0)) == len(many) == 70_000
    np.testing.assert_array_equal(many.words[40_000], HashedKeys(["40000"], SALT).words[0])
    assert stats.chisquare(np.bincount(many.words.ravel(), minlength=256)).pvalue > 1e-3


@pytest.mark.parametrize(
    ("one", "other", "length"), [(0, 0, 8), (1, 1, 8), (1 << 12, 1 << 12, 8), (10**5, 10**5, 10), (10**6, 10**6, 10), (1 << 28, 1 << 28, 12)]
)  # fmt: skip
def test_masks_are_so_long_that_pairs_do_not_agree_by_chance(one, other, length):
    assert mask_bytes(one, other) == mask_bytes(other, one) == length
    assert 8 * length >= 40 + np.log2(max(1, one * other))


def test_a_mask_depends_on_row_bin_and_salt():
    rows, bins = np.zeros((3, 64), np.uint8), np.array([0, 1, 1])
    rows[2, 63] = 1
    masks = mask_rows(rows, bins, SALT, 10)
    assert masks.shape == (3, 10)
    assert len(np.unique(masks, axis=0)) == 3
    assert not (mask_rows(rows, bins, bytes(32), 10) == masks).any(axis=1).all()
    np.testing.assert_array_equal(mask_rows(rows[1:2], bins[1:2], SALT, 10), masks[1:2])


@given(
    mine=st.lists(st.binary(min_size=9, max_size=9), max_size=20),
    theirs=st.lists(st.binary(min_size=9, max_size=9), max_size=20, unique=True),
    taken=st.lists(st.integers(0, 19), max_size=10),
    prefix=st.booleans(),
)
def test_masks_are_found_where_they_are(mine, theirs, taken, prefix):
    mine = [*mine, *(theirs[i] for i in taken if i < len(theirs))]
    if prefix:  # only the last byte differs
        mine, theirs = ([bytes(8) + one[-1:] for one in many] for many in (mine, theirs))
        theirs = list(dict.fromkeys(theirs))
    as_rows = [np.frombuffer(b"".join(many), dtype=np.uint8).reshape(-1, 9) for many in (mine, theirs)]
    expected = [theirs.index(one) if one in theirs else -1 for one in mine]
    assert find_masks(*as_rows).tolist() == expected


def test_the_order_of_masks_says_nothing_of_the_order_of_keys():
    masks = np.random.default_rng(0).integers(256, size=(50, 30), dtype=np.uint8)
    masks[:9, :8] = 7  # equal first bytes: the second table decides
    shuffled = np.random.default_rng(1).permutation(50)
    np.testing.assert_array_equal(masks[sort_masks(masks, 10)], masks[shuffled][sort_masks(masks[shuffled], 10)])
