"""Whose number is larger, for many pairs at once, among three helpers of whom none learns a number (Araki et al. 2016).

Bits are shared in three parts whose XOR they are; helper i holds parts i and i + 1. An AND of vectors costs a message to the neighbour, masked by
pairwise streams that cancel. The carry of x + not y out of all bits is x > y: one AND a bit. Every few bits are a step.
"""

from __future__ import annotations

import numpy as np

from atoll.core import Island, Peers
from atoll.core.algebra.rng import Rng
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task
from atoll.testing import Timetable

BITS, STEP, PAIRS = 18, 6, 20
HELPERS = ("h0", "h1", "h2")


@task
async def owner(island: Island, peers: Peers, me: str):
    """Gives each helper two of three parts of its bits; the number itself stays."""
    done = await peers.restore(0)
    number = np.asarray(island.data) if me == "left" else ~np.asarray(island.data)
    if not done:
        parts = [(island.secret.uint64((BITS, PAIRS)) & np.uint64(1)).astype(bool) for _ in range(2)]
        parts.append(((number >> np.arange(BITS)[:, None]) & 1 == 1) ^ parts[0] ^ parts[1])
        for i, helper in enumerate(HELPERS):
            await peers.channel("input").send(helper, [parts[i], parts[(i + 1) % 3]])
    for step in range(done, BITS // STEP + 1):
        await peers.checkpoint(step + 1)
    answers = await peers.channel("answer").gather(HELPERS)
    return np.logical_xor.reduce([answers[helper] for helper in HELPERS])


@task
async def helper(island: Island, peers: Peers, i: int):
    before, after = HELPERS[i - 1], HELPERS[(i + 1) % 3]
    state = await peers.restore(None)
    if state is None:
        inputs = await peers.channel("input").gather(("left", "right"))
        seed = island.secret.integer(2**60)  # of the stream that it shares with the next helper
        await peers.channel("seed").send(after, seed)
        nothing = np.zeros((2, PAIRS), dtype=bool)
        state = {"bit": 0, "carry": list(nothing), "seeds": [seed, await peers.channel("seed").recv(before)], **inputs}
        await peers.checkpoint(state)

    async def both(x, y, bit):
        """Parts of x AND y, for whole vectors."""
        mine, theirs = (
            Rng.of(seed).child(bit).generator().integers(2, size=PAIRS).astype(bool) for seed in state["seeds"]
        )
        part = (x[0] & y[0]) ^ (x[0] & y[1]) ^ (x[1] & y[0]) ^ mine ^ theirs
        await peers.send(before, part)
        return [part, await peers.recv(after)]

    while state["bit"] < BITS:
        carry = state["carry"]
        for bit in range(state["bit"], state["bit"] + STEP):
            x, y = ([part[bit] for part in state[who]] for who in ("left", "right"))
            changed = await both(
                [a ^ c for a, c in zip(x, carry, strict=True)], [b ^ c for b, c in zip(y, carry, strict=True)], bit
            )
            carry = [c ^ d for c, d in zip(carry, changed, strict=True)]
        state = {**state, "bit": state["bit"] + STEP, "carry": carry}
        await peers.checkpoint(state)
    await peers.channel("answer").broadcast(state["carry"][0], ("left", "right"))


async def compare(fed):
    state = await fed.restore(None)
    if state is None:
        roles = {me: (me, owner.with_args(me=me)) for me in ("left", "right")}
        roles |= {name: (name, helper.with_args(i=i)) for i, name in enumerate(HELPERS)}
        found = await fed.session(roles)
        state = {"left": found["left"], "right": found["right"]}
        await fed.checkpoint(state)
    return state


def test_the_owners_learn_who_is_larger(survive):
    rng = np.random.default_rng(0)
    x, y = rng.integers(2**BITS, size=(2, PAIRS))
    y[:3] = x[:3] + np.array([0, 1, -1])
    people = Community({"left": x, "right": y, **dict.fromkeys(HELPERS)})
    life = survive(compare, people, cost=Timetable(latency=1.0), points=8)
    for owner_of in ("left", "right"):
        np.testing.assert_array_equal(life.result[owner_of], x > y)
    assert life.clock == 2.0 + BITS + 1.0  # inputs and seeds travel together, a round a bit, the opening
    assert life.bytes["messages_relayed"] == 2 * 3 + 3 + 3 * BITS + 3 * 2
