"""Private set intersection by commutative blinding (Meadows 1986) on Curve25519: h(x)^(ab) = h(x)^(ba), over three supersteps.

Each party learns which of its own identifiers the other has too, and how many the other has. Both follow the protocol.
"""

from __future__ import annotations

import hashlib
from itertools import count

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

import atoll
from atoll.core.errors import QuorumError
from atoll.core.requests.cohort import Community
from atoll.core.requests.request import Mailboxes
from atoll.testing import Timetable
from tests.support.scales import assert_true_bytes
from tests.support.worlds import on_every_engine

FIELD = 2**255 - 19


def point(name):
    """The first hash of a name that is the u-coordinate of a point of the curve, not of its twist."""
    hashes = (int.from_bytes(hashlib.blake2b(f"{name} {k}".encode()).digest()) % FIELD for k in count())
    on_curve = (u for u in hashes if pow(u**3 + 486662 * u**2 + u, (FIELD - 1) // 2, FIELD) == 1)
    return next(on_curve).to_bytes(32, "little")


def raised(points, secret):
    """Every point to the same secret power; powers are multiples of 8, so that all lie in the subgroup of prime order."""
    key = X25519PrivateKey.from_private_bytes(secret)
    return [key.exchange(X25519PublicKey.from_public_bytes(p)) for p in points]


@atoll.task
def blind(island, other):
    """My identifiers in a secret order: a known order would tell where among mine the common ones lie."""
    secret, ids = island.secret.bytes(32), island.data["ids"]
    order = island.secret.generator().permutation(len(ids))
    island.state = {"secret": secret, "order": order}
    island.post(other[island.name], raised([point(ids[i]) for i in order], secret))


@atoll.task
def blind_again(island, other):
    """Theirs, raised to my secret too: kept without their order, and sent back in it."""
    (theirs,) = island.inbox.values()
    twice = raised(theirs, island.state["secret"])
    island.state = {**island.state, "theirs": sorted(twice)}
    island.post(other[island.name], twice)


def common_rows(island, mine):
    """Where the common identifiers stand among mine, sorted by identifier, from what the other sent back."""
    theirs = set(island.state["theirs"])
    rows = [int(i) for i, twice in zip(island.state["order"], mine, strict=True) if twice in theirs]
    return sorted(rows, key=lambda i: island.data["ids"][i])


@atoll.task
def match(island, _):
    (mine,) = island.inbox.values()
    return [island.data["ids"][i] for i in common_rows(island, mine)]


async def intersect(fed, at):
    """The letters from which each of two parties finds the common rows."""
    other = dict(zip(fed.parties.names, fed.parties.names[::-1], strict=True))
    first = await fed.exchange(fed.parties, blind, other, quorum=2, at=at)
    return (await fed.exchange(fed.parties, blind_again, other, mail=first.mail, quorum=2, at=at)).mail


async def intersection(fed):
    """One that loses a party begins again, with fresh secrets."""
    state = await fed.restore({"tries": 0, "mail": None, "found": None})
    while state["found"] is None:
        try:
            if state["mail"] is None:
                state = {**state, "mail": (await intersect(fed, state["tries"])).sealed()}
            else:
                found = await fed.exchange(
                    fed.parties, match, mail=Mailboxes(state["mail"]), quorum=2, at=state["tries"]
                )
                state = {**state, "found": found.by_name()}
        except QuorumError:
            state = {"tries": state["tries"] + 1, "mail": None, "found": None}
        await fed.checkpoint(state)
    return {"tries": state["tries"], **state["found"]}


LOST = {"blind/@0": ["left"], "blind_again/@1": ["right"], "match/@2": ["left", "right"]}


@pytest.mark.every(2)
@pytest.mark.parametrize(("engine", "lost"), on_every_engine((LOST,), ({},)), indirect=["engine"])
def test_both_learn_what_they_share_and_no_more(survive, lost):
    rng = np.random.default_rng(0)
    left, right = (rng.choice(40, size=15, replace=False).tolist() for _ in range(2))
    people, cost = Community({"left": {"ids": left}, "right": {"ids": right}}), Timetable(lost=lost)
    life = survive(intersection, people, cost=cost)
    common = sorted({*left} & {*right})
    assert 0 < len(common) < 15
    assert life.result == {"tries": len(lost), "left": common, "right": common}
    assert_true_bytes(life, intersection, people, cost)
