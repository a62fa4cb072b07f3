"""The same operators among three processes give the rows and the bytes that they give in one."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task
from atoll.secure.shares import ReplicatedComputation, ReplicatedSharing, WordRing
from atoll.secure.tables import RowAggregate, SortKey, group_rows, join_unique, open_table, share_table, sort_table

pytestmark = pytest.mark.network

PARTIES = ["p0", "p1", "p2"]


@task
async def query(island, peers, me):
    async with ReplicatedComputation(island, peers, PARTIES, me, ReplicatedSharing(WordRing(64))) as it:
        trio = await it.trio()
        layouts = {"p0": {"id": 8, "kind": 8}, "p1": {"of": 8, "pay": None}}
        kinds, pays = [
            await share_table(trio, owner, layout=layout, capacity=300, rows=island.data if me == owner else None)
            for owner, layout in layouts.items()
        ]
        joined = await join_unique(kinds, pays, [("id", "of")], ["kind"])
        sums = await group_rows(joined, ["kind"], {"pay": RowAggregate("sum", "pay"), "n": RowAggregate("count")})
        top = await sort_table(sums, [SortKey(sums.words("kind"), descending=True)], limit=5)
        return await open_table(top, ordered=True)


def test_three_processes_answer_as_one_does():
    rng = np.random.default_rng(0)
    kinds = {"id": rng.permutation(200), "kind": rng.integers(0, 9, 200)}
    pays = {"of": rng.integers(0, 256, 300), "pay": rng.integers(-(2**50), 2**50, 300)}
    people = Community({"p0": kinds, "p1": pays, "p2": None})

    async def talk(fed):
        found = await fed.session({me: (me, query.with_args(me=me)) for me in PARTIES})
        return [{name: column.tolist() for name, column in found[me].items()} for me in PARTIES], fed.bytes()

    here, there = (
        atoll.simulate(talk, people, engine=engine, progress=False, secret_seed=3, **more)
        for engine, more in (("inline", {}), ("socket", {"workers": 3}))
    )
    assert here == there
    kind_of = dict(zip(kinds["id"].tolist(), kinds["kind"].tolist(), strict=True))
    rows = [
        (kind_of[of], pay) for of, pay in zip(pays["of"].tolist(), pays["pay"].tolist(), strict=True) if of in kind_of
    ]
    top = sorted({kind for kind, _ in rows}, reverse=True)[:5]
    for found in there[0]:
        assert found["kind"] == top
        assert found["pay"] == [sum(pay for kind, pay in rows if kind == one) for one in top]
        assert found["n"] == [sum(kind == one for kind, _ in rows) for one in top]
