"""What is trained of HybridFL's digits, and the verdicts on it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atoll_papers.hybridfl.judges import HybridFound
from atoll_papers.hybridfl.paper import DIGITS, LENET, SMALL, HybridProtocol
from atoll_papers.hybridfl.trainings import judge_trained, perceptron, settings

METHODS = ("FedAvg", "HierFAVG", "HybridFL")


def test_the_small_grid_has_every_cell_and_trains_each_column_as_often():
    cells = {(protocol.drops, protocol.shares): protocol for protocol in SMALL}
    assert sorted(cells) == [((drop,), (share,)) for drop in (0.1, 0.3, 0.6) for share in (0.1, 0.3, 0.5)]
    for (drops, shares), protocol in cells.items():
        assert round(protocol.rounds * shares[0]) == 24
        assert protocol.seeds == {0.1: 1, 0.3: 1, 0.6: 3}[drops[0]]
        small = protocol.setting
        assert (small.clients, small.regions, small.population, small.target) == (100, 10, (10.0, 3.0), 0.9)
        assert "300 digits each" in protocol.told


def test_what_configurations_say_of_the_model():
    made = settings(SMALL[0], "FedAvg", 0.6, 0.1)
    assert made["model"] == {"name": "atoll.reproduce.hybridfl.tasks:perceptron", "hidden": 64}
    assert made["compile"] == "always"
    assert perceptron(64)()(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    assert "lenet" in settings(LENET, "FedAvg", 0.6, 0.3)["model"]["name"]
    assert "lenet" in settings(HybridProtocol("mnist"), "FedAvg", 0.6, 0.3)["model"]["name"]
    assert settings(LENET, "FedAvg", 0.6, 0.3)["compile"] == "auto"


def test_a_goal_changes_what_is_judged_and_not_what_is_trained():
    other = replace(SMALL[0], goal=0.85)
    assert other.setting.target == 0.85
    assert settings(other, "FedAvg", 0.6, 0.1) == settings(SMALL[0], "FedAvg", 0.6, 0.1)


def cells(watt_hours: dict[str, float | None]) -> dict[tuple[str, float, float], HybridFound]:
    rounds = {"FedAvg": 100.0, "HierFAVG": 110.0, "HybridFL": 40.0}
    return {
        (m, 0.6, 0.1): HybridFound(378.0, 0.9, rounds[m], rounds[m] * 378, watt_hours[m])
        for m in METHODS
        if m in watt_hours
    }


@pytest.mark.parametrize(
    ("hybrid", "baseline", "ours", "holds"),
    [(0.1, 0.2, "1/1", True), (0.2, 0.1, "0/1", False), (0.1, None, None, None)],
)
def test_energy_is_judged_where_all_methods_arrive(hybrid, baseline, ours, holds):
    found = cells({"FedAvg": baseline, "HierFAVG": 0.3, "HybridFL": hybrid})
    (energy,) = [claim for claim in judge_trained(DIGITS, found) if "least energy" in claim.claim]
    assert (energy.ours, energy.holds) == (ours, holds)
    assert energy.verdict == {True: "holds", False: "does not hold", None: "not run"}[holds]


def test_the_time_is_judged_beside_the_slower_baseline():
    claims = judge_trained(DIGITS, cells({"FedAvg": 0.2, "HierFAVG": 0.3, "HybridFL": 0.1}))
    (sooner,) = [claim for claim in claims if "sooner" in claim.claim]
    assert (sooner.paper, sooner.ours, sooner.holds) == (12.1, 2.8, False)
