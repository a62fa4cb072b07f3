"""Discounted UCB: the formula by hand, its limits, and a switch that plain UCB sleeps through."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from atoll.core.errors import ConfigError
from atoll.programs.bandits import DiscountedUCB


def test_indices_are_the_formula() -> None:
    rule = DiscountedUCB(arms=3, discount=0.5, width=0.6)
    known = rule.nothing()
    assert [rule.choose(known)] == [0]
    for arm, reward in ((0, 1.0), (1, 0.5), (0, 0.0)):
        known = rule.seen(known, arm, reward)
    counts = np.array([0.25 + 1, 0.5, 0.0])
    assert known.tolist() == [counts.tolist(), [0.25, 0.25, 0.0]]
    n = counts.sum()
    expected = [0.25 / 1.25 + 2 * math.sqrt(0.6 * math.log(n) / 1.25), 0.5 + 2 * math.sqrt(0.6 * math.log(n) / 0.5)]
    assert rule.indices(known)[:2].tolist() == pytest.approx(expected)
    assert rule.choose(known) == 2, "never played"


def plays(rule: DiscountedUCB, best: Any, rounds: int) -> list[int]:
    rng, known, chosen = np.random.default_rng(0), rule.nothing(), []
    for t in range(rounds):
        arm = rule.choose(known)
        known = rule.seen(known, arm, float(rng.random() < (0.8 if arm == best(t) else 0.2)))
        chosen.append(arm)
    return chosen


def test_it_follows_a_switch_faster_than_without_a_discount() -> None:
    def best(t: int) -> int:
        return 0 if t < 2000 else 3

    share = {
        g: np.mean([arm == 3 for arm in plays(DiscountedUCB(arms=4, discount=g, width=0.02), best, 2150)[2000:]])
        for g in (0.97, 1.0)
    }
    assert share[0.97] > 0.6
    assert share[0.97] > share[1.0] + 0.3, share


def test_it_finds_the_best_arm_that_stays() -> None:
    assert np.mean([arm == 2 for arm in plays(DiscountedUCB(arms=4, discount=1.0), lambda t: 2, 600)[200:]]) > 0.9


@pytest.mark.parametrize("settings", [{"arms": 0}, {"discount": 0.0}, {"discount": 1.1}, {"width": -1.0}])
def test_settings_and_rewards_that_cannot_be(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="at least one arm, a discount above 0"):
        DiscountedUCB(**{"arms": 2, **settings})
    with pytest.raises(ConfigError, match=r"reward=2\.0 .*scale rewards"):
        DiscountedUCB(arms=2).seen(np.zeros((2, 2)), 0, 2.0)
