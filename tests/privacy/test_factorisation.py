"""Correlated noise against dense matrices: the noise itself, what a participation costs, and how little the prefix sums have."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.errors import ConfigError
from atoll.privacy.factorisation import BandedFactorisation, TreeFactorisation, mean_error, optimal, prefix_error, root


def noise_of(factorisation, rounds, width=3, seed=0):
    """The noise of each round, and every vector that was drawn."""
    numbers, drawn, made, memory = np.random.default_rng(seed), [], [], None

    def draw():
        drawn.append(numbers.standard_normal(width))
        return drawn[-1]

    for _ in range(rounds):
        noise, memory = factorisation.step(memory, draw)
        made.append(noise)
    return np.array(made), drawn


def banded_matrix(bands, rounds):
    """The square root of the matrix of prefix sums, found by taking the root of a power series, and cut off."""
    root = np.zeros(rounds)
    root[0] = 1.0
    for k in range(1, rounds):  # root * root = 1, 1, 1, ...
        root[k] = (1.0 - sum(root[j] * root[k - j] for j in range(1, k))) / 2
    matrix = np.zeros((rounds, rounds))
    for i in range(rounds):
        for j in range(max(0, i - bands + 1), i + 1):
            matrix[i, j] = root[i - j]
    return matrix


@pytest.mark.parametrize(("bands", "rounds"), [(1, 6), (2, 9), (5, 12), (12, 12)])
def test_banded_noise_solves_the_dense_system(bands, rounds):
    noise, drawn = noise_of(BandedFactorisation(bands), rounds)
    np.testing.assert_allclose(noise, np.linalg.solve(banded_matrix(bands, rounds), np.array(drawn)), atol=1e-10)
    if bands == rounds:  # the whole root: B C = A with B = A C^-1
        root, sums = banded_matrix(bands, rounds), np.tril(np.ones((rounds, rounds)))
        np.testing.assert_allclose(root @ root, sums, atol=1e-12)


def tree_matrix(rounds):
    """The rows of all complete nodes, ``(nodes, rounds)``, in the order in which the noise is drawn: by the round that completes them, from below."""
    rows = []
    for last in range(1, rounds + 1):
        size = 1
        while last % size == 0 and size <= last:
            row = np.zeros(rounds)
            row[last - size : last] = 1.0
            rows.append(row)
            size *= 2
    return np.array(rows)


@pytest.mark.parametrize("honaker", [True, False])
@pytest.mark.parametrize("rounds", [1, 4, 7, 16])
def test_tree_noise_is_that_of_the_best_estimate_by_least_squares(rounds, honaker):
    """Oracle: a prefix is a sum of dyadic nodes; each is estimated from the nodes inside it by generalised least squares (or by itself)."""
    noise, drawn = noise_of(TreeFactorisation(rounds, honaker), rounds)
    nodes, z = tree_matrix(rounds), np.array(drawn)
    assert len(z) == len(nodes)
    for t in range(1, rounds + 1):
        expected, start, rest = np.zeros(3), 0, t
        while rest:
            size = 1 << (rest.bit_length() - 1)
            span = np.zeros(rounds)
            span[start : start + size] = 1.0
            inside = [i for i, row in enumerate(nodes) if (row <= span).all()]
            if honaker:
                design = nodes[inside][:, start : start + size]
                weights = np.ones(size) @ np.linalg.solve(design.T @ design, design.T)
            else:
                weights = np.array([float((nodes[i] == span).all()) for i in inside])
            expected += weights @ z[inside]
            start, rest = start + size, rest - size
        np.testing.assert_allclose(noise[:t].sum(axis=0), expected, atol=1e-10)


def patterns(rounds, most, separation):
    """Every schedule of at most ``most`` rounds that are ``separation`` apart."""
    for count in range(1, most + 1):
        for chosen in itertools.combinations(range(rounds), count):
            if all(b - a >= separation for a, b in itertools.pairwise(chosen)):
                yield list(chosen)


@pytest.mark.parametrize(("most", "separation"), [(1, 1), (2, 3), (3, 4), (3, 2), (4, 1)])
@pytest.mark.parametrize(
    "factorisation",
    [TreeFactorisation(12), TreeFactorisation(4), BandedFactorisation(2), BandedFactorisation(3)],
    ids=repr,
)
def test_no_schedule_and_no_contributions_cost_more_than_declared(factorisation, most, separation):
    """Search over all schedules of 12 rounds, with contributions in one direction and in random ones, against the dense matrix."""
    rounds, rng = 12, np.random.default_rng(0)
    if isinstance(factorisation, BandedFactorisation):
        matrix = banded_matrix(factorisation.bands, rounds)
        if most > 1 and separation < factorisation.bands:
            with pytest.raises(ConfigError, match=f"bands={separation} or fewer"):
                factorisation.cost(most, separation)
            return
    else:
        size = factorisation.restart
        matrix = np.zeros((0, rounds))
        for start in range(0, rounds, size):
            block = tree_matrix(min(size, rounds - start))
            wide = np.zeros((len(block), rounds))
            wide[:, start : start + block.shape[1]] = block
            matrix = np.concatenate([matrix, wide])
    cost, worst = factorisation.cost(most, separation), 0.0
    for chosen in patterns(rounds, most, separation):
        moved = matrix[:, chosen]
        aligned = float((moved.sum(axis=1) ** 2).sum())
        directions = rng.normal(size=(len(chosen), 4))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        free = float(((moved @ directions) ** 2).sum())
        assert max(aligned, free) <= len(chosen) * cost * (1 + 1e-12)
        worst = max(worst, aligned / len(chosen))
    if isinstance(factorisation, BandedFactorisation):
        assert worst == pytest.approx(cost)  # exact, not a bound
    else:
        assert worst >= 0.45 * cost


def test_correlation_lowers_the_noise_of_prefix_sums():
    """64 rounds, one participation: a tree beats independent noise, Honaker's estimate the plain tree, and the banded root both."""
    plain, tree, honaker, banded = (
        prefix_error(f, 64, 1, 64)
        for f in (
            BandedFactorisation(1),
            TreeFactorisation(64, honaker=False),
            TreeFactorisation(64),
            BandedFactorisation(64),
        )
    )
    assert plain == pytest.approx(math.sqrt(65 / 2))
    assert banded < honaker < tree
    assert banded < 0.55 * plain
    # Fichtenberger, Henzinger, Upadhyay 2023: the square root has error (1 + ln(4 n / 5) / pi) at most for n rounds.
    assert banded < 1 + math.log(4 * 64 / 5) / math.pi


