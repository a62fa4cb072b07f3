"""Secure aggregation with double masks (Bonawitz et al. 2017): exact sums of the survivors, with a dropout at each step."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from masks import mask
from shamir import join, split
from worlds import on_every_engine

from atoll.core.aggregate import Sum
from atoll.core.cohort import Community
from atoll.core.reducer import Reducer
from atoll.core.results import Combined
from atoll.core.task import task
from atoll.testing import Timetable


@task
def share(island, names, threshold):
    """My own mask's seed and one for every later party; the others get shares of all, and each its own pair seed."""
    seeds = {n: island.secret.integer(2**64) for n in names if n >= island.name}
    shares = {n: split(seed, names, threshold, island.secret) for n, seed in seeds.items()}
    for name in names:
        seed = seeds.get(name, 0) if name != island.name else 0
        island.post(name, {"seed": seed.to_bytes(8), "shares": {n: rows[name] for n, rows in shares.items()}})
    island.state = {"seeds": {n: seed.to_bytes(8) for n, seed in seeds.items()}}


@task
async def masked(island, message):
    theirs = {n: m["seed"] for n, m in island.inbox.items() if n < island.name}
    total = (await island.totals(message))["x"].value.astype(np.int64).view(np.uint64)
    for name in island.inbox:
        words = mask({**island.state["seeds"], **theirs}[name], total.size)
        total = total + words if name >= island.name else total - words
    island.state = {**island.state, "shares": {n: m["shares"] for n, m in island.inbox.items()}}
    return total


@task
def reveal(island, pairs):
    """Shares of the survivors' own seeds, and of the seeds between a survivor and a lost party: never both for one."""
    return [island.state["shares"][a][b] for a, b in pairs]


@dataclasses.dataclass(frozen=True)
class DoubleMasked(Reducer):
    threshold: int = 3
    secure = True

    async def reduce(self, fed, parties, task, message, uplink, terms, at):
        names, quorum = parties.names, self.threshold
        first = await fed.exchange(parties, share.with_args(threshold=quorum), names, quorum=quorum)
        mail = first.mail.only_from(set(first.senders.names))
        half = masked.wrapping(task)
        second = await fed.exchange(first.senders, half, message, mail=mail, uplink=uplink, quorum=quorum)
        kept, lost = second.senders.names, first.senders.without(second.senders).names
        pairs = [(n, n) for n in kept] + [(min(a, b), max(a, b)) for a in kept for b in lost]
        third = (await fed.ask_all(second.senders, reveal, pairs, quorum=quorum)).by_name()
        total = sum(second.values, np.uint64(0))
        for i, (a, b) in enumerate(pairs):
            words = mask(join({n: row[i] for n, row in list(third.items())[:quorum]}, names), total.size)
            total = total + words if b in kept and a != b else total - words
        silent = parties.without(second.senders)
        return Combined({"x": total.view(np.int64)}, len(kept), {"x": 1.0}, second.senders, silent)


@task
def numbers(island, message):
    return {"x": Sum(island.data * message)}


async def secure_sums(fed):
    state = await fed.restore({"sums": []})
    while len(state["sums"]) < 2:
        got = await fed.sum(fed.parties, numbers, 1 + len(state["sums"]), reducer=DoubleMasked())
        state = {"sums": [*state["sums"], {"x": got["x"], "who": got.senders.names}]}
        await fed.checkpoint(state)
    return state


@pytest.mark.parametrize(
    ("engine", "lost", "out"),
    on_every_engine(
        ({":masked/": [4], ":reveal/": [0, 2]}, [4]), ({}, []), ({":share/": [1]}, [1]), ({":masked/": [1]}, [1])
    ),
    indirect=["engine"],
)
def test_the_sum_of_the_survivors_is_exact(survive, lost, out):
    data = [np.array([10**k, -k, 3]) for k in range(6)]
    lost = {step: [f"client-{i}" for i in who] for step, who in lost.items()}
    life = survive(secure_sums, Community(data), cost=Timetable(lost=lost))
    for k, got in enumerate(life.result["sums"], 1):
        assert got["who"] == [f"client-{i}" for i in range(6) if i not in out]
        np.testing.assert_array_equal(got["x"], k * sum(x for i, x in enumerate(data) if i not in out))
