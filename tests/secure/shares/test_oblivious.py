"""Triples without a dealer: they fit together over the ring, their bytes follow from shapes alone, and a peer that sends something else is named."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import atoll
from atoll.core.errors import ConfigError, LetterError
from atoll.core.exposure import Contract
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task
from atoll.secure.shares import Binary, Field, ObliviousDealer, WordRing, oblivious, transfer_frames
from atoll.secure.shares.dealer import Order
from tests.support.alignment import recorded

PARTIES = ["bank", "shop"]


@task
async def make(island, peers, me, orders, k, asks=None):
    """All that the dealer gives for some orders; with ``asks`` the second party asks for those."""
    first = me == PARTIES[0]
    domain, other = WordRing(k), PARTIES[first]
    dealer = await ObliviousDealer.begin(island.secret, peers, other, first=first, domain=domain)
    made = []
    if orders == "select":
        rng = np.random.default_rng(first)
        bits, words = rng.integers(2, size=50).astype(bool), rng.integers(2**64, size=(50, 3), dtype=np.uint64)
        return [[bits, words, await dealer.select_words(bits, words)]]
    for place, spec in enumerate(orders if first or asks is None else asks):
        order = Order(**spec)
        if place == 1:  # as after a crash
            dealer = ObliviousDealer.restored(
                dealer.captured(), island.secret, peers, other, first=first, domain=domain
            )
        made.append(await dealer.get(order.what, *order.shapes, bitwise=order.bitwise, by=order.by))
    return [[list(parts) for parts in rows] for rows in made]


def dealt(orders, k=64, asks=None, **settings):
    """The values of each order, both parties' parts joined."""
    specs = orders if orders == "select" else [order.packed() for order in orders]
    told = None if asks is None else [order.packed() for order in asks]

    async def talk(fed):
        got = await fed.session({me: (me, make.with_args(me=me, orders=specs, k=k, asks=told)) for me in PARTIES})
        return [got[me] for me in PARTIES]

    people = Community(dict.fromkeys(PARTIES))
    return atoll.simulate(talk, people, engine="inline", progress=False, **settings)


def joined(order, k, first, second):
    ring, bits = WordRing(k), Binary()
    binary = {"triple": (order.bitwise,) * 3, "mask": (False, True), "bit": (True, False)}.get(order.what, (False,) * 3)
    pairs = zip(binary, first, second, strict=False)
    return [(bits if flag else ring).add(one[0], other[0]) for flag, one, other in pairs]


