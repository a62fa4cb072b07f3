"""Section 5 of the Upcycled-FL paper (properties T11 to T16 of its specification) on quadratics, with FedProx solved to rounding.

The constants of the paper's Equations 11 to 13 are lost; those here are re-derived: ``C1 = rho``, ``C2 = eta (1 + 2 L rho)``, ``C3 = L eta^2 / 2``, where
``rho`` is what one FedProx round gains per squared gradient norm, in theory ``rho_of``. All clients take part, as the theory's terms in ``1/K`` allow.
"""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.algorithms import FedProx, Upcycled
from tests.support.drift_toys import Loop

MU = 30.0
CLIENTS, DIM = 4, 3
SEEDS = st.integers(0, 10_000)


def spread(loop, share):
    """Clients moved towards their mean objective: 1 leaves them, 0 makes them alike."""
    x, y = (np.mean([pair[i] for pair in loop.data], axis=0) for i in (0, 1))
    loop.data = [(x + share * (a - x), y + share * (b - y)) for a, b in loop.data]
    loop.best = np.linalg.solve(x, y)
    return loop


def solved(seed, share=1.0, mu=MU, **more):
    """Upcycled FedProx whose clients find their proximal minimum: 80 steps that each halve the error at least."""
    base = FedProx(lr=1.0 / (10.0 + mu), steps=80, batch_size=None, mu=mu)
    return spread(Loop(Upcycled(base=base, mu=mu, **more), clients=CLIENTS, dim=DIM, seed=seed), share)


def matrix(loop):
    return np.mean([x for x, _ in loop.data], axis=0)


def slopes(loop, w):
    return np.array([loop.gradient(k, w) for k in range(CLIENTS)])


def squared_dissimilarity(loop, models):
    """The least ``B^2`` with ``mean ||grad F_i||^2 <= B^2 ||grad f||^2`` at these models."""
    each = [slopes(loop, w) for w in models]
    return max((g**2).sum(axis=1).mean() / (g.mean(axis=0) ** 2).sum() for g in each)


def models_of(loop, rounds):
    """The models ``W^0, W^1, ...``."""
    return [loop.w, *(loop.round().w for _ in range(rounds))]


def rho_of(mu, convex, smooth, b, count):
    """One FedProx round's gain by its theory with exact solves (Li et al. 2020, Theorem 4, with gamma = 0)."""
    return (
        1 / mu
        - np.sqrt(2) * b / (convex * np.sqrt(count))
        - smooth * b / (convex * mu)
        - smooth * b**2 / (2 * convex**2)
        - smooth * b**2 * (2 * np.sqrt(2 * count) + 2) / (convex**2 * count)
    )


@given(SEEDS, st.floats(0.0, 1.0))
@settings(max_examples=20, deadline=None)
def test_bounded_differences_of_gradients_bound_the_dissimilarity(seed, share):  # T11, Lemma 5.3
    loop = solved(seed, share, lambda_=1.0)
    draw = np.random.default_rng(seed)
    models = [loop.best + draw.normal(size=DIM) for _ in range(20)]
    each = [slopes(loop, w) for w in models]
    kappa = max(np.linalg.norm(g - g.mean(axis=0), axis=1).max() for g in each)
    least = min(np.linalg.norm(g.mean(axis=0)) for g in each)
    found = squared_dissimilarity(loop, models)
    assert 1.0 - 1e-12 <= found <= (1.0 + kappa**2 / least**2) * (1 + 1e-12)
    if share == 0.0:
        assert found == pytest.approx(1.0)


@pytest.mark.parametrize(("mu", "convex"), [(2.0, True), (0.5, False)])
def test_the_local_problem_is_convex_where_mu_is_above_the_worst_curvature(mu, convex):  # T12
    """Curvatures down to -1: the local minimiser is found from mu > 1 on, and below there is none to find."""
    loop = Loop(FedProx(lr=0.2, steps=400, batch_size=None, mu=mu), clients=1, dim=2)
    h, b = np.diag([-1.0, 3.0]), np.array([1.0, 2.0])
    loop.data = [(h, b)]
    w = loop.round().w
    if convex:
        np.testing.assert_allclose(w, np.linalg.solve(h + mu * np.eye(2), b), rtol=1e-9)
    else:
        assert abs(w[0]) > 1e10


