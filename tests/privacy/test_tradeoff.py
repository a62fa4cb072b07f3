"""Lower bounds for Gaussian noise from one run: against the authors' recursion with SciPy, and against Gaussian mechanisms of known noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from atoll.core.errors import ConfigError
from atoll.privacy import exact_epsilon, guessed, lower_bound
from atoll.privacy.canaries import gaussian_refuted


def _reference(mu: float, right: int, guesses: int, canaries: int, chance: float) -> bool:
    """Mahloujifar, Melis, Chaudhuri 2024, ``audit_rh_with_cap``: plain lists of all steps, SciPy's normal law, no early end."""
    r, h = [0.0] * (right + 1), [0.0] * (right + 1)
    r[right], h[right] = chance * right / canaries, chance * (guesses - right) / canaries
    for i in range(right - 1, -1, -1):
        h[i] = max(h[i + 1], float(stats.norm.cdf(stats.norm.ppf(r[i + 1]) - mu)))
        r[i] = min(1.0, r[i + 1] + i / (guesses - i) * (h[i] - h[i + 1]))
    return r[0] + h[0] > guesses / canaries


@given(st.data(), st.integers(1, 120), st.floats(0.05, 4.0), st.sampled_from([0.01, 0.05, 0.3]))
def test_the_recursion_is_that_of_the_paper(data: st.DataObject, guesses: int, mu: float, chance: float) -> None:
    right, canaries = data.draw(st.integers(0, guesses)), data.draw(st.integers(guesses, 3 * guesses))
    found = gaussian_refuted(mu, right, guesses, canaries, chance)
    assert found == _reference(mu, right, guesses, canaries, chance)


def scored(mu: float, canaries: int, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Scores of canaries that are apart by ``mu`` deviations of the noise, and their coins."""
    coins = draw.random(canaries) < 0.5
    return coins * mu + draw.standard_normal(canaries), coins


@pytest.mark.parametrize(("mu", "share"), [(0.5, 0.3), (1.0, 0.1), (2.0, 0.5)])
def test_honest_gaussian_noise_is_seldom_refuted(mu: float, share: float) -> None:
    draw, canaries, runs = np.random.default_rng(1), 300, 200
    many = int(share * canaries)
    refuted = [
        gaussian_refuted(mu, guessed(*scored(mu, canaries, draw), many), many, canaries, 0.05) for _ in range(runs)
    ]
    assert np.mean(refuted) < 0.1  # 5 %, and three standard deviations


def test_half_the_noise_is_caught_where_one_epsilon_is_not_enough() -> None:
    """Noise multiplier 1 is claimed and 0.5 is added: the curve refutes it with 1,000 canaries in nine runs of ten, a single epsilon never."""
    draw, claimed = np.random.default_rng(2), exact_epsilon(1.0, 1e-5)
    curve, point = [], []
    for _ in range(20):
        right = guessed(*scored(2.0, 1000, draw), 500)
        curve.append(lower_bound(right, 500, 0.95, 1e-5, 1000, "gaussian"))
        point.append(lower_bound(right, 500, 0.95, 1e-5, 1000))
    assert np.mean(np.array(curve) > claimed) >= 0.9
    assert max(point) < claimed
    assert max(curve) < exact_epsilon(4.0, 1e-5)


def test_more_right_guesses_never_prove_less() -> None:
    bounds = [lower_bound(right, 50, 0.95, 1e-5, 100, "gaussian") for right in range(20, 51, 5)]
    assert bounds == sorted(bounds)
    assert bounds[0] == 0.0 < bounds[-1]


def test_bad_input_is_refused() -> None:
    with pytest.raises(ConfigError, match="Gaussian noise at delta=0"):
        lower_bound(1, 2, 0.95, 0.0, 2, "gaussian")
    with pytest.raises(ConfigError, match="tradeoff='laplace'"):
        lower_bound(1, 2, 0.95, 0.1, 2, "laplace")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="right <= guesses"):
        lower_bound(3, 2, 0.95, 0.1, 2, "gaussian")
