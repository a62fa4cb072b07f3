"""Two-level federated averaging: edges run federations of their own, and the result is that of the flat one."""

from __future__ import annotations

import asyncio

import numpy as np

from atoll.core.algebra.aggregate import Mean, Sum
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task
from atoll.testing import Timetable

ROUNDS = 3


@task
def train(island, w):
    """One exact step towards the client's own optimum; sums of small integers are exact, so order does not matter."""
    island.state = (island.state or 0) + 1
    return {"w": Mean((island.data["target"] - w) * 0.5, examples=float(island.data["n"])), "visits": Sum(island.state)}


async def edge_program(edge, message):
    """What an edge does when it is asked: it asks its own members, twice a visit, and survives by itself."""
    state = await edge.restore({"seen": 0})
    if state["seen"] == 0:
        sums = await edge.sum(edge.parties, train, message)
        state = {"seen": 1, "w": sums["w"], "n": sums.weight["w"], "visits": sums["visits"]}
        await edge.checkpoint(state)
    edge.record({"n": state["n"]})
    return {k: state[k] for k in ("w", "n", "visits")}


async def two_level(fed):
    state = await fed.restore({"round": 0, "w": np.zeros(3), "visits": []})
    members = {"edge-0": fed.parties[:3], "edge-1": fed.parties[3:]}
    while state["round"] < ROUNDS:
        parts = await asyncio.gather(*(fed.nest(e, edge_program, m, state["w"]) for e, m in members.items()))
        step = sum(p["w"] * p["n"] for p in parts) / sum(p["n"] for p in parts)
        visits = sum(p["visits"] for p in parts)
        state = {"round": state["round"] + 1, "w": state["w"] + step, "visits": [*state["visits"], visits]}
        if state["round"] != 2:  # a visit may be over without its parent's checkpoint
            await fed.checkpoint(state)
    return {"w": state["w"], "visits": state["visits"], "bytes": fed.bytes()}


async def flat(fed):
    w = np.zeros(3)
    for _ in range(ROUNDS):
        w = w + (await fed.sum(fed.parties, train, w))["w"]
    return w


def population():
    clients = {f"c{i}": {"target": np.arange(3.0) * 64 + i * 8, "n": 1 if i < 3 else 2} for i in range(5)}
    return Community(clients, others={"edge-0": None, "edge-1": None})


def test_two_levels_equal_one(survive, engine):
    from atoll.core.world import World
    from atoll.simulation import run_in
    from tests.support.worlds import WORLDS

    life = survive(two_level, population(), cost=Timetable({"c4": 3.0}, latency=0.5))
    one = run_in(World(population(), WORLDS[engine](2)), flat)[0]
    np.testing.assert_allclose(life.result["w"], one, rtol=1e-14)
    assert life.result["visits"] == [5, 10, 15]  # private state outlives a visit
    assert life.clock == ROUNDS * (0.5 + 3.0 + 0.5)  # edges work side by side
    assert life.links["main:edge-0:down"]["positions"].tolist() == [0, 1, 2]
    assert life.links["main:server:down"]["positions"].tolist() == [5, 6]
