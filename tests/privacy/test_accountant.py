"""What releases cost. Golden numbers: the restored Theorems 6.2 and 6.3 of Upcycled-FL at delta = 1e-5, computed apart from this code."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.errors import ConfigError
from atoll.core.event import Event, Gaussian, Laplace, Ledger, NonPrivate, SeededSecret
from atoll.privacy import (
    Budget,
    LossTally,
    Perturbed,
    PrivacyLoss,
    cost,
    exact_delta,
    exact_epsilon,
    exact_sigma,
    moments_delta,
    moments_epsilon,
    moments_sigma,
    objective_alpha,
    objective_epsilon,
    spent,
)

DELTA = 1e-5
costs = st.floats(1e-4, 50.0)
deltas = st.floats(1e-9, 0.4)


@pytest.mark.parametrize(
    ("releases", "sensitivity", "sigma", "moments", "exact"),
    [
        (40, 1.0, 10.0, 3.2349, 2.5944),
        (80, 1.0, 10.0, 4.6919, 3.8486),
        (40, 10 / 224, 0.8, 1.7558, 1.3538),
        (80, 10 / 224, 1.0, 1.9958, 1.5520),
        (50, 2.0, 20.0, 3.6431, 2.9432),
    ],
)
def test_golden_epsilons(releases, sensitivity, sigma, moments, exact):
    r = cost(releases, sensitivity, sigma)
    assert moments_epsilon(r, DELTA) == pytest.approx(moments, abs=5e-5)
    assert exact_epsilon(r, DELTA) == pytest.approx(exact, abs=5e-5)


def test_golden_noise_and_its_ratio():
    half, full = (moments_sigma(2.0, DELTA, m, 1.0) for m in (40, 80))
    assert half == pytest.approx(15.8069, abs=5e-5)
    assert full == pytest.approx(22.3543, abs=5e-5)
    assert half / full == pytest.approx(math.sqrt(0.5), rel=1e-12)


def test_the_only_sensitivity_that_always_holds_is_expensive():
    # Clipping models to tau = 10 bounds a replaced record by 20, whatever a client's size.
    assert moments_epsilon(cost(80, 2 * 10.0, 1.0), DELTA) == pytest.approx(16_858, abs=1)
    assert math.isfinite(exact_epsilon(cost(80, 20.0, 1.0), DELTA))


def test_golden_objective():
    assert objective_epsilon(224, 10.0, 0.1, releases=80) == pytest.approx(9.643, abs=5e-4)
    assert objective_epsilon(224, 20.0, 0.1, releases=40) == pytest.approx(8.393, abs=5e-4)
    assert objective_epsilon(50, 1.0, 0.01) > 0  # u2 = 1/4: mu of 1/(2n) is enough
    with pytest.raises(ConfigError, match=r"mu=0\.009 is too small for 50 examples.*at least 0\.01"):
        objective_epsilon(50, 1.0, 0.009)


@given(costs, deltas)
def test_the_moments_forms_are_inverse(r, delta):
    epsilon = moments_epsilon(r, delta)
    assert moments_delta(r, epsilon) == pytest.approx(delta, rel=1e-6)
    sigma = moments_sigma(epsilon, delta, 7, 3.0)
    assert cost(7, 3.0, sigma) == pytest.approx(r, rel=1e-6)


@given(costs, deltas)
def test_the_moments_bound_is_the_minimum_over_moments_and_over_renyi_orders(r, delta):
    # ln E exp(lambda loss) <= r lambda (lambda + 1) / 2; Renyi divergence of order o is o r / 2.
    orders = np.concatenate([np.linspace(1e-3, 1, 400), np.geomspace(1, 1e5, 6000)])
    by_moments = (r * orders * (orders + 1) / 2 + math.log(1 / delta)) / orders
    by_renyi = (1 + orders) * r / 2 + math.log(1 / delta) / orders
    assert moments_epsilon(r, delta) == pytest.approx(by_moments.min(), rel=1e-3)
    assert moments_epsilon(r, delta) == pytest.approx(by_renyi.min(), rel=1e-3)
    assert moments_epsilon(r, delta) <= by_renyi.min() * (1 + 1e-12)


@given(costs, deltas)
def test_the_exact_curve_is_inverse_and_never_above_the_bound(r, delta):
    epsilon = exact_epsilon(r, delta)
    assert epsilon <= moments_epsilon(r, delta)
    assert exact_delta(r, epsilon) <= delta * (1 + 1e-9)
    if epsilon > 1e-6:
        assert exact_delta(r, epsilon) == pytest.approx(delta, rel=1e-6)
        sigma = exact_sigma(epsilon, delta, 3, 2.0)
        assert cost(3, 2.0, sigma) == pytest.approx(r, rel=1e-5)


@given(costs, st.floats(1.0, 20.0), deltas)
def test_more_releases_or_less_noise_never_cost_less(r, more, delta):
    assert moments_epsilon(r * more, delta) >= moments_epsilon(r, delta)
    assert exact_epsilon(r * more, delta) >= exact_epsilon(r, delta) * (1 - 1e-9)
    assert exact_epsilon(r, delta / more) >= exact_epsilon(r, delta) * (1 - 1e-9)


def test_the_exact_curve_is_that_of_two_gaussians_by_numerical_integration():
    r, epsilon = 1.7, 0.8
    m = math.sqrt(r)
    x = np.linspace(-14, 14, 2_000_001)
    p, q = np.exp(-((x - m) ** 2) / 2), np.exp(-(x**2) / 2)
    found = np.maximum(p - math.exp(epsilon) * q, 0).sum() * (x[1] - x[0]) / math.sqrt(2 * math.pi)
    assert exact_delta(r, epsilon) == pytest.approx(found, rel=1e-6)


def test_the_tail_is_smooth_where_its_formula_changes():
    values = [exact_delta(r, 450.0 + r / 2) for r in np.linspace(220, 230, 41)]
    bends = np.diff(np.log(values), n=3)
    assert np.abs(bends).max() < 1e-5


@given(st.integers(1, 100), st.floats(0.2, 40), st.floats(0.05, 5), st.integers(10, 500))
def test_objective_noise_for_a_budget(releases, alpha, mu, examples):
    if 0.5 * examples * mu < 0.25:
        return
    epsilon = objective_epsilon(examples, alpha, mu, releases=releases)
    assert objective_alpha(epsilon, examples, mu, releases=releases) == pytest.approx(alpha, rel=1e-6)


def test_a_radius_is_a_change_of_units():
    ours = objective_epsilon(100, 3.0, 0.4, radius=2.0)
    assert ours == pytest.approx(objective_epsilon(100, 3.0 * 2.0, 0.4 / 4.0), rel=1e-12)
    with pytest.raises(ConfigError, match="spend more"):
        objective_alpha(0.001, 100, 0.4)


def test_the_determinant_bound_on_generalised_linear_models():
    # T10: |log det(J + G) - log det J| <= 2.8 u2 / (n mu), J = hess F + mu I, G the change by one replaced record.
    rng = np.random.default_rng(0)
    worst = 0.0
    for _ in range(300):
        n, d = int(rng.integers(5, 40)), int(rng.integers(1, 6))
        mu = 0.5 / n * float(rng.uniform(1, 10))
        x = rng.normal(size=(n + 1, d))
        x /= np.maximum(1, np.linalg.norm(x, axis=1))[:, None]
        s = 1 / (1 + np.exp(-x @ rng.normal(size=d)))
        each = (s * (1 - s))[:, None, None] * x[:, :, None] * x[:, None, :] / n
        j = each[:-1].sum(0) + mu * np.eye(d)
        change = np.linalg.slogdet(j - each[0] + each[-1])[1] - np.linalg.slogdet(j)[1]
        worst = max(worst, abs(change) / (2.8 * 0.25 / (n * mu)))
    assert 0 < worst <= 1


@given(st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=1, max_size=6))
def test_costs_add_up_in_any_order(noises):
    events = [Gaussian(noise_multiplier=z) for z in noises] + [Laplace(epsilon=0.1), Perturbed(epsilon=0.2, count=2)]
    totals = {
        sum((PrivacyLoss.of(e) for e in order), PrivacyLoss()).epsilon(DELTA)
        for order in itertools.islice(itertools.permutations(events), 6)
    }
    assert max(totals) == pytest.approx(min(totals), rel=1e-9)
    want = 0.5 + exact_epsilon(sum(1 / z**2 for z in noises), DELTA)
    assert max(totals) == pytest.approx(want, rel=1e-9)


def test_a_ledger_becomes_epsilons(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for round_, party in enumerate(["a", "a", "b"]):
        ledger.append(Gaussian(unit="example", noise_multiplier=5.0), party, f"r{round_}")
    ledger.append(NonPrivate(what="a"), "c", "r9")
    tally = LossTally(ledger).update()
    found = spent(Ledger(tmp_path / "ledger.jsonl"), DELTA)
    assert found == {"a": exact_epsilon(2 / 25, DELTA), "b": exact_epsilon(1 / 25, DELTA), "c": math.inf}
    ledger.append(Gaussian(noise_multiplier=5.0), "a", "r10")
    assert tally.update().of("a").gaussian == pytest.approx(3 / 25)
    assert tally.of("b").gaussian == pytest.approx(1 / 25)
    ledger.append(SeededSecret(), "*", "world")
    assert tally.update().seeded
    assert PrivacyLoss(math.inf).epsilon(DELTA) == math.inf


def test_budgets_are_each_clients_own():
    budget = Budget(1.0, clients={"b": 3.0}, method="moments")
    ledger = Ledger()
    one = Gaussian(noise_multiplier=6.0)
    planned = {"a": [one], "b": [one]}
    assert budget.exceeded(LossTally(ledger), "ab", planned) is None
    ledger.append(one, "a", "1")
    ledger.append(one, "b", "1")
    assert moments_epsilon(1 / 36, DELTA) < 1 < moments_epsilon(2 / 36, DELTA)
    assert "budget of a is epsilon=1" in str(budget.exceeded(LossTally(ledger), "ab", planned))
    assert budget.exceeded(LossTally(ledger), "b", planned) is None


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: cost(1, 0.0, 1.0),
        lambda: moments_epsilon(1.0, 0.0),
        lambda: exact_delta(-1.0, 1.0),
        lambda: moments_sigma(0.0, DELTA, 1, 1.0),
        lambda: Budget(-1.0),
        lambda: Budget(1.0, method="guess"),
        lambda: Budget(1.0, on_excess="ask"),
        lambda: PrivacyLoss().epsilon(DELTA, "guess"),
        lambda: PrivacyLoss.of(Event()),
        lambda: Perturbed(epsilon=0.0),
    ],
)
def test_nonsense_is_refused(wrong):
    with pytest.raises(ConfigError, match=r"use|release"):
        wrong()


def test_nothing_released_costs_nothing():
    assert moments_delta(0.0, 0.1) == exact_delta(0.0, 0.1) == exact_epsilon(0.0, DELTA) == 0.0
    assert moments_delta(4.0, 1.0) == 1.0
