"""Two trainings at once in one program, each in a scope of its own, on top of one backbone: each gets what it gets alone."""

from __future__ import annotations

import asyncio
from copy import deepcopy

import numpy as np
import torch
from torch import nn

import atoll
from atoll.core import message as M
from atoll.core.world import World
from atoll.engines import Inline
from atoll.testing import Timetable, live


def backbone():
    """What both begin with: it has been trained elsewhere."""
    made, rng = nn.Sequential(nn.Linear(4, 6), nn.Tanh()), np.random.default_rng(3)
    for weights in made.parameters():
        weights.data = torch.tensor(rng.normal(size=weights.shape), dtype=torch.float32)
    return made


SHARED = backbone()


def on_top(outputs: int) -> nn.Module:
    made = nn.Sequential(deepcopy(SHARED), nn.Linear(6, outputs))
    nn.init.zeros_(made[1].weight)
    nn.init.zeros_(made[1].bias)
    return made


def training(outputs, algorithm):
    return atoll.Training(model=on_top(outputs), algorithm=algorithm, rounds=2, compile="never")


JOBS = {
    "small": (training(2, atoll.FedAvg(lr=0.2)), ["client-0", "client-2", "client-3"]),
    "wide": training(3, atoll.algorithms.Scaffold(lr=0.1)),
}


def islands():
    rng = np.random.default_rng(5)
    rows = [{"x": rng.normal(size=(n, 4)).astype(np.float32), "y": rng.integers(0, 2, n)} for n in (6, 7, 8, 9)]
    return atoll.data.Islands.from_datasets([atoll.data.Dataset(one, task="classification", classes=2) for one in rows])


def program_of(*scopes):
    async def program(fed):
        def start(scope):
            job, names = JOBS[scope] if isinstance(JOBS[scope], tuple) else (JOBS[scope], None)
            return fed.run(job, names, scope=scope)

        found = await asyncio.gather(*map(start, scopes))
        return {
            scope: {"params": dict(one.params), "rows": list(one.history)}
            for scope, one in zip(scopes, found, strict=True)
        }

    program.jobs = {scope: JOBS[scope] for scope in scopes}
    return program


def test_each_training_has_the_answer_that_it_has_alone(survive, engine):
    life = survive(program_of(*JOBS), islands(), cost=Timetable(default=2.0))
    for scope, found in life.result.items():
        alone = live(World(islands(), Inline(), cost=Timetable(default=2.0)), program_of(scope)).result[scope]
        assert found["params"].keys() == alone["params"].keys()
        assert all(np.allclose(found["params"][name], alone["params"][name], atol=1e-6) for name in alone["params"])
        assert M.equal(found, alone) or engine != "inline"
    assert len(life.records["main/small"]) == len(life.records["main/wide"]) == 2
