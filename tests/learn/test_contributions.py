"""Contributions: the axioms of Shapley values, and estimates against exact values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.errors import ConfigError
from atoll.learn.aggregation.valued import alignment, exact_shapley, leave_one_out, round_game, truncated_shapley

sizes, seeds = st.integers(1, 6), st.integers(0, 10_000)


def table_game(clients: int, seed: int):
    """Any worth for any set."""
    worth = np.random.default_rng(seed).normal(size=2**clients)
    worth[0] = 0.0
    return lambda chosen: float(worth[sum(1 << i for i in chosen)])


def quadratic_round(clients: int, seed: int, bad: int = 0):
    """Clients pull a model towards the optimum; the first ``bad`` push it away."""
    rng = np.random.default_rng(seed)
    goal = rng.normal(size=5)
    updates = goal + 0.3 * rng.normal(size=(clients, 5))
    updates[:bad] *= -1
    weights = rng.uniform(1, 3, clients)
    return round_game(np.zeros(5), updates, weights, lambda w: -float(((w - goal) ** 2).sum())), updates, weights


@given(sizes, seeds, seeds)
def test_axioms(clients, seed, other):
    one, two = table_game(clients, seed), table_game(clients, other)
    everyone = tuple(range(clients))
    phi = exact_shapley(one, clients)
    assert phi.sum() == pytest.approx(one(everyone))
    both = exact_shapley(lambda chosen: 2 * one(chosen) - two(chosen), clients)
    np.testing.assert_allclose(both, 2 * phi - exact_shapley(two, clients), atol=1e-9)
    # A client that adds nothing gets nothing, and leaves the others as they are.
    with_idle = exact_shapley(lambda chosen: one(tuple(i for i in chosen if i < clients)), clients + 1)
    np.testing.assert_allclose(with_idle, [*phi, 0.0], atol=1e-9)
    # Who they are does not matter, only what they add.
    turned = exact_shapley(lambda chosen: one(tuple(sorted(clients - 1 - i for i in chosen))), clients)
    np.testing.assert_allclose(turned, phi[::-1], atol=1e-9)


def test_a_known_game():
    """One owner of a left shoe and two of right ones, a pair is worth 1: values 2/3, 1/6, 1/6 (the glove game)."""
    gloves = lambda chosen: float(0 in chosen and len(chosen) > 1)  # noqa: E731
    np.testing.assert_allclose(exact_shapley(gloves, 3), [2 / 3, 1 / 6, 1 / 6])
    np.testing.assert_allclose(leave_one_out(gloves, 3), [1, 0, 0])  # of two equals, neither is missed


@given(st.integers(2, 6), seeds)
def test_estimates_are_near_exact_values(clients, seed):
    game, _, _ = quadratic_round(clients, seed)
    exact = exact_shapley(game, clients)
    found, error = truncated_shapley(game, clients, np.random.default_rng(seed), orders=400)
    assert found.sum() == pytest.approx(game(tuple(range(clients))))
    assert (np.abs(found - exact) <= 5 * error + 1e-9).all()


@given(seeds)
def test_truncation_saves_evaluations_and_is_near(seed):
    clients = 6
    counted: list[tuple[int, ...]] = []
    game, _, _ = quadratic_round(clients, seed)

    def watched(chosen):
        counted.append(chosen)
        return game(chosen)

    whole = abs(game(tuple(range(clients))))
    full, _ = truncated_shapley(watched, clients, np.random.default_rng(1), orders=50)
    calls = len(counted)
    cut, _ = truncated_shapley(watched, clients, np.random.default_rng(1), orders=50, tolerance=0.1 * whole)
    assert len(counted) - calls <= calls
    # Whoever is cut off would have moved the worth by at most the tolerance and what the later ones undo again.
    assert abs(cut.sum() - full.sum()) <= 0.1 * whole + 1e-9


def test_bad_clients_are_found():
    game, updates, weights = quadratic_round(6, 3, bad=2)
    for found in (exact_shapley(game, 6), leave_one_out(game, 6), alignment(updates, weights)):
        assert found[:2].max() < found[2:].min()
        assert found[:2].max() < 0


def test_with_a_linear_utility_and_equal_weights():
    """``v(A) = mean_{A} g.u_i``: phi_i = (H_n / n) (c_i - mean of the others) + (mean of the others) / n, by hand for n = 2."""
    gains = np.array([3.0, 1.0])
    game = round_game(np.zeros(1), gains[:, None], np.ones(2), lambda w: float(w[0]))
    np.testing.assert_allclose(exact_shapley(game, 2), [(3 + 2 - 1) / 2, (1 + 2 - 3) / 2])
    np.testing.assert_allclose(leave_one_out(game, 2), [2 - 1, 2 - 3])


@given(st.integers(1, 8), seeds)
def test_alignment_is_a_cosine(clients, seed):
    rng = np.random.default_rng(seed)
    updates, weights = rng.normal(size=(clients, 4)), rng.uniform(1, 2, clients)
    found = alignment(updates, weights)
    assert (np.abs(found) <= 1 + 1e-12).all()
    np.testing.assert_allclose(found, alignment(3 * updates, 2 * weights))
    assert alignment(np.zeros((2, 3)), np.ones(2)).tolist() == [0.0, 0.0]


def test_every_worth_is_computed_once():
    asked = []
    game = round_game(np.zeros(2), np.eye(2), np.ones(2), lambda w: asked.append(1) or float(w.sum()))
    truncated_shapley(game, 2, np.random.default_rng(0), orders=50)
    assert len(asked) == 4  # the model itself, and the three sets that are not empty
    assert game(()) == 0.0


def test_bad_input():
    with pytest.raises(ConfigError, match=r"17 clients are 1\.31e\+05 sets"):
        exact_shapley(lambda chosen: 0.0, 17)
    with pytest.raises(ConfigError, match="orders=1"):
        truncated_shapley(lambda chosen: 0.0, 2, np.random.default_rng(0), orders=1)
    with pytest.raises(ConfigError, match=r"model \(2,\), updates \(2, 3\)"):
        round_game(np.zeros(2), np.zeros((2, 3)), np.ones(2), lambda w: 0.0)
    with pytest.raises(ConfigError, match="positive weights"):
        round_game(np.zeros(2), np.zeros((2, 2)), np.zeros(2), lambda w: 0.0)
