"""Matching of representation profiles: the laws of a dissimilarity, and of the scores made of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from atoll.core.errors import ConfigError, DataError
from atoll.learn.profiles import FLOOR, divergence, gaussian_kl, selection_probabilities

MEANS = st.floats(-50, 50, width=32)
VARIANCES = st.floats(2 * FLOOR, 1e3)


def one(mean, var):
    return {"mean": np.atleast_1d(np.float64(mean)), "var": np.atleast_1d(np.float64(var))}


@st.composite
def pairs(draw):
    q = draw(st.integers(1, 6))
    return tuple(
        {"mean": draw(arrays(float, q, elements=MEANS)), "var": draw(arrays(float, q, elements=VARIANCES))}
        for _ in "ab"
    )


def test_it_is_the_kl_of_the_checked_numbers():
    """1.08345: mu .3 and -.5, sigma 1.2 and .7; the closed form by hand, and the value that others found by simulation."""
    assert divergence(one(0.3, 1.2**2), one(-0.5, 0.7**2)) == pytest.approx(1.08345, abs=5e-6)


def test_it_is_the_mean_of_log_ratios_over_draws():
    draw = np.random.default_rng(0).normal(0.3, 1.2, 400_000)

    def log_density(mean, sigma):
        return -0.5 * ((draw - mean) / sigma) ** 2 - np.log(sigma)

    simulated = (log_density(0.3, 1.2) - log_density(-0.5, 0.7)).mean()
    assert float(gaussian_kl(0.3, 1.2**2, -0.5, 0.7**2)) == pytest.approx(
        simulated, abs=0.01
    )  # its standard error is 0.003


def test_the_printed_formula_is_a_half_larger():
    client, server = one(0.3, 1.44), one(-0.5, 0.49)
    assert divergence(client, server, printed=True) == divergence(client, server) + 0.5
    assert divergence(client, client, printed=True) == 0.5


@given(pairs())
def test_it_is_never_negative_and_zero_only_between_equal_profiles(profiles):
    client, server = profiles
    assert divergence(client, server) >= 0.0
    assert divergence(client, client) == 0.0
    apart = np.abs(client["mean"] - server["mean"]) / np.sqrt(server["var"])
    if apart.max() > 1e-3 or np.abs(np.log(client["var"] / server["var"])).max() > 1e-3:
        assert divergence(client, server) > 0.0


@given(pairs(), st.randoms(use_true_random=False))
def test_a_common_permutation_of_elements_changes_nothing(profiles, random):
    order = list(range(len(profiles[0]["mean"])))
    random.shuffle(order)
    turned = [{name: values[order] for name, values in profile.items()} for profile in profiles]
    assert divergence(*turned) == pytest.approx(divergence(*profiles), rel=1e-12, abs=1e-12)


def test_it_goes_from_client_to_server():
    wide, narrow = one(0.0, 4.0), one(0.0, 1.0)
    assert divergence(wide, narrow) == pytest.approx(1.5 - np.log(2.0))
    assert divergence(narrow, wide) == pytest.approx(np.log(2.0) - 0.375)


def test_dead_neurons_count_as_the_floor():
    dead, alive = one(0.0, 0.0), one(0.0, 1.0)
    assert divergence(dead, dead) == 0.0
    assert divergence(one([0.0, 1.0], [0.0, 2.0]), one([0.0, 1.0], [0.0, 2.0])) == 0.0
    assert divergence(dead, alive) == pytest.approx(0.5 * (-np.log(FLOOR) + FLOOR - 1.0))
    assert divergence(alive, dead) == pytest.approx(0.5 * (np.log(FLOOR) + 1 / FLOOR - 1.0))
    assert divergence(alive, dead, floor=0.5) == divergence(alive, one(0.0, 0.5))


@pytest.mark.parametrize(
    ("client", "message"),
    [
        ({"mean": np.zeros(2), "var": np.ones(2)}, "the profiles have 2 and 3 elements"),
        ({"mean": np.zeros(3), "var": np.ones(2)}, r"the client's profile has means of shape \(3,\)"),
        ({"mean": np.zeros(3), "var": -np.ones(3)}, "not finite or negative"),
        ({"mean": np.full(3, np.nan), "var": np.ones(3)}, "not finite or negative"),
        ({"mean": np.zeros(3)}, "no mean and var"),
        (0.5, "no mean and var"),
    ],
)
def test_what_is_no_profile_is_refused(client, message):
    with pytest.raises(DataError, match=message):
        divergence(client, {"mean": np.zeros(3), "var": np.ones(3)})


@pytest.mark.parametrize("floor", [0.0, -1.0, np.inf])
def test_a_floor_is_positive(floor):
    with pytest.raises(ConfigError, match="floor="):
        divergence(one(0, 1), one(0, 1), floor=floor)


def test_scores_are_exponentials_of_divergences():
    found = np.array([0.1, 0.5, 0.2])
    scores = np.exp(-10.0 * found)
    assert selection_probabilities(found) == pytest.approx(scores / scores.sum())
    alphas = np.array([1.0, 0.0, 3.0])
    scores = np.exp(-alphas * found)
    assert selection_probabilities(found, alphas) == pytest.approx(scores / scores.sum())


@given(arrays(float, st.integers(1, 20), elements=st.floats(0, 1e6)), st.floats(0, 100))
def test_they_are_probabilities_however_large_the_divergences(found, alpha):
    chances = selection_probabilities(found, alpha)
    assert chances.sum() == pytest.approx(1.0)
    assert (chances >= 0).all()
    assert chances[found.argmin()] == chances.max()


def test_alpha_zero_selects_uniformly_and_a_common_offset_changes_nothing():
    found = np.array([3.0, 0.1, 700.0])
    assert selection_probabilities(found, 0.0) == pytest.approx(np.full(3, 1 / 3))
    assert selection_probabilities(found[:2], 10.0) == pytest.approx(selection_probabilities(found[:2] + 0.5, 10.0))


def test_bad_scores_are_refused():
    with pytest.raises(ConfigError, match="alpha="):
        selection_probabilities([0.1, 0.2], -1.0)
    with pytest.raises(ConfigError, match="for 2 clients"):
        selection_probabilities([0.1, 0.2], [1.0, 2.0, 3.0])
    with pytest.raises(DataError, match="one finite number per client"):
        selection_probabilities([0.1, np.inf])
    with pytest.raises(DataError, match="one finite number per client"):
        selection_probabilities([])
