"""Private set intersection in one session: both directions at once, a channel each, and a step that a crash does not undo.

The blinding is that of `test_set_intersection`: h(x)^(ab) = h(x)^(ba) on Curve25519. Both learn which of their own identifiers the other has too.
"""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from atoll.core import Island, Peers
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task
from atoll.testing import Timetable
from tests.waist.test_set_intersection import point, raised

OTHER = {"left": "right", "right": "left"}


@task
async def intersect(island: Island, peers: Peers, me: str):
    ids, other = island.data, OTHER[me]
    state = await peers.restore({"secret": b"", "order": None, "theirs": None})
    if state["order"] is None:  # my identifiers in a secret order: a known one would tell where the common ones lie
        secret, order = island.secret.bytes(32), island.secret.generator().permutation(len(ids))
        blinded = peers.channel("blinded")
        await blinded.send(other, raised([point(ids[i]) for i in order], secret))
        state = {"secret": secret, "order": order, "theirs": await blinded.recv(other)}
        await peers.checkpoint(state)  # the secret stays at its place, and these points are never sent again

    async def answer():
        """Theirs, raised to my secret too: kept without their order, and sent back in it."""
        twice = raised(state["theirs"], state["secret"])
        await peers.channel(f"of {other}").send(other, twice)
        return set(twice)

    theirs, mine = await asyncio.gather(answer(), peers.channel(f"of {me}").recv(other))
    return sorted(ids[i] for i, twice in zip(state["order"], mine, strict=True) if twice in theirs)


async def intersection(fed):
    state = await fed.restore(None)
    if state is None:
        state = await fed.session({me: (me, intersect.with_args(me=me)) for me in OTHER})
        await fed.checkpoint(state)
    return state


@pytest.mark.parametrize("seconds", [{}, {"left": 3.0}])
@pytest.mark.quick("inline*", "batched-seconds1", "network over TLS-seconds1")
def test_both_learn_what_they_share_and_no_more(survive, seconds):
    rng = np.random.default_rng(0)
    left, right = (rng.choice(40, size=15, replace=False).tolist() for _ in range(2))
    people = Community({"left": left, "right": right})
    life = survive(intersection, people, cost=Timetable(seconds, latency=0.5))
    common = sorted({*left} & {*right})
    assert 0 < len(common) < 15
    assert life.result == {"left": common, "right": common}
    assert life.clock == (
        2 * (0.5 + 3.0) if seconds else 2 * 0.5
    )  # two rounds, and what the slower party takes for its two steps
    assert life.bytes["messages_relayed"] == 2 * 2
