"""FedProf's convergence (W. Wu 2021, Theorem 5.1 and Appendix C) on strongly convex quadratic clients with noisy gradients.

K clients are drawn with probabilities ``q_k = rho_k``, and the plain mean of their models is the next global one. Expectations are exact where they can be
enumerated, and means over many chains elsewhere.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.algebra.rng import Rng
from atoll.core.requests.party import Roster
from atoll.selection import Candidates, SizeProportional

RHO = np.array([0.4, 0.3, 0.15, 0.1, 0.05])
WITHOUT = np.array([0.300, 0.279, 0.201, 0.144, 0.076])
"""How often each client is among three drawn without replacement, over three: sampled, from the specification of FedProf, D2."""


def without_replacement(rho, wanted):
    """Exact: every order in which ``wanted`` different clients can be drawn."""
    found = np.zeros(len(rho))
    for order in itertools.permutations(range(len(rho)), wanted):
        chance, left = 1.0, 1.0
        for client in order:
            chance *= rho[client] / left
            left -= rho[client]
        found[list(order)] += chance / wanted
    return found


def test_draws_without_replacement_are_biased():
    found = without_replacement(RHO, 3)
    np.testing.assert_allclose(found, WITHOUT, atol=1e-3)
    np.testing.assert_allclose(found, [0.2994, 0.2786, 0.2008, 0.1444, 0.0768], atol=5e-5)  # exact
    assert found.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(without_replacement(RHO, 1), RHO)
    np.testing.assert_allclose(without_replacement(RHO, 5), 0.2)


@pytest.mark.parametrize(("replace", "expected"), [(True, RHO), (False, WITHOUT)])
def test_our_draws_are_those_draws(replace, expected):
    """Selection in proportion to sizes, 6,000 rounds of three; standard error below 0.004."""
    rule, parties, sizes = SizeProportional(count=3, replace=replace), Roster(5).all(), 20 * RHO
    drawn = [rule.invite(Candidates(parties, t, Rng.of(0).child(t), sizes=lambda: sizes), 3, None) for t in range(6000)]
    np.testing.assert_allclose(np.bincount(np.concatenate(drawn)) / 18_000, expected, atol=0.015)


models = st.integers(0, 10_000).map(lambda seed: np.random.default_rng(seed).normal(size=(5, 2)))


@given(models, st.integers(1, 4))
def test_lemmas_4_and_5_by_enumeration(v, wanted):
    """C.4: with replacement the mean of those drawn is unbiased; C.5's first step: its variance is that of one draw over K."""
    mean = RHO @ v
    expectation, variance = np.zeros(2), 0.0
    for draw in itertools.product(range(5), repeat=wanted):
        chance, drawn = np.prod(RHO[list(draw)]), v[list(draw)].mean(0)
        expectation += chance * drawn
        variance += chance * ((drawn - mean) ** 2).sum()
    np.testing.assert_allclose(expectation, mean, atol=1e-12)
    assert variance == pytest.approx(float(RHO @ ((v - mean) ** 2).sum(1)) / wanted)
    # Without replacement it is biased, but for what all agree on.
    if wanted == 3:
        assert not np.allclose(without_replacement(RHO, 3) @ v, mean)


@given(
    st.lists(st.floats(0.05, 1), min_size=2, max_size=6),
    st.lists(st.floats(0.01, 5), min_size=6, max_size=6),
    st.floats(0.1, 1),
)
def test_preferences_that_give_any_distribution(weights, divergences, scale):
    """``alpha_k = -ln(Lambda rho_k) / div_k`` makes the draws those of rho; none is negative if ``Lambda <= 1 / max rho``."""
    rho = np.array(weights) / sum(weights)
    apart, free = np.array(divergences[: len(rho)]), scale / rho.max()
    alpha = -np.log(free * rho) / apart
    assert (alpha >= -1e-12).all()
    score = np.exp(-alpha * apart)
    np.testing.assert_allclose(score / score.sum(), rho)


@dataclass
class Chains:
    """Many runs at once: ``F_k(w) = 1/2 (w - c_k)^T diag(a_k) (w - c_k)``, gradients with noise of variance ``eps_k^2``."""

    steps: int = 4
    wanted: int = 3
    chains: int = 3000
    seed: int = 0

    def __post_init__(self):
        self.rng = np.random.default_rng(self.seed)
        self.curvature = self.rng.uniform(0.5, 2.0, (5, 3))
        self.centre = self.rng.normal(size=(5, 3))
        self.noise = self.rng.uniform(0.1, 0.5, 5)
        self.mu, self.large = float(self.curvature.min()), float(self.curvature.max())
        self.best = (RHO @ (self.curvature * self.centre)) / (RHO @ self.curvature)
        self.gamma = max(8 * self.large / self.mu, self.steps) - 1
        self.w = np.broadcast_to(self.rng.normal(size=3) * 2, (self.chains, 5, 3)).copy()
        self.gap = self.value(self.best)  # Gamma: every F_k's own minimum is 0

    def value(self, w):
        return float(np.mean(0.5 * (RHO @ (self.curvature * (np.expand_dims(w, -2) - self.centre) ** 2)).sum(-1)))

    def eta(self, t):
        return 2 / (self.mu * (t + self.gamma))

    def step(self, t):
        """One local step of all; then, every ``steps`` steps, three are drawn. Gives what the lemmas speak of."""
        exact = self.curvature * (self.w - self.centre)
        error = self.rng.normal(size=self.w.shape) * (self.noise / np.sqrt(3))[:, None]
        before, spread = RHO @ self.w, self.w - (RHO @ self.w)[:, None]
        v = self.w - self.eta(t) * (exact + error)
        mean, drawn = RHO @ v, None
        if (t + 1) % self.steps == 0:
            chosen = self.rng.choice(5, (self.chains, self.wanted), p=RHO)
            drawn = np.take_along_axis(v, chosen[:, :, None], 1).mean(1)
            v = np.broadcast_to(drawn[:, None], v.shape).copy()
        self.w = v
        return {
            "apart": float(((before - self.best) ** 2).sum(-1).mean()),
            "after": float(((mean - self.best) ** 2).sum(-1).mean()),
            "error": float(((RHO @ error) ** 2).sum(-1).mean()),
            "spread": float((RHO @ (spread**2).sum(-1).T).mean()),
            "norms": float(((exact + error) ** 2).sum(-1).mean(0).max()),
            "drawn": None if drawn is None else float(((drawn - mean) ** 2).sum(-1).mean()),
            "bias": None if drawn is None else np.linalg.norm((drawn - mean).mean(0)),
        }


