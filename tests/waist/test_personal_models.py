"""Personal models: each client keeps one of its own between rounds, in blocks or alone, in memory or on disk."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.core.algebra.aggregate import Mean
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import Batch, task
from tests.support.worlds import on_every_engine

FRESH = {"model": np.zeros(4), "visits": np.float64(0)}


def learn(model, x, message):
    return 0.5 * model + x * message


def personal_many(cohort, message):
    """Two clients a block."""
    for start in range(0, len(cohort), 2):
        places = np.arange(start, min(start + 2, len(cohort)))
        kept = cohort.states(places, fresh=FRESH)
        x = np.array([[cohort.shard(i)] for i in places.tolist()])
        model = learn(kept["model"], x, message)
        yield Batch(
            places, {"mean": Mean(model, examples=1 + kept["visits"])}, {"model": model, "visits": kept["visits"] + 1}
        )


@task(many=personal_many)
def personal(island, message):
    kept = island.state or FRESH
    model = learn(kept["model"], island.data, message)
    island.state = {"model": model, "visits": kept["visits"] + 1}
    return {"mean": Mean(model, examples=1 + kept["visits"])}


@task
def letter(island, message):
    """State that fits no column."""
    island.state = (island.state or "") + message
    return island.state


async def program(fed):
    state = await fed.restore({"round": 0, "means": []})
    while state["round"] < 4:
        number = state["round"]
        cohort = fed.parties[number % 2 :: 2 - number // 2]
        summed = await fed.sum(cohort, personal, np.full(4, number + 1.0))
        letters = await fed.scope("letters").ask_all(cohort, letter, "abcd"[number])
        state = {"round": number + 1, "means": [*state["means"], summed["mean"]], "letters": letters.values}
        await fed.checkpoint(state)
    return {"means": np.array(state["means"]), "letters": state["letters"]}


def by_hand(data):
    models, visits, means = np.zeros((len(data), 4)), np.zeros(len(data)), []
    for number in range(4):
        who = np.arange(len(data))[number % 2 :: 2 - number // 2]
        models[who] = learn(models[who], data[who][:, None], number + 1.0)
        means.append(np.average(models[who], axis=0, weights=1 + visits[who]))
        visits[who] += 1
    return np.array(means)


@pytest.mark.parametrize(("engine", "memory"), on_every_engine((0,), (None,)), indirect=["engine"])
def test_personal_models(survive, memory):
    data = np.arange(1.0, 8.0)
    life = survive(program, Community(list(data)), state_memory=memory, points=12)
    assert np.allclose(life.result["means"], by_hand(data), rtol=1e-12)
    assert life.result["letters"] == ["bcd", "acd"] * 3
