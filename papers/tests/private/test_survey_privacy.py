"""The comparison of mechanisms: its settings can be run, its claims are judged by numbers, its figure is the same twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atoll.reproduce import Lab, find_entry
from atoll.runs import parse_config
from atoll_papers import survey_privacy
from atoll_papers.survey_privacy import draw, formulas, unprotected


@pytest.mark.parametrize("tested", survey_privacy.COMPARED, ids=lambda one: one.name)
@pytest.mark.network
def test_every_mechanism_is_a_run_that_can_be_written(tested: survey_privacy.ComparedMechanism) -> None:
    epsilon = None if tested.privacy is None else 4.0
    made = parse_config(tested.settings(epsilon, 0, 1000), "here").made(checking=True)
    assert (made.privacy is None) == (tested.privacy is None)
    if tested.privacy is not None:
        assert made.privacy.epsilon == 4.0
        assert made.privacy.pure == tested.pure


def judged(monkeypatch: pytest.MonkeyPatch, accuracy: Any) -> dict[str, Any]:
    def found(lab: Any, tested: Any, epsilon: float | None, rows: int | None, seeds: int | None) -> list[float] | None:
        return accuracy(tested.name, epsilon)

    monkeypatch.setattr(survey_privacy, "accuracies", found)
    monkeypatch.setattr(survey_privacy, "unprotected", lambda lab, canaries: formulas()[0])
    return {claim.claim: claim for claim in find_entry("survey-privacy").run(Lab(Path("nowhere")), False)}


def test_claims_follow_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = {
        "none": 0.9,
        "central": 0.8,
        "distributed": 0.79,
        "bands": 0.7,
        "tree": 0.6,
        "example": 0.5,
        "local, Gaussian": 0.3,
    }
    better = judged(monkeypatch, lambda name, e: [levels.get(name, 0.2) + (e or 0.0) / 1000] * 2)
    worse = judged(monkeypatch, lambda name, e: [1.2 - levels.get(name, 0.2) - (e or 0.0) / 100] * 2)
    cost = "central: perturbation costs accuracy, and more with less epsilon"
    order = "noise inside the aggregation costs less than noise at every party, at epsilon 4"
    assert (better[cost].holds, better[order].holds) == (True, True)
    assert (worse[cost].holds, worse[order].holds) == (False, False)
    ours = [
        "perturbation inside a secure sum costs less than noise at every party, at epsilon 1",
        "a secure sum replaces a trusted server without a loss of accuracy, at epsilon 1",
        "where nobody is trusted, protecting examples costs less than protecting users, at epsilon 1",
        "bands of least error cost no more than a tree, at epsilon 1",
    ]
    assert [better[claim].holds for claim in ours] == [True] * 4
    assert [worse[claim].holds for claim in ours] == [False, True, False, False]  # a point is within the tolerance
    gone = judged(monkeypatch, lambda name, e: None)
    assert (gone[cost].holds, gone[order].verdict) == (None, "not run")


def test_formulas_hold_and_plain_averaging_protects_nothing(tmp_path: Path) -> None:
    assert [claim.holds for claim in formulas()] == [True, True]
    assert formulas()[0].ours == 0.0096
    assert unprotected(Lab(tmp_path, kept=True), 40).verdict == "not run"
    found = unprotected(Lab(tmp_path), 40)
    assert found.holds
    assert unprotected(Lab(tmp_path, kept=True), 40) == found


def test_the_figure_is_the_same_twice(tmp_path: Path) -> None:
    found = {"none": [(None, 0.9)], "central": [(1.0, 0.6), (4.0, 0.8)]}
    first = draw(tmp_path, found).read_bytes()
    assert draw(tmp_path, found).read_bytes() == first
    assert b"central" in first
