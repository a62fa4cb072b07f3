"""A user's own training loop."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.algorithms import FedAvg, FedSGD
from atoll.core.errors import CompositionError, DataError, TaskError
from atoll.learn import Evaluation, Training
from atoll.learn.algorithm import Algorithm
from atoll.learn.learner import LearnerSettings
from atoll.learn.local.update import batch_rows
from atoll.learn.metrics import Accuracy
from atoll.models import CustomLearner
from atoll.selection import Everyone
from tests.support.learn_toys import flat, islands

SIZES = [12, 7, 20]
LINEAR = atoll.models.linear(4, 3)


def start(rng):
    return {"weight": np.zeros((4, 3)), "bias": np.zeros(3)}


def descent(params, data, rng):
    """Three full-batch gradient steps, in place."""
    learner = LINEAR.learner(LearnerSettings(algorithm=Algorithm()), islands(SIZES))
    for _ in range(3):
        _, gradient = learner.loss_gradient(params, data.x, data.y)
        for name in params:
            params[name] -= 0.1 * gradient[name]
    return params


def shares(params, data):
    right = (data.x @ params["weight"] + params["bias"]).argmax(axis=1) == data.y
    return {"accuracy": right.mean(), "loss": 1.0 - right.mean()}


def train(model, rounds=4, **parts):
    job = Training(**{"model": model, "algorithm": FedAvg(), "selection": Everyone(), "rounds": rounds, **parts})
    return atoll.simulate(job, islands(SIZES), engine="inline")


def test_a_loop_draws_the_same_numbers_wherever_its_module_lies():
    """Names of tasks seed random numbers; the model is the one that was trained before modules moved into packages."""
    noise = CustomLearner(
        init=lambda rng: {"w": np.zeros(2)}, train=lambda params, data, rng: {"w": params["w"] + rng.normal(size=2)}
    )
    job = Training(model=noise, algorithm=FedAvg(), selection=Everyone(), rounds=2)
    found = atoll.simulate(job, islands([12, 7, 20]), engine="inline", seed=5)
    np.testing.assert_allclose(found.params["w"], [-0.7140491301435005, 0.025950304245576095], rtol=1e-12)


def test_a_loop_of_gradient_steps_is_fedavg():
    ours = train(CustomLearner(init=start, train=descent, evaluate=shares))
    theirs = train(LINEAR, algorithm=FedAvg(lr=0.1, batch_size=None, steps=3))
    np.testing.assert_allclose(flat(ours.params), flat(theirs.params), rtol=1e-12)
    assert ours.metrics.last("test/accuracy") == pytest.approx(theirs.metrics.last("test/accuracy"))
    assert ours.metrics.last("loss") <= 1.0


def test_the_stream_of_a_loop_is_the_clients_own():
    seen = []

    def draw(params, data, rng):
        seen.append(rng.normal())
        return params

    train(CustomLearner(init=start, train=draw), rounds=2)
    first = list(seen)
    assert len(set(first)) == 6
    seen.clear()
    train(CustomLearner(init=start, train=draw), rounds=2)
    assert seen == first


def test_changing_parameters_in_place_touches_nobody_else():
    kept = start(None)

    def spoil(params, data, rng):
        params["weight"][:] = 7.0
        return params

    result = train(CustomLearner(init=lambda rng: kept, train=spoil), rounds=1)
    assert not kept["weight"].any()
    np.testing.assert_allclose(result.params["weight"], 7.0)


def test_clients_measure_and_export():
    model = CustomLearner(
        init=start,
        train=descent,
        evaluate=shares,
        scores=lambda params, x: x @ params["weight"] + params["bias"],
        export=lambda params: lambda x: (x @ params["weight"] + params["bias"]).argmax(axis=1),
    )
    result = train(model, evaluation=Evaluation(clients=-1, metrics=(Accuracy(),)))
    test = islands(SIZES).test
    assert (result.model(test.x) == test.y).mean() == pytest.approx(result.metrics.last("test/accuracy"))
    assert len(result.metrics[-1]["clients/accuracy/values"]) == 3


def test_without_an_evaluation_the_loop_still_runs():
    result = train(CustomLearner(init=start, train=descent))
    assert "loss" not in result.metrics.names
    assert "test/loss" not in result.metrics.names
    assert result.model is result.params


def test_nested_parameters():
    model = CustomLearner(
        init=lambda rng: {"a": {"w": np.zeros(2)}, "b": [np.zeros(1)]},
        train=lambda params, data, rng: {"a": {"w": params["a"]["w"] + 1}, "b": [params["b"][0] + 2]},
    )
    result = train(model, rounds=3)
    assert result.params["a"]["w"].tolist() == [3.0, 3.0]
    assert result.params["b"][0].tolist() == [6.0]


def test_a_loop_that_returns_other_shapes():
    broken = CustomLearner(init=start, train=lambda params, data, rng: {**params, "bias": np.zeros(1)})
    with pytest.raises(DataError, match=r"parameter 'bias' of shape \(1,\), but it had shape \(3,\)"):
        train(broken)
    lost = CustomLearner(init=start, train=lambda params, data, rng: {"weight": params["weight"]})
    with pytest.raises(DataError, match="parameter 'bias' of shape None"):
        train(lost)


def test_a_loop_that_fails_says_where():
    def fail(params, data, rng):
        raise ZeroDivisionError("no luck")

    with pytest.raises(
        TaskError, match=r"ZeroDivisionError: no luck \(in .*test_custom:\d+ in .*fail, task atoll.learn.custom:train"
    ):
        train(CustomLearner(init=start, train=fail))


def test_algorithms_that_need_gradients_are_refused():
    with pytest.raises(CompositionError, match="FedSGD changes the local step"):
        train(CustomLearner(init=start, train=descent), algorithm=FedSGD())


def test_a_loop_may_use_the_batches_of_atoll():
    """The reference loop itself, with Atoll's own mini-batches, on one client."""
    learner = LINEAR.learner(LearnerSettings(algorithm=Algorithm()), islands(SIZES))

    def loop(params, data, rng):
        for rows in batch_rows(Algorithm(batch_size=4, epochs=2), len(data.y), int(rng.integers(1 << 62))):
            _, gradient = learner.loss_gradient(params, data.x[rows], data.y[rows])
            params = {name: params[name] - 0.1 * gradient[name] for name in params}
        return params

    assert train(CustomLearner(init=start, train=loop, evaluate=shares), rounds=10).metrics.last("test/accuracy") > 0.5
