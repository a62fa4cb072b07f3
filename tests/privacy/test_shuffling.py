"""Amplification by shuffling: the bound is that of its pair, holds for real randomisers, and counts only against those who do not see the order."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from atoll.core.errors import ConfigError
from atoll.core.event import unpack_event
from atoll.privacy import PrivacyLoss, Shuffled, epsilon_of, grouped, shuffled_epsilon
from atoll.privacy.shuffling import excess_of


def _reference(epsilon0, n, epsilon):
    """``P(S) - e^epsilon Q(S)`` of the pair of Feldman, McMillan, Talwar 2021, theorem 3.1, term by term."""
    q, total = math.exp(epsilon0) / (math.exp(epsilon0) + 1), 0.0
    for c in range(n):
        weight = stats.binom.pmf(c, n - 1, math.exp(-epsilon0))
        for a in range(c + 2):
            one, other = stats.binom.pmf(a - 1, c, 0.5), stats.binom.pmf(a, c, 0.5)
            p, r = q * one + (1 - q) * other, (1 - q) * one + q * other
            total += weight * max(0.0, p - math.exp(epsilon) * r)
    return total


@pytest.mark.parametrize(("epsilon0", "n"), [(0.5, 1), (1.0, 2), (1.0, 12), (3.0, 25)])
def test_the_curve_is_that_of_the_pair(epsilon0, n):
    for epsilon in (0.0, 0.1, 0.4, 0.49):
        found = float(excess_of(Shuffled(epsilon=epsilon0, clients=n), np.array([epsilon]))[0])
        assert found == pytest.approx(_reference(epsilon0, n, epsilon), abs=3e-15, rel=1e-9)


@given(st.floats(0.1, 3.0), st.integers(2, 60), st.integers(0, 59), st.floats(0.0, 2.0))
@settings(deadline=None)
def test_shuffled_randomised_response_is_never_worse_than_the_bound(epsilon0, n, others, epsilon):
    """The number of ones in the replies of n clients, of which ``others`` have a one, against one client that changes its bit."""
    true = 1 / (1 + math.exp(-epsilon0))
    ones = min(others, n - 1)
    rest = np.convolve(
        stats.binom.pmf(np.arange(ones + 1), ones, true), stats.binom.pmf(np.arange(n - ones), n - 1 - ones, 1 - true)
    )
    p, q = np.convolve(rest, [1 - true, true]), np.convolve(rest, [true, 1 - true])
    real = np.maximum(p - math.exp(epsilon) * q, 0).sum()
    assert real <= float(excess_of(Shuffled(epsilon=epsilon0, clients=n), np.array([epsilon]))[0]) + 1e-12


@given(st.floats(0.1, 4.0), st.sampled_from([20, 500, 5000]), st.sampled_from([1e-4, 1e-6]))
@settings(deadline=None, max_examples=20)
def test_the_numeric_bound_is_below_the_closed_form_and_that_below_the_randomiser(epsilon0, n, delta):
    numeric, closed = (shuffled_epsilon(epsilon0, n, delta, method) for method in ("numeric", "closed"))
    assert 0 <= numeric <= closed * (1 + 1e-9)
    assert closed <= epsilon0


def test_more_clients_hide_more_and_golden_values():
    bounds = [shuffled_epsilon(1.0, n, 1e-6) for n in (1, 10, 100, 1000, 10_000)]
    assert bounds[0] == pytest.approx(1.0, abs=1e-5)
    assert all(a > b for a, b in pairwise(bounds))
    # ln(1 + (e - 1) / (e + 1) (8 sqrt(e ln(4e6) / 1e4) + 8 e / 1e4)), by hand
    assert shuffled_epsilon(1.0, 10_000, 1e-6, "closed") == pytest.approx(0.214026, abs=1e-6)
    assert bounds[-1] == pytest.approx(0.0530, abs=1e-4)
    assert shuffled_epsilon(5.0, 1000, 1e-6, "closed") == 5.0  # beyond the range of the theorem


def test_accountants_count_rounds_of_shuffled_replies():
    event = Shuffled(epsilon=1.0, clients=1000, shuffled_by="reducer")
    one = shuffled_epsilon(1.0, 1000, 1e-5)
    assert epsilon_of(((event, 1),), 1e-5, "pld", "server", "replace-one") == pytest.approx(one, rel=2e-3)
    assert epsilon_of(((event, 1),), 1e-5, "rdp", "server", "replace-one") >= one
    ten = {name: epsilon_of(((event, 10),), 1e-5, name, "server", "replace-one") for name in ("pld", "rdp")}
    assert one < ten["pld"] < ten["rdp"] < 10 * one
    assert unpack_event(event.pack()) == event


def test_the_server_that_shuffles_sees_the_replies_as_they_came():
    mine, hidden = (Shuffled(epsilon=1.0, clients=1000, shuffled_by=who) for who in ("server", "reducer"))
    for name in ("pld", "rdp"):
        assert epsilon_of(((mine, 1),), 1e-5, name, "server") > 0.9
        assert epsilon_of(((mine, 1),), 1e-5, name, "model") == epsilon_of(((hidden, 1),), 1e-5, name, "server") < 0.3
    assert PrivacyLoss.of(mine).pure == 1.0  # the closed forms do not count shuffling
    assert grouped(mine, 3).epsilon == 3.0


def test_bad_input_is_refused():
    with pytest.raises(ConfigError, match="finite epsilon"):
        Shuffled(epsilon=0.0, clients=3)
    with pytest.raises(ConfigError, match="shuffled_by='nobody'"):
        Shuffled(epsilon=1.0, clients=3, shuffled_by="nobody")
    with pytest.raises(ConfigError, match="method='guess'"):
        shuffled_epsilon(1.0, 10, 1e-5, "guess")
