"""Circuits on bits with codes: equal to the plain ones among 2 to 16 parties, and whoever cheats, replays or dies leaves no result."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import atoll
from atoll.core.errors import AtollError, ConfigError, DataError, LetterError, SessionError, TaskError
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task
from atoll.secure.garbled import add_wires, choose_wires, equal_wires, join_wires, less_wires, sort_rows
from atoll.secure.shares import AuthenticatedBits, Binary, BitSharing, PartyDealer, authenticated_bits, deal
from tests.support.trios import Recorder

PROGRAMS, KEPT = {}, {}


@task
async def play(island, peers, me, parties, what):
    recorder = Recorder(peers)
    KEPT[me] = recorder
    dealer = PartyDealer(recorder, "dealer", first=me == parties[0])
    async with AuthenticatedBits(island, recorder, parties, me, dealer) as gates:
        return await PROGRAMS[what](gates, island.data)


def computed(fn, data, *, seed=1):
    """What each party gets of ``await fn(gates, values)``; a list of their values says how many there are."""
    parties = [f"p{i}" for i in range(len(data))]
    PROGRAMS[fn.__name__] = fn
    KEPT.clear()

    async def talk(fed):
        roles = {me: (me, play.with_args(me=me, parties=parties, what=fn.__name__)) for me in parties}
        roles["dealer"] = ("dealer", deal.with_args(parties=parties, sharing=BitSharing(Binary(), len(parties)).spec()))
        got = await fed.session(roles)
        return [got[me] for me in parties]

    people = Community(dict(zip(parties, data, strict=True)) | {"dealer": None})
    return atoll.simulate(talk, people, engine="inline", progress=False, secret_seed=seed)


async def share_all(gates, values, bits, rows):
    return [await gates.share(values if owner == gates.me else None, owner=owner, bits=bits, rows=rows) for owner in gates.parties]  # fmt: skip


@settings(max_examples=4)
@given(st.integers(2, 4), st.integers(1, 64), st.integers(1, 20), st.integers(0, 2**32))
def test_circuits_are_those_of_numpy_for_any_number_of_parties(n, bits, rows, seed):
    rng = np.random.default_rng(seed)
    data = [rng.integers(0, (1 << bits) - 1, rows, dtype=np.uint64, endpoint=True) for _ in range(n)]
    data[-1][::2] = data[0][::2]

    async def several(gates, values):
        wires = await share_all(gates, values, bits, rows)
        x, y = wires[0], wires[-1]
        less = await less_wires(x, y)
        made = [await add_wires(x, y), await choose_wires(less, x, y), less.reshape(1, -1), (await equal_wires(x, y)).reshape(1, -1)]  # fmt: skip
        made.append(x.keep([1] * rows) ^ ~y)
        private = await gates.reveal(x, to="p1")
        return [await gates.reveal(one) for one in made], private

    x, y = data[0], data[-1]
    mask = np.uint64((1 << bits) - 1)
    right = [(x + y) & mask, np.minimum(x, y), x < y, x == y, x ^ ~y & mask]
    for place, (got, private) in enumerate(computed(several, data, seed=seed)):
        for one, other in zip(got, right, strict=True):
            np.testing.assert_array_equal(one, other)
        assert (private is None) == (place != 1)
        if place == 1:
            np.testing.assert_array_equal(private, x)


def test_sixteen_parties_sort_and_more_than_sixteen_are_refused():
    async def sort_all(gates, values):
        return await gates.reveal(await sort_rows(join_wires(await share_all(gates, values, 4, 1), axis=1), 4))

    data = [np.array([(7 * i + 3) % 16]) for i in range(16)]
    for got in computed(sort_all, data):
        np.testing.assert_array_equal(got, np.sort(np.concatenate(data)))
    with pytest.raises(ConfigError, match="name 2 to 16 roles"):
        AuthenticatedBits(None, None, [f"p{i}" for i in range(17)], "p0", None)


def test_layers_in_pieces_and_checks_on_the_way_change_nothing(monkeypatch):
    for name, most in (("MOST_ORDER", 7), ("LEAST_ORDER", 2), ("PENDING", 30)):
        monkeypatch.setattr(authenticated_bits, name, most)
    waiting, honest = [], AuthenticatedBits._open

    async def noted(self, words):
        shown = await honest(self, words)
        waiting.append(sum(map(len, self._pending)))
        return shown

    monkeypatch.setattr(AuthenticatedBits, "_open", noted)

    async def compare_all(gates, values):
        return await gates.reveal((await less_wires(*await share_all(gates, values, 9, 20))).reshape(1, -1))

    x, y = np.arange(20), np.arange(20)[::-1]
    assert computed(compare_all, [x, y])[0].tolist() == (x < y).tolist()
    assert 0 < max(waiting) < 30, "opened bits that wait for their check take a bounded memory"


# ------------------------------------------------------------------ attacks


def saying(gates, change):
    """Let a party's messages go through ``change(role, message)``."""
    send = gates.peers.send

    async def changed(role, message):
        await send(role, change(role, message))

    gates.peers.send = changed
    return send


