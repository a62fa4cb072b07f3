"""Transfers of bits and words: what the receiver has follows from both sides' inputs, and a lying peer is named."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import atoll
from atoll.core import message as M
from atoll.core.errors import ConfigError, LetterError
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task
from atoll.secure.oblivious import CodeReceiver, TransferReceiver, TransferSender, transfers
from tests.support.two_parties import converse

rng = np.random.default_rng(0)
COUNT = 203
CHOICES = rng.integers(2, size=COUNT).astype(bool)
DELTA = rng.integers(2**64, size=(COUNT, 3), dtype=np.uint64)
FLAGS = rng.integers(2, size=COUNT).astype(bool)
ZERO, ONE = rng.integers(2**64, size=(2, COUNT), dtype=np.uint64)


async def send_all(secret, wire, peer):
    it = await TransferSender.begin(secret, wire, peer)
    words, bits = await it.draw_words(COUNT, 5), await it.draw_bits(COUNT)
    it = TransferSender.restored(it.captured(), wire, peer)
    sums, flags = await it.correlate_words(DELTA), await it.correlate_bits(FLAGS)
    single = await it.correlate_words(DELTA[:, 0])
    await it.send_words(ZERO, ONE)
    await it.send_words(DELTA, ~DELTA)
    empty = await it.draw_words(0)
    assert (await it.correlate_words([])).shape == (0,)
    return words, bits, sums, flags, single, empty


async def receive_all(secret, wire, peer):
    it = await TransferReceiver.begin(secret, wire, peer)
    words, bits = await it.draw_words(CHOICES, 5), await it.draw_bits(CHOICES)
    it = TransferReceiver.restored(it.captured(), wire, peer)
    sums, flags = await it.correlate_words(CHOICES, 3), await it.correlate_bits(CHOICES)
    single = await it.correlate_words(CHOICES)
    chosen, several = await it.receive_words(CHOICES), await it.receive_words(CHOICES, 3)
    empty = await it.draw_words([])
    assert (await it.correlate_words([])).shape == (0,)
    return words, bits, sums, flags, single, chosen, several, empty


@pytest.mark.parametrize("block", [8, 200, 1 << 17])
def test_the_receiver_has_the_values_of_its_choices(monkeypatch, block):
    monkeypatch.setattr(transfers, "_BLOCK", block)
    sent, got, _ = converse(send_all, receive_all)
    (zero, one), bits, sums, flags, single, empty = sent
    words, bit, total, both, one_word, chosen, several, none = got
    np.testing.assert_array_equal(words, np.where(CHOICES[:, None], one, zero))
    np.testing.assert_array_equal(bit, np.where(CHOICES, bits[1], bits[0]))
    np.testing.assert_array_equal(total, sums + np.where(CHOICES[:, None], DELTA, np.uint64(0)))
    np.testing.assert_array_equal(one_word, single + np.where(CHOICES, DELTA[:, 0], np.uint64(0)))
    np.testing.assert_array_equal(both, flags ^ (CHOICES & FLAGS))
    np.testing.assert_array_equal(chosen, np.where(CHOICES, ONE, ZERO))
    np.testing.assert_array_equal(several, np.where(CHOICES[:, None], ~DELTA, DELTA))
    assert empty[0].shape == none.shape == (0, 1)
    assert len(np.unique(np.concatenate([zero, one]))) == 2 * zero.size  # no pad is used twice


def test_what_was_not_chosen_is_uniform_and_independent_of_what_was():
    async def send(secret, wire, peer):
        return await (await TransferSender.begin(secret, wire, peer)).draw_words(20_000)

    async def receive(secret, wire, peer):
        return await (await TransferReceiver.begin(secret, wire, peer)).draw_words(np.zeros(20_000))

    (zero, one), got, _ = converse(send, receive, seed=1)
    np.testing.assert_array_equal(got, zero)
    for values in (zero, one, one ^ zero, one[1:] ^ one[:-1]):
        counts = np.bincount(values.view(np.uint8).ravel(), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-3


def test_products_are_shared_by_correlated_words():
    """Gilboa: sender's a, receiver's b, 64 transfers each; the difference of both sides is a b modulo 2^64."""
    a, b = rng.integers(2**64, size=(2, 50), dtype=np.uint64)
    places = np.arange(64, dtype=np.uint64)

    async def send(secret, wire, peer):
        return await (await TransferSender.begin(secret, wire, peer)).correlate_words(
            (a[:, None] << places).reshape(-1)
        )

    async def receive(secret, wire, peer):
        it = await TransferReceiver.begin(secret, wire, peer)
        return await it.correlate_words(((b[:, None] >> places) & np.uint64(1)).reshape(-1))

    mine, theirs, _ = converse(send, receive)
    np.testing.assert_array_equal((theirs - mine).reshape(50, 64).sum(axis=1, dtype=np.uint64), a * b)


@pytest.mark.parametrize("pads", [1, 64 * 4 * 5, transfers._PADS])
def test_products_of_words_are_exact(monkeypatch, pads):
    """Gilboa's products of rows of words, in one frame and in many; 0, 1, -1 and the top bit too."""
    monkeypatch.setattr(transfers, "_PADS", pads)
    factors = rng.integers(2**64, size=(11, 4), dtype=np.uint64)
    others = np.concatenate(
        [np.array([0, 1, 2**63, 2**64 - 1], np.uint64), rng.integers(2**64, size=7, dtype=np.uint64)]
    )
    factors[5] = [0, 1, 2**63, 2**64 - 1]

    async def send(secret, wire, peer):
        it = await TransferSender.begin(secret, wire, peer)
        return await it.multiply_words(factors), await it.multiply_words(factors[:0])

    async def receive(secret, wire, peer):
        it = await TransferReceiver.begin(secret, wire, peer)
        return await it.multiply_words(others, 4), await it.multiply_words(others[:0], 4)

    (mine, nothing), (theirs, _), ends = converse(send, receive)
    np.testing.assert_array_equal(mine + theirs, factors * others[:, None])
    assert nothing.shape == (0, 4)
    assert (
        sum(M.decode(raw).nbytes for raw in ends[0].sent[1:]) == 11 * 4 * 288
    )  # the first frame has the points of the base transfers


