"""What `simulate` returns is known to editors and type checkers: `make check` reads this file, and the tests run it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_type

import atoll
from atoll import FedAvg, Mean, Training, task
from atoll.data import digits, iid
from atoll.models import linear

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.job import Job
    from atoll.rounds.history import History
    from atoll.simulation import Result, TrainingResult


@task
def value(island: Any, message: Any) -> Any:
    return {"x": Mean(island.data)}


async def mean(fed: Federation) -> float:
    return float((await fed.sum(fed.parties, value, {}))["x"])


def test_a_training_gives_a_training_result() -> None:
    job = Training(model=linear(64, 10), algorithm=FedAvg(lr=0.1), selection=atoll.Uniform(2), rounds=1)
    result = atoll.simulate(job, iid(digits(), parties=4), engine="inline", seed=1)
    if TYPE_CHECKING:
        assert_type(result, TrainingResult)
    assert_type(result.round, int)
    if TYPE_CHECKING:
        assert_type(result.metrics, History)
    assert result.round == 1
    assert result.model is not None


def test_a_program_gives_what_it_returns() -> None:
    found = atoll.simulate(mean, {"a": 1.0, "b": 3.0}, engine="inline")
    assert_type(found, float)
    assert found == 2.0


def test_any_other_job_gives_a_result() -> None:
    from atoll.rounds.program import ProgramJob

    job: Job = ProgramJob(mean)
    result = atoll.simulate(job, {"a": 1.0, "b": 3.0}, engine="inline")
    if TYPE_CHECKING:
        assert_type(result, Result)
    assert result.outcome == 2.0
