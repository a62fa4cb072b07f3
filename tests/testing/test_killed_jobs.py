"""A job is killed and resumed as a program is: made ready anew for every life, and judged by what a run folder keeps of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import atoll
from atoll.core.job import Job, Prepared
from atoll.core.requests.task import Task
from atoll.core.validation import Checked
from atoll.core.world import World
from atoll.engines import ENGINES
from atoll.statistics import Statistics
from atoll.testing import killed_and_resumed, live


def islands():
    return atoll.data.iid(atoll.data.digits(), parties=4, seed=0)


def worlds(engine="inline"):
    data = islands()
    return lambda folder, resume: World(data, ENGINES[engine](2), folder=folder, resume=resume)


@pytest.mark.parametrize("engine", ["inline", "processes"])
def test_a_job_whose_tasks_only_its_world_knows_survives(engine, tmp_path):
    algorithm = atoll.FedAvg(lr=0.1, batch_size=32)
    job = atoll.Training(model=atoll.models.linear(64, 10), algorithm=algorithm, selection=atoll.Everyone(), rounds=2)
    life = killed_and_resumed(worlds(engine), job, tmp_path, points=3)
    again = atoll.simulate(job, islands(), engine="inline")
    for name, value in again.params.items():
        np.testing.assert_allclose(
            life.result.params[name], value, rtol=1e-5, atol=1e-7
        )  # processes add up in another order
    assert list(life.files) == ["model.safetensors"]


@pytest.mark.slow
def test_the_outcome_is_the_one_that_people_get(tmp_path):
    life = killed_and_resumed(worlds(), Statistics(bins=3), tmp_path)
    columns = [f"x{i}" for i in range(64)]
    np.testing.assert_allclose(life.result.array("mean", columns), islands().pooled().x.astype(float).mean(axis=0))
    assert life.files.keys() == {"statistics.json"}


LIVES = []


def here(island, message):
    return {"x": atoll.Sum(np.float64(len(island.data)))}


@dataclass(frozen=True)
class Forgetful(Checked, Job):
    """Its result counts how often it was made ready, which no checkpoint knows."""

    kind: ClassVar[str] = "forgetful"

    def prepare(self, data):
        LIVES.append(1)
        return PreparedForgetful()


class PreparedForgetful(Prepared):
    tasks = (Task("forgetful/here", here),)

    async def program(self, fed):
        await fed.restore(None)
        return float((await fed.sum(fed.parties, self.tasks[0]))["x"]) + len(LIVES)

    def files(self, outcome):
        return {"count.txt": str(outcome).encode() * 1000}


def test_a_job_that_keeps_its_state_elsewhere_fails(tmp_path):
    with pytest.raises(AssertionError, match=r"a resume, files is \{'count.txt': .* characters\), not ") as failed:
        killed_and_resumed(worlds(), Forgetful(), tmp_path, points=1)
    assert len(str(failed.value)) < 5000
    assert live(worlds()(None, False), Forgetful()).result > 1437
