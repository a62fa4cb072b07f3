"""Perturbation inside secure sums: the paper's noise, in shares that nobody could subtract, and the guarantee in the ledger."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import atoll
from atoll.core.errors import CompositionError, ConfigError, DataError
from atoll.core.event import Ledger
from atoll.core.federation.reducer import Plain
from atoll.core.requests.island import Secret
from atoll.privacy import spent
from atoll.programs.convex import (
    AggregatedGradients,
    AggregatedOutput,
    add_gaussian_share,
    add_radial_share,
    gradient,
    gradient_deviation,
    minimiser,
    output_scale,
    rows_of,
)

VIRTUAL = atoll.SecureAggregation(masks="virtual")


def test_golden_noise():
    """Digest of the survey, 12.2: m = 10, n_1 = 1000, G = 1, T = 100, epsilon = 1, delta = 1e-5."""
    assert gradient_deviation(10, 1000, 100, 1.0, 1e-5) == pytest.approx(0.0096, abs=5e-5)


@given(st.integers(1, 100), st.integers(1, 1000), st.floats(0.01, 10), st.floats(0.01, 10))
def test_output_noise_is_m_times_smaller_than_that_of_one_party(parties, smallest, ridge, epsilon):
    one = output_scale(1, smallest, ridge, epsilon)
    assert output_scale(parties, smallest, ridge, epsilon) == pytest.approx(one / parties)


@pytest.mark.every(2)
@pytest.mark.parametrize("parties", [1, 3, 10])
def test_shares_add_up_to_the_noise_of_the_paper(parties):
    """A density ~ exp(-||b|| / s) in d dimensions has ||b|| ~ Gamma(d, s) and a uniform direction."""
    dim, scale, n = 4, 0.7, 600
    made = [
        sum(add_radial_share(np.zeros(dim), Secret(parties * i + j), scale, parties) for j in range(parties))
        for i in range(n)
    ]
    lengths = np.linalg.norm(made, axis=1)
    assert stats.kstest(lengths, stats.gamma(dim, scale=scale).cdf).pvalue > 1e-3
    cosines = np.array(made)[:, 0] / lengths
    assert stats.kstest(cosines**2, stats.beta(0.5, (dim - 1) / 2).cdf).pvalue > 1e-3
    plain = [
        sum(add_gaussian_share(np.zeros(1), Secret(7 * i + j), 2.0, parties)[0] for j in range(parties))
        for i in range(n)
    ]
    assert stats.kstest(plain, stats.norm(scale=2.0).cdf).pvalue > 1e-3


def rows(count, seed):
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(count, 3))
    return x, (x @ np.array([2.0, -1.0, 0.5]) + draw.normal(size=count) > 0).astype(int)


@given(st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_no_replaced_example_moves_a_minimiser_further_than_declared(seed):
    draw = np.random.default_rng(seed)
    ridge, n = float(draw.choice([0.02, 0.2, 2.0])), int(draw.integers(2, 12))
    x, y = rows(n, seed)
    other_x, other_y = x.copy(), y.copy()
    other_x[0], other_y[0] = 50 * draw.normal(size=3), 1 - y[0]
    one, other = (rows_of({"x": a, "y": b}, 1, "p") for a, b in ((x, y), (other_x, other_y)))
    assert np.linalg.norm(minimiser(one, ridge) - minimiser(other, ridge)) <= output_scale(1, n, ridge, 1.0) + 1e-9
    w = draw.normal(size=3)
    assert np.linalg.norm(gradient(w, one, ridge) - gradient(w, other, ridge)) <= 2 / n + 1e-12


def parties(count=4, each=150):
    return {f"site-{i}": dict(zip(("x", "y"), rows(each, i), strict=True)) for i in range(count)}


def run(problem, data, folder=None):
    return atoll.simulate(problem.program, data, engine="inline", progress=False, folder=folder)


def test_with_a_huge_epsilon_it_is_the_mean_of_minimisers_and_the_minimiser_of_all(tmp_path):
    data = parties()
    own = [rows_of(one, 1, "p") for one in data.values()]
    output = run(AggregatedOutput(epsilon=1e7, smallest=150, features=3, reducer=VIRTUAL), data)
    assert np.allclose(output, np.mean([minimiser(z, 0.1) for z in own], axis=0), atol=1e-4)
    many = AggregatedGradients(epsilon=1e7, smallest=150, features=3, rounds=80, lr=2.0, reducer=VIRTUAL)
    assert np.allclose(run(many, data), minimiser(np.concatenate(own), 0.1), atol=1e-3)


def test_noise_of_a_run_is_that_of_the_formula_and_the_ledger_says_what_it_cost(tmp_path):
    data = parties()
    quiet = AggregatedOutput(epsilon=1e9, smallest=150, features=3, reducer=VIRTUAL)
    noisy = AggregatedOutput(epsilon=0.5, smallest=150, features=3, reducer=VIRTUAL)
    centre = run(quiet, data)
    far = [np.linalg.norm(run(noisy, data) - centre) for _ in range(30)]
    expected = 3 * output_scale(4, 150, 0.1, 0.5)  # the mean of Gamma(3, s)
    assert np.mean(far) == pytest.approx(expected, rel=5 / math.sqrt(30 * 3))
    run(noisy, data, tmp_path / "output")
    ledger = Ledger(tmp_path / "output" / "checkpoints" / "ledger.jsonl")
    assert max(spent(ledger, 1e-9, "pld", "server", "replace-one").values()) == pytest.approx(0.5, rel=1e-3)
    run(AggregatedGradients(epsilon=1.0, smallest=150, features=3, rounds=5, reducer=VIRTUAL), data, tmp_path / "g")
    costs = spent(Ledger(tmp_path / "g" / "checkpoints" / "ledger.jsonl"), 1e-5, "pld", "server", "replace-one")
    assert len(costs) == 4
    assert 0.3 < max(costs.values()) <= 1.0  # the paper's bound is not tight


def test_bad_input_is_refused():
    with pytest.raises(CompositionError, match="only a share of the noise"):
        AggregatedOutput(epsilon=1.0, smallest=10, features=3, reducer=Plain())
    with pytest.raises(ConfigError, match=r"epsilon=0\.0"):
        AggregatedOutput(epsilon=0.0, smallest=10, features=3)
    with pytest.raises(ConfigError, match="delta=1"):
        gradient_deviation(1, 1, 1, 1.0, 1.0)
    with pytest.raises(DataError, match="has 150 examples, and the noise is for at least 200"):
        run(AggregatedOutput(epsilon=1.0, smallest=200, features=3, reducer=VIRTUAL), parties())
