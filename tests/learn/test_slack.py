"""Slack factors: the law of survivors by exhaustion, what each estimator can learn, and the thesis's toy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import ConfigError
from atoll.learn.pacing.slack import (
    ChanceConstrained,
    Forgetting,
    LateCount,
    PaperLiteral,
    Ratio,
    SlackEstimator,
    UncensoredOnly,
    at_least,
    success_law,
)

probabilities = st.lists(st.floats(0, 1), min_size=1, max_size=7)
EVERY = [PaperLiteral(), LateCount(), Forgetting(), UncensoredOnly(), Ratio(), ChanceConstrained()]


def exhaustive(chances: list[float]) -> np.ndarray:
    """The thesis's (4.4) and (4.5): every combination of clients that survive."""
    law = np.zeros(len(chances) + 1)
    for survives in itertools.product((0, 1), repeat=len(chances)):
        law[sum(survives)] += np.prod([p if alive else 1 - p for p, alive in zip(chances, survives, strict=True)])
    return law


@given(probabilities)
def test_the_law_of_survivors_by_exhaustion(chances):
    law = success_law(chances)
    np.testing.assert_allclose(law, exhaustive(chances), atol=1e-12)
    assert abs(law @ np.arange(len(law)) - sum(chances)) < 1e-10  # E|X_r| = sum_i P_i


@given(st.floats(0.05, 0.95), st.integers(1, 6), st.floats(0.05, 0.95), st.integers(1, 6))
def test_equal_clients_are_a_binomial(p, n, q, m):
    np.testing.assert_allclose(success_law([p, q], [n, m]), success_law([p] * n + [q] * m), atol=1e-12)
    assert at_least(0, [p], n) == pytest.approx(1.0)
    assert at_least(n + 1, [p], n) == 0.0


def test_the_selection_matches_the_mean():
    """With theta the mean of unequal survival probabilities, C / theta of the clients leave C N_r survivors on average."""
    rng = np.random.default_rng(0)
    chances = rng.uniform(0.2, 0.9, 50)
    selected = 0.3 / chances.mean() * 50
    draws = [(rng.random(50) < chances)[rng.permutation(50)[: round(selected)]].sum() for _ in range(4000)]
    assert abs(np.mean(draws) - 0.3 * 50) < 0.3  # rounding 0.26, Monte Carlo 0.05


rounds = st.lists(
    st.tuples(st.integers(1, 30), st.floats(0, 1), st.floats(0, 1), st.booleans(), st.integers(1, 20)),
    min_size=1,
    max_size=12,
)


@given(rounds, st.floats(0.1, 1.0))
def test_the_published_estimator_cannot_learn(history, initial):
    """Whatever comes back, it stays within the factors that were in force; without rounding it never moves."""
    for rounded in (True, False):
        estimator = PaperLiteral(initial=initial, rounded=rounded)
        state = estimator.init()
        forced = [initial]
        for selected, came, _, hit, wanted in history:
            submitted = int(came * selected)
            state = estimator.update(state, selected, submitted, hit, wanted=wanted)
            forced += [wanted / selected] if submitted and rounded else []
            inside = forced[1:] or forced
            theta = float(estimator.theta(state))
            assert max(min(inside), estimator.floor) - 1e-9 <= theta <= max(inside) + 1e-9
            assert rounded or theta == pytest.approx(initial)


def test_the_printed_symbol_diverges():
    """With the selected count in place of the submitted one, the factor leaves [0, 1] upwards."""
    estimator, rng = PaperLiteral(symbol="selected"), np.random.default_rng(0)
    state = estimator.init()
    for _ in range(40):
        selected = int(estimator.counts(state, 0.3, 100))
        came = rng.binomial(selected, 0.5)
        state = estimator.update(state, selected, min(came, 30), came > 30, wanted=30)
    assert estimator.theta(state) > 1.2


def learned(estimator: SlackEstimator, truth: float, clients: int, rounds: int, seed: int) -> float:
    """A region alone, whose round closes when its quota is full."""
    rng, state = np.random.default_rng(seed), estimator.init()
    quota = round(0.3 * clients)
    for _ in range(rounds):
        selected = int(estimator.counts(state, 0.3, clients))
        done = int(rng.binomial(selected, truth))
        state = estimator.update(state, selected, min(done, quota), done >= quota, done, wanted=quota)
    return float(estimator.theta(state))


@settings(max_examples=30)
@given(st.floats(0.35, 0.95), st.integers(0, 99))
def test_late_counts_are_consistent(truth, seed):
    errors = [abs(learned(LateCount(), truth, 400, rounds, seed) - truth) for rounds in (3, 300)]
    assert errors[1] < 5 * np.sqrt(truth * (1 - truth) / (300 * 120))
    assert errors[0] < 0.2


def test_censored_counts_are_biased_downwards():
    """Measured for a region of 400 clients and truth 0.7; the digest's figures are 0.62 for 50 clients of ten regions."""
    assert learned(Ratio(), 0.7, 400, 300, 0) < 0.55
    assert 0.6 < learned(UncensoredOnly(), 0.7, 400, 300, 0) < 0.7