def test_frame_sizes_follow_from_counts_alone():
    sizes = []
    for choices in (np.zeros(COUNT), np.ones(COUNT), CHOICES):

        async def receive(secret, wire, peer, choices=choices):
            return await (await TransferReceiver.begin(secret, wire, peer)).correlate_words(choices, 3)

        async def send(secret, wire, peer):
            return await (await TransferSender.begin(secret, wire, peer)).correlate_words(DELTA)

        *_, ends = converse(send, receive)
        sizes.append([[len(raw) for raw in end.sent] for end in ends])
    assert sizes[0] == sizes[1] == sizes[2]


@pytest.mark.parametrize(
    ("frame", "method"),
    [
        (np.zeros((3, 2), np.uint64), "correlate_words"),
        (np.zeros((2, 1), np.int64), "correlate_words"),
        (np.zeros(2, np.uint8), "correlate_bits"),
        (np.zeros((2, 3, 1), np.uint64), "receive_words"),
        ("text", "receive_words"),
        (np.zeros(2 * 288 + 1, np.uint8), "multiply_words"),
    ],
)
def test_a_lying_sender_is_named(frame, method):
    product = method == "multiply_words"

    async def lie(secret, wire, peer):
        it = await TransferSender.begin(secret, wire, peer)
        await it.draw_words(128 if product else 2)
        await wire.send(peer, frame)

    async def receive(secret, wire, peer):
        it = await TransferReceiver.begin(secret, wire, peer)
        return await getattr(it, method)([True, False], *([1] if product else []))

    with pytest.raises(LetterError, match="party 'first' sent"):
        converse(lie, receive)


def test_a_receiver_with_more_choices_than_agreed_is_named():
    async def send(secret, wire, peer):
        await (await TransferSender.begin(secret, wire, peer)).draw_words(2)

    async def receive(secret, wire, peer):
        await (await TransferReceiver.begin(secret, wire, peer)).draw_words([True] * 3)

    with pytest.raises(LetterError, match=r"party 'second' sent uint8\(3, 16\) in place of 2 corrections"):
        converse(send, receive)


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match="256 columns"):
        TransferReceiver(CodeReceiver(np.zeros((256, 2, 32), np.uint8)), None, "peer")

    async def send(secret, wire, peer):
        await (await TransferSender.begin(secret, wire, peer)).send_words([1, 2], [1])

    async def receive(secret, wire, peer):
        await TransferReceiver.begin(secret, wire, peer)

    with pytest.raises(ConfigError, match=r"\(2,\) and \(1,\)"):
        converse(send, receive)


@task
async def offer(island, peers):
    it = await TransferSender.begin(island.secret, peers.channel("transfers"), "taker")
    return await it.draw_bits(40)


@task
async def take(island, peers):
    it = await TransferReceiver.begin(island.secret, peers.channel("transfers"), "giver")
    return await it.draw_bits(island.data)


def test_transfers_run_as_roles_of_a_session():
    async def program(fed):
        return await fed.session({"giver": ("shop", offer), "taker": ("bank", take)})

    people = Community({"shop": None, "bank": CHOICES[:40]})
    got = atoll.simulate(program, people, engine="inline", progress=False)
    zero, one = got["giver"]
    np.testing.assert_array_equal(got["taker"], np.where(CHOICES[:40], one, zero))


def test_a_hash_depends_on_the_number_of_its_row():
    """Equal rows, which a repeated seed would make, have unrelated pads; the number goes on through a session."""
    rows = np.zeros((4, 16), np.uint8)
    words = transfers._hash_words(rows, 5, 3)
    assert len(np.unique(words)) == words.size
    np.testing.assert_array_equal(transfers._hash_words(rows[:2], 7, 3), words[2:])
