"""The idle model: the rounds of a real training without the training."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.algorithms import FedAvg, OutputPerturbation, Scaffold, SignSGD
from atoll.core.algebra.rng import Rng
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.requests.results import Outcomes
from atoll.learn.learner import LearnerSettings
from atoll.models import Linear
from atoll.models.idle import IdleIslands, IdleModel
from atoll.testing import check_task_many
from tests.support.learn_toys import islands

SIZES = (5, 7, 5, 0, 12)


class Working:
    """Devices that take a second for each declared mini-batch, and another for each epoch."""

    def plan(self, parties, plan):
        work = plan.work()
        n = len(parties)
        return Outcomes(work.batches + work.epochs, np.ones(n, dtype=bool), np.ones(n))

    def transfer(self, source, target, nbytes):
        del source, target, nbytes
        return 0.0


def learner(algorithm):
    return IdleModel(3).learner(LearnerSettings(algorithm=algorithm), IdleIslands(SIZES))


def test_a_block_replies_as_its_members():
    made = learner(FedAvg(batch_size=4, epochs=2))
    message = {"broadcast": {"params": made.init(Rng(0)), "lr": 0.1}, "phase": "train", "reports": {"loss": None}}
    check_task_many(made.train, IdleIslands(SIZES), message)


@pytest.mark.parametrize(
    "algorithm", [FedAvg(batch_size=4, epochs=2), SignSGD()], ids=repr
)  # with weights, and without
def test_replies_that_are_kept_are_those_of_the_message_and_the_size(algorithm, monkeypatch):
    monkeypatch.setattr("atoll.models.idle._ROWS", 4)
    monkeypatch.setattr("atoll.models.idle._MESSAGES", 2)
    kept = learner(algorithm).train
    draws = np.random.default_rng(0)
    for lr in (0.1, 0.2, 0.1, 0.3, 0.4, 0.1):
        data = IdleIslands(draws.integers(0, 9, 6))
        message = {"broadcast": {"params": {"w": np.zeros(3)}, "lr": lr}, "phase": algorithm.phases[-1]}
        check_task_many(kept, data, message)


def test_clients_that_remember_are_no_block():
    assert learner(Scaffold()).train.many is None


@pytest.mark.parametrize("algorithm", [FedAvg(batch_size=4, epochs=2), FedAvg(steps=3), Scaffold(epochs=2)])
def test_rounds_take_as_long_as_those_of_a_real_model(algorithm):
    data = islands([5, 7, 12])
    times = []
    for model in (IdleModel(), Linear(4, 3)):
        job = atoll.Training(model=model, algorithm=algorithm, rounds=3)
        times.append([row["t_end"] for row in atoll.simulate(job, data, devices=Working(), engine="inline").metrics])
    np.testing.assert_array_equal(times[0], times[1])
    assert times[0][0] > 0


@pytest.mark.network
def test_the_model_stays_zero_on_every_engine():
    job = atoll.Training(model=IdleModel(4), algorithm=FedAvg(), selection=atoll.Uniform(count=3), rounds=2)
    runs = [atoll.simulate(job, IdleIslands(SIZES), engine=e, workers=2) for e in ("inline", "batched", "processes")]
    for made in runs:
        np.testing.assert_array_equal(made.params["w"], np.zeros(4))
    assert runs[0].bytes == runs[1].bytes == runs[2].bytes


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ConfigError, match="parameters=0"):
        IdleModel(0)
    with pytest.raises(ConfigError, match="sizes="):
        IdleIslands([3, -1])
    private = OutputPerturbation(base=FedAvg(batch_size=None), tau=1.0, sigma=1.0)
    with pytest.raises(CompositionError, match="IdleLearner sees no data that it could protect"):
        learner(private)
