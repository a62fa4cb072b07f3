"""NumPy learners leave rows without a label out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import atoll
from atoll.algorithms import FedAvg
from atoll.core.algebra import tree as T
from atoll.core.errors import AtollError
from atoll.data import Dataset
from atoll.learn import Evaluation
from atoll.learn.algorithm import Algorithm
from atoll.learn.learner import LearnerSettings
from atoll.learn.metrics import Accuracy
from atoll.selection import Everyone

DIGITS = atoll.data.digits()
THERE = np.random.default_rng(0).random(len(DIGITS)) < 0.4


def _islands(hidden: Any = None) -> Any:
    y = DIGITS.y if hidden is None else np.where(THERE, DIGITS.y, hidden)
    data = DIGITS.with_columns({"y": y, "labelled": THERE})
    return atoll.data.iid(data, parties=4, seed=0)


def _trained(islands: Any, model: Any = None, **parts: Any) -> Any:
    model = atoll.models.linear(64, 10) if model is None else model
    settings: dict[str, Any] = {"selection": Everyone(), "rounds": 3, **parts}
    return atoll.simulate(atoll.Training(model=model, **settings), islands, engine="inline")


def test_a_gradient_is_that_of_the_labelled_rows() -> None:
    learner = atoll.models.linear(64, 10, l2=0.1).learner(LearnerSettings(algorithm=Algorithm()), _islands())
    rng = np.random.default_rng(1)
    params = {"weight": rng.normal(size=(64, 10)), "bias": rng.normal(size=10)}
    shard = _islands().shard(0)
    x, y = learner._steps_of(shard)
    there = shard["labelled"]
    loss, found = learner.loss_gradient(params, x, y)
    want, gradient = learner.loss_gradient(params, shard.x[there], shard.y[there])
    assert loss == want
    for a, b in zip(T.leaves(gradient), T.leaves(found), strict=True):
        np.testing.assert_array_equal(a, b)
    turned = learner.curvature(params, x, y, params)
    np.testing.assert_array_equal(
        turned["weight"], learner.curvature(params, shard.x[there], shard.y[there], params)["weight"]
    )
    nothing, still = learner.loss_gradient(params, x[~there], y[~there])
    assert nothing == pytest.approx(0.05 * float((params["weight"] ** 2).sum()))
    np.testing.assert_allclose(still["weight"], 0.1 * params["weight"])
    assert learner.evaluate(params, shard)["n"] == there.sum()


@pytest.mark.parametrize("kind", ["linear", "sklearn"])
def test_what_a_missing_label_holds_is_never_looked_at(kind: str) -> None:
    from sklearn.linear_model import LogisticRegression

    def model() -> Any:
        return atoll.models.linear(64, 10) if kind == "linear" else LogisticRegression(max_iter=50)

    evaluation = Evaluation(clients=-1, metrics=[Accuracy()])
    algorithm = FedAvg(lr=0.3) if kind == "linear" else FedAvg()
    ours, theirs = (
        _trained(_islands(hidden), model(), algorithm=algorithm, evaluation=evaluation) for hidden in (-1, 3)
    )
    for a, b in zip(T.leaves(ours.params), T.leaves(theirs.params), strict=True):
        np.testing.assert_array_equal(a, b)
    assert ours.metrics.last("clients/accuracy") == theirs.metrics.last("clients/accuracy")
    assert ours.metrics.last("clients/accuracy") > 0.6


def test_holes_within_a_row_are_refused() -> None:
    rng = np.random.default_rng(0)
    there = rng.random((40, 2)) < 0.5
    data = Dataset({"x": rng.normal(size=(40, 3)), "y": rng.normal(size=(40, 2)), "labelled": there})
    with pytest.raises(AtollError, match="some labels of a row are missing, but Linear needs whole rows"):
        _trained(atoll.data.iid(data, parties=2, seed=0), atoll.models.linear(3, 2))


def test_a_loss_of_ones_own_needs_a_pytorch_model() -> None:
    with pytest.raises(AtollError, match=r"a PyTorch model, such as nn\.Linear, takes your own loss"):
        _trained(_islands(), loss=lambda output, target: output)
