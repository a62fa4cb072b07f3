"""What leaves a mechanism in float64 is on a lattice that its value does not choose: no last bits tell it (Mironov 2012)."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from atoll.algorithms import DPSGD, FedAvg, OutputPerturbation
from atoll.core.algebra.rng import Rng
from atoll.core.event import Gaussian
from atoll.core.requests.island import Secret
from atoll.core.requests.stage import StageContext
from atoll.labels.methods.pate import NOBODY, VoteRule
from atoll.learn.local.examples import StepSecrets
from atoll.learn.private.noisy_sum import NoisySum
from atoll.privacy.discrete import GaussianLattice, LaplaceLattice
from atoll.programs.bandits import NoisyPrefix
from atoll.programs.convex import add_gaussian_share, add_radial_share
from atoll.stages import GaussianNoise, LocalGaussian, LocalLaplace, SparseVector
from atoll.statistics.summarising import Mwem, choose


def staged(stage, value, seed, sensitivity=None):
    context = StageContext(seeds=np.full((1, 32), seed, np.uint8), sensitivity=sensitivity)
    return np.asarray(stage.encode_block({"w": np.asarray(value)[None]}, context)["w"])[0]


def summed(value, seed):
    rule = NoisySum(
        bound=1.0, sensitivity=1.0, expected=1.0, noise=0.7, values=1, released=Gaussian(noise_multiplier=0.7)
    )
    combined = SimpleNamespace(value={"u": {"w": np.asarray(value)}}, weight={"u": 1.0}, kinds={"u": "mean"})
    made, _ = rule.combine(combined, None, None, SimpleNamespace(secret=Secret(seed)))
    return made["u"]["w"]


def output(value, seed):
    rule = OutputPerturbation(base=FedAvg(), tau=1.0, sigma=0.7)
    entry = {"w": np.asarray(value)}
    return rule.privatise(entry, rule.noise(Rng(seed), entry))["w"]


def stepped(value, seed):
    plan = DPSGD(FedAvg(lr=0.5, steps=1, batch_size=1), clip=1.0, noise=0.7).example_steps
    total = {"w": np.asarray(value)}
    return plan.round_sum(total)["w"] + StepSecrets(plan, 4, 1, Rng(seed)).like(total)["w"]


MECHANISMS = {
    "LocalLaplace": (lambda v, s: staged(LocalLaplace(bound=1.0, epsilon=0.9), v, s), LaplaceLattice(2 / 0.9)),
    "LocalGaussian": (lambda v, s: staged(LocalGaussian(bound=1.0, multiplier=0.35), v, s), GaussianLattice(0.7)),
    "GaussianNoise": (lambda v, s: staged(GaussianNoise(0.7), v, s, 1.0), GaussianLattice(0.7)),
    "NoisySum": (summed, GaussianLattice(0.7)),
    "OutputPerturbation": (output, GaussianLattice(0.7)),
    "DPSGD": (stepped, GaussianLattice(0.7)),
    "gaussian share": (lambda v, s: add_gaussian_share(np.asarray(v), Secret(s), 1.4, 4, 1.0), GaussianLattice(0.7)),
    "radial share": (lambda v, s: add_radial_share(np.asarray(v), Secret(s), 0.7, 4), SimpleNamespace(step=2.0**-21)),
}
vectors = st.lists(st.floats(-1, 1), min_size=3, max_size=3)


@pytest.mark.parametrize("name", MECHANISMS)
@given(vectors, vectors, st.integers(0, 200))
@settings(max_examples=12)
def test_two_values_have_the_same_lattice(name, one, other, seed):
    release, lattice = MECHANISMS[name]
    for value in (one, other):
        told = release(value, seed)
        assert told.dtype == np.float64
        steps = told / lattice.step
        assert np.array_equal(steps, np.rint(steps))


@pytest.mark.parametrize("name", [name for name in MECHANISMS if name != "radial share"])
def test_the_noise_has_the_deviation_that_is_claimed(name):
    release, lattice = MECHANISMS[name]
    drawn = release(np.zeros(20_000), 3)
    law = stats.laplace(scale=lattice.scale) if isinstance(lattice, LaplaceLattice) else stats.norm(scale=lattice.scale)
    assert stats.kstest(drawn, law.cdf).pvalue > 1e-3


def test_reported_values_of_the_sparse_vector_are_on_a_lattice_or_at_the_limit():
    stage = SparseVector(limit=1.0, epsilon=3.0, entries=40, threshold=0.0)
    step = LaplaceLattice(2 * 40 * 1.0 / stage.budgets[2]).step
    told = staged(stage, np.linspace(-1, 1, 90), 5)
    assert (told != 0).sum() == 40
    steps = told / step
    assert np.array_equal(steps, np.rint(steps))


def test_the_noise_of_a_prefix_and_its_addends_are_on_one_lattice():
    tree = NoisyPrefix(length=9, multiplier=0.35, sensitivity=2.0)
    steps = tree.noise(b"k", 7, 3) / tree.lattice.step
    assert np.array_equal(steps, np.rint(steps))


def test_the_exponential_mechanism_has_its_odds():
    """P(i) ~ exp(epsilon error_i / 2), and by the steps of 2^-20 no more."""
    errors, epsilon = np.array([0.0, 1.0, 2.5, 2.5]), 1.3
    draw = Secret(1).generator()
    seen = np.bincount([choose(errors, epsilon, draw) for _ in range(5000)], minlength=4)
    odds = np.exp(epsilon * errors / 2)
    assert stats.chisquare(seen, 5000 * odds / odds.sum()).pvalue > 1e-3


def test_a_measurement_of_mwem_costs_its_share():
    """One step, one query: the only measurement has Laplace noise of scale ``2 / epsilon``, which decides where the weights go."""
    counts, queries = np.array([60.0, 40.0]), np.array([[1.0, 0.0]])
    found = np.array([Mwem(epsilon=2.0, steps=1).histogram(counts, queries, Secret(s))[0] for s in range(1200)])
    # weights are 50 exp(x) / (50 exp(x) + 50) * 100 with x = (m - 50) / 200
    measured = 50 + 200 * np.log(found / (100 - found))
    assert stats.kstest(measured - 60, stats.laplace(scale=1.0).cdf).pvalue > 1e-3


def test_the_check_of_confident_gnmax_has_noise():
    """Rows whose largest count is one deviation of the check's noise below the threshold pass with the chance of a normal tail: never, without noise."""
    rule = VoteRule(sigma=1e-6, threshold=50.0, threshold_sigma=8.0)
    counts = np.tile([42.0, 3.0, 0.0], (4000, 1))
    passed = int((rule.outcome(counts, Secret(2)).labels != NOBODY).sum())
    assert stats.binomtest(passed, 4000, stats.norm.sf(1.0)).pvalue > 1e-3
    above = np.tile([58.0, 3.0, 0.0], (4000, 1))
    failed = int((rule.outcome(above, Secret(3)).labels == NOBODY).sum())
    assert stats.binomtest(failed, 4000, stats.norm.sf(1.0)).pvalue > 1e-3


def test_the_winner_of_confident_gnmax_has_noise():
    """A lead of one deviation of the difference of two counts loses with the chance of a normal tail."""
    rule = VoteRule(sigma=8.0, threshold=None, threshold_sigma=8.0)
    labels = rule.outcome(np.tile([8.0 * math.sqrt(2), 0.0], (4000, 1)), Secret(4)).labels
    assert stats.binomtest(int((labels == 1).sum()), 4000, stats.norm.sf(1.0)).pvalue > 1e-3
