"""Discrete Laplace noise has its distribution, exactly."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import scipy.stats

from atoll.core.requests.island import Secret
from atoll.statistics.disclosure import discrete_laplace, noise_std, rate_of


@pytest.mark.parametrize("rate", [Fraction(1, 2), Fraction(3, 1), Fraction(2, 7)])
def test_draws_have_the_two_sided_geometric_distribution(rate: Fraction) -> None:
    drawn = discrete_laplace(rate, Secret(7), 6000)
    a = np.exp(-float(rate))
    inner = np.arange(-3, 4)
    chances = (1 - a) / (1 + a) * a ** np.abs(inner)
    seen = [int((drawn == z).sum()) for z in inner]
    rest = 6000 - sum(seen)
    expected = [*(6000 * chances), 6000 * (1 - chances.sum())]
    if expected[-1] < 5:
        seen, expected, rest = seen[2:-2], list(np.array(expected[2:-3])), 0
        expected = list(np.array(expected) * sum(seen) / sum(expected))
        assert scipy.stats.chisquare(seen, expected).pvalue > 1e-4
    else:
        assert scipy.stats.chisquare([*seen, rest], expected).pvalue > 1e-4
    assert drawn.std() == pytest.approx(noise_std(rate), rel=0.08)


def test_the_rate_is_never_above_the_epsilon() -> None:
    for epsilon in (0.1, 1.0, 3.7):
        for sensitivity in (1, 2**20 + 1):
            assert rate_of(epsilon, sensitivity) * sensitivity <= Fraction(epsilon)
            assert float(rate_of(epsilon, sensitivity)) == pytest.approx(epsilon / sensitivity, rel=1e-9)


def test_shapes_and_independence_of_secrets() -> None:
    assert discrete_laplace(Fraction(1, 100), Secret(1), (3, 4)).shape == (3, 4)
    one, other = (discrete_laplace(Fraction(1, 100), Secret(seed), 50) for seed in (1, 2))
    assert not np.array_equal(one, other)
