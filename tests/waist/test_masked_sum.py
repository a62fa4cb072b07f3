"""Secure aggregation with double masks (Bonawitz et al. 2017): exact sums of the survivors, with a dropout at each step."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.core.algebra.aggregate import Mean, Sum, Vote
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task
from atoll.testing import Timetable
from tests.support.double_masked import DoubleMasked
from tests.support.worlds import on_every_engine


@task
def numbers(island, message):
    x = island.data * message
    return {
        "x": Sum(x),
        "mean": Mean({"deep": [x / 4, {"float": np.float32(x[2])}]}, examples=float(x[2])),
        "vote": Vote(x),
        "n": Sum(np.float64(len(x)), role="metric"),
    }


async def secure_sums(fed):
    state = await fed.restore({"sums": []})
    while len(state["sums"]) < 2:
        got = await fed.sum(fed.parties, numbers, 1 + len(state["sums"]), reducer=DoubleMasked())
        state = {"sums": [*state["sums"], {"sums": got.value, "weight": got.weight, "who": got.senders.names}]}
        await fed.checkpoint(state)
    return state


@pytest.mark.every(3)
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
    here = [x for i, x in enumerate(data) if i not in out]
    for k, got in enumerate(life.result["sums"], 1):
        assert got["who"] == [f"client-{i}" for i in range(6) if i not in out]
        assert got["sums"]["x"].dtype == np.int64
        np.testing.assert_array_equal(got["sums"]["x"], k * sum(here))
        np.testing.assert_array_equal(got["sums"]["vote"], np.sign(sum(map(np.sign, here))))
        mean, single = got["sums"]["mean"]["deep"]
        np.testing.assert_allclose(mean, k * sum(here) / len(here) / 4, atol=1e-9)
        assert single["float"].dtype == np.float32
        assert single["float"] == pytest.approx(3 * k)
        assert got["sums"]["n"] == 3 * len(here)
        assert got["weight"]["mean"] == 3 * k * len(here)
