"""Whoever alters what it holds or says is found out where the scheme promises it, and a share alone tells nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.errors import ConfigError, DataError, LetterError
from atoll.core.requests.island import Secret
from atoll.secure.shares import (
    AuthenticatedSharing,
    Binary,
    Field,
    SharedArray,
    WordRing,
    less,
    mul,
    open_additive,
    open_replicated,
    open_shamir,
    opened,
    split_additive,
    split_replicated,
    split_shamir,
)
from atoll.secure.shares.domain import MERSENNE
from tests.support.rooms import computed, program


def altered(it, x, by=1):
    """The same share with its first part moved, at one party."""
    if it.place != 1:
        return x
    first = it.arithmetic.add(x.parts[0], np.full(x.shape, by, dtype=np.uint64))
    return SharedArray(it, (first, *x.parts[1:]))


@program
async def alter_before_opening(it, values):
    x = await it.share(values, owner="p0", shape=(4,))
    return await opened(altered(it, x))


@program
async def alter_before_a_product(it, values):
    x = await it.share(values, owner="p0", shape=(4,))
    return await opened(await mul(altered(it, x), x))


@program
async def alter_before_a_comparison(it, values):
    x = await it.share(values, owner="p0", shape=(4,))
    return await opened(await less(altered(it, x), it.constant(np.array([1, 2, 3, 4]))))


@program
async def alter_the_code(it, values):
    x = await it.share(values, owner="p0", shape=(4,))
    if it.place == 1:
        x = SharedArray(it, (x.parts[0], it.arithmetic.add(x.parts[1], np.ones(4, dtype=np.uint64))))
    return await opened(x)


@pytest.mark.parametrize("kind", ["authenticated ring", "authenticated field"])
@pytest.mark.parametrize(
    "what", ["alter_before_opening", "alter_before_a_product", "alter_before_a_comparison", "alter_the_code"]
)
def test_codes_find_every_altered_share(what, kind):
    with pytest.raises(LetterError, match="does not have its code: a party altered its share"):
        computed(what, [np.array([4, 3, 2, 1])], kind)


@pytest.mark.parametrize(("kind", "words"), [("Shamir", "do not lie on one polynomial"), ("replicated", "two copies")])
def test_redundant_shares_find_an_altered_opening(kind, words):
    with pytest.raises(LetterError, match=words):
        computed("alter_before_opening", [np.array([4, 3, 2, 1])], kind)


def test_without_codes_an_altered_share_is_an_altered_value():
    got = computed("alter_before_opening", [np.array([4, 3, 2, 1])], "additive ring")
    assert got[0].tolist() == [5, 4, 3, 2]  # what additive shares do not promise


@program
async def commit_and_change(it, values):
    if it.place == 1:
        tell = it.tell

        async def changed(message):
            return await tell([message[0], b"another value"] if isinstance(message, list) else message)

        it.tell = changed
    x = await it.share(values, owner="p0", shape=(4,))
    return await opened(x)


def test_a_value_that_was_committed_to_cannot_change():
    with pytest.raises(LetterError, match="p1 showed another value than it had committed to"):
        computed("commit_and_change", [np.array([4, 3, 2, 1])], "authenticated field")


@program
async def wrong_shape(it, values):
    return await opened(await it.share(values, owner="p0", shape=(4,)))


@program
async def product_without_a_dealer(it, values):
    x = await it.share(values, owner="p0", shape=(4,))
    return await opened(await mul(x, x))


def test_what_does_not_fit_is_refused_in_words():
    with pytest.raises(DataError, match=r"values of shape \(3,\).*share \(4,\), as all parties expect"):
        computed("wrong_shape", [np.array([1, 2, 3])], "replicated")
    with pytest.raises(ConfigError, match=r"no dealer.*PartyDealer"):
        computed("product_without_a_dealer", [np.array([1, 2, 3, 4])], "additive ring", dealer=False)
    with pytest.raises(ConfigError, match=r"authenticated shares over WordRing\(k=64\).*k up to 40"):
        AuthenticatedSharing(WordRing(64), 2)
    with pytest.raises(DataError, match="2 shares, and 3 are needed"):
        open_shamir({0: np.zeros(1, np.uint64), 3: np.zeros(1, np.uint64)}, 3, Field())
    with pytest.raises(ConfigError, match=r"threshold=4 of 3 holders"):
        split_shamir(np.zeros(1, np.uint64), 3, 4, Field(), Secret(1))


# ------------------------------------------------------------------ schemes alone


@given(seed=st.integers(0, 2**32), n=st.integers(2, 7), data=st.data())
def test_any_threshold_of_shares_gives_the_values(seed, n, data):
    threshold = data.draw(st.integers(1, n))
    field, secret = data.draw(st.sampled_from([Field(), Field(4294967291), Field(101)])), Secret(seed)
    values = field.random(secret, (3, 4))
    shares = split_shamir(values, n, threshold, field, secret)
    some = data.draw(st.lists(st.integers(0, n - 1), min_size=threshold, max_size=n, unique=True))
    np.testing.assert_array_equal(open_shamir({i: shares[i] for i in some}, threshold, field), values)


@pytest.mark.parametrize("prime", [MERSENNE, 2**31 - 1, 4294967291, 101])
@pytest.mark.parametrize(("n", "threshold", "size"), [(12, 8, 5), (12, 9, 5), (40, 21, 700), (30, 30, 3)])
def test_shares_are_the_polynomials_integer_by_integer(prime, n, threshold, size):
    """Evaluated step by step or by limbs, for the same draws: the coefficients come highest power first, and each is drawn for all values."""
    field, draws = Field(prime), Secret(4)
    values = field.random(Secret(3), (size,))
    rows = [field.random(draws, (size,)).tolist() for _ in range(threshold - 1)] + [values.tolist()]
    shares = split_shamir(values, n, threshold, field, Secret(4))
    for x, share in enumerate(shares, 1):
        slow = [0] * size
        for row in rows:
            slow = [(value * x + coefficient) % prime for value, coefficient in zip(slow, row, strict=True)]
        assert share.tolist() == slow
    some = dict(list(enumerate(shares))[-threshold:])
    np.testing.assert_array_equal(open_shamir(some, threshold, field), values)


def test_one_wrong_share_of_many_is_found_wherever_it_is():
    field = Field()
    values = field.random(Secret(3), (2, 3))
    shares = dict(enumerate(split_shamir(values, 20, 12, field, Secret(4))))
    for place in (0, 11, 12, 19):
        wrong = {**shares, place: shares[place] ^ np.uint64(1)}
        with pytest.raises(DataError, match="do not lie on one polynomial of degree 11"):
            open_shamir(wrong, 12, field)


@given(
    seed=st.integers(0, 2**32),
    n=st.integers(2, 5),
    domain=st.sampled_from([WordRing(64), WordRing(17), Field(), Binary()]),
)
def test_additive_and_replicated_shares_give_the_values(seed, n, domain):
    secret = Secret(seed)
    values = domain.random(secret, (5,))
    np.testing.assert_array_equal(open_additive(split_additive(values, n, domain, secret), domain), values)
    three = split_replicated(values, domain, secret)
    for pair in ((0, 1), (1, 2), (0, 2), (0, 1, 2)):
        np.testing.assert_array_equal(open_replicated({i: three[i] for i in pair}, domain), values)


@pytest.mark.parametrize("value", [0, 1, 100])
def test_fewer_shares_than_the_threshold_are_uniform(value):
    """Two of five shares with threshold 3, over a field of 11: each of the 121 pairs as often, whatever the value."""
    field = Field(11)
    values = np.full(60_000, value % 11, dtype=np.uint64)
    shares = split_shamir(values, 5, 3, field, Secret(value + 1))
    counts = np.bincount((shares[1] * np.uint64(11) + shares[4]).astype(int), minlength=121)
    expected = len(values) / 121
    assert ((counts - expected) ** 2 / expected).sum() < 210  # chi-square with 120 degrees: 1e-6


def test_an_authenticated_opening_shows_only_the_low_bits():
    """Above the value's bits the words that parties send are noise: two runs with equal values differ there."""
    seen = []
    for seed in (1, 2):
        computed("record_openings", [np.array([4, 3, 2, 1])], "authenticated ring", seed=seed)
        seen.append(np.concatenate(RECORDED))
        RECORDED.clear()
    low = np.uint64(2**32 - 1)
    np.testing.assert_array_equal(seen[0] & low, seen[1] & low)
    assert (seen[0] >> np.uint64(32) != seen[1] >> np.uint64(32)).all()


RECORDED: list[np.ndarray] = []


@program
async def record_openings(it, values):
    x = await it.share(values, owner="p0", shape=(4,))
    made = it.domain.signed(await it.open(x))
    if it.place == 0:
        RECORDED.append(it._opened[-1][0])
    return made