def attack(kind):
    """A program of three parties, of which p1 departs from the protocol; what others opened before they stopped is kept."""

    async def attacked(gates, values):
        x, y, _ = await share_all(gates, values, 8, 50)
        if gates.me == "p1":
            if kind == "part":
                x.data[0, 3, 7] ^= np.uint64(1)
            if kind == "code":
                x.data[0, 3, 7] ^= np.uint64(1 << 40)
            if kind == "opening":
                saying(gates, lambda role, told: told ^ np.uint8(4) if isinstance(told, np.ndarray) else told)
            if kind == "opening to one":
                saying(gates, lambda role, told: told ^ np.uint8(4) if isinstance(told, np.ndarray) and role == "p0" else told)  # fmt: skip
            if kind == "replay":
                sent = {}
                saying(gates, lambda role, told: sent.setdefault((role, told.shape), told) if isinstance(told, np.ndarray) else told)  # fmt: skip
        found = await less_wires(x, y)
        OPENED.append(gates.me)
        return await gates.reveal(found.reshape(1, -1))

    attacked.__name__ = f"attacked by {kind}"
    return attacked


OPENED = []
VALUES = [np.arange(50), np.arange(50)[::-1], np.zeros(50, dtype=int)]


@pytest.mark.parametrize("kind", ["part", "code", "opening", "opening to one", "replay"])
def test_an_altered_part_and_a_replayed_message_end_it_before_the_result_is_opened(kind, monkeypatch):
    opened = []
    honest = AuthenticatedBits._open

    async def noted(self, words):
        opened.append(words.shape)
        return await honest(self, words)

    monkeypatch.setattr(AuthenticatedBits, "_open", noted)
    with pytest.raises((LetterError, ExceptionGroup), match=r"an opened bit does not have its code: a party altered its part") as raised:  # fmt: skip
        computed(attack(kind), VALUES)
    del raised
    assert (1, 50) not in opened, "only masked bits were opened, and never the result"


def input_attack(kind):
    async def inputs(gates, values):
        if gates.me == "p0":
            if kind == "changed":
                saying(gates, lambda role, told: [told[0], told[1] ^ np.uint8(1)] if isinstance(told, list) else told)
            if kind == "two":
                first = []

                def differ(role, told):
                    if isinstance(told, bytes) and role == "p2" and not first:
                        first.append(role)
                        return b"\1" * 32
                    return told

                saying(gates, differ)
            if kind == "formless":
                saying(gates, lambda role, told: [b"x", told[1]] if isinstance(told, list) else told)
            if kind == "short":
                saying(gates, lambda role, told: [told[0], told[1][:3]] if isinstance(told, list) else told)
        return await gates.reveal((await share_all(gates, values, 8, 50))[0])

    inputs.__name__ = f"inputs {kind}"
    return inputs


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("changed", "p0 showed another input than it had committed to"),
        ("two", "different commitments to its input"),
        ("formless", "party 'p0' sent something else in place of its committed input"),
        ("short", r"party 'p0' sent uint8\(3,\) in place of bits, uint8\(50,\)"),
    ],
)
def test_an_input_that_changes_after_its_commitment_is_refused_by_name(kind, words):
    with pytest.raises(LetterError, match=words):
        computed(input_attack(kind), VALUES)