def test_restarts_begin_anew():
    once, _ = noise_of(TreeFactorisation(4), 4)
    twice, drawn = noise_of(TreeFactorisation(4), 8)
    np.testing.assert_allclose(once, twice[:4])
    alone, _ = noise_of(TreeFactorisation(4), 4, seed=0)
    again = []
    memory, numbers = None, iter(drawn[7:])
    for _ in range(4):
        noise, memory = TreeFactorisation(4).step(memory, lambda: next(numbers))
        again.append(noise)
    np.testing.assert_allclose(again, twice[4:])
    assert not np.allclose(alone, twice[4:])


@given(st.integers(1, 40), st.integers(0, 39), st.sampled_from([TreeFactorisation(8), BandedFactorisation(5)]))
def test_a_resumed_run_goes_on_with_the_same_noise(rounds, stop, factorisation):
    """The memory is all that is needed: it crosses a message and goes on."""
    from atoll.core import message as M

    expected, drawn = noise_of(factorisation, rounds)
    numbers, memory, made = iter(drawn), None, []
    for number in range(rounds):
        if number == stop:
            memory = None if memory is None else M.decode(M.encode(memory))
        noise, memory = factorisation.step(memory, lambda: next(numbers))
        made.append(noise)
    np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize(
    "bad", [lambda: BandedFactorisation(0), lambda: TreeFactorisation(0), lambda: TreeFactorisation(4).cost(0, 1)]
)
def test_settings_without_sense_are_refused(bad):
    with pytest.raises(ConfigError, match="Remedy: use 1 "):
        bad()


def slow_error(coefficients, rounds):
    """The mean square of the prefix sums' noise times the squared norm of a column, by dense matrices."""
    matrix = sum(c * np.eye(rounds, k=-j) for j, c in enumerate(coefficients))
    rows = np.tril(np.ones((rounds, rounds))) @ np.linalg.inv(matrix)
    return float((rows**2).sum() / rounds * (np.asarray(coefficients) ** 2).sum())


@given(st.integers(1, 6), st.integers(6, 24), st.integers(0, 2**31))
def test_the_error_of_coefficients_is_that_of_dense_matrices(bands, rounds, seed):
    c = np.concatenate([[1.0], np.random.default_rng(seed).uniform(-0.2, 0.8, bands - 1)])
    assert mean_error(c, rounds) == pytest.approx(slow_error(c, rounds), rel=1e-9)


@pytest.mark.parametrize(("bands", "rounds"), [(2, 10), (4, 16), (6, 30), (16, 16)])
def test_optimal_bands_are_those_of_a_slow_search_and_beat_the_root(bands, rounds):
    """Oracle: Nelder and Mead's search, which needs no derivative, on the dense error."""
    from scipy.optimize import minimize

    found = np.array(optimal(bands, rounds))
    assert slow_error(found, rounds) < slow_error(root(bands), rounds)
    if bands <= 6:
        slow = minimize(
            lambda free: slow_error([1.0, *free], rounds), root(bands)[1:], method="Nelder-Mead",
            options={"xatol": 1e-9, "fatol": 1e-13, "maxiter": 20_000, "maxfev": 20_000},
        )  # fmt: skip
        assert slow_error(found, rounds) == pytest.approx(slow.fun, rel=1e-8)
        np.testing.assert_allclose(found[1:], slow.x, atol=1e-4)


def test_two_bands_in_closed_form():
    """Two rounds, two bands ``(1, c)``: ``w = (1, 1 - c)``, so the error is ``(1 + c^2) (2 + (1 - c)^2) / 2``, least where its derivative is 0."""
    roots = np.roots(np.polyder(np.polymul([1, 0, 1], [1, -2, 3])))
    (best,) = [r.real for r in roots if abs(r.imag) < 1e-12]
    assert optimal(2, 2) == pytest.approx((1.0, best), abs=1e-7)


def test_optimal_bands_cost_what_they_are_and_step_as_their_matrix():
    factorisation = BandedFactorisation(4, rounds=20)
    c = factorisation.coefficients
    assert factorisation.cost(5, 4) == pytest.approx(float(c @ c))
    noise, drawn = noise_of(factorisation, 20)
    matrix = sum(value * np.eye(20, k=-j) for j, value in enumerate(c))
    np.testing.assert_allclose(noise, np.linalg.solve(matrix, np.array(drawn)), atol=1e-9)
    assert prefix_error(factorisation, 20, 5, 4) == pytest.approx(math.sqrt(mean_error(c, 20)))
    assert prefix_error(factorisation, 20, 5, 4) < prefix_error(BandedFactorisation(4), 20, 5, 4)
    assert BandedFactorisation(8, rounds=3).coefficients[3:].tolist() == [0.0] * 5
    with pytest.raises(ConfigError, match="rounds=-1"):
        BandedFactorisation(2, rounds=-1)
