"""Parties that choose what they send: no input moves, nothing leaks before the check, and what has no form is refused in words."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.errors import ConfigError, DataError, LetterError
from atoll.core.requests.island import Secret
from atoll.secure.shares import (
    AdditiveComputation,
    AdditiveSharing,
    AuthenticatedSharing,
    Field,
    ReplicatedComputation,
    ReplicatedSharing,
    SharedArray,
    WordRing,
    authenticated,
    dot,
    equal,
    less,
    mul,
    opened,
    operations,
    truncate,
)
from tests.support.rooms import KINDS, computed, program

AUTHENTICATED = pytest.mark.parametrize("kind", ["authenticated ring", "authenticated field"])
FOUR = [np.array([4, 3, 2, 1])]


def saying(it, change):
    """Let a party's messages go through ``change(role, message)``."""
    send = it.peers.send

    async def changed(role, message):
        await send(role, change(role, message))

    it.peers.send = changed
    return send


# ------------------------------------------------------------------ inputs


@program
async def move_anothers_input(it, values):
    if it.place == 1:
        honest = saying(it, lambda _, message: message + np.uint64(1) if isinstance(message, np.ndarray) else message)
    x = await it.share(values, owner="p0", shape=(4,))
    if it.place == 1:
        it.peers.send = honest
    return await opened(x)


@AUTHENTICATED
def test_nobody_moves_the_input_of_another(kind):
    for got in computed("move_anothers_input", FOUR, kind):
        assert got.tolist() == [4, 3, 2, 1]


# ------------------------------------------------------------------ outputs

OPENINGS = []


@program
async def alter_a_product_and_look(it, values):
    x = await it.share(values, owner="p0", shape=(4,))
    if it.place == 0:
        honest = it.open

        async def noted(value):
            OPENINGS.append(value.shape)
            return await honest(value)

        it.open = noted
    if it.place == 1:
        first = it.arithmetic.add(x.parts[0], np.ones(4, dtype=np.uint64))
        return await opened(await mul(SharedArray(it, (first, *x.parts[1:])), x))
    return await opened(await mul(x, x))


@AUTHENTICATED
def test_a_result_is_shown_only_after_what_it_follows_from_was_checked(kind):
    OPENINGS.clear()
    with pytest.raises(LetterError, match="does not have its code"):
        computed("alter_a_product_and_look", FOUR, kind)
    assert OPENINGS == [(2, 4)], "the masked factors, and never the product: it depends on what the cheat has chosen"


# ------------------------------------------------------------------ the dealer


@program
async def order_something_else(it, values):
    """The first party orders a pair whose second value is 0 or 1 where the others expect uniform masks."""
    x = await it.share(values, owner="p0", shape=(4,))
    if it.place == 0:
        get = it.dealer.get

        async def other(what, *shapes, **terms):
            return (
                await get("cut", shapes[0], **{**terms, "by": 30})
                if what == "triple"
                else await get(what, *shapes, **terms)
            )

        it.dealer.get = other
    return await opened(await mul(x, x))


@program
async def order_another_shape(it, values):
    x = await it.share(values, owner="p0", shape=(4,))
    if it.place == 0:
        get = it.dealer.get

        async def other(what, *shapes, **terms):
            return [tuple(np.ravel(part) for part in parts) for parts in await get(what, (2, 2), **terms)]

        it.dealer.get = other
    return await opened(await mul(x, x))


@pytest.mark.parametrize("what", ["order_something_else", "order_another_shape"])
@pytest.mark.parametrize("kind", ["additive ring", "authenticated ring", "authenticated field"])
def test_a_delivery_is_for_the_order_that_everybody_would_have_placed(kind, what):
    with pytest.raises(LetterError, match=r"an order of p0|the dealer deals for another order"):
        computed(what, FOUR, kind)


ORDERS = [
    None, 7, [], {"what": "triple"}, {"what": 5, "shapes": [[4]], "bitwise": False, "by": 0, "owner": None},
    {"what": "triple", "shapes": [[1 << 40]], "bitwise": False, "by": 0, "owner": None}, {"what": "triple", "shapes": [[-1]], "bitwise": False, "by": 0, "owner": None},
    {"what": "triple", "shapes": [], "bitwise": False, "by": 0, "owner": None}, {"what": "cut", "shapes": [[4]], "bitwise": False, "by": -3, "owner": None},
    {"what": "cut", "shapes": [[4]], "bitwise": False, "by": 1 << 70, "owner": None}, {"what": "everything", "shapes": [[4]], "bitwise": False, "by": 0, "owner": None},
    {"what": "dot", "shapes": [[2, 3], [2, 3]], "bitwise": False, "by": 0, "owner": None}, {"what": "input", "shapes": [[4]], "bitwise": False, "by": 0, "owner": 9},
    {"what": "key", "shapes": [], "bitwise": False, "by": 0, "owner": None},
]  # fmt: skip