@pytest.mark.parametrize("who", ["p0", "p2"])
def test_a_party_that_dies_leaves_no_result(who):
    results = []

    async def dying(gates, values):
        x, y, _ = await share_all(gates, values, 8, 50)
        found = await less_wires(x, y)
        if gates.me == who:
            raise DataError("this party is lost")
        results.append(await gates.reveal(found.reshape(1, -1)))

    with pytest.raises((DataError, SessionError, TaskError), match="lost"):
        computed(dying, VALUES)
    assert results == []


def test_bad_input_is_refused_in_words():
    async def short(gates, values):
        return await gates.share(values, owner="p0", bits=8, rows=4)

    async def stranger(gates, values):
        return await gates.share(values, owner="p9", bits=8, rows=4)

    async def shown_to_nobody(gates, values):
        return await gates.reveal(gates.zeros((3, 4)), to="p9")

    for program, words in ((short, "2 values.*share 4, as all parties expect"), (stranger, "owner='p9'"), (shown_to_nobody, "to='p9'")):  # fmt: skip
        with pytest.raises(AtollError, match=words):
            computed(program, [np.arange(2), None])


# ------------------------------------------------------------------ views


def test_what_each_party_sees_has_sizes_that_depend_on_sizes_alone_and_looks_like_noise():
    async def compare(gates, values):
        x, y = await share_all(gates, values, 64, 600)
        return await gates.reveal((await less_wires(x, y)).reshape(1, -1), to="p0")

    def nbytes(message):
        if isinstance(message, dict):
            return sum(nbytes(one) for rows in message.get("rows", []) for parts in rows for one in parts)
        return sum(map(len, message)) if isinstance(message, list) else getattr(message, "nbytes", None) or len(message)

    views = []
    for seed, values in ((1, np.zeros(600, dtype=np.uint64)), (2, np.arange(600, dtype=np.uint64) << np.uint64(50))):
        computed(compare, [values, values[::-1]], seed=seed)
        views.append({me: [(role, nbytes(told)) for role, told in peers.seen] for me, peers in KEPT.items()})
        for peers in KEPT.values():
            seen = np.concatenate([told for _, told in peers.seen if isinstance(told, np.ndarray) and told.nbytes > 100])  # fmt: skip
            assert len(seen) > 15_000
            assert stats.chisquare(np.bincount(seen, minlength=256)).pvalue > 1e-5
    assert views[0] == views[1]


def test_the_check_is_linear_and_depends_on_every_word():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 2**64, (2, 1001), dtype=np.uint64)
    coin = bytes(range(32))
    hashed = [authenticated_bits._hash_words(coin, one) for one in (x, y, x ^ y, np.zeros(1001, dtype=np.uint64))]
    np.testing.assert_array_equal(hashed[0] ^ hashed[1], hashed[2])
    assert not hashed[3].any()
    for place in (0, 500, 1000):
        other = x.copy()
        other[place] ^= np.uint64(1 << 63)
        assert (authenticated_bits._hash_words(coin, other) != hashed[0]).any()
    assert (authenticated_bits._hash_words(coin[::-1], x) != hashed[0]).all()


def test_an_order_that_this_dealer_does_not_serve_is_refused():
    async def orders(gates, values):
        return await gates.dealer.get("mask", (4,))

    with pytest.raises(LetterError, match="an order of p0 that the dealer cannot serve"):
        computed(orders, [None, None])


def test_bits_that_no_group_lent_are_dealt_to_nobody():
    async def borrow_nothing(gates, values):
        await gates.dealer.get("borrow", (4,), bitwise=True, by=0)

    with pytest.raises(AtollError, match="an order that the dealer cannot serve: borrow"):
        computed(borrow_nothing, [None, None])