@pytest.mark.slow
@given(SEEDS, st.floats(0.0, 1.0), st.floats(0.5, 60.0), st.sampled_from(["constant", "sqrt"]))
@settings(max_examples=25, deadline=None)
def test_a_pair_of_rounds_goes_down_as_far_as_the_theory_says(seed, share, lam, schedule):  # T13, T14
    loop = solved(seed, share, lambda_=lam, schedule=schedule)
    rounds = 9
    w, algorithm = models_of(loop, rounds), loop.algorithm
    h = matrix(loop)
    smooth = np.linalg.eigvalsh(h)[-1]
    f = [0.5 * (v - loop.best) @ h @ (v - loop.best) for v in w]
    g = [np.linalg.norm(h @ (v - loop.best)) for v in w]
    odd = range(1, rounds, 2)
    rho = min((f[i + 1] - f[i + 2]) / g[i + 1] ** 2 for i in odd if i + 2 <= rounds)  # W^{2m} to W^{2m+1}
    terms = []
    for m, i in enumerate(odd, start=1):
        if i + 2 > rounds:
            break
        eta, d = algorithm.eta(m), np.linalg.norm(w[i] - w[i - 1])
        np.testing.assert_allclose(w[i + 1], w[i] + eta * (w[i] - w[i - 1]), rtol=1e-9, atol=1e-12)
        off = eta * (1 + 2 * smooth * max(rho, 0.0)) * d * g[i] + 0.5 * smooth * (eta * d) ** 2
        if rho >= 0:
            assert f[i + 2] <= f[i] - rho * g[i] ** 2 + off + 1e-12 * f[0]
        terms.append(off)
    if rho > 0:
        best = min(g[i] ** 2 for i in odd[: len(terms)])
        assert best <= (f[1] + sum(terms)) / (len(terms) * rho) * (1 + 1e-9)


@given(SEEDS, st.sampled_from([0.0, 0.02]))
@settings(max_examples=15, deadline=None)
def test_a_fedprox_round_gains_what_its_theory_promises(seed, share):  # the constant of T13, where it is positive
    loop = solved(seed, share, mu=200.0, lambda_=100.0)
    count = 10**6  # everyone: the terms of sampling vanish
    w, h = models_of(loop, 5), matrix(loop)
    smooth = max(np.linalg.eigvalsh(x)[-1] for x, _ in loop.data)
    b = np.sqrt(squared_dissimilarity(loop, [w[0], w[2], w[4]]))
    promised = rho_of(200.0, 200.0, smooth, b, count)
    assert promised > 0
    f = [0.5 * (v - loop.best) @ h @ (v - loop.best) for v in w]
    for i in (0, 2, 4):
        assert f[i] - f[i + 1] >= promised * np.linalg.norm(h @ (w[i] - loop.best)) ** 2 * (1 - 1e-9)


@pytest.mark.parametrize("ratio", [0.3, 1.0, 4.0])
def test_a_growing_lambda_makes_the_extra_terms_vanish(ratio):  # T15
    """The mean of ``eta_m`` over ``M`` pairs is at most ``2 / (ratio sqrt(M))`` with ``lambda_m ~ sqrt(m)``, and stays where lambda does."""
    base = FedProx(mu=1.0)
    growing, still = (Upcycled(base=base, mu=1.0, lambda_=ratio, schedule=s) for s in ("sqrt", "constant"))
    etas = np.array([growing.eta(m) for m in range(1, 4097)])
    means = np.cumsum(etas) / np.arange(1, 4097)
    assert (means <= 2.0 / (ratio * np.sqrt(np.arange(1, 4097)))).all()
    assert all(later < 0.75 * earlier for earlier, later in itertools.pairwise(means[[63, 255, 1023, 4095]]))
    assert np.mean([still.eta(m) for m in (1, 64, 4096)]) == pytest.approx(1.0 / (1.0 + ratio))


def test_where_clients_differ_the_constant_is_negative_and_it_still_converges():  # T16
    assert rho_of(50.0, 50.0, 1.0, 1.0, 10**6) > 0 > rho_of(1.0, 1.0, 1.0, 1.0, 10**6)  # alike, B = 1: mu must be large
    values = [rho_of(50.0, 50.0, 1.0, b, 30) for b in (1.0, 4.0, 16.0)]
    assert values[0] > values[1] > values[2]
    assert values[2] < 0
    loop = solved(3, mu=5.0, lambda_=10.0)
    w, h = models_of(loop, 160), matrix(loop)
    smooth = max(np.linalg.eigvalsh(x)[-1] for x, _ in loop.data)
    b = np.sqrt(squared_dissimilarity(loop, w[1:40:2]))
    assert rho_of(5.0, 5.0, smooth, b, CLIENTS) < 0
    f = [0.5 * (v - loop.best) @ h @ (v - loop.best) for v in w]
    assert f[-1] < 0.05 * f[0]
    assert np.linalg.norm(w[-1] - w[-2]) < 1e-6 * np.linalg.norm(w[0] - w[1])