@program
async def order_nonsense(it, values):
    if it.place == 0:
        await it.peers.send("dealer", ORDERS[int(values[0])])
    return await it.dealer.get("triple", (4,))


@pytest.mark.parametrize("number", range(len(ORDERS)))
def test_an_order_without_form_ends_the_dealer_in_words(number):
    with pytest.raises(LetterError, match=r"an order of p0"):
        computed("order_nonsense", [np.array([number])], "additive ring")


# ------------------------------------------------------------------ commitments


def _revealing(it, change):
    tell = it.tell

    async def changed(message):
        return await tell(change(message) if isinstance(message, list) else message)

    it.tell = changed


@program
async def move_the_border(it, values):
    """The same bytes, cut elsewhere: another nonce and another value have the same hash unless lengths are fixed."""
    if it.place == 1:
        _revealing(it, lambda told: [told[0] + told[1][:1], told[1][1:]])
    return await opened(await it.share(values, owner="p0", shape=(4,)))


@program
async def show_no_pair(it, values):
    if it.place == 1:
        _revealing(it, lambda told: told[0])
    return await opened(await it.share(values, owner="p0", shape=(4,)))


@program
async def copy_a_commitment(it, values):
    """Say what another says, the last one to speak."""
    if it.place == 1:

        async def echoing(message):
            heard = await it.peers.recv("p0")
            for other in it.others:
                await it.peers.send(other, heard)
            return [heard if party != "p2" else await it.peers.recv("p2") for party in it.parties]

        it.tell = echoing
    x = await it.share(values, owner="p0", shape=(4,))
    await it._coin()
    return await opened(x)


@AUTHENTICATED
@pytest.mark.parametrize("what", ["move_the_border", "show_no_pair"])
def test_a_commitment_has_one_meaning(kind, what):
    with pytest.raises(LetterError, match="p1 showed another value than it had committed to"):
        computed(what, FOUR, kind)


def test_a_commitment_of_another_is_no_commitment():
    with pytest.raises(LetterError, match="p1 showed another value than it had committed to"):
        computed("copy_a_commitment", FOUR, "authenticated ring")


# ------------------------------------------------------------------ shares without form

SHAPELESS = [
    None,
    5,
    "x",
    [],
    [[1], [1, 2]],
    {},
    [None],
    [np.zeros(3, np.uint64)],
    [np.zeros(4)],
    [np.array([-1, 0, 0, 0])],
    [np.zeros(4, np.uint64)] * 3,
    [[[1], [2, 3]]],
]


@program
async def send_shapeless_shares(it, values):
    if it.place == 0:
        for other in it.others:
            await it.peers.send(other, SHAPELESS[int(values[0])])
        return None
    return await it.share(owner="p0", shape=(4,))


@pytest.mark.parametrize("number", range(len(SHAPELESS)))
@pytest.mark.parametrize("kind", ["additive ring", "additive field", "replicated", "Shamir"])
def test_shares_without_form_are_refused(kind, number):
    with pytest.raises(LetterError, match="look at the party that sent"):
        computed("send_shapeless_shares", [np.array([number])], kind)


@program
async def send_a_short_seed(it, values):
    if it.place == 0:
        saying(it, lambda _, message: message[:5] if isinstance(message, bytes) else message)
    x = await it.share(values, owner="p0", shape=(4,))
    return await opened(await mul(x, x))


def test_a_seed_has_its_length():
    with pytest.raises(LetterError, match="a seed of 5 bytes"):
        computed("send_a_short_seed", FOUR, "replicated")


# ------------------------------------------------------------------ correctness at the edges


@program
async def squares_and_matrix(it, values):
    x = await it.share(values, owner="p0", shape=(4,))
    square = x.reshape(2, 2)
    return [await opened(await mul(x, x)), await opened(await dot(square, square))]


