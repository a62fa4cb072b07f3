"""The accountants: against the library ``dp-accounting``, against sums and integrals of the densities themselves, and against each other.

Golden numbers: q = 0.04, sigma 1.5, 2250 steps, delta 1e-5 by dp-accounting 0.6; Skellam from the bound of its paper and a sum over its law.
"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import atoll
from atoll.algorithms import FedAvg, OutputPerturbation
from atoll.core.errors import ConfigError
from atoll.core.event import Event, Gaussian, Laplace, NonPrivate, SeededSecret
from atoll.privacy import (
    METHODS,
    ORDERS,
    Budget,
    DiscreteGaussian,
    NoisePlan,
    Perturbed,
    PrivacyLoss,
    RandomisedResponse,
    Skellam,
    compose,
    epsilon_of,
    exact_epsilon,
    exact_sigma,
    noise_for,
    renyi_curve,
    renyi_delta,
    renyi_epsilon,
    skellam_bound,
    skellam_divergence,
)

DELTA = 1e-5
SGD = Gaussian(noise_multiplier=1.5, sampling=0.04, drawn_by="party")

noises = st.floats(0.7, 6.0)
rates = st.floats(0.01, 0.5)
plain = st.builds(Gaussian, noise_multiplier=noises)
poisson = st.builds(Gaussian, noise_multiplier=noises, sampling=rates, drawn_by=st.just("party"))
laplace = st.builds(Laplace, epsilon=st.floats(0.05, 1.0))
trees = st.lists(st.tuples(st.one_of(plain, poisson, laplace), st.integers(1, 200)), min_size=1, max_size=3)


def test_golden_epsilons():
    assert epsilon_of(((SGD, 2250),), DELTA, "rdp") == pytest.approx(7.3293, abs=5e-5)
    assert epsilon_of(((SGD, 2250),), DELTA, "pld") == pytest.approx(6.7688, abs=5e-5)
    assert skellam_divergence(2, 100.0) == pytest.approx(0.00999959, abs=5e-9)
    assert skellam_bound(2, 100.0) == pytest.approx(0.010225, abs=1e-12)


@settings(max_examples=6, deadline=None)
@given(trees)
def test_rdp_is_that_of_dp_accounting(tree):
    ours, theirs = (epsilon_of(tuple(tree), DELTA, name) for name in ("rdp", "dp-accounting-rdp"))
    pure = sum(n * event.epsilon if isinstance(event, Laplace) else math.inf for event, n in tree)
    # Ours also knows that pure epsilons add up, which no finite order says.
    assert ours == pytest.approx(min(pure, theirs), abs=1e-6, rel=1e-6)


@settings(max_examples=2, deadline=None)
@given(st.lists(st.tuples(st.one_of(plain, poisson, laplace), st.integers(1, 20)), min_size=1, max_size=2))
def test_pld_is_that_of_dp_accounting(tree):
    ours, theirs = (epsilon_of(tuple(tree), DELTA, name) for name in ("pld", "dp-accounting-pld"))
    # The two cut off other tails; on these trees that is below the seventh digit. Ours is never optimistic beyond it.
    assert ours == pytest.approx(theirs, abs=1e-6, rel=1e-6)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(trees)
def test_pld_is_that_of_dp_accounting_over_many_trees(tree):
    ours, theirs = (epsilon_of(tuple(tree), DELTA, name) for name in ("pld", "dp-accounting-pld"))
    assert ours == pytest.approx(theirs, abs=1e-6, rel=1e-6)


@pytest.mark.slow
@settings(max_examples=5, deadline=None)
@given(noises, st.integers(2, 40), st.integers(2, 40), st.integers(1, 300))
def test_fixed_size_rdp_is_that_of_dp_accounting(noise, some, more, times):
    event = Gaussian(noise_multiplier=noise, sampling=some / (some + more), scheme="fixed", drawn_by="party")
    ours, theirs = (
        epsilon_of(((event, times),), DELTA, name, "server", "replace-one") for name in ("rdp", "dp-accounting-rdp")
    )
    assert ours <= theirs * (
        1 + 1e-6
    )  # sampling never costs more than everybody: where their bound does, ours is lower
    unsampled = epsilon_of(((Gaussian(noise_multiplier=noise), times),), DELTA, "rdp")
    assert ours <= unsampled * (1 + 1e-12)
    curve, everybody = renyi_curve(event, "server", "replace-one"), renyi_curve(Gaussian(noise_multiplier=noise))
    if np.all(curve < everybody * (1 - 1e-9)):
        assert ours == pytest.approx(theirs, abs=1e-6, rel=1e-6)


@settings(max_examples=3, deadline=None)
@given(st.floats(0.05, 1.5), st.integers(2, 6), st.integers(1, 4))
def test_randomised_response_is_that_of_dp_accounting(epsilon, buckets, times):
    pair = ((RandomisedResponse(epsilon=epsilon, buckets=buckets), times),)
    ours, theirs = (
        {name: epsilon_of(pair, DELTA, f"{who}{name}", "server", "replace-one") for name in ("rdp", "pld")}
        for who in ("", "dp-accounting-")
    )
    assert ours["rdp"] == pytest.approx(min(theirs["rdp"], times * epsilon), abs=1e-6)
    # There, a loss is rounded up to the grid; ours lies on chords between its points.
    assert ours["pld"] - 1e-6 <= theirs["pld"] <= ours["pld"] + times * 1e-4 + 1e-6


@pytest.mark.parametrize(
    ("rate", "noise", "order"),
    [(0.04, 1.5, o) for o in (1.1, 1.6, 2.3, 4.0, 7.5, 20.0)] + [(0.3, 0.8, o) for o in (3.3, 7.5, 9.0)],
)
def test_the_sampled_curve_is_the_integral_of_its_moment(rate, noise, order):
    x = np.linspace(-30, 60, 400_001)
    mixture = np.logaddexp(np.log1p(-rate), np.log(rate) + (2 * x - 1) / (2 * noise**2))
    moment = np.exp(order * mixture - x**2 / (2 * noise**2)).sum() * (x[1] - x[0]) / math.sqrt(2 * math.pi) / noise
    exact = math.log(moment) / (order - 1)
    event = Gaussian(noise_multiplier=noise, sampling=rate, drawn_by="party")
    found = renyi_curve(event, "server", "add-remove", (order,))[0]
    assert found >= exact * (
        1 - 1e-6
    )  # between whole orders, series without signs: an upper bound, as in dp-accounting
    assert found == pytest.approx(exact, rel=1e-6 if order == int(order) else 1e-3 if order > 3 else 0.3)


@settings(max_examples=5, deadline=None)
@given(st.floats(0.3, 5.0), st.integers(1, 30), st.floats(1e-8, 0.1))
def test_losses_of_plain_gaussians_are_the_closed_form(noise, times, delta):
    assume(times / noise**2 < 100)
    found = compose({Gaussian(noise_multiplier=noise): times}).epsilon(delta)
    exact = exact_epsilon(times / noise**2, delta)
    assert exact - 1e-7 <= found <= exact + 1e-4  # rounded to the safe side


@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
@pytest.mark.parametrize("scheme", ["poisson", "fixed"])
def test_one_sampled_release_has_the_delta_of_its_mixture(neighbours, scheme):
    event = Gaussian(noise_multiplier=1.1, sampling=0.2, scheme=scheme, drawn_by="party")
    x = np.linspace(-14, 16, 600_001)
    q0, p0 = (np.exp(-((x - at) ** 2) / 2 / 1.21) * (x[1] - x[0]) / math.sqrt(2 * math.pi) / 1.1 for at in (0, 1))
    counts = (scheme, neighbours) != ("fixed", "add-remove")
    mixed = 0.2 * p0 + 0.8 * q0 if counts else p0
    for epsilon in (0.1, 0.5, 1.0):
        removed = np.maximum(mixed - math.exp(epsilon) * q0, 0).sum()
        added = np.maximum(q0 - math.exp(epsilon) * mixed, 0).sum()
        first = compose({event: 1}, "server", neighbours).delta(epsilon)
        assert first == pytest.approx(removed, rel=1e-5)
        if (scheme, neighbours) == ("poisson", "add-remove"):
            second = compose({event: 1}, "server", neighbours, added=True).delta(epsilon)
            assert second == pytest.approx(added, rel=1e-4, abs=1e-9)


@pytest.mark.parametrize("kind", [Skellam, DiscreteGaussian])
def test_losses_of_integer_noise_are_exact_sums(kind):
    # Two releases of one whole number: all sums of two atoms, without any grid.
    k = np.arange(-90, 91)
    if kind is DiscreteGaussian:
        law = np.exp(-(k**2) / 18.0)
        law /= law.sum()
    else:
        angles = 2 * np.pi * np.arange(4096) / 4096
        law = np.array([(np.exp(9.0 * (np.cos(angles) - 1)) * np.cos(j * angles)).mean() for j in k])
        k, law = k[np.abs(k) <= 24], law[np.abs(k) <= 24]  # the transform knows the tails only to 1e-16
    loss, mass = np.log(law[:-1] / law[1:]), law[:-1]
    atoms = {0.0: 1.0}
    for _ in range(2):
        new = {}
        for (a, p), (b, q) in itertools.product(atoms.items(), zip(loss, mass, strict=True)):
            new[round(a + b, 12)] = new.get(round(a + b, 12), 0.0) + p * q
        atoms = new
    losses, masses = np.array([*atoms]), np.array([*atoms.values()])
    found = compose({kind(variance=9.0): 2})
    for epsilon in (0.2, 0.7, 1.5):
        exact = -(masses[losses > epsilon] * np.expm1(epsilon - losses[losses > epsilon])).sum()
        assert found.delta(epsilon) == pytest.approx(exact, rel=1e-5)
        assert found.delta(epsilon) >= exact * (1 - 1e-7)


def test_the_skellam_bound_holds_and_closes_as_noise_grows():
    for variance, order in itertools.product((4.0, 25.0, 400.0), (2, 5, 20)):
        exact, bound = skellam_divergence(order, variance), skellam_bound(order, variance)
        assert 0 < exact <= bound
    assert skellam_divergence(2, 1e4) == pytest.approx(2 / (2 * 1e4), rel=1e-3)
    vector = renyi_curve(Skellam(variance=400.0, sensitivity=5.0, values=100))
    assert np.all(vector >= renyi_curve(Skellam(variance=400.0, sensitivity=5.0)) * (1 - 1e-9))
    with pytest.raises(ConfigError, match=r"no known worst pair.*accountant 'rdp'"):
        epsilon_of(((Skellam(variance=400.0, values=100), 1),), DELTA, "pld")


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
def test_one_laplace_entry_is_the_worst_vector(share):
    # Two entries that share an L1 sensitivity are never easier to tell apart than one that has it all.
    x = np.linspace(-25, 26, 1201)
    first, second = (np.exp(-np.abs(x - at)) for at in (share, 1 - share))
    none = np.exp(-np.abs(x))
    total = np.outer(none, none).sum()
    p, q = np.outer(first, second) / total, np.outer(none, none) / total
    for epsilon in (0.1, 0.4, 0.8):
        both = np.maximum(p - math.exp(epsilon) * q, 0).sum()
        assert both <= compose({Laplace(epsilon=1.0): 1}).delta(epsilon) + 1e-3


@settings(max_examples=4, deadline=None)
@given(poisson, st.integers(1, 300))
def test_losses_are_tighter_than_moments_and_more_costs_more(event, times):
    few, many = ((event, times),), ((event, times + 50),)
    assert epsilon_of(few, DELTA, "pld") <= epsilon_of(few, DELTA, "rdp") + 1e-6
    for name in ("pld", "rdp"):
        assert epsilon_of(few, DELTA, name) <= epsilon_of(many, DELTA, name)


def test_sampling_counts_only_against_those_who_do_not_know_it():
    def cost(drawn_by, adversary, neighbours="add-remove", scheme="poisson"):
        event = Gaussian(noise_multiplier=1.5, sampling=0.04, scheme=scheme, drawn_by=drawn_by)
        return [epsilon_of(((event, 50),), DELTA, name, adversary, neighbours) for name in ("rdp", "pld")]

    everybody = [epsilon_of(((Gaussian(noise_multiplier=1.5), 50),), DELTA, name) for name in ("rdp", "pld")]
    knows = {"public": {"server", "clients", "model"}, "server": {"server"}, "party": set()}
    for (drawn_by, who), adversary in itertools.product(knows.items(), ("server", "clients", "model")):
        found = cost(drawn_by, adversary)
        if adversary in who:
            assert found == everybody
        else:
            assert all(a < 0.2 * b for a, b in zip(found, everybody, strict=True))
    assert cost("party", "server", "add-remove", "fixed") == everybody  # sizes are public: nobody can be added
    assert cost("party", "server", "replace-one", "fixed") < everybody
    assert Gaussian(noise_multiplier=1.5, sampling=0.04).drawn_by == "public"  # what nobody has said protects nobody


@pytest.mark.parametrize("method", ["rdp", "pld"])
def test_what_is_free_and_what_has_no_end(method):
    assert epsilon_of(((SeededSecret(), 3),), DELTA, method) == 0.0
    assert epsilon_of((), DELTA, method) == 0.0
    for endless in (NonPrivate(), Gaussian(noise_multiplier=0.0)):
        assert epsilon_of(((endless, 1),), DELTA, method) == math.inf
    assert epsilon_of(((Perturbed(epsilon=0.3), 2),), 1e-9, method) == pytest.approx(0.6, abs=1e-6)
    with pytest.raises(ConfigError, match="not known"):
        epsilon_of(((Event(), 1),), DELTA, method)


def test_conversions_are_inverse():
    curve = 2250 * renyi_curve(SGD)
    for delta in (1e-9, 1e-5, 1e-2):
        assert renyi_delta(curve, renyi_epsilon(curve, delta)) == pytest.approx(delta, rel=1e-9)
    assert renyi_epsilon(np.zeros(len(ORDERS)), DELTA) == 0.0


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
@pytest.mark.parametrize("mechanism", ["gaussian", "laplace", "discrete-gaussian"])
def test_noise_is_the_inverse_of_epsilon(mechanism, accountant):
    plan = NoisePlan(mechanism=mechanism, noise=2.0, delta=DELTA, steps=5)
    found = noise_for(plan, 1.3, accountant)
    assert found.epsilon(accountant) <= 1.3
    less = NoisePlan(mechanism=mechanism, noise=found.noise * (1 - 1e-5), delta=DELTA, steps=5)
    assert less.epsilon(accountant) > 1.3
    if (mechanism, accountant) == ("gaussian", "pld"):
        assert found.noise == pytest.approx(exact_sigma(1.3, DELTA, 5, 1.0), rel=1e-5)


def test_ten_thousand_rounds_take_no_longer_than_one_hundred():
    # Counted in bins, not in seconds: work follows the width of the losses, not the number of rounds. benchmarks/accounting.py measures the time.
    few, many = (compose({SGD: n}) for n in (100, 10_000))
    assert len(many.masses) <= 64 * len(few.masses)
    assert many.epsilon(DELTA) > few.epsilon(DELTA)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_stops_before_its_budget_is_exceeded(method):
    budget = Budget(3.0, DELTA, method=method)
    once = PrivacyLoss.of(Gaussian(noise_multiplier=4.0))
    fits = budget.affords(3.0, PrivacyLoss(), once, 16)
    assert 1 <= fits < 16
    assert budget.measure_epsilon(once.times(fits)) <= 3.0 * (1 + 1e-9) < budget.measure_epsilon(once.times(fits + 1))
    with pytest.raises(ConfigError, match="adversary='nobody'"):
        Budget(3.0, adversary="nobody", method=method)


def test_a_closed_form_refuses_what_it_does_not_count():
    loss = PrivacyLoss.of(Skellam(variance=50.0)) + PrivacyLoss.of(Gaussian(noise_multiplier=3.0))
    with pytest.raises(ConfigError, match=r"'exact' does not count.*'skellam'.*use method 'rdp' or 'pld'"):
        loss.epsilon(DELTA)
    assert 0 < loss.epsilon(DELTA, "pld") < loss.epsilon(DELTA, "rdp")
    with pytest.raises(ConfigError, match=r"does not count an event of kind 'skellam'"):
        loss.epsilon(DELTA, "dp-accounting-pld")


@pytest.mark.parametrize("method", ["rdp", "pld", "dp-accounting-rdp"])
def test_each_accountant_stops_a_training_before_its_budget_is_exceeded(method):
    algorithm = OutputPerturbation(base=FedAvg(lr=0.1), tau=1.0, sigma=6.0)
    budget = Budget(2.0, 1e-3, method=method, on_excess="stop")
    job = atoll.Training(
        model=atoll.models.linear(64, 10), algorithm=algorithm, selection=atoll.Everyone(), rounds=60, budget=budget
    )
    clients = atoll.data.iid(atoll.data.digits(), parties=3, seed=0)
    run = atoll.simulate(job, clients, engine="inline")
    once = PrivacyLoss.of(Gaussian(unit="example", noise_multiplier=3.0))
    fits = len(run.metrics)
    assert budget.measure_epsilon(once.times(fits)) <= 2.0 < budget.measure_epsilon(once.times(fits + 1))
    assert run.metrics[-1]["epsilon"] == pytest.approx(budget.measure_epsilon(once.times(fits)), rel=1e-9)
    assert f"counted by {method}" in run.reason
    with pytest.raises(atoll.AtollError, match=f"60 rounds exceed the privacy budget, and {fits} fit"):
        atoll.simulate(job.replace(budget=Budget(2.0, 1e-3, method=method)), clients, engine="inline")


@pytest.mark.parametrize(("noise", "rate", "steps"), [(0.2, 0.5, 100), (0.05, 0.2, 3), (0.06, 0.9, 2)])
def test_huge_epsilons_are_counted_without_an_overflow(noise: float, rate: float, steps: int) -> None:
    """Losses beyond 700 have exponentials that are no floats: warnings are errors here, and the bound stays below that without sampling."""
    event = Gaussian(unit="user", noise_multiplier=noise, sampling=rate, drawn_by="server")
    found = epsilon_of(((event, steps),), 1e-5, "pld", "model", "add-remove", 1e-3)
    assert 300 < found <= exact_epsilon(steps / noise**2, 1e-5) * (1 + 1e-6)
