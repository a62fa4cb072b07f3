"""FedProf's model of time and energy, its tables, and the verdicts on them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.errors import ConfigError
from atoll_papers.fedprof.costs import (
    energy,
    expected_round,
    judge_ratios,
    judge_rounds,
    profile_energy,
    profile_seconds,
    rounds_of,
    transfer_seconds,
    upload_seconds,
    work_seconds,
)
from atoll_papers.fedprof.rivals import judge_better, judge_sooner, judge_trained
from atoll_papers.fedprof.tasks import GROUPS, IMAGES, TABLE_3, TABLE_4, TURBINE, table_of
from atoll_papers.fedprof.trainings import FedProfFound, judge_divergences, judge_participation


def test_golden_times():
    """By hand from (5.28) to (5.30)."""
    assert float(transfer_seconds(TURBINE, 0.5)) == pytest.approx(36.046, abs=5e-4)
    assert float(transfer_seconds(IMAGES, 1.0)) == pytest.approx(36.046, abs=5e-4)
    assert float(work_seconds(TURBINE, 514, 0.5)) == pytest.approx(0.434, abs=5e-4)
    assert float(work_seconds(IMAGES, 240, 1.0)) == pytest.approx(3.011, abs=5e-4)
    assert float(upload_seconds(IMAGES, 1.0)) == pytest.approx(2.46e-3, abs=5e-6)  # q = 128


@given(st.floats(1, 1000), st.floats(0.1, 2), st.floats(0.1, 2))
def test_profiles_cost_an_epoch_and_an_upload(samples, speed, bandwidth):
    for setting in (TURBINE, IMAGES):
        made = float(profile_seconds(setting, samples, speed, bandwidth) - upload_seconds(setting, bandwidth))
        assert made == pytest.approx(float(work_seconds(setting, samples, speed)) / setting.epochs)
        radio = 0.5 * float(transfer_seconds(setting, bandwidth))
        worked = float(energy(setting, samples, speed, bandwidth)) - radio
        epoch = float(profile_energy(setting, samples, speed, bandwidth) - 0.5 * upload_seconds(setting, bandwidth))
        assert epoch == pytest.approx(worked / setting.epochs, rel=1e-6, abs=1e-9)


@pytest.fixture(scope="module")
def rounds() -> dict:
    return {"gasturbine": rounds_of(TURBINE, draws=150), "images": rounds_of(IMAGES, draws=10)}


def test_golden_rounds(rounds):
    """Monte-Carlo means of the same model elsewhere, within 2.5 %: draws differ, and ours are cut at three deviations."""
    golden = {
        ("gasturbine", 0.2): (53.5, 0.0523),
        ("gasturbine", 0.3): (56.7, 0.0785),
        ("images", 0.05): (49.9, 0.2827),
        ("images", 0.1): (51.4, 0.5655),
    }
    for (task, share), (seconds, watt_hours) in golden.items():
        ours = rounds[task]["FedAvg", share]
        assert ours.seconds == pytest.approx(seconds, rel=0.025)
        assert ours.watt_hours == pytest.approx(watt_hours, rel=0.025)
        overhead = rounds[task]["FedProf", share].seconds / ours.seconds
        assert 1.0 < overhead < 1.02


def test_who_is_selected_shows_in_the_tables(rounds):
    """Long runs (75 rounds and more, or 50 clients and more a round) meet the model to 2 %, each with its own rule of selection.

    FedProx charges a client that was drawn twice once; FedProf's energy is that of as many different clients as it selects: without replacement.
    """
    for group, method, share, part in (
        ("full", "FedAvg", 0.05, "both"),
        ("full", "CFCFM", 0.05, "both"),
        ("full", "CFCFM", 0.1, "both"),
        ("partial", "FedProx", 0.1, "energy"),
        ("full", "FedProf", 0.05, "both"),
        ("full", "FedProf", 0.1, "both"),
    ):
        cell, ours = TABLE_4[group, method, share], rounds["images"][method, share]
        assert ours.watt_hours == pytest.approx(cell.watt_hours / cell.rounds, rel=0.01)
        assert part == "energy" or ours.seconds == pytest.approx(cell.length, rel=0.02)
    doubled = expected_round(IMAGES, 0.1, np.random.default_rng(0), rule="sizes", profiles=True, draws=10)
    cell = TABLE_4["full", "FedProf", 0.1]
    assert doubled.watt_hours < 0.96 * cell.watt_hours / cell.rounds


def test_verdicts_on_rounds(rounds):
    for setting in (TURBINE, IMAGES):
        claims = judge_rounds(setting, rounds[setting.name])
        assert len(claims) == 16
        failed = {claim.claim for claim in claims if not claim.holds}
        # Six rounds of AFL, which does not select uniformly as the expectation does: 16 % longer here.
        assert failed <= {"gasturbine, partial, AFL, C=0.3: seconds and Wh a round"}
        swapped = {(m, c): rounds[setting.name]["CFCFM" if m == "FedAvg" else m, c] for m, c in rounds[setting.name]}
        more = {claim.claim for claim in judge_rounds(setting, swapped) if not claim.holds} - failed
        assert len(more) == 2


def test_the_text_against_its_tables():
    turbine, images = judge_ratios(TURBINE), judge_ratios(IMAGES)
    assert [claim.holds for claim in turbine] == [
        True,
        True,
        True,
        True,
        False,
    ]  # 29 to 53 % is the L-Task's range alone
    assert [claim.holds for claim in images] == [True, True]
    assert turbine[-1].ours == "45 % to 77 %"
    fast = TABLE_3["full", "FedAvg", 0.3].seconds / TABLE_3["full", "CFCFM", 0.3].seconds
    assert fast == pytest.approx(2.1, abs=0.05)


def test_verdicts_on_trainings():
    for setting in (TURBINE, IMAGES):
        table = table_of(setting)
        own = {key: FedProfFound(c.best, c.rounds, c.seconds, c.watt_hours) for key, c in table.items()}
        claims = judge_trained(setting, own)
        assert len(claims) == 2 * (2 + 4) * 4 + 2
        assert all(claim.holds for claim in claims)
        same = {key: own[key[0], GROUPS[key[0]][0], key[2]] for key in table}
        assert not any(
            c.holds
            for c in judge_trained(setting, same)
            if "higher best" in c.claim or ("fewer rounds to" in c.claim and "FedProf" in c.claim)
        )
        never = {key: FedProfFound(0.5) for key in table}
        none = judge_trained(setting, never)
        assert not any(claim.holds for claim in none)
        assert {claim.verdict for claim in none if "fewer rounds" in claim.claim} == {"undecided"}
    assert judge_trained(TURBINE, {}) == []


def test_medians_count_runs_that_never_arrive():
    runs = [FedProfFound(0.8, 5, 50.0, 1.0), FedProfFound(0.9, 7, 90.0, 2.0), FedProfFound(0.7)]
    assert FedProfFound.median(runs) == FedProfFound(0.8, 7, 90.0, 2.0)
    assert FedProfFound.median([*runs, FedProfFound(0.7), FedProfFound(0.7)]).rounds is None


def test_a_median_is_told_with_the_least_and_the_most_of_its_runs():
    runs = [FedProfFound(0.8, 5, 50.0, 1.0), FedProfFound(0.9, 7, 90.0, 2.0), FedProfFound(0.7)]
    assert FedProfFound.median(runs).told("best", ".2f") == "0.80 (0.70 to 0.90)"
    assert FedProfFound.median(runs).told("rounds") == "7 (5 to never)"
    assert FedProfFound.median(runs[:1]).told("rounds") == "5"
    assert FedProfFound(0.7).told("rounds") == "never"


def test_verdicts_on_a_target_that_the_thesis_has_not():
    """All four methods of the partial group arrive later, as late, and never; without FedProf there is nothing to say."""
    own = ("partial", "FedProf", 0.1)
    cells = {
        own: FedProfFound(0.9, 6),
        **{("partial", m, 0.1): FedProfFound(0.8, r) for m, r in (("AFL", 9), ("FedProx", 6), ("FedAdam", None))},
    }
    said = {claim.claim: claim for claim in judge_sooner(IMAGES, cells, 0.8)}
    where = "images, partial, C=0.1: FedProf against {}: fewer rounds to 0.8"
    assert {m: said[where.format(m)].holds for m in ("AFL", "FedProx", "FedAdam")} == {
        "AFL": True,
        "FedProx": False,
        "FedAdam": True,
    }
    assert said[where.format("FedAdam")].ours == "6 against never"
    assert all(claim.paper is None for claim in said.values())
    better = judge_better(IMAGES, {**cells, ("partial", "FedProx", 0.1): FedProfFound(0.9, 6)})
    assert [claim.holds for claim in better] == [False, True, True]  # FedProx as good; FedAdam and AFL worse
    del cells[own]
    assert judge_sooner(IMAGES, cells, 0.8) == judge_better(IMAGES, cells) == []


def test_verdicts_on_divergences():
    """Most of the seeds decide; the odds are ``exp(-10 (d - d of good clients))``."""
    wished = {"": 0.1, "blur": 1.0, "irrelevant": 2.0, "salt_and_pepper": 0.4}
    farther = {**wished, "salt_and_pepper": 1.2}
    claim = judge_divergences([wished, wished, farther], "a model")
    assert claim.holds
    assert "so in 2 of them" in claim.note
    assert "0.05 times" in claim.note  # exp(-10 * 0.3)
    assert not judge_divergences([wished, farther], "a model").holds
    assert not judge_divergences([{**wished, "": 0.5}], "a model").holds


def test_verdicts_on_participation():
    assert judge_participation(TURBINE, {"": 35.0, "fake": 1.0, "noise": 9.0}, 100)[0].holds
    assert not judge_participation(TURBINE, {"": 35.0, "fake": 1.0, "noise": 9.0}, 50)[0].holds
    figure = judge_participation(IMAGES, {"": 30.0, "irrelevant": 0.0, "blur": 2.0, "salt_and_pepper": 10.0}, 50)
    assert [claim.holds for claim in figure] == [True, True]
    level = judge_participation(IMAGES, dict.fromkeys(("", "irrelevant", "blur", "salt_and_pepper"), 3.0), 50)
    assert [claim.holds for claim in level] == [False, False]


def test_bad_input():
    with pytest.raises(ConfigError, match="rule='best'"):
        expected_round(TURBINE, 0.2, np.random.default_rng(0), rule="best")
