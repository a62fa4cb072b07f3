"""Split learning: a thousand steps of one conversation in ten sittings; the client has the features, the host the labels.

It is the same arithmetic as training the two layers in one place, so it gives the same weights. Where processes speak, two hundred steps.
"""

from __future__ import annotations

import numpy as np
import pytest

from atoll.core.algebra.rng import Rng
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task
from atoll.testing import Timetable

BATCH, LR, SITTINGS = 8, 0.1, 10


def rows(step, n):
    return Rng.of(7).child("rows", step).generator().integers(n, size=BATCH)


def start(shape, name):
    return Rng.of(7).child(name).generator().normal(size=shape) * 0.5


def bottom(w, x):
    return np.tanh(x @ w)


def top(v, h, y):
    """The loss's slope in ``v`` and in ``h``, for squared error."""
    slope = (h @ v - y) / len(y)
    return h.T @ slope, slope @ v.T


@task
async def client(island, peers, steps):
    x = island.data
    w = island.state if island.state is not None else start((x.shape[1], 4), "bottom")
    for step in range(*steps):
        mine = x[rows(step, len(x))]
        h = bottom(w, mine)
        await peers.send("host", h)
        w = w - LR * mine.T @ ((1 - h**2) * await peers.recv("host"))
    island.state = w
    return w


@task
async def host(island, peers, steps):
    y = island.data
    v = island.state if island.state is not None else start((4, 1), "top")
    for step in range(*steps):
        h = await peers.recv("client")
        for_v, for_h = top(v, h, y[rows(step, len(y))])
        await peers.send("client", for_h)
        v = v - LR * for_v
    island.state = v
    return v


def split_learning(steps):
    async def program(fed):
        state = await fed.restore({"sitting": 0})
        while state["sitting"] < SITTINGS:
            span = [(state["sitting"] + i) * steps // SITTINGS for i in range(2)]
            places = {"client": ("client-0", client), "host": ("client-1", host)}
            roles = {role: (party, part.with_args(steps=span)) for role, (party, part) in places.items()}
            state = {"sitting": state["sitting"] + 1, "weights": await fed.session(roles)}
            await fed.checkpoint(state)
        return state["weights"]

    return program


@pytest.mark.every(2)
@pytest.mark.quick("inline", "batched")
def test_it_equals_training_in_one_place(survive, engine):
    steps = 1000 if engine in ("inline", "batched") else 200
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3))
    y = np.tanh(x @ rng.normal(size=(3, 1)))
    cost = Timetable(default=0.0, latency=0.25)
    life = survive(split_learning(steps), Community([x, y]), cost=cost, points=6)
    w, v = start((3, 4), "bottom"), start((4, 1), "top")
    for step in range(steps):
        mine = rows(step, len(x))
        h = bottom(w, x[mine])
        for_v, for_h = top(v, h, y[mine])
        w, v = w - LR * x[mine].T @ ((1 - h**2) * for_h), v - LR * for_v
    np.testing.assert_array_equal(life.result["client"], w)
    np.testing.assert_array_equal(life.result["host"], v)
    assert float(((bottom(w, x) @ v - y) ** 2).mean()) < 0.02 < float(y.var())
    assert life.clock == 0.5 * steps  # every step is one message there and one back
