"""Personal models: pFedMe and Ditto at their limits, and what a client's own model scores."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.algorithms import Ditto, PFedMe, Scaffold
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.facets import facet
from atoll.core.federation.reducer import Plain
from atoll.core.world import World
from atoll.engines import ENGINES
from atoll.learn.algorithm import Stateful
from atoll.learn.metrics import Accuracy, Confusion
from atoll.learn.wrapped import Wrapped, overrides
from atoll.testing import check_algorithm, killed_and_resumed
from tests.support.drift_toys import Loop
from tests.support.learn_toys import islands

FULL = {"steps": 5, "batch_size": None}
SIZES = [4, 7, 12, 20, 3]


def own(loop, k):
    return facet(loop.algorithm, Stateful).personal(loop.state["params"], loop.clients[k])["w"]


def descent(loop, k, w, steps, lr):
    for _ in range(steps):
        w = w - lr * loop.gradient(k, w)
    return w


@pytest.mark.parametrize(
    "algorithm", [PFedMe(lr=0.02, lam=5.0, **FULL), Ditto(lr=0.1, **FULL), Ditto(lr=0.1, personal_epochs=2)]
)
def test_the_contract_holds(algorithm):
    check_algorithm(algorithm)


@given(seed=st.integers(0, 99), lam=st.sampled_from([0.0, 0.3, 5.0]))
@settings(max_examples=10, deadline=None)
def test_the_global_model_of_ditto_is_that_of_fedavg_to_the_bit(seed, lam):
    ditto = Loop(Ditto(lr=0.02, lam=lam, **FULL), seed=seed).rounds(5, cohort=2, seed=seed)
    np.testing.assert_array_equal(
        ditto.w, Loop(atoll.FedAvg(lr=0.02, **FULL), seed=seed).rounds(5, cohort=2, seed=seed).w
    )


def test_ditto_without_a_pull_is_local_training_and_with_a_strong_one_the_global_model():
    alone = Loop(Ditto(lr=0.02, lam=0.0, **FULL)).rounds(4)
    for k in range(4):
        np.testing.assert_allclose(own(alone, k), descent(alone, k, np.zeros(3), 20, 0.02), rtol=1e-12)
    for lam in (1e2, 1e4, 1e6):
        tied = Loop(Ditto(lr=0.02, lam=lam, personal_lr=1 / lam, **FULL)).rounds(3)
        sent = tied.w
        tied.round()
        for k in range(4):
            np.testing.assert_allclose(own(tied, k), sent, atol=50 / lam)


@pytest.mark.parametrize("rate", [None, 0.05])
def test_the_personal_rate_of_ditto_falls_as_the_global_one_does(rate):
    """Without a pull each personal model is local descent at ``personal_lr decay^(t-1)``, written out."""
    loop, rounds = Loop(Ditto(lr=0.02, lam=0.0, decay=0.5, personal_lr=rate, **FULL)), 4
    loop.rounds(rounds)
    for k in range(4):
        w = np.zeros(3)
        for r in range(rounds):
            w = descent(loop, k, w, 5, (rate or 0.02) * 0.5**r)
        np.testing.assert_allclose(own(loop, k), w, rtol=1e-12)


@pytest.mark.slow
def test_the_personal_models_of_ditto_solve_their_own_problem():
    loop = Loop(Ditto(lr=0.02, lam=0.7, **FULL)).rounds(1500)
    for k, (matrix, target) in enumerate(loop.data):
        best = np.linalg.solve(matrix + 0.7 * np.eye(3), target + 0.7 * loop.w)
        np.testing.assert_allclose(own(loop, k), best, rtol=1e-6)


def test_pfedme_with_a_weak_pull_trains_alone_and_leaves_the_global_model():
    loop = Loop(PFedMe(lr=0.02, lam=1e-12, k=3, **FULL)).rounds(2)
    assert np.abs(loop.w).max() < 1e-9
    for k in range(4):  # theta begins at the broadcast in every round: 5 batches, 3 inner steps each
        np.testing.assert_allclose(own(loop, k), descent(loop, k, np.zeros(3), 15, 0.02), rtol=1e-6)


def test_pfedme_with_a_strong_pull_is_fedavg():
    for lam in (1e3, 1e4, 1e5):
        pull = Loop(PFedMe(lr=1e-6, lam=lam, personal_lr=1 / (lam + 10), k=60, **FULL)).round()
        mean = Loop(atoll.FedAvg(lr=1e-6, **FULL)).round()
        assert np.linalg.norm(pull.w - mean.w) < 30 / lam * np.linalg.norm(mean.w)


def test_pfedme_by_hand():
    loop = Loop(PFedMe(lr=0.02, lam=4.0, k=2, personal_lr=0.05, mu=0.1, beta=0.5, steps=2, batch_size=None), clients=1)
    w = theta = np.zeros(3)
    for _ in range(2):
        for _ in range(2):
            theta = theta - 0.05 * (loop.gradient(0, theta) + 4.0 * (theta - w) + 0.1 * theta)
        w = w - 0.02 * 4.0 * (w - theta)
    np.testing.assert_allclose(loop.round().w, 0.5 * w, rtol=1e-12)
    np.testing.assert_allclose(own(loop, 0), theta, rtol=1e-12)


def test_a_client_that_has_not_trained_uses_the_global_model():
    loop = Loop(Ditto(lr=0.02, **FULL)).round([1])
    np.testing.assert_array_equal(own(loop, 0), loop.w)
    assert np.abs(own(loop, 1) - loop.w).max() > 0


# ---------------------------------------------------------------- measured where they lie


@dataclass(frozen=True)
class Sealed(Plain):
    """A reducer that reveals sums only."""

    secure: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class Through(Wrapped):
    """Changes nothing."""


def job(algorithm, rounds=3, **parts):
    evaluation = parts.pop("evaluation", atoll.Evaluation(clients=-1, personal=True))
    made = {"model": atoll.models.linear(4, 3), "selection": atoll.Everyone(), **parts}
    return atoll.Training(algorithm=algorithm, rounds=rounds, evaluation=evaluation, **made)


LOCAL = Ditto(lr=0.1, lam=0.0, epochs=2)


@pytest.mark.parametrize("engine", ["inline", "batched", "processes"])
@pytest.mark.parametrize("algorithm", [LOCAL, Through(base=LOCAL)], ids=["itself", "wrapped"])
def test_a_purely_local_model_scores_as_one_trained_alone(algorithm, engine):
    data = islands(SIZES)
    row = atoll.simulate(job(algorithm), data, engine=engine, seed=4).metrics[-1]
    plain = atoll.simulate(
        job(atoll.FedAvg(lr=0.1, epochs=2), evaluation=atoll.Evaluation(clients=-1)), data, engine=engine, seed=4
    )
    assert row["clients/accuracy"] == plain.metrics[-1]["clients/accuracy"]
    assert row["test/loss"] == plain.metrics[-1]["test/loss"]
    assert row["personal/loss"] < row["clients/loss"]  # each fits its own rows
    values = np.array(row["personal/accuracy/values"])
    assert row["personal/accuracy"] == pytest.approx(np.average(values, weights=SIZES), abs=1e-6)
    assert row["personal/accuracy/worst_decile"] == pytest.approx(values.min(), abs=1e-6)


def test_one_client_alone_measures_what_it_would_have_trained():
    data = islands([9])
    row = atoll.simulate(job(Ditto(lr=0.1, lam=0.0, batch_size=None)), data, engine="inline").metrics[-1]
    assert row["personal/loss"] == pytest.approx(row["clients/loss"])  # full batches: both are gradient descent


def test_metrics_of_scores_and_sums_alone_measure_personal_models_too():
    data = islands(SIZES)
    evaluation = atoll.Evaluation(clients=-1, personal=True, metrics=(Accuracy(), Confusion(3)))
    open_row = atoll.simulate(job(LOCAL, evaluation=evaluation), data, engine="inline", seed=4).metrics[-1]
    sealed = atoll.simulate(job(LOCAL, evaluation=evaluation, reducer=Sealed()), data, engine="inline", seed=4).metrics[
        -1
    ]
    for name in ("personal/accuracy", "personal/f1_macro", "clients/f1_macro", "personal/loss"):
        assert sealed[name] == pytest.approx(open_row[name])
    assert sealed["personal/accuracy"] != sealed["clients/accuracy"]
    assert sum(sealed["personal/accuracy/histogram"]) == len(SIZES)


def test_only_those_who_trained_have_a_model_of_their_own():
    data = islands(SIZES)
    one = job(Ditto(lr=0.3, lam=0.0), rounds=1, selection=atoll.Schedule([[2]]))
    row = atoll.simulate(one, data, engine="inline").metrics[-1]
    differs = np.array(row["personal/loss/values"]) != np.array(row["clients/loss/values"])
    assert differs.tolist() == [False, False, True, False, False]


def test_personal_models_survive_a_crash(tmp_path):
    data = islands(SIZES)
    training = job(Ditto(lr=0.1, lam=0.1), selection=atoll.Uniform(3))
    learner = training.learner(data)
    train = training.program(data, learner)

    async def program(fed):
        return (await train(fed)).params

    def world(folder, resume):
        tasks = {task.name: task for task in (learner.train, learner.measure)}
        return World(data, ENGINES["batched"](1), folder=folder, resume=resume, registry=tasks)

    life = killed_and_resumed(world, program, tmp_path, points=6)
    assert all("personal/accuracy" in row for rows in life.records.values() for row in rows)


def test_measuring_what_is_not_there_is_refused():
    data = islands(SIZES)
    assert not overrides(Through(base=Scaffold()), "personal")
    with pytest.raises(CompositionError, match="FedAvg keeps no personal models"):
        atoll.simulate(job(atoll.FedAvg()), data, engine="inline")
    with pytest.raises(ConfigError, match="personal=True with clients=0"):
        atoll.Evaluation(personal=True)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: PFedMe(lam=0.0), r"lam=0\.0"),
        (lambda: PFedMe(lr=0.1, lam=15.0), "at most 1 / lam"),
        (lambda: PFedMe(k=0), "k=0"),
        (lambda: PFedMe(personal_lr=-1.0), r"personal_lr=-1\.0"),
        (lambda: PFedMe(beta=0.0), r"beta=0\.0"),
        (lambda: PFedMe(mu=-0.1), r"mu=-0\.1"),
        (lambda: Ditto(lam=-1.0), r"lam=-1\.0"),
        (lambda: Ditto(lr=0.5, lam=10.0), "overshoots the global model"),
        (lambda: Ditto(personal_lr=0.0), r"personal_lr=0\.0"),
        (lambda: Ditto(personal_epochs=0), "personal_epochs=0"),
        (lambda: Ditto(personal_epochs=2, steps=5), "both take the same number"),
    ],
)
def test_bad_settings_are_refused(make, match):
    with pytest.raises(ConfigError, match=match):
        make()