shapes = st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple)
sizes = st.integers(1, 5)
orders = st.lists(
    st.one_of(
        st.builds(Order, st.just("triple"), st.tuples(shapes), st.booleans()),
        st.builds(lambda n, k, m: Order("dot", ((n, k), (k, m))), sizes, sizes, sizes),
        st.builds(Order, st.just("mask"), st.tuples(shapes)),
        st.builds(lambda shape, by: Order("cut", (shape,), by=by), shapes, st.integers(1, 14)),
        st.builds(lambda n: Order("bit", ((n,),)), st.integers(0, 130)),
        st.builds(Order, st.just("random"), st.tuples(shapes)),
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("most", [2, 1 << 22])
def test_a_product_of_matrices_in_blocks_is_the_product(monkeypatch, most):
    monkeypatch.setattr(oblivious, "_MOST", most)
    for order in (Order("dot", ((3, 4), (4, 1))), Order("dot", ((2, 3), (3, 4)))):
        (one,), (other,) = dealt([order])
        a, b, c = joined(order, 64, one, other)
        np.testing.assert_array_equal(c, a @ b)


@settings(max_examples=8, deadline=None)
@given(orders, st.sampled_from([16, 40, 64]), st.integers(0, 2**32))
def test_what_is_dealt_fits_together(asked, k, seed):
    ring = WordRing(k)
    for order, one, other in zip(asked, *dealt(asked, k, secret_seed=seed), strict=True):
        values = joined(order, k, one, other)
        if order.what == "triple":
            a, b, c = values
            np.testing.assert_array_equal(c, a & b if order.bitwise else ring.mul(a, b))
        elif order.what == "dot":
            np.testing.assert_array_equal(values[2], ring.dot(*values[:2]))
        elif order.what == "mask":
            rows = Binary.unpacked(values[1], int(np.prod(order.shapes[0])))
            np.testing.assert_array_equal((rows.astype(np.uint64) << np.arange(k, dtype=np.uint64)[:, None]).sum(0, dtype=np.uint64), values[0].ravel())  # fmt: skip
        elif order.what == "cut":
            r, low, top = values
            np.testing.assert_array_equal(low, (r & np.uint64((1 << (k - 1)) - 1)) >> np.uint64(order.by))
            np.testing.assert_array_equal(top, r >> np.uint64(k - 1))
        elif order.what == "bit":
            np.testing.assert_array_equal(Binary.unpacked(values[0], order.shapes[0][0]), values[1].astype(bool))
            assert set(values[1].tolist()) <= {0, 1}
        assert all(part.shape == value.shape for parts, value in zip(one, values, strict=True) for part in parts)
        assert all(part.max(initial=0) <= ring.mask for parts in one for part in parts) or order.bitwise or order.what in ("mask", "bit")  # fmt: skip


EVERY = [
    Order("triple", ((3, 2),)),
    Order("triple", ((2,),), bitwise=True),
    Order("dot", ((7, 3), (3, 1))),
    Order("dot", ((2, 3), (3, 5))),
    Order("mask", ((3,),)),
    Order("cut", ((3,),), by=5),
    Order("bit", ((70,),)),
    Order("random", ((4,),)),
]


@pytest.mark.parametrize(("most", "k"), [(1 << 22, 64), (8, 32)])
def test_bytes_follow_from_the_orders_alone(monkeypatch, most, k):
    monkeypatch.setattr(oblivious, "_MOST", most)
    contract = Contract("ObliviousDealer", tuple(transfer_frames(PARTIES, EVERY, k)))
    said = []
    for seed in (1, 2):
        with recorded(monkeypatch) as heard:
            dealt(EVERY, k, secret_seed=seed)
        assert contract.compare_recorded(heard) == []
        said.append([(*one[:3], one[3].shape) for one in heard])
    assert sorted(said[0]) == sorted(said[1])


def test_words_are_selected_by_shared_bits(monkeypatch):
    with recorded(monkeypatch) as heard:
        (one,), (other,) = dealt("select")
    chosen = (one[0] ^ other[0])[:, None] * (one[1] + other[1])
    np.testing.assert_array_equal(one[2] + other[2], chosen)
    assert Contract("", tuple(transfer_frames(PARTIES, [Order("select", ((50, 3),))]))).compare_recorded(heard) == []


def test_a_batch_times_weights_costs_little_more_than_the_batch():
    """512 bytes a number would be 64 words: the packed form sends 288, and 1024 a weight."""
    frames = transfer_frames(PARTIES, [Order("dot", ((1000, 20), (20, 1)))])
    assert sum(frame.nbytes for frame in frames) == 2 * 20 * (1024 + 288 * 1000) + 2 * 129 * 32


def test_shares_and_frames_are_uniform(monkeypatch):
    asked = [Order("triple", ((300,),)), Order("mask", ((128,),)), Order("triple", ((100,),), bitwise=True)]
    with recorded(monkeypatch) as heard:
        both = dealt(asked, secret_seed=3)
    frames = [message.view(np.uint8).ravel() for _, _, channel, message in heard if message.nbytes > 5000]
    parts = [row[0].view(np.uint8).ravel() for party in both for rows in party for row in rows]
    for raw in (np.concatenate(frames), np.concatenate(parts)):
        assert stats.chisquare(np.bincount(raw, minlength=256)).pvalue > 1e-3


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (Order("triple", ((3,),)), Order("triple", ((4,),))),
        (Order("dot", ((4, 2), (2, 1))), Order("dot", ((5, 2), (2, 1)))),
        (Order("triple", ((2,),), bitwise=True), Order("triple", ((3,),), bitwise=True)),
        (Order("mask", ((3,),)), Order("mask", ((2,),))),
    ],
)
def test_a_peer_that_asks_for_something_else_is_named(mine, theirs):
    with pytest.raises(LetterError, match=r"party '(bank|shop)' sent"):
        dealt([mine], asks=[theirs])


@pytest.mark.parametrize("channel", oblivious._CHANNELS)
@pytest.mark.parametrize("how", ["longer", "other type", "text"])
def test_frames_without_form_are_refused(monkeypatch, channel, how):
    def change(source, name, message):
        if name != channel or message.nbytes < 3000 or message.nbytes == 128 * 32:
            return message
        return {"longer": np.concatenate([message, message]), "other type": message.astype(np.int16), "text": "no"}[how]

    with recorded(monkeypatch, change), pytest.raises(LetterError, match=r"party '(bank|shop)' sent"):
        dealt([Order("triple", ((30,),))])


def test_what_transfers_cannot_make_is_refused():
    with pytest.raises(ConfigError, match=r"shares over Field.*use a WordRing"):
        ObliviousDealer(None, None, None, first=True, domain=Field())
    with pytest.raises(ConfigError, match="no 'input' by transfers"):
        dealt([Order("input", ((3,),), owner=0)])
