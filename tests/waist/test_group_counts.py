"""SELECT ward, count(*) ... GROUP BY ward HAVING count(*) >= K, over tables that stay at their hospitals.

Each hospital splits its counts into two additive shares, one for each of two servers. The servers learn whether a count c reaches K, and nothing
else of it: they multiply shares of c (c-1) ... (c-K+1) r, with triples of a dealer (Beaver 1991) and a random r that neither knows. The product is 0
below K, and random otherwise. Nobody opens a count below K. The two servers and the dealer follow the protocol and do not collude.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from itertools import chain

import numpy as np
import pytest

import atoll
from atoll.core.errors import QuorumError
from atoll.core.requests.cohort import Community
from atoll.testing import Timetable
from tests.support.scales import assert_true_bytes
from tests.support.worlds import on_every_engine

P, K = 2**61 - 1, 3  # a Mersenne prime; the smallest count that is published
WARDS, SERVERS, DEALER = ["cardiology", "geriatrics", "oncology", "surgery"], ("server-a", "server-b"), "dealer"
OTHER = dict(zip(SERVERS, SERVERS[::-1], strict=True))


def uniform(island, shape):
    """Secret numbers modulo P."""
    return np.array([island.secret.integer(P) for _ in range(int(np.prod(shape)))], dtype=object).reshape(shape)


def wire(numbers):
    return (numbers % P).astype(np.uint64)


def post_shares(island, numbers):
    mine = uniform(island, numbers.shape)
    for server, part in zip(SERVERS, (mine, numbers - mine), strict=True):
        island.post(server, wire(part))


@atoll.task
def share_counts(island, least):
    counts = Counter(ward for ward, age in island.data if age >= least)
    post_shares(island, np.array([counts[ward] for ward in WARDS], dtype=object))


@atoll.task
def deal(island, _):
    """K triples (a, b, ab) for each ward."""
    a, b = uniform(island, (2, K, len(WARDS)))
    post_shares(island, np.stack([a, b, a * b]))


def post_masked(island, kept, number):
    """Post the two factors of a multiplication to the other server, under the masks of its triple; the last factor is r."""
    public = number + 1 if island.name == SERVERS[0] else 0  # one server subtracts what both know
    factor = kept["r"] if number == K - 1 else kept["count"] - public
    a, b, _ = kept["triples"][:, number]
    island.state = {**{name: wire(value) for name, value in kept.items()}, "factor": wire(factor)}
    island.post(OTHER[island.name], wire(np.stack([kept["product"] - a, factor - b])))


@atoll.task
def add_up(island, _):
    letters = {name: letter.astype(object) for name, letter in island.inbox.items()}
    triples, count = letters.pop(DEALER), sum(letters.values())
    kept = {"count": count, "product": count, "r": uniform(island, count.shape), "triples": triples}
    post_masked(island, kept, 0)


@atoll.task
def multiply(island, number):
    """Beaver: xy = c + (x-a) b + (y-b) a + (x-a)(y-b), where everything but the last term is shared."""
    kept = {name: value.astype(object) for name, value in island.state.items()}
    (theirs,) = island.inbox.values()
    a, b, c = kept["triples"][:, number]
    d, e = (np.stack([kept["product"] - a, kept["factor"] - b]) + theirs.astype(object)) % P
    kept["product"] = c + d * b + e * a + (d * e if island.name == SERVERS[0] else 0)
    if number < K - 1:
        return post_masked(island, kept, number + 1)
    island.state = {name: wire(kept[name]) for name in ("count", "product")}
    return island.post(OTHER[island.name], island.state["product"])


@atoll.task
def publish(island, _):
    """My share of each count that reaches K."""
    product = wire(sum(part.astype(object) for part in (island.state["product"], *island.inbox.values())))
    return np.where(product == 0, 0, island.state["count"])


async def group_counts(fed, least, at):
    """The counts, 0 below K, and the hospitals that are in them."""
    servers, dealer = fed.parties.named(*SERVERS), fed.parties.named(DEALER)
    shared = await fed.exchange(fed.parties, share_counts, least, deadline=5.0, quorum=2, at=at)
    mail = shared.mail | (await fed.exchange(dealer, deal, at=at)).mail
    last = await fed.exchange(servers, add_up, mail=mail, quorum=2, at=at)
    for number in range(K):
        last = await fed.exchange(servers, multiply, number, mail=last.mail, quorum=2, at=(*at, number))
    shares = await fed.exchange(servers, publish, mail=last.mail, quorum=2, at=at)
    return wire(sum(share.astype(object) for share in shares)), shared.senders.names


async def queries(fed):
    """Two queries; one that loses a server or the dealer starts again, with fresh shares and triples."""
    state = await fed.restore({"found": [], "tries": 0})
    while len(state["found"]) < 2:
        least = [65, 40][len(state["found"])]
        try:
            counts, who = await group_counts(fed, least, (len(state["found"]), state["tries"]))
            state = {**state, "found": [*state["found"], {"least": least, "counts": counts, "hospitals": who}]}
        except QuorumError:
            state = {**state, "tries": state["tries"] + 1}
        await fed.checkpoint(state)
    return state


def pooled(tables, least):
    """The answer of a database that holds all rows, and the wards whose counts are too small."""
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE visits (ward, age)")
    database.executemany("INSERT INTO visits VALUES (?, ?)", chain.from_iterable(tables))
    query = "SELECT ward, count(*) FROM visits WHERE age >= ? GROUP BY ward"
    large = dict(database.execute(f"{query} HAVING count(*) >= {K}", [least]))
    return large, {*dict(database.execute(query, [least]))} - {*large}


LOST = {"share_counts/@1": ["south"], "multiply/@0/0/1": ["server-b"], "publish/@1/1": ["server-a"], "deal/@1/2": [DEALER]}  # fmt: skip


@pytest.mark.quick("inline*", "batched-lost0*")
@pytest.mark.parametrize(("engine", "lost", "tries"), on_every_engine((LOST, 3), ({}, 0)), indirect=["engine"])
def test_the_counts_are_those_of_the_pooled_tables(survive, lost, tries):
    rng = np.random.default_rng(0)
    names = ("north", "south", "east", "west")
    tables = {name: [(str(rng.choice(WARDS)), int(rng.integers(30, 90))) for _ in range(6)] for name in names}
    people = Community(tables, others=dict.fromkeys((*SERVERS, DEALER)))
    cost = Timetable({"west": 7.0}, lost=lost)  # west misses the deadline
    life = survive(queries, people, cost=cost)
    assert life.result["tries"] == tries
    for query in life.result["found"]:
        here = ["north", "east"] if lost and query["least"] == 40 else ["north", "south", "east"]
        large, small = pooled([tables[name] for name in here], query["least"])
        assert {ward: n for ward, n in zip(WARDS, query["counts"].tolist(), strict=True) if n} == large
        assert query["hospitals"] == here
        assert small
    assert_true_bytes(life, queries, people, cost)
