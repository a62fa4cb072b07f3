"""The lower bound of epsilon that canaries prove."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from atoll.core.errors import ConfigError
from atoll.privacy import Audit, audit_p_value, guessed, lower_bound


def test_golden_lower_bounds():
    """One minus the Clopper-Pearson interval's lower end, as odds: 180 of 200 and 75 of 100 right at 95 %."""
    assert lower_bound(180, 200) == pytest.approx(1.799, abs=5e-4)
    assert lower_bound(75, 100) == pytest.approx(0.702, abs=5e-4)


def _reference(m, r, v, eps, delta):
    """The code of Steinke, Nasr, Jagielski 2023, appendix D."""
    q = 1 / (1 + math.exp(-eps))
    beta = stats.binom.sf(v - 1, r, q)
    alpha, total = 0.0, 0.0
    for i in range(1, v + 1):
        total += stats.binom.pmf(v - i, r, q)
        alpha = max(alpha, total / i)
    return min(beta + alpha * delta * 2 * m, 1.0)


@given(st.data(), st.integers(1, 300), st.floats(0, 8), st.sampled_from([0.0, 1e-6, 1e-4, 1e-2]))
def test_the_p_value_is_that_of_the_authors_code(data, guesses, epsilon, delta):
    right = data.draw(st.integers(0, guesses))
    coins = data.draw(st.integers(guesses, 2 * guesses))
    found = audit_p_value(right, guesses, epsilon, delta, coins)
    assert found == pytest.approx(_reference(coins, guesses, right, epsilon, delta), rel=1e-9, abs=1e-14)


@given(st.integers(1, 200), st.data(), st.sampled_from([0.0, 1e-5]))
def test_more_right_guesses_or_less_confidence_never_prove_less(guesses, data, delta):
    right = data.draw(st.integers(0, guesses - 1))
    bound = lower_bound(right, guesses, 0.95, delta)
    assert bound <= lower_bound(right + 1, guesses, 0.95, delta)
    assert bound <= lower_bound(right, guesses, 0.9, delta) + 1e-9
    assert lower_bound(right, guesses, 0.95, 1e-4) <= lower_bound(right, guesses, 0.95, 0.0)


def test_a_mechanism_of_known_epsilon_is_seldom_refuted():
    """Randomised response of epsilon 1 is the worst case: the bound holds in at least 95 % of the runs, and is not far off."""
    draw, epsilon, runs = np.random.default_rng(0), 1.0, 400
    right = draw.binomial(500, 1 / (1 + math.exp(-epsilon)), runs)
    bounds = np.array([lower_bound(int(v), 500) for v in right])
    assert (bounds > epsilon).mean() < 0.08  # 5 % and three standard deviations
    assert 0.75 < np.median(bounds) < epsilon


def test_guesses_are_the_ends_of_the_scores():
    scores = [5.0, 1.0, 3.0, -2.0, 0.0]
    assert guessed(scores, [True, False, True, False, False], 4) == 4
    assert guessed(scores, [True, False, True, True, False], 3) == 2  # two at the top right, the lowest wrong
    assert guessed(scores, [False, False, False, True, True], 5) == 0


def test_an_audit_says_what_it_found_and_comes_back_from_plain_values():
    found = Audit(claimed=1.0, lower=1.8, confidence=0.95, delta=0.0, right=180, guesses=200, canaries=200)
    assert found.refuted
    assert Audit.of(found.plain()) == found
    assert "at least 1.8 with confidence 95 %, which refutes the claimed epsilon 1" in found.verdict
    held = Audit(claimed=2.0, lower=1.8, confidence=0.95, delta=0.0, right=180, guesses=200, canaries=200)
    assert "does not contradict" in held.verdict


def test_bad_input_is_refused():
    with pytest.raises(ConfigError, match="right <= guesses"):
        audit_p_value(11, 10, 1.0)
    with pytest.raises(ConfigError, match="confidence=1"):
        lower_bound(1, 2, 1.0)
    with pytest.raises(ConfigError, match="one score and one coin"):
        guessed([1.0, 2.0], [True], 1)
