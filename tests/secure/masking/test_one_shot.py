"""One recovery for all who drop out: the sum to the bit, from any threshold of shares, and nothing from fewer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.core.algebra.aggregate import Mean, Sum, Vote
from atoll.core.errors import CompositionError, ConfigError, LetterError, MessageError, PolicyError, QuorumError
from atoll.core.federation.federation import run_program
from atoll.core.requests.cohort import Community
from atoll.core.requests.island import Secret
from atoll.core.requests.task import task
from atoll.core.time.clock import run
from atoll.core.world import World
from atoll.engines import Batched, Inline
from atoll.reducers import OneShot
from atoll.secure import FixedPoint, WordLayout
from atoll.secure.masking.one_shot import Code, code_words, sum_shares
from atoll.secure.masking.party_steps import label_of
from atoll.testing import Timetable, check_reducer

NAMES = [f"client-{i}" for i in range(6)]
CODEC = FixedPoint(value_bits=12, weight_bits=6, max_weight=64.0, value_range=4.0)


def reply_of(row):
    return {
        "w": Mean({"a": row[:3].astype(np.float32), "b": row[3]}, examples=float(abs(row[0]) * 8 + 1)),
        "v": Vote(row[:2]),
        "n": Sum(np.int64(row[1] * 100), role="side"),
    }


@task
def numbers(island, message):
    return reply_of(island.data + message)


def expected(data, who):
    rows = [{name: a.total() for name, a in reply_of(data[i] + 0.25).items()} for i in who]
    layout = WordLayout.of(rows[0], CODEC, len(data))
    lanes = [layout.encode(row) for row in rows]
    sums = {
        k: np.array([sum(int(one[k][j]) for one in lanes) % 2 ** int(k) for j in range(len(lanes[0][k]))], np.uint64)
        for k in lanes[0]
    }
    return {name: total.result() for name, total in layout.decode(sums, len(who)).totals.items()}


def summed(reducer, data, lost=None, engine=None, **terms):
    world = World(Community(dict(zip(NAMES, data, strict=False))), engine or Inline(), cost=Timetable(lost=lost or {}))
    return run(run_program(world, lambda fed: fed.sum(fed.parties, numbers, 0.25, reducer=reducer, **terms)))[0]


@given(
    lost=st.dictionaries(
        st.sampled_from(["code_words", "sum_shares"]), st.sets(st.integers(0, 5), max_size=4), max_size=2
    ),
    threshold=st.integers(2, 6),
    engine=st.sampled_from([Inline, Batched]),
    seed=st.integers(0, 3),
)
@settings(deadline=None, max_examples=settings.default.max_examples // 3)
def test_the_sum_is_the_fixed_point_sum_to_the_bit_or_none_at_all(lost, threshold, engine, seed):
    data = np.random.default_rng(seed).normal(size=(6, 4)) * 2
    first = lost.get("code_words", set())
    kept = sorted(set(range(6)) - first)
    alive = set(kept) - lost.get("sum_shares", set())
    paths = {f":{step}/": [NAMES[i] for i in who] for step, who in lost.items()}
    reducer = OneShot(threshold=threshold, private=1, codec=CODEC)
    if len(kept) < threshold or len(alive) < threshold:
        with pytest.raises(QuorumError, match=r"fewer than"):
            summed(reducer, data, paths, engine())
        return
    found = summed(reducer, data, paths, engine())
    assert found.senders.names == [NAMES[i] for i in kept]
    want = expected(data, kept)
    np.testing.assert_array_equal(found["w"]["a"], want["w"]["a"])
    np.testing.assert_array_equal(found["v"], want["v"])
    assert found["n"] == want["n"]


@given(data=st.data(), seed=st.integers(0, 2**32), bits=st.sampled_from([8, 13, 27, 64]))
def test_any_threshold_of_summed_shares_gives_the_sum_and_a_wrong_one_is_seen(data, seed, bits):
    n = data.draw(st.integers(2, 12))
    private = data.draw(st.integers(1, n - 1))
    code = Code(n, data.draw(st.integers(private + 1, n)), private)
    length, rng = data.draw(st.integers(1, 40)), np.random.default_rng(seed)
    vectors = rng.integers(0, 2**bits - 1, (3, length), dtype=np.uint64, endpoint=True)
    noise = rng.integers(0, 2**bits - 1, (3, private * code.share_length(length)), dtype=np.uint64, endpoint=True)
    shares = sum(code.shares(v, r, bits) for v, r in zip(vectors, noise, strict=True))
    some = data.draw(st.sets(st.integers(0, n - 1), min_size=code.threshold, max_size=n))
    made, wrong = code.open_shares({i: shares[i] for i in some}, length, bits)
    np.testing.assert_array_equal(made, vectors.sum(0) & np.uint64(2**bits - 1))
    assert not wrong
    if len(some) > code.threshold:
        last = max(some)
        _, wrong = code.open_shares({i: shares[i] + np.uint64(i == last) for i in some}, length, bits)
        assert wrong == [last]


@pytest.mark.parametrize("value", [0, 200])
def test_private_shares_are_uniform_whatever_the_vector(value):
    """Two shares of a code that two parties must not open: the pairs of their bytes are uniform, whatever was coded."""
    code, rows = Code(5, 4, 2), []
    secret = Secret(value)
    for _ in range(200):
        noise = secret.uint64((code.private * code.share_length(60),)) & np.uint64(0xFF)
        shares = code.shares(np.full(60, value, dtype=np.uint64), noise, 8)
        rows.append(shares[[1, 4]].reshape(2, -1))
    pairs = np.concatenate(rows, axis=1)
    counts = np.bincount(
        ((pairs[0] >> np.uint64(4)) * np.uint64(16) + (pairs[1] >> np.uint64(4))).astype(int), minlength=256
    )
    mean = counts.mean()
    assert ((counts - mean) ** 2 / mean).sum() < 380  # chi-square with 255 degrees: 1e-6


@pytest.mark.slow
def test_it_keeps_the_laws_of_reducers():
    check_reducer(OneShot(threshold=3, private=1), proved=[sum_shares])


def test_a_masked_training_is_the_plain_one():
    islands = atoll.data.dirichlet(atoll.data.digits(), parties=6, alpha=0.5, seed=0)

    def trained(**more):
        job = atoll.Training(model=atoll.models.linear(64, 10), selection=atoll.Uniform(4), rounds=2, **more)
        return atoll.simulate(job, islands, engine="batched", seed=1, progress=False)

    plain, hidden = trained(), trained(reducer=OneShot())
    assert np.abs(np.asarray(hidden.params["weight"]) - plain.params["weight"]).max() < 1e-6


class Lying(OneShot):
    """A server that does what a test says in place of the second superstep."""

    async def reduce(self, reduction):
        agreed, code = self.agreement(reduction)
        message = {"agreed": agreed.message(), "private": code.private}
        sent = await reduction.exchange(reduction.parties, code_words, message, wraps=True)
        return await LIES[-1](reduction, agreed, sent)


LIES = []


def ask(reduction, who, places, sent, names):
    label = label_of(places, [])
    mail = sent.mail.only_from(set(names))
    return reduction.exchange(who, sum_shares, {"kept": places}, mail=mail, at=label)


async def two_sets(reduction, agreed, sent):
    await ask(reduction, sent.senders, list(range(6)), sent, sent.senders.names)
    return await ask(reduction, sent.senders, list(range(5)), sent, sent.senders.names[:5])


async def a_few(reduction, agreed, sent):
    return await ask(reduction, sent.senders, [0, 1], sent, sent.senders.names[:2])


async def letters_left_out(reduction, agreed, sent):
    return await ask(reduction, sent.senders, list(range(6)), sent, sent.senders.names[:5])


@pytest.mark.parametrize(
    ("lie", "error", "words"),
    [
        (two_sets, PolicyError, "bound itself to something else in 'set of "),
        (a_few, PolicyError, "a sum of 2 parties, fewer than 4|not in the cohort|lost 0"),
        (letters_left_out, PolicyError, "letters of 5 parties for a sum of 6"),
    ],
)
def test_a_lying_server_gets_no_second_sum(lie, error, words):
    LIES.append(lie)
    with pytest.raises(error, match=words):
        summed(Lying(threshold=4, private=1), np.ones((6, 4)))


def test_a_wrong_sum_of_shares_ends_the_sum_and_is_named(monkeypatch):
    from atoll.secure.masking import one_shot

    honest = one_shot._open_masks

    def opened(agreed, code, shares, length, bits):
        return honest(
            agreed, code, {i: s + (np.asarray(i == 5).astype(s.dtype)) for i, s in shares.items()}, length, bits
        )

    monkeypatch.setattr(one_shot, "_open_masks", opened)
    with pytest.raises(LetterError, match=r"do not fit together; client-5 differ"):
        summed(OneShot(threshold=4, private=1), np.ones((6, 4)))


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ConfigError, match=r"private=0"):
        OneShot(private=0)
    with pytest.raises(CompositionError, match=r"threshold=2, but 3 parties may collude.*4 or more"):
        OneShot(threshold=2, private=3).sizes(6)
    with pytest.raises(QuorumError, match="6 parties, fewer than 7"):
        OneShot(threshold=7).sizes(6)
    assert OneShot().sizes(10) == (7, 2)


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("code_words", lambda value: None),
        ("code_words", lambda value: {"form": value["form"]}),
        ("code_words", lambda value: {**value, "words": {lane: words[:-1] for lane, words in value["words"].items()}}),
        ("code_words", lambda value: {**value, "words": {lane: words * 1.5 for lane, words in value["words"].items()}}),
        ("sum_shares", lambda value: "shares"),
        ("sum_shares", lambda value: {lane: np.zeros(3) for lane in value}),
    ],
)
def test_a_reply_that_is_none_of_the_protocol_is_worked_around(step, said):
    data = np.random.default_rng(0).normal(size=(6, 4))

    class Odd(Inline):
        async def run(self, request, positions):
            replies = await super().run(request, positions)
            odd = [r.party == 1 and f":{step}/" in request.id for r in replies]
            return [replace(r, value=said(r.value)) if o else r for r, o in zip(replies, odd, strict=True)]

    found = summed(OneShot(threshold=4), data, engine=Odd())
    who = [i for i in range(6) if step == "sum_shares" or i != 1]
    assert list(found.senders.names) == [NAMES[i] for i in who]
    assert int(found["n"]) == int(expected(data, who)["n"])


def test_a_letter_that_is_none_names_its_sender():
    from atoll.secure.masking.one_shot import _form_of

    for letter in (
        None,
        {},
        {"context": b"", "lanes": 3},
        {"context": 1, "lanes": {}},
        {"context": b"", "lanes": {"64": "a"}},
    ):
        with pytest.raises(MessageError, match="client-3 sealed a letter without shares"):
            _form_of("client-3", letter)
