"""The federated bandit: without noise it is centralised LinUCB; with noise, everything shared is private and paid for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.core.errors import ConfigError, DataError
from atoll.core.event import Ledger
from atoll.privacy import spent
from atoll.programs.bandits import FederatedBandit, LinUCB, NoisyPrefix

DIM, ARMS = 3, 5


def agents(count, turns, seed=0, noise=0.05):
    draw = np.random.default_rng(seed)
    theta = np.array([0.7, -0.4, 0.2])
    found = {}
    for i in range(count):
        arms = draw.normal(size=(turns, ARMS, DIM))
        arms *= draw.uniform(0.3, 1.0, (turns, ARMS, 1)) / np.linalg.norm(arms, axis=2, keepdims=True)  # no ties
        found[f"agent-{i}"] = {
            "arms": arms,
            "rewards": np.clip(arms @ theta + noise * draw.normal(size=arms.shape[:2]), -1, 1),
        }
    return found


def run(bandit, data, **how):
    return atoll.simulate(bandit.program(data), data, engine="inline", progress=False, **how)


def centralised(policy, data, turns):
    """LinUCB by its textbook form: in every turn all agents choose by what all have seen before."""
    v, u, rewards = policy.ridge * np.eye(DIM), np.zeros(DIM), []
    for t in range(turns):
        inverse, seen, total = np.linalg.inv(v), [], 0.0
        for one in data.values():
            arms = one["arms"][t]
            bound = [x @ inverse @ u + policy.beta * np.sqrt(x @ inverse @ x) for x in arms]
            at = int(np.argmax(bound))
            seen.append((arms[at], one["rewards"][t, at]))
            total += one["rewards"][t, at]
        for x, y in seen:
            v, u = v + np.outer(x, x), u + x * y
        rewards.append(total)
    return rewards


def test_without_noise_and_with_threshold_0_it_is_centralised_linucb():
    data, policy = agents(4, 25), LinUCB(dim=DIM, beta=0.5)
    found = run(FederatedBandit(policy=policy, turns=25, threshold=0.0), data)
    assert np.allclose(found.rewards, centralised(policy, data, 25))
    assert found.shared == list(range(25))


def test_fewer_shares_with_a_larger_threshold_and_none_is_alone():
    data, policy = agents(4, 30), LinUCB(dim=DIM, beta=0.5)
    shares = [len(run(FederatedBandit(policy=policy, turns=30, threshold=d), data).shared) for d in (0.0, 2.0, 1e9)]
    assert shares[0] > shares[1] > shares[2] == 0


def test_agents_that_share_regret_less_than_agents_alone():
    data, policy = agents(6, 60, noise=0.3), LinUCB(dim=DIM, beta=1.0)
    alone, together = (
        sum(run(FederatedBandit(policy=policy, turns=60, threshold=d), data).regrets) for d in (1e9, 1.0)
    )
    assert together < alone


@given(st.integers(1, 200), st.data())
@settings(max_examples=50)
def test_a_prefix_is_the_union_of_its_nodes_and_no_addend_is_in_more_than_the_levels(length, data):
    tree = NoisyPrefix(length=length, multiplier=1.0, sensitivity=1.0)
    covered = np.zeros(length + 1, int)
    t = data.draw(st.integers(0, length))
    for level, number in tree.nodes(t):
        covered[(number << level) + 1 : ((number + 1) << level) + 1] += 1
    assert covered[1 : t + 1].tolist() == [1] * t
    assert not covered[t + 1 :].any()
    nodes = {node for s in range(length + 1) for node in tree.nodes(s)}
    mine = data.draw(st.integers(1, length))
    inside = [n for n in nodes if (n[1] << n[0]) + 1 <= mine <= (n[1] + 1) << n[0]]
    assert len(inside) <= tree.levels


def test_no_play_moves_a_shared_sum_further_than_declared():
    policy, draw = LinUCB(dim=DIM), np.random.default_rng(0)
    longest = 0.0
    for _ in range(500):
        x = draw.normal(size=DIM)
        longest = max(longest, np.linalg.norm(policy.seen(x / np.linalg.norm(x), draw.choice([-1.0, 1.0]))))
    bandit = FederatedBandit(policy=policy, turns=8, every=1, epsilon=1.0)
    assert longest == pytest.approx(bandit.tree.sensitivity)


def test_under_privacy_noise_is_the_trees_and_one_play_costs_epsilon(tmp_path):
    data, policy = agents(3, 16), LinUCB(dim=DIM, beta=0.5)
    bandit = FederatedBandit(policy=policy, turns=16, every=4, epsilon=2.0)
    found = run(bandit, data, folder=tmp_path / "run")
    assert found.rewards == found.regrets == []
    assert found.shared == [3, 7, 11, 15]
    assert np.allclose(found.gram, found.gram.T)
    costs = spent(Ledger(tmp_path / "run" / "checkpoints" / "ledger.jsonl"), 1e-5, "pld")
    assert len(costs) == 3
    assert max(costs.values()) == pytest.approx(2.0, rel=1e-3)
    assert bandit.tree.levels == 3
    again = run(bandit, data)
    assert not np.allclose(found.gram, again.gram)  # two runs of one seed: the noise is not of it


def test_noise_of_a_prefix_has_the_variance_of_its_nodes():
    tree = NoisyPrefix(length=15, multiplier=0.5, sensitivity=2.0)
    made = np.array([tree.noise(bytes([i, j]), 7, 2) for i in range(40) for j in range(40)])
    assert made[:, 0, 1].std() == pytest.approx(np.sqrt(3), rel=0.06)  # 7 is 4 + 2 + 1
    assert np.array_equal(made[:, 0, 1], made[:, 1, 0])
    assert np.array_equal(tree.noise(b"k", 5, 3), tree.noise(b"k", 5, 3))


def test_what_makes_no_sense_is_refused():
    policy = LinUCB(dim=DIM)
    with pytest.raises(ConfigError, match="does not cover"):
        FederatedBandit(policy=policy, turns=5, threshold=1.0, epsilon=1.0)
    with pytest.raises(ConfigError, match="give threshold= or every="):
        FederatedBandit(policy=policy, turns=5)
    with pytest.raises(ConfigError, match="ridge=0"):
        LinUCB(dim=2, ridge=0.0)
    data = agents(1, 2)
    data["agent-0"]["arms"] = data["agent-0"]["arms"] * 3
    with pytest.raises(DataError, match="scale contexts to norm 1"):
        run(FederatedBandit(policy=policy, turns=2, every=1), data)
