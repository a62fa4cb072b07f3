"""Buffered asynchronous averaging (FedBuff, Nguyen et al. 2022): the server steps at every K arrivals, old updates weigh less."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.core.algebra.aggregate import Mean
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task
from atoll.testing import Timetable
from tests.support.worlds import on_every_engine

LR = 0.5


@task
def train(island, w):
    island.state = (island.state or 0) + 1
    return {"update": Mean(LR * (island.data - w), examples=1.0)}


async def step(fed, held, version, w):
    """One buffer as one update: a sum for each base version, weighed by 1/sqrt(1 + staleness)."""
    total = np.zeros_like(w)
    for base in sorted({h.version for h in held}):
        group = [h for h in held if h.version == base]
        total += (await fed.combine(group))["update"] * len(group) / np.sqrt(1 + version - base)
    return w + total / len(held)


def fedbuff(k, steps):
    async def program(fed):
        state = await fed.restore({"version": 0, "w": np.zeros(2), "idle": fed.parties.positions, "stale": []})
        held = []
        while state["version"] < steps:
            everyone, w, version = fed.world.roster.all(), state["w"], state["version"]
            idle = everyone[np.asarray(state["idle"])]
            if len(idle):
                await fed.send(idle, train, w, version=version)
            while len(held) < k:
                held += (await fed.arrivals(k - len(held))).handles()
            now, held = held[:k], held[k:]
            stale = [version - h.version for h in now]
            w = await step(fed, now, version, w)
            fed.record({"stale": stale})
            idle = np.array([h.party.position for h in now])
            state = {"version": version + 1, "w": w, "idle": idle, "stale": [*state["stale"], stale]}
            await fed.checkpoint(state)  # with `held` not empty: what nobody touched arrives again
        return {"w": state["w"], "stale": state["stale"]}

    return program


TARGETS = [np.array([float(i), -float(i)]) for i in range(6)]


@pytest.mark.every(2)
@pytest.mark.parametrize(("engine", "k"), on_every_engine((4,), (1,)), indirect=["engine"])
def test_it_goes_on_where_it_was(survive, k):
    speeds = {f"client-{i}": 1.0 + i // 2 for i in range(6)}  # ties: two of each speed
    life = survive(fedbuff(k, 9), Community(TARGETS), cost=Timetable(speeds))
    assert max(s for stale in life.result["stale"] for s in stale) > 0
    assert np.abs(life.result["w"] - np.mean(TARGETS, axis=0)).max() < 2.0


def test_a_full_buffer_of_equals_is_synchronous(survive):
    life = survive(fedbuff(6, 5), Community(TARGETS), cost=Timetable(default=3.0), points=6)
    w = np.zeros(2)
    for _ in range(5):
        w = w + np.mean([LR * (t - w) for t in TARGETS], axis=0)
    np.testing.assert_allclose(life.result["w"], w, rtol=1e-12)
    assert life.clock == 15.0
