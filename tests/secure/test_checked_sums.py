"""Sums in which cheats are named, where they are more than in `tests/waist/test_checked_sum.py`: letters that are none, holders who are no senders, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.core.errors import AtollError, ConfigError, DataError, PolicyError, QuorumError
from atoll.core.requests.cohort import Community
from atoll.secure.checked_sums import (
    CheckedTerms,
    add_checked,
    open_letters,
    post_checked,
    receive_letters,
    reveal_shares,
    send_values,
    sum_checked,
)
from atoll.secure.shares import Field
from atoll.testing import Timetable

VALUES = [[3, -1], [10, 4], [-5, 2], [7, 7]]
TERMS = CheckedTerms(("client-0", "client-1", "client-2"), 2, 2, Field().prime, "s")


def play(program, data=VALUES, others=None, **settings):
    return atoll.simulate(program, Community(list(map(np.array, data)), others), engine="inline", progress=False, **settings)  # fmt: skip


class Altered:
    """An island whose letters are changed on their way."""

    def __init__(self, island, change):
        self._island, self._change = island, change

    def __getattr__(self, name):
        return getattr(self._island, name)

    def post(self, to, payload):
        self._island.post(to, self._change(to, payload))


def without_share(to, payload):
    return {"share": np.zeros(1, dtype=np.uint64), "salt": b"", **({"seed": b"", "masked": payload["masked"]} if "seed" in payload else {})}  # fmt: skip


@atoll.task
def send_nothing(island, message):
    """client-1 sends letters without shares to everybody, and client-3 such a letter to one holder, for which it publishes the share."""
    if island.name == "client-1":
        return post_checked(Altered(island, without_share), island.data, message)
    if island.name == "client-3":
        one = Altered(island, lambda to, letter: without_share(to, letter) if to == "holder-2" else letter)
        return post_checked(one, island.data, message)
    return send_values(island, message)


def holders_of(n):
    return dict.fromkeys(f"holder-{i}" for i in range(n))


def test_letters_that_are_no_shares_cost_their_sender_its_place_unless_it_publishes_them():
    """Holders are others than senders; four of them with threshold 2 settle one that lies."""

    async def program(fed):
        holders = fed.parties.named(*holders_of(4))
        return await sum_checked(fed, fed.parties, values=2, threshold=2, at=0, holders=holders, share=send_nothing)

    found = play(program, others=holders_of(4))
    assert (found.cheats, found.liars) == (("client-1",), ())
    assert found.senders == ("client-0", "client-2", "client-3")
    assert found.values.tolist() == [5, 8]


@atoll.task
def send_garbage(island, message):
    """client-1 replies with something else than commitments."""
    made = send_values(island, message)
    return made[:-1] if island.name == "client-1" else made


def test_a_reply_without_commitments_and_too_few_senders():
    async def program(fed):
        return await sum_checked(fed, fed.parties, values=2, threshold=2, at=0, share=send_garbage)

    assert play(program).cheats == ("client-1",)
    with pytest.raises(QuorumError, match="1 senders are left; client-1 cheated"):
        play(lambda fed: sum_checked(fed, fed.parties.named("client-0", "client-1"), values=2, threshold=2, at=0, holders=fed.parties, share=send_garbage))  # fmt: skip


@atoll.task
def mute(island, message):
    return b"" if island.name == "client-2" else receive_letters(island, message)


@atoll.task
def add_less(island, message):
    made = add_checked(island, message)
    return made[:1] if island.name == "client-3" else made


def test_replies_of_another_form_name_their_holders(monkeypatch):
    monkeypatch.setattr("atoll.secure.checked_sums.receive_letters", mute)
    monkeypatch.setattr("atoll.secure.checked_sums.add_checked", add_less)

    async def program(fed):
        return await sum_checked(fed, fed.parties, values=2, threshold=2, at=0)

    found = play(program)
    assert (found.liars, found.values.tolist()) == (("client-2", "client-3"), [15, 12])
    monkeypatch.setattr("atoll.secure.checked_sums.receive_letters", receive_letters)
    found = play(program)
    assert (found.liars, found.values.tolist()) == (("client-3",), [15, 12])


def test_sums_in_a_small_field_and_many_sums_of_one_job():
    async def program(fed):
        first = await sum_checked(fed, fed.parties, values=2, threshold=3, at="a", field=Field(101))
        return first.values.tolist(), (await sum_checked(fed, fed.parties, values=2, threshold=2, at="b")).values.tolist()  # fmt: skip

    assert play(program) == ([15, 12], [15, 12])


@pytest.mark.parametrize(("lost", "ends"), [(1, True), (2, True), (3, False)])
def test_all_holders_but_the_threshold_may_be_lost_and_one_more_ends_the_sum(lost, ends):
    """Property 4: of four holders with threshold 2, at the last step."""
    devices = Timetable(lost={"add_checked": [f"client-{i}" for i in range(lost)]})

    async def program(fed):
        return (await sum_checked(fed, fed.parties, values=2, threshold=2, at=0)).values.tolist()

    if ends:
        assert play(program, devices=devices) == [15, 12]
        return
    with pytest.raises(QuorumError, match="1 of 4 parties answered, fewer than the quorum of 2"):
        play(program, devices=devices)


def test_letters_have_one_size_whatever_they_hold():
    """Property 5: a sender of zeros posts as many bytes as any other."""

    async def program(fed):
        given = await fed.exchange(fed.parties, send_values, {"terms": TERMS.message()})
        boxes = [given.mail.box(holder) for holder in TERMS.holders]
        return [{len(box[sender].encode()) for box in boxes} for sender in ("client-3", "client-4")]

    zeros, large = play(program, data=[[1, 2], [3, 4], [5, 6], [0, 0], [2**59, -(2**59)]])
    assert zeros == large
    assert len(zeros) == 2  # one holder gets a seed, the others shares


# ------------------------------------------------------------------ a server that lies


RENAMED = CheckedTerms(tuple(f"client-{i}" for i in range(4)), 2, 2, Field().prime, "s").message()


def steps(task, message):
    """Share and receive, and then ask for something that no honest server asks for."""

    async def program(fed):
        terms = CheckedTerms(tuple(fed.parties.names), 2, 2, Field().prime, "s").message()
        given = await fed.exchange(fed.parties, send_values, {"terms": terms})
        told = {"terms": terms, "senders": fed.parties.names}
        await fed.exchange(fed.parties, receive_letters, told, mail=given.mail)
        for one in message:
            await fed.exchange(fed.parties[:1], task, {"terms": terms, "published": {}, **one})

    return program


@pytest.mark.parametrize(
    ("task", "messages", "words"),
    [
        (reveal_shares, [{"holders": {"client-0": ["client-1", "client-2"]}}], "2 published shares with threshold 2 would show the values"),
        (reveal_shares, [{"holders": {"client-0": ["client-1"]}}, {"holders": {"client-0": ["client-2"]}}], "something else in 'published shares"),
        (reveal_shares, [{"holders": {"client-0": ["nobody"]}}], "1 published shares"),
        (open_letters, [{"disputed": {"client-0": ["client-1"]}}, {"disputed": {"client-0": ["client-2"]}}], "something else in 'opened letters"),
        (add_checked, [{"left": ["client-1"]}], "a sum of 1 senders"),
        (add_checked, [{"left": ["client-1", "client-2"], "terms": {**RENAMED, "name": "s, again"}}], "client-0 has received no letters of the sum s, again"),
        (reveal_shares, [{"holders": {"client-0": ["client-1"]}, "terms": {**RENAMED, "name": "s, again"}}], "client-0 has shared nothing in the sum s, again"),
        (add_checked, [{"left": ["client-1", "client-2"]}, {"left": ["client-1", "client-2", "client-3"]}], "something else in 'senders of the sum"),
    ],
)  # fmt: skip
def test_a_server_gets_one_sum_and_few_shares(task, messages, words):
    with pytest.raises(PolicyError, match=words):
        play(steps(task, messages))


def test_bad_terms_and_numbers_are_refused():
    with pytest.raises(ConfigError, match=r"threshold=3 of 3 holders .*at least one holder more"):
        CheckedTerms(("a", "b", "c"), 3, 1, 101, "s")
    with pytest.raises(ConfigError, match="0 values"):
        CheckedTerms(("a", "b", "c"), 2, 0, 101, "s")
    for message in (None, {}, {**TERMS.message(), "prime": 100}, {**TERMS.message(), "holders": ["a"]}):
        with pytest.raises(PolicyError, match="cannot be read"):
            CheckedTerms.of(message)
    with pytest.raises(AtollError, match=r"values of shape \(2,\).*share 3 numbers"):
        play(lambda fed: sum_checked(fed, fed.parties, values=3, threshold=2, at=0))
    with pytest.raises(DataError, match="use numbers below 50 in size"):
        play(lambda fed: sum_checked(fed, fed.parties, values=2, threshold=2, at=0, field=Field(101)), data=[[60, 0]] * 4)  # fmt: skip
