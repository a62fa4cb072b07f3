"""What releases cost together: the case table of the survey on federated ensemble learning (2.3), and groups of units."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.errors import ConfigError
from atoll.core.event import Gaussian, Laplace, NonPrivate
from atoll.privacy import (
    ACCOUNTANTS,
    DiscreteGaussian,
    Perturbed,
    PrivacyLoss,
    PrivateRelease,
    RandomisedResponse,
    compose,
    exact_delta,
    exact_epsilon,
    group_privacy,
    grouped,
    joint,
    parallel,
    renyi_curve,
    sequential,
)

ONE, TWO, AGG = (renyi_curve(Gaussian(noise_multiplier=z)) for z in (1.0, 2.0, 3.0))


def same(found, want):
    np.testing.assert_allclose(found, want, rtol=1e-12)


def test_the_case_table():
    leaves = parallel([(ONE, {"a", "b"}), (TWO, {"c"})])
    same(leaves, ONE)  # disjoint clusters: the largest
    same(sequential(leaves, AGG), ONE + AGG)  # an over-arch on the same users
    same(
        joint([(ONE, {"a", "b"}), (TWO, {"c"}), (AGG, {"d"})]), np.maximum(ONE, AGG)
    )  # on other users: max(agg, leaves)
    same(
        joint([(ONE, {"a", "b"}), (TWO, {"c"}), (AGG, {"c"})]), np.maximum(ONE, TWO + AGG)
    )  # partly the same: the user who pays most
    same(sequential(ONE, ONE, ONE, ONE), 4 * ONE)  # four steps, the same users
    same(parallel([(k * ONE, {str(k)}) for k in (1, 2, 3, 4)]), 4 * ONE)  # four steps, disjoint users: max
    same(sequential(leaves, np.zeros(len(ONE))), leaves)  # mean, median and maximum are post-processing


def test_overlapping_clusters_are_not_parallel():
    with pytest.raises(ConfigError, match=r"'b' is in two releases.*use joint"):
        parallel([(ONE, {"a", "b"}), (TWO, {"b"})])


@given(st.lists(st.tuples(st.floats(0, 5), st.sets(st.sampled_from("abcd"), min_size=1)), min_size=1, max_size=5))
def test_joint_lies_between_parallel_and_sequential(drawn):
    steps = [(np.array([cost]), units) for cost, units in drawn]
    found = joint(steps)[0]
    assert max(cost for cost, _ in drawn) <= found + 1e-12
    assert found <= sequential(*(cost for cost, _ in steps))[0] + 1e-12


@given(st.floats(0.3, 3.0), st.integers(1, 5), st.floats(0.1, 2.0))
def test_a_group_of_gaussian_units_is_a_larger_sensitivity(noise, size, epsilon):
    event = grouped(Gaussian(noise_multiplier=noise, sampling=0.1, drawn_by="party"), size)
    assert event.sampling == 1.0
    assert event.noise_multiplier == pytest.approx(noise / size)
    # Never worse than the general lemma, which knows only epsilon and delta.
    wide, delta = group_privacy(epsilon, exact_delta(noise**-2, epsilon), size)
    assert exact_delta((size / noise) ** 2, wide) <= delta * (1 + 1e-9) + 1e-300


def test_groups_of_other_releases():
    assert grouped(Laplace(epsilon=0.2), 3).epsilon == pytest.approx(0.6)
    assert grouped(Perturbed(epsilon=0.2), 3).epsilon == pytest.approx(0.6)
    assert grouped(RandomisedResponse(epsilon=0.2), 3) == Perturbed(epsilon=3 * 0.2)
    assert grouped(DiscreteGaussian(variance=9.0), 3).sensitivity == 3.0
    assert compose({grouped(DiscreteGaussian(variance=9e4), 3): 1}).epsilon(1e-5) == pytest.approx(
        exact_epsilon(9 / 9e4, 1e-5), rel=1e-2
    )
    assert group_privacy(0.5, 0.0, 4) == (2.0, 0.0)
    assert group_privacy(1.0, 1e-6, 2)[1] == pytest.approx(1e-6 * (1 + math.e))
    assert group_privacy(100.0, 1e-6, 20) == (2000.0, 1.0)


@pytest.mark.parametrize("method", [*ACCOUNTANTS[:2], "exact"])
def test_what_may_fail_is_a_response_at_a_smaller_delta(method):
    """Kairouz, Oh, Viswanath 2015: an (epsilon, delta)-private release is no worse than one that tells all with probability delta, and is a randomised response else."""
    sure, failing = RandomisedResponse(epsilon=0.3), PrivateRelease(epsilon=0.3, delta=1e-6)
    other = Gaussian(noise_multiplier=5.0)

    def cost(event, delta):
        return (PrivacyLoss.of(event).times(4) + PrivacyLoss.of(other)).epsilon(delta, method)

    assert cost(failing, 1e-5) == pytest.approx(cost(sure, 6e-6), rel=1e-9)
    assert cost(failing, 4e-6) == cost(failing, 1e-6) == math.inf
    assert cost(PrivateRelease(epsilon=0.3), 1e-5) == pytest.approx(cost(sure, 1e-5), rel=1e-9)


def test_a_group_of_what_may_fail():
    found = grouped(PrivateRelease(epsilon=0.2, delta=1e-6), 3)
    assert (found.epsilon, found.delta) == pytest.approx(group_privacy(0.2, 1e-6, 3))
    assert isinstance(grouped(PrivateRelease(epsilon=300.0, delta=1e-6), 3), NonPrivate)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: PrivateRelease(epsilon=1.0, delta=1.0),
        lambda: group_privacy(0.0, 0.1, 2),
        lambda: group_privacy(1.0, 0.1, 0),
        lambda: grouped(Laplace(epsilon=1.0), 0),
        lambda: grouped(NonPrivate(), 2),
        lambda: RandomisedResponse(epsilon=1.0, buckets=1),
        lambda: DiscreteGaussian(variance=-1.0),
        lambda: DiscreteGaussian(variance=1.0, sensitivity=0.5),
        lambda: Gaussian(noise_multiplier=1.0, scheme="lottery"),
        lambda: Gaussian(noise_multiplier=1.0, drawn_by="nobody"),
    ],
)
def test_nonsense_is_refused(wrong):
    with pytest.raises(ConfigError, match="use"):
        wrong()
