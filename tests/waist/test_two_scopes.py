"""Two programs side by side in one: each with its own random path, private state, records and checkpoints."""

from __future__ import annotations

import asyncio

import numpy as np

from atoll.core.algebra.aggregate import Sum
from atoll.core.event import Laplace
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task
from atoll.testing import Timetable


@task
def noisy(island, message):
    island.spend(Laplace(epsilon=1.0))
    return {"token": island.secret.bytes(8)}


@task
def count(island, message):
    island.state = (island.state or 0) + message["step"]
    return {"total": Sum(np.float64(island.state)), "noise": Sum(island.rng.generator().random())}


async def one(scope, rounds, step, every):
    state = await scope.restore({"round": 0, "totals": []})
    while state["round"] < rounds:
        sums = await scope.sum(scope.parties, count, {"step": step})
        scope.record({"round": state["round"]})
        state = {"round": state["round"] + 1, "totals": [*state["totals"], [float(v) for v in sums.value.values()]]}
        if state["round"] % every == 0:
            await scope.checkpoint(state)
    await scope.ask_all(scope.parties[:1], noisy)  # after its last checkpoint
    return state["totals"]


async def both(fed):
    done = await fed.restore(None)
    if done is None:
        left, right = fed.scope("left"), fed.scope("right", fed.parties[2:])
        done = await asyncio.gather(one(left, 5, 1, 1), one(right, 4, 10, 2))
        await fed.checkpoint(done)
    await fed.sum(fed.parties, count, {"step": 100})
    fed.record({"bytes": fed.bytes()})
    return done


def test_two_scopes_do_not_touch_each_other(survive):
    life = survive(both, Community([0.0] * 4), cost=Timetable(default=2.0))
    left, right = life.result
    assert [total for total, _ in left] == [4.0 * k for k in range(1, 6)]
    assert [total for total, _ in right] == [20.0 * k for k in range(1, 5)]
    assert {noise for _, noise in left}.isdisjoint({noise for _, noise in right})
    assert life.clock == 6 * 2.0 + 2.0
    assert [len(life.records[slot]) for slot in ("main", "main/left", "main/right")] == [1, 5, 4]
    assert len(life.spent) == 2
