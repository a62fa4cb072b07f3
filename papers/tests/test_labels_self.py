"""Self-supervision on digits: its claims are judged by numbers, kept results are read back, and a run of each kind trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atoll.reproduce import Lab, find_entry
from atoll_papers.labels import selfsupervised
from atoll_papers.labels.selfsupervised import SelfRun, judged_runs

ORDER = "FedX adds to FedSimCLR"
SKEW = "skew hurts self-supervised learning more than supervised learning"


def judged(monkeypatch: pytest.MonkeyPatch, score: Any, quick: bool = False) -> dict[str, Any]:
    monkeypatch.setattr(selfsupervised, "_kept", lambda lab, run, seed, rounds: score(run, seed))
    return {claim.claim: claim for claim in find_entry("labels-self").run(Lab(Path("nowhere")), quick)}


def test_claims_follow_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    better = judged(monkeypatch, lambda run, seed: 0.5 + 0.2 * (run.method == "FedX") + 0.1 * (not run.skewed))
    assert better[ORDER].holds is True
    assert better[SKEW].holds is None  # both lose a tenth
    worse = judged(
        monkeypatch,
        lambda run, seed: 0.5 - 0.2 * (run.method == "FedX") - 0.2 * (run.method == "FedSimCLR" and run.skewed),
    )
    assert worse[ORDER].holds is None
    assert worse[SKEW].holds is True
    noisy = judged(monkeypatch, lambda run, seed: 0.5 + 0.3 * (run.method == "FedX") * seed)
    assert noisy[ORDER].holds is None  # as large as its standard error
    gone = judged(monkeypatch, lambda run, seed: None)
    assert gone[ORDER].verdict == "not run"
    single = judged(monkeypatch, lambda run, seed: 0.5 + 0.2 * (run.method == "FedX"), quick=True)
    assert single[ORDER].verdict == "undecided"  # one seed has no error


def test_results_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(SelfRun, "accuracy", lambda self, seed, rounds: 0.25)
    run = SelfRun("FedSimCLR")
    assert selfsupervised._kept(Lab(tmp_path, kept=True), run, 0, 2) is None
    assert selfsupervised._kept(Lab(tmp_path), run, 0, 2) == 0.25
    monkeypatch.setattr(SelfRun, "accuracy", lambda self, seed, rounds: 0.75)
    assert selfsupervised._kept(Lab(tmp_path), run, 0, 2) == 0.25
    assert selfsupervised._kept(Lab(tmp_path, fresh=True), run, 0, 2) == 0.75


def test_every_run_is_named_once() -> None:
    keys = [run.key for run in judged_runs(quick=False)]
    assert len(set(keys)) == len(keys)
    assert {run.key for run in judged_runs(quick=True)} <= set(keys)


@pytest.mark.quick("untrained*", "FedX*")
@pytest.mark.parametrize("run", judged_runs(quick=False), ids=lambda run: run.key)
def test_every_run_trains(run: SelfRun) -> None:
    assert 0.0 < run.accuracy(seed=0, rounds=1) <= 1.0
