"""Two owners over garbled circuits: equal to the plain circuit, messages that depend on sizes alone and look like noise, and damage that is named."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import atoll
from atoll.core.errors import ConfigError, DataError, LetterError, SessionError
from atoll.core.requests.cohort import Community
from atoll.core.requests.island import Secret
from atoll.core.requests.task import task
from atoll.secure.garbled import (
    GateCounter,
    add_wires,
    begin_garbling,
    choose_wires,
    equal_wires,
    garbling,
    garbling_contract,
    less_wires,
    merge_rows,
    subtract_wires,
)
from tests.support.plain_gates import compute
from tests.support.transfer_toys import talk

OWNERS = ("bank", "shop")


def garbled(program, mine, theirs, *, change=None, seed=0, other=None):
    """What both owners get of ``program(gates, values)``, and all that they sent; the bank garbles."""

    def side(me, values, how):
        async def play(line):
            async with await begin_garbling(Secret(2 * seed + (me == "shop")), line, me, garbler="bank", evaluator="shop") as gates:  # fmt: skip
                return await how(gates, values)

        return play

    return talk(side("bank", mine, program), side("shop", theirs, other or program), OWNERS, change)


async def share_both(gates, values, bits, rows):
    """The numbers of both owners, of whom each gives its own."""
    me = getattr(gates, "me", None)
    return [await gates.share(values if me in (owner, None) else None, owner=owner, bits=bits, rows=rows) for owner in OWNERS]  # fmt: skip


def several(bits, rows):
    async def program(gates, values=None):
        x, y = await share_both(gates, values, bits, rows)
        less = await less_wires(x, y)
        made = [await add_wires(x, y), await choose_wires(~less, x, y), await subtract_wires(x, y), less.reshape(1, -1)]
        both = [await gates.reveal(one) for one in made]
        same = (await equal_wires(x, y)).reshape(1, -1)
        return [*both, await gates.reveal(same, to="bank"), await gates.reveal(same, to="shop")]

    return program


@settings(max_examples=6)
@given(st.integers(1, 64), st.integers(1, 30), st.integers(0, 2**32))
def test_both_see_the_plain_result(bits, rows, seed):
    rng = np.random.default_rng(seed)
    x, y = (rng.integers(0, (1 << bits) - 1, rows, dtype=np.uint64, endpoint=True) for _ in range(2))
    y[::2] = x[::2]
    one, two, _ = garbled(several(bits, rows), x, y, seed=seed)
    mask = np.uint64((1 << bits) - 1)
    for got in (one, two):
        for found, right in zip(got[:4], [(x + y) & mask, np.maximum(x, y), (x - y) & mask, x < y], strict=True):
            np.testing.assert_array_equal(found, right)
    assert one[5] is None
    assert two[4] is None
    np.testing.assert_array_equal(one[4], x == y)
    np.testing.assert_array_equal(two[5], x == y)


@settings(max_examples=6)
@given(st.data())
def test_any_circuit_is_computed(data):
    steps = data.draw(st.lists(st.tuples(st.sampled_from("&^~k"), st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=25))  # fmt: skip
    x, y = (np.array(data.draw(st.lists(st.integers(0, 15), min_size=3, max_size=3))) for _ in OWNERS)

    async def program(gates, values):
        if hasattr(gates, "me"):
            rows = await share_both(gates, values, 4, 3)
        else:
            rows = [await gates.share(one, bits=4) for one in (x, y)]
        wires = [one[i] for one in rows for i in range(4)]
        for kind, i, j in steps:
            a, b = wires[i % len(wires)], wires[j % len(wires)]
            wires.append(await gates.conjoin(a, b) if kind == "&" else a ^ b if kind == "^" else ~a if kind == "~" else a.keep([1, 0, 1]))  # fmt: skip
        return [await gates.reveal(one.reshape(1, -1)) for one in wires]

    one, two, _ = garbled(program, x, y)
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(one, compute(lambda gates: program(gates, None))[0])


def test_a_table_opens_for_each_pair_of_labels_and_no_more():
    rng = np.random.default_rng(0)
    delta, a, b, out = (rng.integers(0, 2**64, (2, 100), dtype=np.uint64) for _ in range(4))
    delta = delta[:, 0] | np.array([1, 0], dtype=np.uint64)
    tables, got, hashing = np.empty((2, 2, 100), dtype=np.uint64), np.empty((2, 100), dtype=np.uint64), garbling.LabelHash(b"k" * 16)  # fmt: skip
    garbling.garble_gates(hashing, delta, a, b, 77, out, tables)
    for x in range(2):
        for y in range(2):
            mine = a ^ (delta[:, None] * np.uint64(x)), b ^ (delta[:, None] * np.uint64(y))
            garbling.evaluate_gates(hashing, *mine, 77, tables, got)
            np.testing.assert_array_equal(got, out ^ (delta[:, None] * np.uint64(x & y)))
    garbling.evaluate_gates(hashing, a, b, 78, tables, got)  # another number is another hash
    assert not (got == out).any()


def test_the_contract_says_every_byte_and_only_sizes_matter(monkeypatch):
    monkeypatch.setattr(garbling, "_FRAME", 100)
    monkeypatch.setattr(garbling, "_AHEAD", 4)
    monkeypatch.setattr(garbling, "_CREDIT", 2)
    program, rng, sizes = several(9, 40), np.random.default_rng(1), []
    contract = garbling_contract(asyncio.run(GateCounter.measure(program, OWNERS)))
    for values in (np.zeros(40, dtype=int), rng.integers(0, 512, 40)):
        heard = garbled(program, values, values[::-1])[2]
        conversation = [(me, OWNERS[me == "bank"], channel, np.asarray(message)) for me, channel, message in heard]
        assert contract.compare_recorded(conversation) == []
        sizes.append(sorted((me, channel, message.nbytes) for me, _, channel, message in conversation))
        ahead, most = 0, 0
        for _, _, channel, _ in conversation:
            ahead += 2 * (channel == "garbled tables") - 2 * 2 * (channel == "garbled credits")
            most = max(most, ahead)
        assert most <= 2 * (4 + 2)  # a word of progress is sent before it is read
    assert sizes[0] == sizes[1]
    assert {(one.who, one.kind) for one in contract.learns} == {(who, kind) for who in OWNERS for kind in ("sizes", "sum")}  # fmt: skip
    assert contract.find_refused("bank", ["sizes"]).who == "shop"


def test_what_each_sees_looks_like_noise():
    async def program(gates, values):
        x, y = await share_both(gates, values, 32, 1500)
        return await gates.reveal((await less_wires(x, y)).reshape(1, -1), to="shop")

    for seed in range(2):
        values = np.zeros(1500, dtype=int) if seed else np.arange(1500)
        heard = garbled(program, values, values, seed=seed)[2]
        for channel, sender in (("garbled tables", "bank"), ("garbled transfers", "shop")):
            seen = np.concatenate([np.asarray(told).view(np.uint8).ravel() for me, name, told in heard if (me, name) == (sender, channel)])  # fmt: skip
            assert len(seen) > 500_000
            assert stats.chisquare(np.bincount(seen, minlength=256)).pvalue > 1e-5, channel
            bits = np.unpackbits(seen).reshape(-1, 128).mean(axis=0)  # no place of a label leans
            assert np.abs(bits - 0.5).max() < 5 / np.sqrt(4 * len(seen) / 16)


def change_one(channel, sender, place):
    """Alter a byte of what a sender says of 600 gates or results: their sizes tell which message it is."""
    size = {"bank": 2 * 8 * 600, "shop": 32 + 75}[sender]

    def change(me, message):
        dtype, nbytes = getattr(message, "dtype", None), getattr(message, "nbytes", 0)
        if me != sender or not ((dtype == np.uint64 and message.ndim == 1) if channel == "tables" else nbytes == size):
            return message
        made = message.copy()
        made.view(np.uint8).reshape(-1)[place] ^= 4
        return made

    return change


@pytest.mark.parametrize(
    ("channel", "sender", "place", "words"),
    [
        ("tables", "bank", 0, "labels are none of their wires.*of party 'bank' were altered"),
        ("tables", "bank", 5000, "labels are none of their wires"),
        ("results", "bank", 8 * 600, "1 of 600 labels are none of their wires"),
        ("results", "shop", 33, "party 'shop' has labels that are none of these wires"),
        ("results", "shop", 3, "party 'shop' has labels that are none of these wires"),
    ],
)
def test_altered_tables_and_results_are_named(channel, sender, place, words):
    async def program(gates, values):
        x, y = await share_both(gates, values, 20, 30)
        total = await add_wires(x, y)
        return await gates.reveal(total, to="bank" if sender == "shop" else "shop")

    with pytest.raises(LetterError, match=words):
        garbled(program, np.arange(30), np.arange(30) % 7 + 1, change=change_one(channel, sender, place))


def test_another_program_and_other_frames_are_refused_by_name():
    async def adds(gates, values):
        x, y = await share_both(gates, values, 8, 4)
        return await gates.reveal(await add_wires(x, y))

    async def compares(gates, values):
        x, y = await share_both(gates, values, 8, 4)
        return await gates.reveal((await less_wires(x, y)).reshape(1, -1))

    with pytest.raises(LetterError, match="party 'bank' sent tables of 28 gates in place of those of 32 or more"):
        garbled(adds, np.arange(4), np.arange(4), other=compares)
    with pytest.raises(LetterError, match=r"party '(bank|shop)' sent .* in place of (words of labels|results)"):
        garbled(compares, np.arange(4), np.arange(4), other=adds)
    for told, found in (("x", "str"), (np.zeros(3), r"float64\(3,\)")):
        odd = lambda me, message, told=told: told if me == "bank" and getattr(message, "dtype", None) == np.uint64 else message  # noqa: E731  # fmt: skip
        with pytest.raises(LetterError, match=f"party 'bank' sent {found} in place of tables"):
            garbled(adds, np.arange(4), np.arange(4), change=odd)


def test_bad_input_is_refused_in_words():
    async def program(gates, values):
        return await share_both(gates, values, 8, 4)

    async def unknown(gates, values):
        return await gates.reveal(await gates.share(values, owner="bank", bits=8, rows=4), to="mall")

    async def stranger(gates, values):
        return await gates.share(values, owner="mall", bits=8, rows=4)

    with pytest.raises(DataError, match=r"3 values.*share 4, as both parties expect"):
        garbled(program, np.arange(3), np.arange(4))
    with pytest.raises(ConfigError, match="to='mall'"):
        garbled(unknown, np.arange(4), np.arange(4))
    with pytest.raises(ConfigError, match="owner='mall'"):
        garbled(stranger, np.arange(4), np.arange(4))
    with pytest.raises(ConfigError, match="name two roles"):
        asyncio.run(begin_garbling(Secret(0), None, "bank", garbler="bank", evaluator="bank"))


@task
async def merge(island, peers, me, dies=""):
    async with await begin_garbling(island.secret, peers, me, garbler="bank", evaluator="shop") as gates:
        mine = np.array(island.data)
        sides = [await gates.share(mine if owner == me else None, owner=owner, bits=16, rows=5) for owner in OWNERS]
        merged = await merge_rows(*sides, 16)
        # The garbler waits for inputs while the evaluator waits for tables of what was before.
        one = await gates.share(np.full(10, 1) if me == "shop" else None, owner="shop", bits=16, rows=10)
        merged = await add_wires(merged, one)
        if me == dies:
            raise DataError("this party is lost")
        return await gates.reveal(merged)


def merged(**args):
    async def program(fed):
        return await fed.session({me: (me, merge.with_args(me=me, **args)) for me in OWNERS})

    people = Community({"bank": [1, 5, 9, 9, 700], "shop": [0, 5, 6, 800, 900]})
    return atoll.simulate(program, people, engine="inline", progress=False)


def test_two_owners_merge_in_a_session_and_a_lost_one_leaves_no_result():
    got = merged()
    assert got["bank"].tolist() == got["shop"].tolist() == [1, 2, 6, 6, 7, 10, 10, 701, 801, 901]
    for dies in OWNERS:
        with pytest.raises((SessionError, DataError, ExceptionGroup), match="lost"):
            merged(dies=dies)
