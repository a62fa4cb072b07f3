"""Theorems on gradient divergence (W. Wu 2021, section 2.2), as tests of the analyser."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.algorithms import FedAvg
from atoll.core.algebra import tree as T
from atoll.core.errors import ConfigError, DataError
from atoll.data import Dataset, Islands
from atoll.learn import Training
from atoll.learn.algorithm import Algorithm
from atoll.learn.learner import LearnerSettings
from atoll.programs import Divergence, GradientDivergence
from atoll.programs.surveys import local_gradients
from tests.support.learn_toys import flat, islands, rows

EQUAL, UNEQUAL = [8, 8, 8], [3, 8, 20]
ZERO = pytest.approx(0.0, abs=1e-13)


def analyse(data, seed=0, **plan) -> Divergence:
    analysis = GradientDivergence(**{"model": atoll.models.linear(4, 3), "lr": 0.1, **plan})
    return atoll.simulate(analysis.program(data), data, engine="inline", seed=seed)


def learner(data):
    return atoll.models.linear(4, 3).learner(LearnerSettings(algorithm=Algorithm()), data)


def somewhere(seed=0):
    rng = np.random.default_rng(seed)
    return {"weight": rng.normal(size=(4, 3)), "bias": rng.normal(size=3)}


def test_theorem_2_1_equal_sizes():
    """One full-batch step: the plain mean of local gradients is the centralised gradient, for any label skew."""
    assert analyse(islands(EQUAL), params=somewhere()).divergence == ZERO


def test_theorem_2_1_unequal_sizes_diverge_unless_weighted_by_examples():
    data = islands(UNEQUAL)
    assert analyse(data, params=somewhere()).divergence > 0.01
    assert analyse(data, params=somewhere(), weights="examples").divergence == ZERO


def test_theorem_2_1_identical_distributions():
    """Clients whose data have the same distribution exactly (the same rows, once, twice and five times), of unequal size."""
    base = rows(6, 1)
    parts = [Dataset({"x": np.tile(base.x, (k, 1)), "y": np.tile(base.y, k)}, classes=3) for k in (1, 2, 5)]
    assert analyse(Islands.from_datasets(parts), params=somewhere()).divergence == ZERO


def test_the_difference_is_that_of_the_weights_of_rows():
    """G - C = sum_i g_i (1 / (K n_k(i)) - 1/n)."""
    data, w = islands(UNEQUAL), somewhere(3)
    model, n = learner(data), sum(UNEQUAL)
    expected = np.zeros(15)
    for shard in data:
        for x, y in zip(shard.x, shard.y, strict=True):
            g = flat(model.loss_gradient(w, x[None], y[None])[1])
            expected += g * (1 / (len(UNEQUAL) * len(shard)) - 1 / n)
    assert analyse(data, params=w).divergence == pytest.approx(np.linalg.norm(expected))


@pytest.mark.parametrize("weights", ["equal", "examples"])
def test_the_triangle_bound_weighs_clients_as_the_average_does(weights):
    """By hand, for one full-batch step: ``sum_k w_k ||g_k - C||`` with ``w_k = 1/K`` or ``n_k / n``."""
    data, w = islands(UNEQUAL), somewhere(3)
    model, pooled = learner(data), data.pooled()
    central = flat(model.loss_gradient(w, pooled.x, pooled.y)[1])
    gaps = np.array([np.linalg.norm(flat(model.loss_gradient(w, s.x, s.y)[1]) - central) for s in data])
    shares = np.array(UNEQUAL) / sum(UNEQUAL) if weights == "examples" else np.full(3, 1 / 3)
    found = analyse(data, params=w, weights=weights)
    assert found.triangle_bound == pytest.approx(shares @ gaps, rel=1e-9)
    assert abs(np.array(UNEQUAL) / sum(UNEQUAL) @ gaps - gaps.mean()) > 0.01, "the two weights give different bounds"


def batch_means(model, w, x, y, size):
    return [
        flat(model.loss_gradient(w, x[list(b)], y[list(b)])[1]) for b in itertools.combinations(range(len(y)), size)
    ]


@pytest.mark.parametrize(("sizes", "equal"), [([3, 3], True), ([2, 4], False)], ids=str)
def test_theorem_2_2_by_all_batches(sizes, equal):
    """E[G] over every choice of local batches, and E[C] over every centralised batch of K b rows, without sampling error."""
    data, w, b = islands(sizes), somewhere(5), 2
    model, pooled = learner(data), data.pooled()
    local = [batch_means(model, w, s.x, s.y, b) for s in data]
    mean_g = np.mean([np.mean(choice, axis=0) for choice in itertools.product(*local)], axis=0)
    mean_c = np.mean(batch_means(model, w, pooled.x, pooled.y, b * len(sizes)), axis=0)
    if equal:
        np.testing.assert_allclose(mean_g, mean_c, atol=1e-14)
        return
    owner = np.repeat(np.arange(len(sizes)), sizes)
    bias = np.zeros(15)
    for i, k in enumerate(owner):
        g = flat(model.loss_gradient(w, pooled.x[i : i + 1], pooled.y[i : i + 1])[1])
        bias += g * (1 / (len(sizes) * sizes[k]) - 1 / len(owner))
    np.testing.assert_allclose(mean_g - mean_c, bias, atol=1e-14)
    assert np.linalg.norm(bias) > 0.01


@pytest.mark.slow
def test_the_analyser_draws_batches_that_are_right_on_average():
    """400 seeds of one mini-batch step: the mean of G lies within 5 standard errors of the full gradient."""
    data, w = islands([4, 4]), somewhere(7)
    draws = np.array([flat(analyse(data, seed, batch_size=2, params=w).gradient) for seed in range(400)])
    full = flat(analyse(data, params=w).gradient)
    error = draws.std(axis=0) / np.sqrt(len(draws))
    assert (np.abs(draws.mean(axis=0) - full) < 5 * error + 1e-12).all()
    assert error.max() > 1e-3


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    steps=st.integers(1, 4),
    batch=st.sampled_from([None, 1, 3]),
    weights=st.sampled_from(["equal", "examples"]),
)
def test_theorem_2_3_and_equation_2_35_on_every_path(seed, sizes, steps, batch, weights):
    found = analyse(
        islands(sizes, seed), seed, steps=steps, batch_size=batch, weights=weights, params=somewhere(seed)
    )  # fmt: skip
    slack = 1e-12 + 1e-9 * found.step_bound
    assert found.divergence <= found.triangle_bound + slack
    assert found.triangle_bound <= found.step_bound + slack
    averaged = T.sub(somewhere(seed), T.scale(found.gradient, 0.1))
    np.testing.assert_allclose(flat(found.federated), flat(averaged), rtol=1e-10, atol=1e-12)


def test_even_equal_sizes_diverge_from_the_second_step_on():
    data = islands(EQUAL)
    assert analyse(data, steps=1, params=somewhere()).divergence == ZERO
    assert analyse(data, steps=2, params=somewhere()).divergence > 1e-4


def test_divergence_grows_with_the_steps():
    found = [analyse(islands(EQUAL), steps=k, params=somewhere()).divergence for k in (2, 4, 8)]
    assert found == sorted(found)


def test_the_averaged_model_is_that_of_fedavg():
    data = islands(UNEQUAL)
    found = analyse(data, steps=3, weights="examples")
    job = Training(
        model=atoll.models.linear(4, 3),
        algorithm=FedAvg(lr=0.1, batch_size=None, steps=3),
        selection=atoll.Everyone(),
        rounds=1,
    )
    np.testing.assert_allclose(
        flat(found.federated), flat(atoll.simulate(job, data, engine="inline").params), rtol=1e-12
    )


def test_the_centralised_run_is_gradient_descent_on_the_pooled_rows():
    data = islands(UNEQUAL)
    pooled = data.pooled()
    _, w = local_gradients(
        learner(data), Algorithm(lr=0.1, batch_size=None, steps=4), somewhere(), pooled.x, pooled.y, 0
    )
    found = analyse(data, steps=4, params=somewhere())
    np.testing.assert_allclose(flat(found.central), flat(w), rtol=1e-12)


def test_one_client_does_not_diverge():
    found = analyse(islands([9]), steps=3, params=somewhere())
    assert found.divergence == ZERO
    assert found.delta == ZERO


def test_the_report_is_plain():
    found = analyse(islands(UNEQUAL), steps=3, batch_size=2)
    report = found.report()
    assert json.loads(json.dumps(report)) == report
    assert len(report["by_step"]) == 3
    assert report["clients"] == ["client-0", "client-1", "client-2"]
    assert report["sizes"] == UNEQUAL
    assert sum(report["by_step"]) == pytest.approx(report["triangle_bound"])
    assert "federated" not in report


@pytest.mark.parametrize(
    ("plan", "text"),
    [({"lr": 0.0}, "lr=0.0"), ({"steps": 0}, "steps=0"), ({"batch_size": 0}, "batch_size=0"), ({"weights": "n"}, "weights='n'")],
)  # fmt: skip
def test_bad_settings(plan, text):
    with pytest.raises(ConfigError, match=text):
        GradientDivergence(model=None, **plan)


def test_an_empty_client_is_named():
    train = islands([2, 1]).holdout(0.5)[1]
    with pytest.raises(DataError, match="client client-1 has no examples"):
        analyse(train)


def test_a_model_without_gradients_is_named():
    class Mute:
        def learner(self, settings, data):
            return self

    with pytest.raises(ConfigError, match="Mute has no `loss_gradient"):
        GradientDivergence(model=Mute()).program(None)