@pytest.fixture(scope="module", params=[(1, 3), (4, 3), (8, 1)], ids=str)
def run(request):
    steps, wanted = request.param
    chains = Chains(steps, wanted)
    values, rows = [], []
    for t in range(1, 121):
        values.append(chains.value(RHO @ chains.w))
        rows.append(chains.step(t))
    return chains, rows, values


MONTE_CARLO = 1.1
"""Means over 3,000 chains stand for expectations."""


def test_lemma_1_one_step(run):
    chains, rows, _ = run
    for t, row in enumerate(rows, 1):
        eta = chains.eta(t)
        bound = (1 - eta * chains.mu) * row["apart"] + eta**2 * row["error"] + 6 * chains.large * eta**2 * chains.gap
        assert row["after"] <= (bound + 2 * row["spread"]) * MONTE_CARLO
    assert chains.eta(1) <= 1 / (4 * chains.large) + 1e-12


def test_lemma_2_noise_of_the_mean(run):
    """With independent noise the bound is an equality."""
    chains, rows, _ = run
    assert np.mean([row["error"] for row in rows]) == pytest.approx(float(RHO**2 @ chains.noise**2), rel=0.02)


@pytest.mark.every(2)
def test_lemma_3_drift(run):
    chains, rows, _ = run
    largest = max(row["norms"] for row in rows)
    for t, row in enumerate(rows, 1):
        assert row["spread"] <= 4 * chains.eta(t) ** 2 * (chains.steps - 1) ** 2 * largest * MONTE_CARLO + 1e-20
    assert max(row["spread"] for row in rows) > 1e-4 or chains.steps == 1


def test_lemmas_4_and_5_along_a_run(run):
    chains, rows, _ = run
    largest = max(row["norms"] for row in rows)
    for t, row in enumerate(rows, 1):
        if row["drawn"] is not None:
            assert row["drawn"] <= 4 / chains.wanted * chains.eta(t) ** 2 * chains.steps**2 * largest * MONTE_CARLO
            assert row["bias"] <= 5 * np.sqrt(row["drawn"] / chains.chains)


def test_theorem_and_recurrence(run):
    chains, rows, values = run
    largest = max(row["norms"] for row in rows)
    b = float(RHO**2 @ chains.noise**2) + 6 * chains.large * chains.gap + 8 * (chains.steps - 1) ** 2 * largest
    c = 4 / chains.wanted * chains.steps**2 * largest
    first = rows[0]["apart"]
    for t, (row, value) in enumerate(zip(rows, values, strict=True), 1):
        bound = chains.large / (chains.gamma + t) * (2 * (b + c) / chains.mu**2 + (chains.gamma + 1) / 2 * first)
        assert value - chains.gap <= bound * MONTE_CARLO
        if t > 1:
            eta = chains.eta(t - 1)
            step = (1 - eta * chains.mu) * rows[t - 2]["apart"] + eta**2 * (b + c)
            assert row["apart"] <= step * MONTE_CARLO
    assert values[-1] - chains.gap < 0.1 * (values[0] - chains.gap)  # and it does converge


def test_variance_falls_with_the_number_drawn():
    """C.5 scales as 1/K: one drawn against four, from the same state."""
    found = []
    for wanted in (1, 4):
        chains = Chains(4, wanted, chains=20_000)
        rows = [chains.step(t) for t in range(1, 4)]
        found.append(rows[-1]["drawn"])
    assert found[0] / found[1] == pytest.approx(4.0, rel=0.1)


@given(st.floats(0.01, 10), st.floats(1, 20), st.integers(1, 20), st.floats(0, 100), st.floats(0, 100))
def test_the_recurrence_implies_the_rate(mu, condition, steps, constant, first):
    """(C.20) with equality stays below ``nu / (gamma + t)``, with the theorem's step sizes."""
    gamma, beta = max(8 * condition, steps) - 1, 2 / mu
    nu = max(beta**2 * constant / (beta * mu - 1), (gamma + 1) * first)
    delta = first
    for t in range(1, 200):
        assert delta <= nu / (gamma + t) * (1 + 1e-9) + 1e-300
        eta = beta / (t + gamma)
        delta = (1 - eta * mu) * delta + eta**2 * constant
