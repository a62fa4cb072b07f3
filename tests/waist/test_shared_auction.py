"""A sealed-bid auction on shares: three bidders learn the highest bid and who made it, and nothing of the other bids.

Bids are shared among the bidders themselves, with codes: a bidder that cheats ends the auction. Comparisons use a dealer's randomness.
"""

from __future__ import annotations

import numpy as np
import pytest

from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task
from atoll.secure.shares import (
    AuthenticatedComputation,
    AuthenticatedSharing,
    Field,
    PartyDealer,
    deal,
    less,
    opened,
    select,
)
from atoll.testing import Timetable

BIDDERS = ["anna", "ben", "cleo"]
SHARING = AuthenticatedSharing(Field(), 3)


@task
async def bid(island, peers, me):
    dealer = PartyDealer(peers, "dealer", first=me == BIDDERS[0])
    async with AuthenticatedComputation(island, peers, BIDDERS, me, SHARING, dealer) as auction:
        own = np.asarray(island.data)
        bids = [await auction.share(own, owner=bidder, shape=own.shape) for bidder in BIDDERS]
        best, winner = bids[0], auction.constant(np.zeros_like(own))
        for i, other in enumerate(bids[1:], 1):
            higher = await less(best, other)
            best = await select(higher, other, best)
            winner = await select(higher, auction.constant(np.full_like(own, i)), winner)
        return {"best": await opened(best), "winner": await opened(winner)}


async def auction(fed):
    state = await fed.restore({"found": None})
    if state["found"] is None:
        roles = {me: (me, bid.with_args(me=me)) for me in BIDDERS}
        told = await fed.session(
            {**roles, "dealer": ("dealer", deal.with_args(parties=BIDDERS, sharing=SHARING.spec()))}
        )
        state = {"found": [told[me] for me in BIDDERS]}
        await fed.checkpoint(state)
    return state["found"]


@pytest.mark.quick("inline")
def test_bidders_learn_the_highest_bid_and_whose_it_is(survive):
    bids = np.random.default_rng(0).integers(0, 10**6, (3, 5))
    bids[:, 0] = [7, 7, 3]  # the first of equals wins
    people = Community(dict(zip(BIDDERS, bids, strict=True)), others={"dealer": None})
    life = survive(auction, people, cost=Timetable(latency=1.0), exact_spending=False)
    for told in life.result:
        np.testing.assert_array_equal(told["best"], bids.max(0))
        np.testing.assert_array_equal(told["winner"], bids.argmax(0))