def test_forgetting_follows_a_change():
    fading, lasting = Forgetting(memory=0.9), LateCount()
    states = [fading.init(), lasting.init()]
    for number in range(120):
        done = 80 if number < 60 else 40
        states = [e.update(s, 100, done, False) for e, s in zip((fading, lasting), states, strict=True)]
    assert float(fading.theta(states[0])) == pytest.approx(0.4, abs=0.002)  # 0.4 * 0.9^60
    assert float(lasting.theta(states[1])) == pytest.approx(0.6)
    assert Forgetting(memory=1.0).update(fading.init(), 10, 4, False) == LateCount().update(
        lasting.init(), 10, 4, False
    )


@given(st.floats(0.2, 1.0), st.integers(2, 60), st.floats(0.1, 0.6), st.sampled_from([0.02, 0.1, 0.4]))
def test_a_chance_constraint_selects_the_fewest(theta, clients, share, delta):
    estimator = ChanceConstrained(delta=delta, base=LateCount(initial=theta))
    n, quota = int(estimator.counts(estimator.init(), share, clients)), int(np.ceil(share * clients - 1e-9))
    if at_least(quota, [theta], clients) < 1 - delta:
        assert n == clients
    else:
        assert at_least(quota, [theta], n) >= 1 - delta > at_least(quota, [theta], n - 1)


def test_a_chance_constraint_shares_its_margin_between_regions():
    """Ten regions need less in excess together than each alone, and the quota is met as often as asked."""
    together = ChanceConstrained(delta=0.1, base=LateCount(initial=0.7))
    sizes = np.full(10, 50)
    counts = together.counts(together.init(10), 0.3, sizes)
    alone = together.counts(together.init(), 0.3, 50)
    assert counts.sum() < 10 * int(alone)
    assert 0.9 <= at_least(150, np.full(10, 0.7), counts) < 0.95
    mean = LateCount(initial=0.7)
    matched = mean.counts(mean.init(10), 0.3, sizes)  # C / theta, rounded up: the mean is met, the quota often is not
    assert at_least(150, np.full(10, 0.7), matched) < 0.75


@pytest.mark.parametrize("estimator", EVERY, ids=lambda e: type(e).__name__)
def test_regions_are_columns(estimator):
    """A state of two regions is the states of each, before and after rounds, empty ones too."""
    both, one, two = estimator.init(2), estimator.init(), estimator.init()
    assert estimator.theta(both).tolist() == [float(estimator.theta(one))] * 2
    for selected, submitted, completed in (
        ([8, 4], [3, 2], [5, 2]),
        ([6, 6], [0, 1], [0, 4]),
        ([0, 2], [0, 0], [0, 0]),
    ):
        for hit in (True, False):
            came = submitted if hit else completed
            both = estimator.update(both, selected, came, hit, completed, wanted=[3.0, 2.0])
            one = estimator.update(one, selected[0], came[0], hit, completed[0], wanted=3.0)
            two = estimator.update(two, selected[1], came[1], hit, completed[1], wanted=2.0)
    np.testing.assert_allclose(estimator.theta(both), [estimator.theta(one), estimator.theta(two)])
    np.testing.assert_allclose(estimator.fraction(both, 0.3), [estimator.fraction(s, 0.3) for s in (one, two)])
    assert ((estimator.counts(both, 0.9, [5, 7]) <= [5, 7]) & (estimator.fraction(both, 0.9) <= 1)).all()


def test_guards():
    estimator = LateCount(floor=0.05)
    state = estimator.update(estimator.init(), 20, 0, False)
    assert float(estimator.theta(state)) == 0.05
    assert float(estimator.fraction(state, 0.3)) == 1.0
    assert int(estimator.counts(state, 0.3, 20)) == 20
    assert (
        int(LateCount(initial=0.6).counts(LateCount().init(), 0.3, 20)) == 10
    )  # 0.3 / 0.6 * 20, not 11 by rounding noise


def test_bad_input():
    with pytest.raises(ConfigError, match=r"initial=0\.0"):
        LateCount(initial=0.0)
    with pytest.raises(ConfigError, match=r"memory=1\.5"):
        Forgetting(memory=1.5)
    with pytest.raises(ConfigError, match=r"delta=1\.0"):
        ChanceConstrained(delta=1.0)
    with pytest.raises(ConfigError, match=r"symbol='psi'"):
        PaperLiteral(symbol="psi")
    with pytest.raises(ConfigError, match="selected=3, submitted=4"):
        Ratio().update(Ratio().init(), 3, 4, True)
    with pytest.raises(ConfigError, match="closed at its quota without a count of late"):
        LateCount().update(LateCount().init(), 5, 3, True)
    with pytest.raises(ConfigError, match="wanted=None"):
        PaperLiteral().update(PaperLiteral().init(), 5, 3, True)
    with pytest.raises(ConfigError, match=r"probabilities \[1\.2\]"):
        success_law([1.2])
