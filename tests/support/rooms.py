"""Computations of the tests: every kind, as the roles of one session."""

from __future__ import annotations

import atoll
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task
from atoll.secure.shares import (
    AdditiveComputation,
    AdditiveSharing,
    AuthenticatedComputation,
    AuthenticatedSharing,
    Field,
    ObliviousDealer,
    PartyDealer,
    ReplicatedComputation,
    ReplicatedSharing,
    ShamirComputation,
    ShamirSharing,
    WordRing,
    deal,
)
from atoll.secure.shares.sharing import sharing_of

KINDS = {
    "additive ring": (AdditiveComputation, AdditiveSharing(WordRing(64), 2)),
    "additive ring of 32 bits": (AdditiveComputation, AdditiveSharing(WordRing(32), 3)),
    "additive ring by transfers": (AdditiveComputation, AdditiveSharing(WordRing(64), 2)),
    "additive ring of 32 bits by transfers": (AdditiveComputation, AdditiveSharing(WordRing(32), 2)),
    "additive field": (AdditiveComputation, AdditiveSharing(Field(), 3)),
    "authenticated ring": (AuthenticatedComputation, AuthenticatedSharing(WordRing(32), 3)),
    "authenticated field": (AuthenticatedComputation, AuthenticatedSharing(Field(), 2)),
    "replicated": (ReplicatedComputation, ReplicatedSharing(WordRing(64))),
    "replicated, 20 bits": (ReplicatedComputation, ReplicatedSharing(WordRing(20))),
    "Shamir": (ShamirComputation, ShamirSharing(Field(), 5, 3)),
}
PROGRAMS = {}


def program(fn):
    """Register ``async fn(it, values, n)``: what every party does; ``values`` are this party's own."""
    PROGRAMS[fn.__name__] = fn
    return fn


@task
async def play(island, peers, me, kind, sharing, parties, what):
    made, first, split = KINDS[kind][0], me == parties[0], sharing_of(sharing)
    dealer = PartyDealer(peers, "dealer", first=first) if "dealer" in peers.names else None
    if "transfers" in kind:
        dealer = await ObliviousDealer.begin(island.secret, peers, parties[first], first=first, domain=split.domain)
    async with made(island, peers, parties, me, split, dealer) as it:
        return await PROGRAMS[what](it, island.data)


def computed(what, data, kind, *, dealer=True, **settings):
    """What each party returns: a list, in the order of the parties."""
    sharing = KINDS[kind][1]
    parties = [f"p{i}" for i in range(sharing.n)]
    spec = sharing.spec()

    async def talk(fed):
        fixed = {"kind": kind, "sharing": spec, "parties": parties, "what": what}
        roles = {me: (me, play.with_args(me=me, **fixed)) for me in parties}
        if dealer and "replicated" not in kind and "transfers" not in kind:
            roles["dealer"] = ("dealer", deal.with_args(parties=parties, sharing=spec))
        got = await fed.session(roles)
        return [got[me] for me in parties]

    people = Community({me: data[i] if i < len(data) else None for i, me in enumerate(parties)} | {"dealer": None})
    return atoll.simulate(talk, people, engine="inline", progress=False, **settings)
