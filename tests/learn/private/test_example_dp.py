"""Differential privacy for examples: the claim is that of the client that spends most, and the ledger says the same."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.algorithms import DPSGD, FedAvg, OutputPerturbation, Scaffold
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.event import Ledger
from atoll.learn import Training
from atoll.learn.private.claim import Attendance
from atoll.mechanisms import ExampleDP
from atoll.privacy import Budget, epsilon_of, spent
from atoll.reducers import SecureAggregation
from atoll.runs.config import RunConfig, validated

IRIS = atoll.data.iris()
DATA = atoll.data.iid(IRIS, parties=3, seed=1)
SOME = {"noise": 1.5, "clip": 1.0, "delta": 1e-5}


def job(privacy: Any = None, rounds: int = 2, algorithm: Any = None, **more: Any) -> Training:
    return Training(
        model=atoll.models.linear(4, 3),
        algorithm=algorithm or FedAvg(lr=0.5, batch_size=8),
        selection=atoll.Everyone(),
        rounds=rounds,
        privacy=ExampleDP(**(privacy or SOME)),
        **more,
    )


def run(training: Training, **world: Any) -> Any:
    return atoll.simulate(training, DATA, **{"engine": "inline", "seed": 3, "progress": False, **world})


def test_the_noise_is_found_and_the_ledger_spends_the_claim(tmp_path: Any) -> None:
    training = job({"epsilon": 3.0, "delta": 1e-5, "clip": 1.0})
    text, claim = str(run(training, folder=tmp_path)), training.installed(DATA).claim
    assert claim is not None
    assert str(claim) in text
    assert claim.epsilon <= 3.0
    assert claim.epsilon == pytest.approx(3.0, rel=1e-3)
    ledger = list(Ledger(tmp_path / "checkpoints" / "ledger.jsonl"))
    assert max(spent(ledger, 1e-5, "pld").values()) == pytest.approx(claim.epsilon, rel=1e-4)
    assert (claim.unit, claim.neighbours, claim.adversary) == ("example", "add-remove", "server")
    assert "for one example (add-remove neighbours) against the server" in str(claim)
    assert "a local step, 2 rounds" in claim.how
    assert "number of examples is public" in claim.assuming[0]


def test_it_is_the_wrapper_with_the_noise_that_was_found() -> None:
    mechanism, wrapped = run(job(), secret_seed=7), DPSGD(FedAvg(lr=0.5, batch_size=8), clip=1.0, noise=1.5)
    plain = Training(model=atoll.models.linear(4, 3), algorithm=wrapped, selection=atoll.Everyone(), rounds=2)
    other = run(plain, secret_seed=7)
    for name, leaf in mechanism.params.items():
        np.testing.assert_array_equal(leaf, other.params[name])


def test_the_claim_is_for_the_client_that_spends_most() -> None:
    mechanism = ExampleDP(**SOME)
    training = job()
    sizes = (3, 9, 16, 200, 1000)
    taking = Attendance(clients=5, rounds=4, sizes=sizes, local=mechanism.locally(training))
    _, claim = mechanism.solved(taking)
    private = DPSGD(training.algorithm, clip=1.0, noise=1.5)
    each = [epsilon_of(tuple((event, 4) for event in private.events(n)), 1e-5) for n in sizes]
    assert claim.epsilon == pytest.approx(max(each), rel=1e-4)
    assert claim.epsilon >= max(each)


def test_many_sizes_are_bounded_by_few() -> None:
    work = DPSGD(FedAvg(batch_size=8), clip=1.0, noise=1.5).releases
    sizes = tuple(range(1, 400))
    bounds = work.worst(sizes)
    assert len(bounds) <= 8
    for n in sizes:
        rate, counts = work.work_of(n)
        assert any(rate <= r and all(a <= b for a, b in zip(counts, c, strict=True)) for r, c in bounds)


def test_a_release_of_two_gradients_is_in_the_claim() -> None:
    """SCAFFOLD's option 1 has a pass for the anchor gradient: one more step of every contact."""
    claim = job(algorithm=Scaffold(batch_size=8, option=1)).installed(DATA).claim
    assert sum(event.count for event in claim.events) == 1 + math.ceil(40 / 8)


def test_a_budget_ends_the_run_and_a_larger_one_is_the_promise() -> None:
    result = run(job({"epsilon": 3.0, "delta": 1e-5, "clip": 1.0}, rounds=3))
    assert len(result.metrics) == 3
    ended = run(job(rounds=60, budget=Budget(epsilon=4.0, delta=1e-5, method="pld", on_excess="stop")))
    assert 0 < len(ended.metrics) < 60


def test_a_secure_sum_goes_around_it() -> None:
    plain = run(job(), secret_seed=7)
    hidden = run(job(reducer=SecureAggregation()), secret_seed=7)
    assert set(plain.params) == set(hidden.params)
    assert np.isfinite(hidden.params["weight"]).all()
    for name, leaf in plain.params.items():
        np.testing.assert_allclose(hidden.params[name], leaf, atol=1e-3)


def test_a_file_names_it_as_any_other_part() -> None:
    settings = {"epsilon": 2.0, "delta": 1e-5, "clip": 0.5, "batch": 16, "group_wise": True}
    tree = {
        "data": {"source": "digits"},
        "model": {"name": "linear", "features": 64, "outputs": 10},
        "privacy": {"name": "ExampleDP", **settings},
    }
    config = validated(RunConfig, tree, "c.yaml")
    assert config.privacy is not None
    assert config.privacy.build("privacy") == ExampleDP(**settings)


REFUSED: dict[str, tuple[dict[str, Any], Any, str]] = {
    "no clip bound": ({"noise": 1.0, "clip": 0.0}, ConfigError, r"clip=0\.0"),
    "a user": ({"noise": 1.0, "clip": 1.0, "unit": "user"}, ConfigError, "unit='user'"),
    "replaced examples": (
        {"noise": 1.0, "clip": 1.0, "neighbours": "replace-one"},
        ConfigError,
        "neighbours='replace-one'",
    ),
    "one rate for epochs": ({"noise": 1.0, "clip": 1.0, "rate": 0.1}, ConfigError, "set steps="),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_cannot_promise_is_refused(name: str) -> None:
    settings, error, match = REFUSED[name]
    with pytest.raises(error, match=match):
        job(settings)


def test_a_second_mechanism_is_refused() -> None:
    with pytest.raises(CompositionError, match="protects the replies already"):
        job(algorithm=OutputPerturbation(base=FedAvg(), tau=1.0, sigma=1.0))


def test_a_model_without_gradients_of_single_examples_is_refused() -> None:
    models = atoll.models.quadratic.quadratics(3, 4, seed=0)
    training = Training(
        model=atoll.models.Quadratic(4), algorithm=FedAvg(batch_size=4), rounds=1, privacy=ExampleDP(**SOME)
    )
    with pytest.raises(CompositionError, match="does not give the gradients of single examples"):
        atoll.simulate(training, models, engine="inline")
