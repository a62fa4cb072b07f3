"""A sequential pass around a ring: mean and variance of everybody's numbers, one party after another (Chan et al. 1979)."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task


@task
def add_mine(island, message):
    x = island.data
    n, mean, m2 = message["n"], message["mean"], message["m2"]
    both, delta = n + len(x), float(x.mean()) - mean
    m2 += float(((x - x.mean()) ** 2).sum()) + delta**2 * n * len(x) / both
    island.state = (island.state or 0) + 1
    return {"n": both, "mean": mean + delta * len(x) / both, "m2": m2}


@task
def visits(island, message):
    return island.state


async def ring_statistics(fed):
    state = await fed.restore({"passes": []})
    while len(state["passes"]) < 3:
        half = fed.parties[: 3 + len(state["passes"])]
        total = await fed.relay(half, add_mine, {"n": 0, "mean": 0.0, "m2": 0.0})
        fed.record({"n": total["n"]})
        state = {"passes": [*state["passes"], total]}
        await fed.checkpoint(state)
    return {**state, "visits": (await fed.ask_all(fed.parties, visits)).values}


def test_a_ring_gives_the_pooled_mean_and_variance(survive):
    data = [np.random.default_rng(i).normal(i, 1, size=4 + i) for i in range(6)]
    life = survive(ring_statistics, Community(data))
    for k, total in enumerate(life.result["passes"]):
        pooled = np.concatenate(data[: 3 + k])
        assert total["n"] == len(pooled)
        assert total["mean"] == pytest.approx(pooled.mean(), rel=1e-12)
        assert total["m2"] / total["n"] == pytest.approx(pooled.var(), rel=1e-12)
    assert life.result["visits"] == [3, 3, 3, 2, 1, None]
