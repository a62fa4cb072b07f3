"""Whoever alters what it holds or says is found out where the scheme promises it, and a share alone tells nothing."""

from __future__ import annotations

import math

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
    expand_share,
    less,
    mul,
    open_additive,
    open_replicated,
    open_shamir,
    opened,
    split_additive,
    split_replicated,
    split_seeded,
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


def through(points, x, prime):
    """The value at x of the polynomial through some points, integer by integer (Lagrange)."""
    total = 0
    for a, y in points:
        over = math.prod(x - b for b, _ in points if b != a)
        under = math.prod(a - b for b, _ in points if b != a)
        total += y * over * pow(under, -1, prime)
    return total % prime


@pytest.mark.parametrize("prime", [MERSENNE, 2**31 - 1, 4294967291, 101])
@pytest.mark.parametrize(("n", "threshold", "size"), [(12, 8, 5), (12, 9, 5), (40, 21, 9), (30, 30, 3), (4, 1, 2)])
@pytest.mark.parametrize("split", [split_shamir, split_seeded])
def test_shares_are_the_polynomials_integer_by_integer(split, prime, n, threshold, size):
    """Whichever shares are drawn: the value and the first holders' shares fix the polynomial, and the last ones open it."""
    field = Field(prime)
    values = field.random(Secret(3), (size,))
    shares = split(values, n, threshold, field, Secret(4))
    assert [isinstance(share, bytes) for share in shares] == [split is split_seeded and i < threshold - 1 for i in range(n)]  # fmt: skip
    rows = [expand_share(share, size, field) for share in shares]
    for j in range(size):
        points = [(0, int(values[j])), *((x, int(row[j])) for x, row in enumerate(rows[: threshold - 1], 1))]
        assert [int(row[j]) for row in rows] == [through(points, x, prime) for x in range(1, n + 1)]
    some = dict(list(enumerate(rows))[-threshold:])
    np.testing.assert_array_equal(open_shamir(some, threshold, field), values)


def test_shares_of_seeds_add_up_and_two_splits_share_nothing():
    field, secret = Field(101), Secret(5)
    splits = [split_seeded(field.of(np.array([v, -v])), 6, 4, field, secret) for v in (7, 30)]
    assert len({share for shares in splits for share in shares if isinstance(share, bytes)}) == 6
    sums = {}
    for place, pair in enumerate(zip(*splits, strict=True)):
        first, second = (expand_share(share, 2, field) for share in pair)
        sums[place] = field.add(first, second)
    assert field.signed(open_shamir({i: sums[i] for i in (0, 2, 3, 5)}, 4, field)).tolist() == [37, -37]
    with pytest.raises(ConfigError, match="threshold=7 of 6 holders"):
        split_seeded(np.zeros(1, np.uint64), 6, 7, field, secret)


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
@pytest.mark.parametrize("split", [split_shamir, split_seeded])
def test_fewer_shares_than_the_threshold_are_uniform(split, value):
    """Two of five shares with threshold 3, over a field of 11: each of the 121 pairs as often, whatever the value."""
    field = Field(11)
    values = np.full(60_000, value % 11, dtype=np.uint64)
    shares = split(values, 5, 3, field, Secret(value + 1))
    shares = [expand_share(share, len(values), field) for share in shares]
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
