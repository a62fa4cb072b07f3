"""HybridFL's two theorems (W. Wu 2021, section 4.4.4) on quadratic clients that all train in every round.

The theorems leave out drop-out and cached models, so full participation is what they speak of: local gradient descent from a common start, then the mean.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.algorithms import FedAvg
from tests.support.drift_toys import Loop


def h(x, eta, beta, delta):
    """(4.25): ``(delta / beta) ((eta beta + 1)^x - 1) - eta delta x``."""
    return delta / beta * ((eta * beta + 1) ** x - 1) - eta * delta * x


class Problem(Loop):
    """Quadratic clients beside gradient descent on their mean, restarted at every round's model."""

    def __init__(self, clients, dim, seed, tau, rate, spread=1.0):
        super().__init__(FedAvg(lr=0.1, steps=tau, batch_size=None), clients, dim, seed)
        matrix = np.mean([x for x, _ in self.data], axis=0)
        # Pull the clients together, so that their disagreement is a matter of choice.
        self.data = [
            (matrix + spread * (x - matrix), np.mean([b for _, b in self.data], axis=0) * (1 - spread) + spread * y)
            for x, y in self.data
        ]
        self.best = np.linalg.solve(np.mean([x for x, _ in self.data], 0), np.mean([y for _, y in self.data], 0))
        self.beta = max(np.linalg.eigvalsh(x).max() for x, _ in self.data)
        self.tau, self.eta = tau, rate / self.beta
        algorithm = FedAvg(lr=self.eta, steps=tau, batch_size=None)
        self.algorithm, self.algorithms = algorithm, [algorithm] * clients
        self.state = algorithm.init({"w": np.zeros(dim)})

    def value(self, w):
        return float(np.mean([0.5 * w @ x @ w - y @ w for x, y in self.data]))

    def central(self):
        """Gradient descent on the mean from the present model: ``v(0), ..., v(tau)``."""
        path = [self.w]
        for _ in range(self.tau):
            path.append(path[-1] - self.eta * self.mean_gradient(path[-1]))
        return path

    def local_mean(self, x):
        """``w`` after x local steps: the mean of the clients, who do not speak in between."""
        total = np.zeros_like(self.w)
        for k in range(len(self.data)):
            w = self.w
            for _ in range(x):
                w = w - self.eta * self.gradient(k, w)
            total += w
        return total / len(self.data)

    def disagreement(self, path):
        """Mean over clients of the largest ``|grad F_k - grad F|`` along the path: what the proof needs of ``delta``."""
        apart = [
            [np.linalg.norm(self.gradient(k, v) - self.mean_gradient(v)) for v in path] for k in range(len(self.data))
        ]
        return float(np.mean(np.max(apart, axis=1)))


problems = st.tuples(
    st.integers(2, 5), st.integers(1, 4), st.integers(0, 10_000), st.integers(1, 8), st.floats(0.05, 1.0)
)


@settings(max_examples=60)
@given(problems)
def test_theorem_1(case):
    """``|w(z) - v(z)| <= h(x)`` and ``F(w(z)) - F(v(z)) <= rho h(x)`` at every step of three rounds."""
    problem = Problem(*case)
    for _ in range(3):
        path = problem.central()
        delta = problem.disagreement(path)
        means = [problem.local_mean(x) for x in range(problem.tau + 1)]
        rho = max(np.linalg.norm(problem.mean_gradient(w)) for w in [*path, *means])
        for x, (w, v) in enumerate(zip(means, path, strict=True)):
            bound = h(x, problem.eta, problem.beta, delta)
            assert np.linalg.norm(w - v) <= bound * (1 + 1e-9) + 1e-12
            assert problem.value(w) - problem.value(v) <= rho * bound * (1 + 1e-9) + 1e-12
        problem.round()
        np.testing.assert_allclose(problem.w, means[-1], atol=1e-10)  # Atoll's round is the theorem's


@given(st.floats(1e-4, 1), st.floats(1e-3, 10), st.floats(0, 10), st.integers(1, 50))
def test_the_bound_grows_from_zero(eta, beta, delta, x):
    assert h(0, eta, beta, delta) == 0.0
    terms = delta / beta * (eta * beta + 1) ** (x + 1)  # of which little is left: their rounding is the error
    assert abs(h(1, eta, beta, delta)) <= 1e-14 * terms
    assert h(x + 1, eta, beta, delta) >= h(x, eta, beta, delta) - 1e-14 * terms


def test_one_step_is_central_descent():
    problem = Problem(4, 3, 0, 1, 0.8)
    for _ in range(5):
        after = problem.central()[-1]
        problem.round()
        np.testing.assert_allclose(problem.w, after, atol=1e-12)


@pytest.mark.parametrize("spread", [0.0, 0.0003, 0.001])
@pytest.mark.parametrize("tau", [2, 5])
def test_theorem_2(spread, tau):
    """Where its conditions hold: ``F(w^(t)) - F* <= 1 / (t tau (omega eta (1 - beta eta / 2) - rho h(tau) / (tau eps^2)))``."""
    judged = 0
    for seed in range(10):
        problem = Problem(4, 3, seed, tau, 0.2, spread)
        least = problem.value(problem.best)
        omega, rho, worst, gaps = np.inf, 0.0, 0.0, []
        for t in range(1, 9):
            path = problem.central()
            omega = min(omega, 1 / float(((path[0] - problem.best) ** 2).sum()))
            worst = max(worst, problem.disagreement(path))
            gaps += [problem.value(v) - least for v in path]
            rho = max(rho, *(float(np.linalg.norm(problem.mean_gradient(v))) for v in path))
            problem.round()
            gap = problem.value(problem.w) - least
            eps = min(*gaps, gap)
            rate = omega * problem.eta * (1 - problem.beta * problem.eta / 2)
            rate -= rho * h(tau, problem.eta, problem.beta, worst) / (tau * eps**2)
            if rate > 0:
                judged += 1
                assert gap <= 1 / (t * tau * rate) * (1 + 1e-9)
    assert judged >= (75 if spread == 0.0 else 5)  # the conditions are not empty
