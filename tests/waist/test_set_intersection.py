"""Private set intersection by commutative blinding (Meadows 1986): h(x)^(ab) = h(x)^(ba), over three supersteps."""

from __future__ import annotations

import hashlib

import numpy as np

from atoll.core.cohort import Community
from atoll.core.request import Mail
from atoll.core.task import task

PRIME = 2**255 - 19  # a field large enough for a miniature; squares make a group of one parity


def point(item):
    return pow(int.from_bytes(hashlib.blake2b(str(item).encode()).digest()) % PRIME, 2, PRIME)


def other(island, names):
    return next(name for name in names if name != island.name)


@task
def blind(island, names):
    secret = island.secret.integer(PRIME - 2) + 1
    island.state = {"secret": secret.to_bytes(32)}
    island.post(other(island, names), [pow(point(x), secret, PRIME).to_bytes(32) for x in sorted(island.data)])


@task
def blind_again(island, names):
    """Theirs, raised to my secret too: kept sorted, and sent back in their order."""
    secret = int.from_bytes(island.state["secret"])
    (theirs,) = island.inbox.values()
    twice = [pow(int.from_bytes(x), secret, PRIME).to_bytes(32) for x in theirs]
    island.state = {**island.state, "theirs": sorted(twice)}
    island.post(other(island, names), twice)


@task
def match(island, names):
    (mine,) = island.inbox.values()
    theirs = set(island.state["theirs"])
    return [x for x, twice in zip(sorted(island.data), mine, strict=True) if twice in theirs]


async def intersection(fed):
    names = fed.parties.names
    state = await fed.restore({"step": 0})
    if state["step"] == 0:
        first = await fed.exchange(fed.parties, blind, names, quorum=2)
        second = await fed.exchange(fed.parties, blind_again, names, mail=first.mail, quorum=2)
        state = {"step": 1, "mail": second.mail.sealed()}
        await fed.checkpoint(state)
    found = await fed.exchange(fed.parties, match, names, mail=Mail(state["mail"]), quorum=2)
    return found.by_name()


def test_both_learn_what_they_share_and_no_more(survive):
    rng = np.random.default_rng(0)
    left, right = (set(rng.choice(60, size=25, replace=False).tolist()) for _ in range(2))
    life = survive(intersection, Community({"left": left, "right": right}))
    assert life.result == {"left": sorted(left & right), "right": sorted(left & right)}
    assert 0 < len(left & right) < 25
