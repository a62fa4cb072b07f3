"""FedAQ's theory: identities, contraction factors and the bounds of its two theorems (Youn, Kumar, Abernethy 2022)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.algorithms import FedAQ
from atoll.core.facets import facet
from atoll.core.requests.stage import Estimated, StageContext
from atoll.models.quadratic import Quadratic
from atoll.stages import QSGD

DIM, MU, L = 20, 0.1, 1.0


def method(eta, tau, mu, variant="I"):
    return FedAQ(lr=eta, steps=tau, mu=mu, variant=variant, batch_size=None)


@given(eta=st.floats(1e-5, 0.5), tau=st.integers(2, 200), mu=st.floats(0.01, 1.0))
def test_gamma_lies_between_eta_and_its_root(eta, tau, mu):
    """gamma = max(eta, sqrt(eta/(mu tau))) in [eta, sqrt(eta/mu)] where eta mu <= 1."""
    gamma = max(eta, math.sqrt(eta / (mu * tau)))
    alpha, beta, found = FedAQ(lr=eta, steps=tau, mu=mu, alpha=2.0, beta=2.0).coefficients()
    assert found == pytest.approx(gamma)
    assert eta <= found <= max(eta, math.sqrt(eta / mu)) * (1 + 1e-12)
    assert (alpha, beta) == (2.0, 2.0)


@given(eta=st.floats(1e-5, 1e-2), tau=st.integers(2, 200), mu=st.floats(0.05, 1.0))
def test_the_identity_of_the_second_set(eta, tau, mu):
    """1/(2 alpha) = (gamma mu / 3) (1 + 1/(2 alpha)), and the coefficients of both sets."""
    gamma = max(eta, math.sqrt(eta / (mu * tau)))
    if gamma * mu > 0.7:
        return
    alpha, beta, _ = method(eta, tau, mu, "II").coefficients()
    assert 0.5 / alpha == pytest.approx(gamma * mu / 3 * (1 + 0.5 / alpha))
    assert beta == pytest.approx((2 * alpha**2 - 1) / (alpha - 1))
    first = method(eta, tau, mu).coefficients()
    assert first[:2] == (pytest.approx(1 / (gamma * mu)), pytest.approx(1 / (gamma * mu) + 1))


# Specification of FedAQ, A4: eta, mu, tau -> gamma, alpha_I, beta_I, alpha_II, beta_II.
DERIVED = [
    (0.002, 0.1, 20, 0.03162, 316.23, 317.23, 473.84, 949.69),
    (0.1, 0.01, 100, 0.31623, 316.23, 317.23, 473.84, 949.69),
    (0.01, 0.2, 100, 0.02236, 223.61, 224.61, 334.91, 671.82),
]


@pytest.mark.parametrize(("eta", "mu", "tau", "gamma", "a1", "b1", "a2", "b2"), DERIVED)
def test_the_papers_coefficients(eta, mu, tau, gamma, a1, b1, a2, b2):
    assert method(eta, tau, mu).coefficients() == pytest.approx((a1, b1, gamma), rel=2e-4)
    assert method(eta, tau, mu, "II").coefficients() == pytest.approx((a2, b2, gamma), rel=2e-4)


def factor_c(gamma, tau, mu, large, q, m):
    extra = 4 * gamma**2 * mu * (mu + large) / (1 + gamma * mu) ** 2 + 2 * large * gamma**2 * (mu + large) / (
        1 + gamma * mu
    )
    return (1 - gamma * mu) ** tau + q / m * extra * tau**2


def factor_d(gamma, tau, mu, large, q, m):
    extra = gamma**2 * mu * (8 * mu / 3 + 2 * large) + 2 * gamma**2 * large * (mu / 3 + large)
    return (1 - gamma * mu / 3) ** tau + q / m * extra * tau**2


def allowed_i(gamma, tau, mu, large, q, m):
    """Condition (53)."""
    return (mu**2 + q / m * (mu + large) * (4 * mu + 2 * large)) * gamma * tau <= mu / 2


def allowed_ii(gamma, tau, mu, large, q, m):
    """Condition (45)."""
    inner = mu * (8 * mu / 3 + 2 * large) + 2 * large * (mu / 3 + large)
    return (mu**2 / 9 + q / m * inner) * gamma * tau <= mu / 6


@given(
    gamma=st.floats(1e-6, 1.0), tau=st.integers(2, 100), ratio=st.floats(0.01, 1.0), q=st.floats(0.0, 5.0), m=st.integers(1, 1000)
)  # fmt: skip
def test_the_conditions_make_a_round_contract(gamma, tau, ratio, q, m):
    """(53) implies C(gamma, tau) <= 1 - gamma mu tau/2, and (45) D(gamma, tau) <= 1 - gamma mu tau/6."""
    mu, large = ratio, 1.0
    if gamma * large <= 1 and allowed_i(gamma, tau, mu, large, q, m):
        assert factor_c(gamma, tau, mu, large, q, m) <= 1 - gamma * mu * tau / 2 + 1e-12
    if gamma * large <= 1 and allowed_ii(gamma, tau, mu, large, q, m):
        assert factor_d(gamma, tau, mu, large, q, m) <= 1 - gamma * mu * tau / 6 + 1e-12


def test_the_two_polynomials_are_not_negative():
    """g1 >= 0 on (0, 1]; g2 >= 0 from 3/2 on, with equality there."""
    x = np.linspace(1e-3, 1, 2000)
    assert (1 - x**2 / 4 + x / 2 - (1 - x) ** 2 * (1 + 2 * x) * (1 + x / 2) >= 0).all()

    def g2(a):
        return 8 / 7 * (2 * a**2 - 1) ** 2 - (2 * a - 1) ** 2 * (1 + a / 2) * (a + 0.5)

    assert g2(1.5) == pytest.approx(0.0, abs=1e-12)
    assert (g2(np.linspace(1.5, 200, 5000)) >= -1e-12).all()


def islands(m, target):
    """H = diag(linspace(0.1, 1, 20)) at every client, minimum w*."""
    matrix = np.diag(np.linspace(MU, L, DIM))
    parts = {
        f"client-{k}": atoll.data.Dataset({"x": matrix, "y": matrix @ target}, task="regression") for k in range(m)
    }
    return atoll.data.Islands.from_datasets(parts)


def bound_i(eta, tau, rounds, m, q, start):
    """Theorem 16, with sigma = 1."""
    mu, first = MU, math.exp(-0.5 * max(eta * MU, math.sqrt(eta * MU / tau)) * rounds * tau) * start
    noise = (2 * q + 1) * (math.sqrt(eta / (mu * tau)) / m + eta / m) + 14 * eta**2 * L * tau
    noise += (780 + 2 * q / m) * eta**1.5 * L * math.sqrt(tau / mu)
    noise += (mu + L) * (mu**2 + mu * L + L**2) * q * eta**1.5 * math.sqrt(tau) / (mu**2.5 * m)
    return first + noise + q * eta**3 * tau**2 * (mu + L) ** 2 * L / (mu * m)


def bound_ii(eta, tau, rounds, m, q, start):
    """Theorem 6, with sigma = 1."""
    mu, first = MU, math.exp(-max(eta * MU, math.sqrt(eta * MU / tau)) * rounds * tau / 6) * start
    noise = 2 * (2 * q + 1) * math.sqrt(eta / (mu * tau)) / m + 8 * (q + 25) * eta**2 * L**2 * tau / mu
    noise += 3 * q * (mu**2 * (mu / 3 + L / 4) + L * (mu / 3 + L) ** 2) * eta**1.5 * math.sqrt(tau) / (mu**2.5 * m)
    return first + noise + 3 * q * L * (mu / 3 + L) ** 2 * eta**3 * tau**2 / (mu * m)


@pytest.mark.every(2)
@pytest.mark.parametrize(("variant", "weight"), [("I", 0.5), ("II", 1 / 6)])
@pytest.mark.parametrize(
    ("eta", "tau", "rounds", "m"),
    [(1e-5, 10, 15, 8), pytest.param(1e-3, 4, 30, 16, marks=pytest.mark.slow), (1e-2, 4, 30, 16)],
)
def test_the_theorems_bound_what_happens(eta, tau, rounds, m, variant, weight):
    """Specification of FedAQ, A11.9, with fewer rounds: noise N(0, sigma^2/d I), QSGD with 16 levels (q = n/s^2 = 0.078)."""
    target = np.random.default_rng(0).normal(size=DIM)
    matrix = np.linspace(MU, L, DIM)
    q = facet(QSGD(16), Estimated).omega({"w": np.zeros(DIM)})
    assert q == pytest.approx(0.078, abs=2e-3)
    gamma = max(eta, math.sqrt(eta / (MU * tau)))

    def potential(objective_at, distance_at):
        off, far = objective_at - target, distance_at - target
        return 0.5 * float(off @ (matrix * off)) + weight * MU * float(far @ far)

    start = potential(np.zeros(DIM), np.zeros(DIM))
    allowed = (allowed_i if variant == "I" else allowed_ii)(gamma, tau, MU, L, q, m)
    assert allowed
    streams = {}
    for point in ("ag", "w"):
        algorithm = FedAQ(
            lr=eta, steps=tau, mu=MU, variant=variant, eval_point=point, compressor=QSGD(16), batch_size=None
        )
        job = atoll.Training(
            model=Quadratic(DIM, noise=1.0), algorithm=algorithm, selection=atoll.Everyone(), rounds=rounds
        )
        streams[point] = atoll.simulate(job, islands(m, target), engine="inline", seed=1).params["w"]
    found = potential(streams["ag"], streams["w"])
    assert found <= (bound_i if variant == "I" else bound_ii)(eta, tau, rounds, m, q, start)
    far = streams["w"] - streams["ag"]
    assert float(far @ far) <= (4 if variant == "I" else 8) / MU * found


@pytest.mark.slow
def test_more_clients_are_as_good_as_more_steps():
    """Specification of FedAQ, A11.10, small: with eta of Corollary 17, the potential times M T hardly changes with M (38 to 44 for M = 1 to 16 at T = 4096).

    Measured at T = 1024, K = 64, three seeds: 26, 34, 47 for M = 1, 4, 16. Without a speed-up it would grow 16 times.
    """
    steps, rounds, q = 512, 32, 20 / 256
    tau, target, matrix = steps // rounds, np.random.default_rng(0).normal(size=DIM), np.linspace(MU, L, DIM)
    start = 0.5 * float(target @ (matrix * target)) + 0.5 * MU * float(target @ target)
    found = {}
    for m in (1, 8):
        c1 = q * (MU + L) * (MU**2 + MU * L + L**2) / MU**2.5
        c2 = q * (MU + L) ** 2 * L / MU
        least = min(
            MU * m * steps * start / (2 * q + 1),
            MU**2 * steps**3 * start / (L * tau**2),
            MU**3 * m * steps**3 * start / ((MU**1.5 * c1 + 8 * c2) * tau**2),
        )
        eta = min(1 / L, 4 * tau / (MU * steps**2) * math.log(math.e + least) ** 2)
        off = {}
        for point in ("ag", "w"):
            algorithm = FedAQ(lr=eta, steps=tau, mu=MU, eval_point=point, compressor=QSGD(16), batch_size=None)
            model = Quadratic(DIM, noise=1.0)
            job = atoll.Training(model=model, algorithm=algorithm, selection=atoll.Everyone(), rounds=rounds)
            runs = [atoll.simulate(job, islands(m, target), engine="inline", seed=seed).params["w"] for seed in (0, 1)]
            off[point] = np.array(runs) - target
        psi = 0.5 * (off["ag"] ** 2 * matrix).sum(axis=1) + 0.5 * MU * (off["w"] ** 2).sum(axis=1)
        found[m] = float(psi.mean()) * m * steps
    assert found[8] < 3 * found[1]


def test_the_mean_of_quantised_updates_is_right_and_its_variance_falls_with_the_clients():
    """E[w'] is the mean of the clients' models, and its variance at most q/M^2 sum_m ||w_m - w||^2 (A11.2)."""
    from atoll.core.algebra.rng import Rng

    updates, stage, draws = np.random.default_rng(0).normal(size=(6, 30)), QSGD(4, per="model"), 500
    q = facet(stage, Estimated).omega({"w": updates[0]})
    seen = np.zeros((draws, 30))
    for i in range(draws):
        keys = np.array([Rng.of(i).child(m).key for m in range(6)], dtype=np.uint64)
        sent = stage.encode_block({"w": updates}, StageContext(keys=keys))
        seen[i] = stage.decode_block(sent, None)["w"].mean(axis=0)
    off = seen - updates.mean(axis=0)
    assert (np.abs(off.mean(axis=0)) <= 6 * off.std(axis=0) / math.sqrt(draws)).all()
    assert float((off**2).sum(axis=1).mean()) <= q / 36 * float((updates**2).sum())
