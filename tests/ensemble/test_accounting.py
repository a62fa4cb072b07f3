"""Epsilon of an ensemble: the cases of the paper's accounting, by user."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.core.errors import ConfigError
from atoll.core.event import Gaussian
from atoll.ensemble import EnsembleLoss, EnsembleRelease, Federated, account_ensemble
from atoll.privacy import ORDERS, epsilon_of, renyi_curve
from tests.ensemble.test_federated import leaf, population

DELTA = 1e-5


def release(name: str, users: str, noise: float = 1.0, count: int = 1) -> EnsembleRelease:
    """A release with Gaussian noise about some users."""
    return EnsembleRelease(name, tuple(users), ((Gaussian(noise_multiplier=noise), count),), DELTA)


def epsilon(noise: float = 1.0, count: int = 1) -> float:
    """Epsilon of Gaussian releases about the same user."""
    return epsilon_of(((Gaussian(noise_multiplier=noise), count),), DELTA)


def test_the_curve_is_the_gaussian_one() -> None:
    """Noise 1 at delta 1e-5: min over a of a / 2 + ln(1 / delta) / (a - 1) is 5.2985 (Mironov 2017, Proposition 3)."""
    a, curve = np.array(ORDERS), renyi_curve(Gaussian(noise_multiplier=1.0))
    assert (curve + np.log(1 / DELTA) / (a - 1)).min() == pytest.approx(5.2985, abs=1e-3)


def test_disjoint_leaves_cost_the_largest_and_joining_them_nothing() -> None:
    found = account_ensemble([release("a", "123", 1.0), release("b", "45", 2.0)])
    assert found.total == found.leaves == pytest.approx(epsilon(), rel=1e-3)
    assert found.aggregator == 0.0


def test_four_releases_about_the_same_users_cost_four_and_about_others_one() -> None:
    same = [account_ensemble([release(name, "12")]) for name in "abc"]
    assert account_ensemble([release("d", "12")], tried=same).total == pytest.approx(epsilon(count=4), rel=1e-3)
    apart = account_ensemble([release(name, name) for name in "abcd"])
    assert apart.total == pytest.approx(epsilon(), rel=1e-3)


def test_an_over_arch_adds_up_for_the_users_of_both() -> None:
    leaves = [release("a", "12"), release("b", "34")]
    both = account_ensemble(leaves, release("over-arch", "1234"))
    assert both.aggregator == pytest.approx(epsilon(), rel=1e-3)
    assert both.total == pytest.approx(epsilon(count=2), rel=1e-3)
    others = account_ensemble(leaves, release("over-arch", "56"))
    assert others.total == pytest.approx(epsilon(), rel=1e-3)
    part = account_ensemble([release("a", "12", 1.0), release("b", "34", 3.0)], release("over-arch", "45", 2.0))
    assert part.total == pytest.approx(epsilon(), rel=1e-3)  # user 1 loses more than user 4 in two


def test_overlapping_leaves_and_mixed_promises_are_refused() -> None:
    with pytest.raises(ConfigError, match="'2' is in two releases"):
        account_ensemble([release("a", "12"), release("b", "23")])
    other = EnsembleRelease("b", ("3",), ((Gaussian(noise_multiplier=1.0), 1),), 1e-6)
    with pytest.raises(ConfigError, match="promise different things"):
        account_ensemble([release("a", "12"), other])


def test_updates_without_noise_promise_nothing() -> None:
    found = account_ensemble([EnsembleRelease.of("a", ["1"], None)])
    assert found.plain() == {"leaves": None, "aggregator": 0.0, "total": None}


def test_leaves_of_different_sizes_meet_one_epsilon_with_noise_of_their_own() -> None:
    """The smaller leaf samples a larger share of its users, and so needs more noise."""
    listed = atoll.ensemble.ListedClusters(
        {"small": [f"u{i}" for i in range(4)], "large": [f"u{i}" for i in range(4, 12)]}
    )
    private = leaf(rounds=2, privacy=atoll.mechanisms.CentralDP(epsilon=4.0, clip=1.0, delta=DELTA))
    made = atoll.simulate(Federated(clusters=listed, leaf=private, aggregate="mean"), population()).outcome
    loss: EnsembleLoss = made.loss
    assert made.block == "privacy"
    assert loss.total == loss.leaves == pytest.approx(4.0, rel=1e-3)
    noises = [event.noise_multiplier for one in loss.releases for event, _ in one.events if isinstance(event, Gaussian)]
    assert noises[0] > noises[1]
