"""Which of two numbers is larger, in 18 rounds of shared bits: only the answer is opened.

The carry of ``x + not y`` out of 18 bits is ``x > y``. Carries are ``c' = c ^ ((x ^ c) & (~y ^ c))``: one AND a round, on XOR shares, with a triple
from a dealer (Beaver 1991).
"""

from __future__ import annotations

import numpy as np

from atoll.core.event import NonPrivate
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task
from atoll.testing import Timetable

BITS = 18
OTHER = {"left": "right", "right": "left"}


def random_bits(island, *shape):
    return (island.secret.uint64(shape) & np.uint64(1)).astype(bool)


@task
async def dealer(island, peers, pairs):
    for _ in range(BITS):
        a, b, left = (random_bits(island, 3, pairs) for _ in range(3))
        a, b, c = a[0], b[0], a[0] & b[0]
        await peers.send("left", list(left))
        await peers.send("right", [a ^ left[0], b ^ left[1], c ^ left[2]])


@task
async def player(island, peers, me):
    number = np.asarray(island.data) if me == "left" else ~np.asarray(island.data)  # the carry of x + not y
    bits = (number >> np.arange(BITS)[:, None]) & 1 == 1
    kept = random_bits(island, *bits.shape)
    await peers.send(OTHER[me], bits ^ kept)
    theirs = await peers.recv(OTHER[me])
    x, y = (kept, theirs) if me == "left" else (theirs, kept)
    carry = np.zeros(bits.shape[1], dtype=bool)
    for i in range(BITS):
        a, b, c = await peers.recv("dealer")
        mine = [x[i] ^ carry ^ a, y[i] ^ carry ^ b]
        await peers.send(OTHER[me], mine)
        d, e = (m ^ t for m, t in zip(mine, await peers.recv(OTHER[me]), strict=True))
        carry = carry ^ c ^ (d & b) ^ (e & a) ^ ((d & e) if me == "left" else False)
    island.spend(NonPrivate(what="one bit of each comparison"))
    await peers.send(OTHER[me], carry)
    return carry ^ await peers.recv(OTHER[me])


async def compare(fed):
    state = await fed.restore({"larger": None})
    if state["larger"] is None:
        players = {me: (me, player.with_args(me=me)) for me in OTHER}
        opened = await fed.session({**players, "dealer": ("dealer", dealer.with_args(pairs=20))})
        assert np.array_equal(opened["left"], opened["right"])
        state = {"larger": opened["left"]}
        fed.record({"dealt": opened["dealer"]})
        await fed.checkpoint(state)
    return state["larger"]


def test_only_the_answer_is_opened(survive):
    rng = np.random.default_rng(0)
    x, y = rng.integers(2**BITS, size=(2, 20))
    y[:3] = x[:3] + np.array([0, 1, -1])
    people = Community({"left": x, "right": y, "dealer": None})
    life = survive(compare, people, cost=Timetable(latency=1.0), exact_spending=False)
    np.testing.assert_array_equal(life.result, x > y)
    assert life.clock == 1.0 + BITS + 1.0  # shares, a round a bit, the opening: longest chain of messages
    assert len(life.spent) == 2
