"""Bounds for distributed noise against divergences summed term by term, and the distance of the draws charged to delta."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.errors import ConfigError
from atoll.core.event import Gaussian
from atoll.privacy import (
    DiscreteGaussian,
    DistributedGaussian,
    Skellam,
    SkellamMixture,
    distributed_bound,
    epsilon_of,
    grouped,
    mixture_bound,
    skellam_bound,
    skellam_divergence,
)
from atoll.privacy.events import discrete_gaussian_law, skellam_law
from atoll.privacy.renyi import divergence

ORDERS = (1.3, 2.0, 4.0, 11.0)


def exactly(first, second, order):
    """The divergence of two laws given as probabilities on the same values."""
    keep = (first > 1e-280) & (second > 1e-280)
    logs = order * np.log(first[keep]) + (1 - order) * np.log(second[keep])
    top = logs.max()
    return float(top + np.log(np.exp(logs - top).sum())) / (order - 1)


def sum_law(variance, parties, reach):
    """The law of the sum of discrete Gaussians of one variance, by convolution."""
    each = np.exp(discrete_gaussian_law(variance, reach))
    law = each
    for _ in range(parties - 1):
        law = np.convolve(law, each)
    return law


@pytest.mark.parametrize(("variance", "parties"), [(0.25, 2), (0.3, 8), (0.5, 3), (1.0, 5), (4.0, 4), (30.0, 3)])
@pytest.mark.parametrize("shift", [1, 3])
def test_sums_of_discrete_gaussians_stay_within_the_bound(variance, parties, shift):
    law = sum_law(variance, parties, int(9 * math.sqrt(variance)) + 12)
    for order in ORDERS:
        exact = exactly(law[:-shift], law[shift:], order)
        bound = divergence(DistributedGaussian(variance=parties * variance, parties=parties, sensitivity=shift), order)
        assert exact <= bound * (1 + 1e-9)
        if variance >= 4:
            assert bound <= 1.1 * exact


def test_a_sum_of_discrete_gaussians_is_no_discrete_gaussian():
    """At a variance of 1/4 each, two parties: the sum costs more than one discrete Gaussian of the same total would."""
    law = sum_law(0.25, 2, 20)
    exact = exactly(law[:-1], law[1:], 4.0)
    assert exact > 1.02 * divergence(DiscreteGaussian(variance=0.5), 4.0)
    assert exact <= divergence(DistributedGaussian(variance=0.5, parties=2), 4.0)


def test_one_party_is_the_discrete_gaussian():
    for order in ORDERS:
        one = distributed_bound(order, 9.0, 1, 3.0, 100)
        assert one == pytest.approx(order * 9 / 18, rel=1e-12)


def test_golden_numbers_of_skellam():
    """Variance 100, order 2: exact 0.00999959 (independent sum of Bessel terms), bound of Theorem 3.5 0.010225."""
    assert skellam_divergence(2.0, 100.0) == pytest.approx(0.00999959, abs=5e-9)
    assert skellam_bound(2, 100.0) == pytest.approx(0.010225, abs=1e-12)


def test_golden_numbers_of_skellam_vectors():
    """By hand from Theorem 3.5: with 16 entries and D = 8, D1 = min(4 8, 64) = 32; with 100 entries and D = 3, D1 = min(10 3, 9) = 9; variance 100, order 2."""
    assert skellam_bound(2, 100.0, 8.0, 16) == pytest.approx(0.64 + (192 + 192) / 40_000, abs=1e-12)
    assert skellam_bound(2, 100.0, 3.0, 100) == pytest.approx(0.09 + (27 + 54) / 40_000, abs=1e-12)
    assert skellam_bound(2, 0.5, 8.0, 16) == pytest.approx(
        128 + 96, abs=1e-12
    )  # of little noise the other bound: 3 D1 / (2 v)


@pytest.mark.parametrize("variance", [0.5, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("entries", [1, 4, 25])
def test_no_skellam_vector_exceeds_its_bound(entries, variance):
    """Each entry moves by one: L2 ``sqrt(entries)``, L1 ``entries``, and the divergence is the sum of those of the entries."""
    for order in (2.0, 3.0, 9.0):
        exact = entries * skellam_divergence(order, variance)
        event = Skellam(variance=variance, sensitivity=math.sqrt(entries), values=max(2, entries))
        assert exact <= divergence(event, order) * (1 + 1e-9)


def mixed(x, law, reach):
    """The law of a rounded entry plus noise: a mixture of two shifts."""
    low = math.floor(x)
    share = x - low
    made = np.zeros(len(law))
    for whole, weight in ((low, 1 - share), (low + 1, share)):
        made += weight * np.roll(law, whole)
    return made


@given(
    st.lists(st.floats(-3, 3), min_size=1, max_size=6),
    st.lists(st.floats(-3, 3), min_size=6, max_size=6),
    st.sampled_from([4.0, 30.0, 400.0]),
    st.sampled_from([2, 3, 9]),
)
def test_no_rounded_vector_exceeds_the_bound_of_the_mixture(x, y, variance, order):
    """Entries are independent, so the divergence of the vectors is the sum of those of their entries, computed exactly."""
    reach = int(12 * math.sqrt(variance)) + 60
    law = np.exp(skellam_law(variance, reach))
    mean_square = sum(v * v + (v - math.floor(v)) * (1 - v + math.floor(v)) for v in x)
    if mean_square > 1e-6:
        exact = sum(exactly(mixed(v, law, reach), law, order) for v in x)
        back = sum(exactly(law, mixed(v, law, reach), order) for v in x)
        bound = mixture_bound(order, variance, math.sqrt(mean_square), math.ceil(max(map(abs, x))))
        assert max(exact, back) <= bound * (1 + 1e-6) + 1e-12
    pairs = list(zip(x, y, strict=False))
    apart = sum((a - b) ** 2 + sum((v - math.floor(v)) * (1 - v + math.floor(v)) for v in (a, b)) for a, b in pairs)
    if apart > 1e-6:
        exact = sum(exactly(mixed(a, law, reach), mixed(b, law, reach), order) for a, b in pairs)
        assert exact <= mixture_bound(order, variance, math.sqrt(apart), 7, both=True) * (1 + 1e-6) + 1e-12


@given(st.floats(100, 1e5), st.integers(1, 30), st.integers(2, 20))
def test_the_mixture_costs_no_more_than_in_the_paper(variance, largest, order):
    """Bao et al. 2022, Theorem 1: (1.09 a + 0.91) / 2 * c / variance, for the orders that it allows."""
    if order < variance / largest + 1 and 10.9 * order**2 - 1.8 * order - 9.1 < 2 * variance / largest**2:
        ours = mixture_bound(order, variance, 10.0, largest)
        assert ours <= (1.09 * order + 0.91) / 2 * 100 / variance


def test_the_distance_of_draws_is_charged_to_delta():
    exact = ((Skellam(variance=1e4, sensitivity=20.0, values=1000), 10),)
    drawn = ((Skellam(variance=1e4, sensitivity=20.0, values=1000, slack=1e-8), 10),)
    clean, charged = (epsilon_of(one, 1e-5, "rdp") for one in (exact, drawn))
    assert clean < charged < 1.05 * clean
    paid = 1e-5 - epsilon_slack(charged, 1e-7)
    assert epsilon_of(exact, paid, "rdp") <= charged
    far = ((Skellam(variance=1e4, sensitivity=20.0, values=1000, slack=1e-6), 10),)
    assert epsilon_of(far, 1e-5, "rdp") == math.inf


def epsilon_slack(epsilon, distance):
    return (1 + math.exp(epsilon)) * distance


def test_mixtures_and_sums_need_the_accountant_that_knows_them():
    for event in (
        SkellamMixture(variance=10.0, sensitivity=1.5, largest=2),
        DistributedGaussian(variance=10.0, parties=2),
    ):
        with pytest.raises(ConfigError, match="accountant 'rdp'"):
            epsilon_of(((event, 1),), 1e-5, "pld")
        assert 0 < epsilon_of(((event, 1),), 1e-5, "rdp") < 20
    assert grouped(DistributedGaussian(variance=10.0, parties=2), 3).sensitivity == 3
    with pytest.raises(ConfigError, match="for a group is not known"):
        grouped(SkellamMixture(variance=10.0, sensitivity=1.5), 2)
    with pytest.raises(ConfigError, match="standard deviation of at least 1/2"):
        DistributedGaussian(variance=1.0, parties=8)
    with pytest.raises(ConfigError, match="slack=2"):
        Skellam(variance=1.0, slack=2.0)
    assert epsilon_of(((Gaussian(noise_multiplier=2.0), 1),), 1e-5, "rdp") > 0
