"""Noise on a lattice: its law is the closed form, what is possible does not depend on the value, and rounding is part of what is counted."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from atoll.core.errors import ConfigError
from atoll.privacy.discrete import (
    GaussianLattice,
    LaplaceLattice,
    add_gaussian,
    add_laplace,
    snap,
    words_of,
)

scales = st.floats(1e-9, 1e9)
numbers = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=6)


def generator(seed=0):
    return np.random.Generator(np.random.Philox(seed))


def words(seed=0):
    return words_of(generator(seed))


def fits(counts, odds):
    """Whether counts are those of a law, by a chi-square test over places that are expected at least ten times."""
    total = counts.sum()
    odds = np.append(odds, max(0.0, 1 - odds.sum()))
    counts = np.append(counts, 0)
    keep = odds * total >= 10
    observed = np.append(counts[keep], counts[~keep].sum())
    expected = np.append(odds[keep], odds[~keep].sum()) * total
    if expected[-1] < 10:
        observed, expected = observed[:-1], expected[:-1]
    return stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-4


def laplace_odds(scale, at):
    ratio = math.exp(-1 / scale)
    return (1 - ratio) / (1 + ratio) * ratio ** np.abs(at)


@pytest.mark.parametrize("scale", [0.3, 1.0, 7.5])
def test_laplace_noise_follows_its_closed_form(scale):
    drawn = LaplaceLattice(scale, 1.0).draw(words(), 60_000)
    at = np.arange(-200, 201)
    counts = np.array([(drawn == k).sum() for k in at])
    assert counts.sum() == len(drawn)
    assert fits(counts, laplace_odds(scale, at))


def test_laplace_noise_of_several_digits_follows_its_closed_form():
    """In cells of 1000 whole numbers, and in the remainders of its magnitude by 16: digits are where they should be, and none is drawn twice."""
    scale = 9000.5
    drawn = LaplaceLattice(scale, 1.0).draw(words(), 60_000)
    ratio = math.exp(-1 / scale)

    def below(k):  # P(|Z| < k), k >= 1
        return 1 - 2 * ratio**k / (1 + ratio)

    edges = np.arange(0, 100_001, 1000)
    counts = np.histogram(np.abs(drawn), bins=edges)[0]
    assert fits(counts, np.diff([0.0, *[below(k) for k in edges[1:].tolist()]]))
    rest = np.bincount(np.abs(drawn) % 16, minlength=16)
    each = np.array([2 * ratio**r * (1 - ratio) / (1 + ratio) / (1 - ratio**16) for r in range(16)])
    each[0] -= (1 - ratio) / (1 + ratio)  # zero has one sign
    assert fits(rest, each)
    assert stats.binomtest(int((drawn < 0).sum()), int((drawn != 0).sum())).pvalue > 1e-4


@pytest.mark.parametrize("scale", [0.7, 1.0, 1.9999])
def test_gaussian_noise_follows_its_closed_form(scale):
    lattice = GaussianLattice(scale)
    drawn = lattice.draw(words(), 60_000)
    edges = stats.norm.ppf(np.linspace(0, 1, 201)[1:-1], scale=scale)
    counts = np.bincount(np.searchsorted(edges, drawn * lattice.step), minlength=200)
    assert fits(counts, np.full(200, 1 / 200))
    assert fits(np.bincount(drawn % 64, minlength=64), np.full(64, 1 / 64))
    assert stats.kstest(drawn * lattice.step, stats.norm(scale=scale).cdf).pvalue > 1e-4


def test_two_discrete_gaussians_are_one_where_the_first_is_smooth():
    """The identity behind the tables, summed term by term with a step of 4 in place of 512: parameters 32 and 14 make ``sqrt(32^2 + 16 14^2)``."""
    reach = 800
    at = np.arange(-reach, reach + 1)
    fine = np.exp(-(at**2) / (2 * 32.0**2))
    coarse = np.where(at % 4 == 0, np.exp(-((at / 4) ** 2) / (2 * 14.0**2)), 0.0)
    both = np.convolve(fine, coarse)[reach : 3 * reach + 1]
    one = np.exp(-(at**2) / (2 * (32.0**2 + 16 * 14.0**2)))
    near = np.abs(at) < 300
    assert np.allclose((both / both.sum())[near], (one / one.sum())[near], rtol=1e-9)


@given(scales)
def test_the_parts_of_gaussian_noise_have_its_variance(scale):
    drawn, lattice = [], GaussianLattice(scale)
    top = (scale / lattice.step / 2.0**18) ** 2 - 64 * (1 + 2.0**-18)
    drawn = 4096.0**2 * (1 + 2.0**18) + 2.0**36 * top
    assert drawn * lattice.step**2 == pytest.approx(scale**2, rel=1e-12)
    assert top > 100


@given(numbers, numbers, scales, st.sampled_from([LaplaceLattice, GaussianLattice]))
@settings(max_examples=30)
def test_what_is_possible_is_the_same_lattice_for_every_value(one, other, scale, kind):
    lattice = kind(scale)
    assert math.frexp(lattice.step)[0] == 0.5
    for values in (one, other):
        steps = lattice.add(np.array(values), words()) / lattice.step
        assert np.array_equal(steps, np.rint(steps))
        whole = lattice.round(np.array(values))
        sums = [int(a) + int(z) for a, z in zip(whole, lattice.draw(words(), len(values)), strict=True)]
        assert [float(s) for s in sums] == steps.tolist()  # the exact sum, rounded once


@given(numbers, numbers, scales, st.floats(1e-3, 1e3), st.sampled_from([LaplaceLattice, GaussianLattice]))
@settings(max_examples=40)
def test_rounding_is_inside_the_sensitivity(one, other, scale, sensitivity, kind):
    """Whatever rounding adds to the distance of two values, noise that covers ``sensitivity`` is wider by that."""
    count = min(len(one), len(other))
    try:
        lattice = kind.covering(scale, sensitivity, count)
    except ConfigError:
        assert scale / sensitivity * count * 2.0**-22 >= 0.1
        return
    a, b = (lattice.round(np.array(values[:count])) * lattice.step for values in (one, other))
    norm = 1 if kind is LaplaceLattice else 2
    before = np.linalg.norm(np.array(one[:count]) - np.array(other[:count]), norm)
    assert np.linalg.norm(a - b, norm) <= (before + lattice.step * kind.norm_of_ones(count)) * (1 + 1e-9)
    assert lattice.scale >= scale * (1 + lattice.step * kind.norm_of_ones(count) / sensitivity) * (1 - 1e-12)


@given(numbers, scales)
def test_rounding_makes_nothing_longer(values, scale):
    lattice = LaplaceLattice(scale)
    for value, whole in zip(values, lattice.round(np.array(values)).tolist(), strict=True):
        assert abs(Fraction(whole) * Fraction(lattice.step)) <= abs(Fraction(value))


def test_many_small_numbers_are_refused_where_rounding_would_count_for_more():
    with pytest.raises(ConfigError, match="in 10000000 entries"):
        GaussianLattice.covering(1e4, 1.0, 10_000_000)
    with pytest.raises(ConfigError, match=r"a scale of 0\.0"):
        LaplaceLattice(0.0)


def test_the_same_secret_gives_the_same_noise_and_shapes_stay():
    for add in (add_laplace, add_gaussian):
        first, second = (add(np.ones((2, 3)), 0.5, generator(4), 1.0) for _ in range(2))
        assert np.array_equal(first, second)
        assert first.shape == (2, 3)
        assert not np.array_equal(first, add(np.ones((2, 3)), 0.5, generator(5), 1.0))


def test_snapped_numbers_are_on_a_lattice_that_their_values_do_not_choose():
    steps = snap(np.array([0.1, -7.3, 1e3]), 0.7) / 2.0**-21
    assert np.array_equal(steps, np.rint(steps))
    assert np.allclose(snap(np.array([0.1, -7.3]), 0.7), [0.1, -7.3], atol=2.0**-21)