@pytest.mark.parametrize("prime", [3, 101, 257, 4294967291, 2**61 - 1])
def test_replicated_products_over_every_field(prime, monkeypatch):
    monkeypatch.setitem(KINDS, "replicated field", (ReplicatedComputation, ReplicatedSharing(Field(prime))))
    for seed in range(20):
        values = np.random.default_rng(seed).integers(-(prime // 2), prime // 2 + 1, 4)
        rows = [int(v) for v in values]
        a, b, c, d = rows
        expected = [[v * v for v in rows], [[a * a + b * c, a * b + b * d], [c * a + d * c, c * b + d * d]]]
        for got in computed("squares_and_matrix", [values], "replicated field", secret_seed=seed):
            for made, right in zip(got, expected, strict=True):
                assert np.array_equal(np.asarray(made).astype(object) % prime, np.array(right, dtype=object) % prime)


def test_zero_shares_of_a_small_field_are_uniform(monkeypatch):
    drawn = []
    around = ReplicatedComputation._zero

    async def noted(self, shape):
        made = await around(self, shape)
        drawn.append(made)
        return made

    monkeypatch.setattr(ReplicatedComputation, "_zero", noted)
    monkeypatch.setitem(KINDS, "replicated field", (ReplicatedComputation, ReplicatedSharing(Field(5))))

    async def many(it, values):
        x = await it.share(values, owner="p0", shape=(20_000,))
        return await opened(await mul(x, x))

    program(many)
    computed("many", [np.zeros(20_000, dtype=np.int64)], "replicated field", secret_seed=1)
    for shares in drawn:
        counts = np.bincount(shares.astype(np.int64), minlength=5)
        assert len(counts) == 5
        assert ((counts - 4000) ** 2 / 4000).sum() < 23.5, counts  # chi-square, 4 degrees of freedom, 1e-4


@given(st.integers(2, 64))
def test_a_ring_takes_only_numbers_that_come_back(k):
    ring, half = WordRing(k), 1 << (k - 1)
    for number in (-half, half - 1):
        assert ring.signed(ring.of(np.array([number], dtype=np.int64)))[0] == number
    if k < 64:
        with pytest.raises(DataError, match="a number of size"):
            ring.of(np.array([half], dtype=np.int64))
        with pytest.raises(DataError, match="a number of size"):
            ring.of(np.array([-half - 1], dtype=np.int64))


def test_a_field_that_protects_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"a wrong opening would pass with probability 1/101"):
        AuthenticatedSharing(Field(101), 2)
    AuthenticatedSharing(Field(4294967291), 2)


def test_a_role_computes_once():
    with pytest.raises(ConfigError, match="name each computing role once"):
        AdditiveComputation(None, None, ["a", "a"], "a", AdditiveSharing(WordRing(64), 2))


@program
async def cut_and_compare(it, values):
    x = await it.share(values, owner="p0", shape=values.shape if it.place == 0 else (24,))
    y = await it.share(values[::-1] if it.place == 0 else None, owner="p0", shape=(24,))
    return [await opened(await truncate(x, 3)), await opened(await less(x, y))]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_truncation_and_comparison_at_the_ends_of_what_is_promised(kind):
    order = KINDS[kind][1].domain.order
    most = min(order // 4, 1 << 62) - 1
    rng = np.random.default_rng(3)
    values = np.concatenate([[most, -most, 0, 1, -1, 7, -7, 8, -8], rng.integers(-most, most, 15)])
    for cut, smaller in computed("cut_and_compare", [values], kind, secret_seed=4):
        assert np.isin(cut - (values >> 3), [0, 1] if kind.startswith("additive ring") else [0]).all()
        assert smaller.tolist() == (values < values[::-1]).tolist()


def test_shares_of_one_party_do_not_depend_on_the_values():
    for seed in range(3):
        zeros, ones = (AdditiveSharing(WordRing(64), 3).split(np.full(50, v, np.uint64), Secret(seed)) for v in (0, 9))
        assert all(np.array_equal(a[0], b[0]) for a, b in zip(zeros[:2], ones[:2], strict=True))


@program
async def compare_many(it, values):
    x = await it.share(values, owner="p0", shape=(5, 9))
    waiting, sizes, honest = [], [], it.open

    async def noted(value):
        shown = await honest(value)
        waiting.append(sum(len(values) for values, _ in it._opened))
        sizes.append(shown.size)
        return shown

    it.open = noted
    return [await opened(await less(x, x[::-1])), await opened(await equal(x, x[::-1])), max(waiting), max(sizes)]


@AUTHENTICATED
def test_comparisons_in_blocks_are_the_same_and_few_openings_wait_for_their_check(kind, monkeypatch):
    monkeypatch.setattr(operations, "_ENTRIES", 8)
    monkeypatch.setattr(authenticated, "_WAITING", 700)
    values = np.random.default_rng(5).integers(-3, 3, (5, 9))
    for smaller, same, waiting, largest in computed("compare_many", [values], kind):
        assert smaller.tolist() == (values < values[::-1]).tolist()
        assert same.tolist() == (values == values[::-1]).tolist()
        assert 0 < waiting < 700
        assert largest <= 2 * 2 * 61 * 8, "of a comparison of 61 bits, two factors of two products each, for 8 entries"
