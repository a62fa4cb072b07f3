"""Normal numbers and coins of a keystream: their laws, and that pieces do not matter."""

import math

import numpy as np
import pytest
from scipy import stats

from atoll.core.errors import ConfigError
from atoll.secure.keystream import NoiseStream

SEED = bytes(range(32))


def test_normal_numbers_have_the_moments_and_the_distribution_of_the_standard_normal():
    drawn = NoiseStream(SEED).normal(2_000_000).astype(np.float64)
    n = len(drawn)
    for power, moment, spread in ((1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)):
        assert abs((drawn**power).mean() - moment) < 4.5 * math.sqrt(spread / n)
    assert stats.kstest(drawn[::5], "norm").pvalue > 1e-4
    cuts = stats.norm.ppf(np.arange(1, 64) / 64)
    counts = np.bincount(np.searchsorted(cuts, drawn), minlength=64)
    assert stats.chisquare(counts).pvalue > 1e-4
    assert abs(np.corrcoef(drawn[: n // 2], drawn[n // 2 :])[0, 1]) < 4.5 / math.sqrt(n / 2)


@pytest.mark.slow  # the quicker one has 2 million
def test_ten_million_draws():
    drawn = NoiseStream(SEED[::-1]).normal(10_000_000)
    counts = np.bincount(np.searchsorted(stats.norm.ppf(np.arange(1, 1024) / 1024), drawn), minlength=1024)
    assert stats.chisquare(counts).pvalue > 1e-4
    beyond = int((np.abs(drawn) > 5.0).sum())
    assert stats.poisson.cdf(beyond, 5.733) > 1e-4
    assert stats.poisson.sf(beyond - 1, 5.733) > 1e-4


def test_the_tails_go_on_below_the_32_bits_of_a_draw(monkeypatch):
    """A draw of 0 in 32 bits stands for all that is below 2^-32: more bits tell how far."""
    stream = NoiseStream(SEED)
    out = np.empty(3, np.float32)
    stream._radii(np.array([0, 1, 5_000], np.uint32), out)
    assert math.sqrt(2 * 32 * math.log(2)) < out[0] < 10.6
    assert np.isfinite(out).all()
    stream._radii(np.array([2**32 - 1, 2**31, 5], np.uint32), out)
    assert out[0] < 1e-3
    assert out[1] == pytest.approx(math.sqrt(2 * math.log(2)), rel=1e-6)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 32_767, 32_769, 70_001])
def test_every_place_is_filled_and_the_same_seed_gives_the_same(count):
    out = np.full(count, np.nan, dtype=np.float32)
    made = NoiseStream(SEED).normal(count, out)
    assert made is out
    assert np.isfinite(out).all()
    np.testing.assert_array_equal(NoiseStream(SEED).normal(count), out)
    assert count < 3 or not np.array_equal(NoiseStream(SEED[::-1]).normal(count), out)


def test_coins_fall_with_their_probability():
    stream = NoiseStream(SEED)
    for probability in (0.0, 1e-4, 0.3, 1.0):
        share = stream.coins(200_000, probability).mean()
        assert abs(share - probability) <= 4.5 * math.sqrt(probability * (1 - probability) / 200_000)
    with pytest.raises(ConfigError, match=r"probability=1\.5"):
        stream.coins(3, 1.5)
