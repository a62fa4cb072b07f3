"""Inverse-probability weights: unbiased, and equal weights where clients are drawn by size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.aggregation import EqualWeights, InverseProbability
from atoll.algorithms import FedAvg
from atoll.core.algebra.aggregate import Part
from atoll.core.errors import CompositionError
from atoll.core.federation.reducer import Plain
from atoll.core.requests.party import Roster
from atoll.core.requests.results import Combined
from atoll.learn import Training
from atoll.learn.algorithm import RoundInfo
from atoll.selection import FedProf, PowerOfChoice, SizeProportional, Uniform
from tests.support.fedprof_toys import job, spoiled
from tests.support.learn_toys import flat, islands

SIZES = [5, 6, 7, 8, 9, 10]


@given(st.integers(0, 500))
def test_the_expectation_over_all_draws_is_the_weighted_mean(seed):
    """All n^2 outcomes of two draws with replacement, each with its probability."""
    rng = np.random.default_rng(seed)
    n, q = rng.integers(1, 20, 4).astype(float), rng.dirichlet(np.ones(4))
    updates, there = rng.normal(size=(4, 3)), Roster(4).all()
    mean, params = np.zeros(3), {"w": np.zeros(3)}
    for i in range(4):
        for j in range(4):
            parts = [Part({"w": updates[k]}, float(n[k]), k) for k in (i, j)]
            combined = Combined({"update": parts}, 2, {}, there[np.array([i, j])], there[:0], kinds={"update": "parts"})
            info = RoundInfo(1, 2, 2, 4, float(n.sum()), odds=dict(enumerate(q.tolist())))
            mean += q[i] * q[j] * InverseProbability().combine(combined, params, None, info)[0]["update"]["w"]
    np.testing.assert_allclose(mean, n @ updates / n.sum(), rtol=1e-9, atol=1e-12)


def test_drawn_by_size_the_weights_are_equal():
    plan = Training(model=atoll.models.linear(4, 3), algorithm=FedAvg(lr=0.1), selection=SizeProportional(3), rounds=5)
    equal = atoll.simulate(plan.replace(aggregation=EqualWeights()), islands(SIZES), engine="inline")
    inverse = atoll.simulate(plan.replace(aggregation=InverseProbability()), islands(SIZES), engine="inline")
    np.testing.assert_allclose(flat(inverse.params), flat(equal.params), rtol=1e-9)


@pytest.mark.network
def test_with_fedprof_on_engines_and_after_a_resume(tmp_path):
    plan = job(FedProf(4, alpha=2.0, replace=True, explore=0.3), rounds=4, aggregation=InverseProbability())
    whole = atoll.simulate(plan, spoiled(), engine="inline")
    batched = atoll.simulate(plan, spoiled(), engine="batched")
    np.testing.assert_allclose(flat(batched.params), flat(whole.params), rtol=1e-4, atol=1e-5)
    atoll.simulate(plan.replace(rounds=2), spoiled(), engine="inline", folder=tmp_path)
    resumed = atoll.simulate(plan, spoiled(), engine="inline", folder=tmp_path, resume=True)
    np.testing.assert_array_equal(flat(resumed.params), flat(whole.params))


@pytest.mark.parametrize(
    "rule", [Uniform(2), FedProf(2), SizeProportional(2, replace=False), PowerOfChoice(2)], ids=repr
)
def test_rules_without_known_probabilities_are_refused(rule):
    with pytest.raises(CompositionError, match="InverseProbability weights by the probability of every draw"):
        Training(model=atoll.models.linear(4, 3), selection=rule, aggregation=InverseProbability())


def test_a_secure_reducer_is_refused():
    class Hidden(Plain):
        secure = True

    with pytest.raises(CompositionError, match="InverseProbability sees single replies"):
        Training(
            model=atoll.models.linear(4, 3),
            selection=SizeProportional(2),
            aggregation=InverseProbability(),
            reducer=Hidden(),
        )
