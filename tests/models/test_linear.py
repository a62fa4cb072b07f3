"""The linear model: gradients against finite differences, evaluation, what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.core.algebra.rng import Rng
from atoll.core.errors import ConfigError, DataError
from atoll.data import Dataset, Islands
from atoll.learn.algorithm import Algorithm
from atoll.learn.learner import LearnerSettings
from tests.support.learn_toys import islands


def made(loss, outputs, task="classification", l2=0.0):
    y = {"cross_entropy": [0, outputs - 1], "mse": [0.5, 1.5], "hinge": [-1, 1]}[loss]
    y = np.stack(outputs * [y], 1) if loss == "mse" else y
    data = Islands.from_datasets([Dataset({"x": np.zeros((2, 3)), "y": y}, task=task)])
    return atoll.models.linear(3, outputs, loss, l2).learner(LearnerSettings(algorithm=Algorithm()), data)


CASES = {
    "cross_entropy": (4, "classification", lambda rng, n: rng.integers(0, 4, n)),
    "mse": (2, "regression", lambda rng, n: rng.normal(size=(n, 2))),
    "hinge": (1, "binary", lambda rng, n: rng.choice([-1, 1], n)),
}


@pytest.mark.parametrize("loss", CASES)
@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), l2=st.sampled_from([0.0, 0.3]))
def test_gradients_are_those_of_the_loss(loss, seed, l2):
    outputs, task, labels = CASES[loss]
    rng = np.random.default_rng(seed)
    model = made(loss, outputs, task, l2)
    x, y = rng.normal(size=(7, 3)), labels(rng, 7)
    w = {"weight": rng.normal(size=(3, outputs)), "bias": rng.normal(size=outputs)}
    _, gradient = model.loss_gradient(w, x, y)
    step = 1e-6
    for name in w:
        for place in np.ndindex(w[name].shape):
            values = []
            for sign in (1, -1):
                moved = {k: v.copy() for k, v in w.items()}
                moved[name][place] += sign * step
                values.append(model.loss_gradient(moved, x, y)[0])
            # A hinge's corner within the step would spoil the difference; with random numbers it does not occur.
            assert gradient[name][place] == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-4, abs=1e-6)


def test_large_scores_do_not_overflow():
    model = made("cross_entropy", 3)
    w = {"weight": np.full((3, 3), 1e3) * np.array([1.0, 2.0, 3.0]), "bias": np.zeros(3)}
    loss, gradient = model.loss_gradient(w, np.ones((2, 3)), np.array([0, 2]))
    assert np.isfinite(loss)
    assert np.isfinite(gradient["weight"]).all()


def test_evaluation_is_a_sum_over_rows():
    data = islands([5, 8])
    model = atoll.models.linear(4, 3).learner(LearnerSettings(algorithm=Algorithm()), data)
    w = {"weight": np.random.default_rng(0).normal(size=(4, 3)), "bias": np.zeros(3)}
    parts = [model.evaluate(w, shard) for shard in data]
    whole = model.evaluate(w, data.pooled())
    for name in whole:
        assert sum(part[name] for part in parts) == pytest.approx(whole[name])
    empty = islands([2, 1]).holdout(0.5)[1].shard(1)
    assert model.evaluate(w, empty) == {"n": 0.0, "loss_sum": 0.0}


def test_it_starts_from_zeros_and_exports_a_function():
    data = islands([5])
    model = atoll.models.linear(4, 3).learner(LearnerSettings(algorithm=Algorithm()), data)
    start = model.init(Rng.of(0))
    assert not any(leaf.any() for leaf in start.values())
    assert model.export({**start, "bias": np.array([1.0, 2.0, 3.0])})(data.shard(0).x)[0].tolist() == [1.0, 2.0, 3.0]


def test_images_are_flattened():
    x = np.random.default_rng(0).normal(size=(6, 2, 2))
    data = Islands.from_datasets([Dataset({"x": x, "y": [0, 1, 2, 0, 1, 2]})])
    job = atoll.Training(model=atoll.models.linear(4, 3), algorithm=atoll.FedAvg(lr=0.1), rounds=1)
    assert atoll.simulate(job, data, engine="inline").params["weight"].shape == (4, 3)


def test_what_does_not_fit_is_refused():
    data = islands([5])
    with pytest.raises(DataError, match=r"the model takes 9 features, but the data have 4 \(in Linear.features\)"):
        atoll.models.linear(9, 3).learner(LearnerSettings(algorithm=Algorithm()), data)
    with pytest.raises(DataError, match="give the model at least «3» outputs, or number the classes from 0"):
        atoll.models.linear(4, 2).learner(LearnerSettings(algorithm=Algorithm()), data)


@pytest.mark.parametrize(
    ("task", "model", "good", "bad", "words"),
    [
        ("binary", atoll.models.linear(2, 2), [0, 1], [-1, 1], "label «-1» does not fit a model with 2 outputs"),
        ("classification", atoll.models.linear(2, 2), [0, 1], [0, 2], "label «2» does not fit"),
        ("binary", atoll.models.linear(2, 1, "hinge"), [-1, 1], [0, 1], "label «0» with loss 'hinge'"),
    ],
)
def test_targets_that_do_not_fit_are_refused_at_the_client_that_has_them(task, model, good, bad, words):
    classes = 3 if task == "classification" else None
    parts = [Dataset({"x": np.eye(2), "y": y}, task=task, classes=classes) for y in (good, bad)]
    job = atoll.Training(model=model, rounds=1, selection=atoll.Everyone())
    with pytest.raises(DataError, match=words) as caught:
        atoll.simulate(job, Islands.from_datasets(parts), seed=0)
    assert "client-1" in str(caught.value)


def test_several_outputs_are_not_compared_with_one_target():
    data = Islands.from_datasets([Dataset({"x": np.eye(2), "y": [0.5, 1.5]}, task="regression")])
    with pytest.raises(DataError, match=r"output has shape \('batch', 3\), targets have \('batch',\)"):
        atoll.models.linear(2, 3).learner(LearnerSettings(algorithm=Algorithm()), data)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: atoll.models.linear("64", 10), "features='64'.*a whole number"),
        (lambda: atoll.models.linear(4, 0), "outputs=0"),
        (lambda: atoll.models.linear(4, 2, l2=-1.0), "l2=-1.0"),
        (lambda: atoll.models.mlp(64, 0), "outputs=0"),
        (lambda: atoll.models.mlp(64, 2, hidden=(8, 0)), r"hidden\[1\]=0"),
        (lambda: atoll.models.logistic(4, 2.5), "classes=2.5"),
        (lambda: atoll.models.cnn((1, 5, 8), 2), r"shape=\(1, 5, 8\).*at least 6 by 6"),
    ],
)
def test_models_of_impossible_sizes_are_refused_where_they_are_made(make, words):
    with pytest.raises(ConfigError, match=words):
        make()
