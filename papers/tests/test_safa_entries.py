"""SAFA's three reproductions: found by name, and honest about what a quick run leaves out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from atoll.reproduce import Lab, find_entry, reproduce
from atoll_papers.safa.scores import PLANS, Learnt, accuracy_claims, train
from atoll_papers.safa.tasks import KDD


@pytest.mark.parametrize("task", ["boston", "mnist", "kdd"])
def test_entries_are_found(task: str) -> None:
    found = find_entry(f"safa-{task}")
    assert found.name == f"safa-{task}"
    assert "ATOLL_DATA" in found.needs


@pytest.mark.slow
def test_a_quick_run_needs_no_data_trains_nothing_and_judges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATOLL_DATA", raising=False)
    made = reproduce("safa-boston", Lab(tmp_path), quick=True)
    assert made["seconds"] == 0
    untrained = [claim for claim in made["claims"] if "best accuracy" in claim["claim"]]
    assert len(untrained) == 16
    assert all(
        claim["ours"] is None and claim["holds"] is None and "not trained" in claim["note"] for claim in untrained
    )
    held = [claim for claim in made["claims"] if claim["holds"]]
    assert len(held) > 55
    assert list(tmp_path.iterdir()) == []
    costs, study, bias = made["claims"][:58], made["claims"][58:68], made["claims"][68:71]
    assert [" by tolerance, " in claim["claim"] for claim in costs + study] == [False] * 58 + [True] * 9 + [False]
    found = {claim["claim"]: claim["holds"] for claim in costs}
    assert all(isinstance(holds, bool) for holds in found.values())
    assert all(holds for text, holds in found.items() if "T_dist" in text)
    assert all(holds for text, holds in found.items() if "SAFA, cr" in text)
    assert found["boston: a SAFA server that waits for its quota until T_lim loses its advantage where C > 1 - cr"]
    assert not found["boston: FedAvg's SR is C"]
    assert not found["boston: SAFA loses less work than FedAvg even where no crashed client goes on from where it was"]
    assert not found["boston: mean round length, s, FedAvg, cr = 0.5"]
    assert all(claim["holds"] for claim in study)
    assert [claim["holds"] for claim in bias] == [
        False
    ] * 3  # the bias of figure 3.5 turns round, and settles in round 11, not 10
    assert [claim["holds"] for claim in made["claims"][71:74]] == [None] * 3  # best losses by tolerance: not trained


@pytest.mark.slow
def test_where_nothing_may_be_trained_cells_that_are_not_kept_were_not_run(tmp_path: Path) -> None:
    found = train(Lab(tmp_path, kept=True), KDD, replace(PLANS["kdd"], algorithms=("FedAvg", "SAFA")))
    assert found == {}
    claims = accuracy_claims(KDD, found)
    assert [claim.holds for claim in claims] == [None] * 22
    assert all(claim.ours is None for claim in claims)


def test_a_row_of_which_some_cells_are_trained_holds_not_yet_but_may_fail() -> None:
    losses = (1.0, 0.5, 0.4, 0.3)
    near, far = Learnt((0.9961,), losses, 1.0), Learnt((0.9844, 0.9844), losses, 1.0)
    claims = {
        claim.claim: claim for claim in accuracy_claims(KDD, {("FedAvg", 0.3, 0.3): near, ("FedAvg", 0.7, 0.3): far})
    }
    one, other = (claims[f"kdd: best accuracy, FedAvg, cr = {cr}"] for cr in (0.3, 0.7))
    assert (one.holds, one.ours) == (None, "– 0.9961 – – –")
    assert (other.holds, other.ours) == (False, "– 0.9844±0.0000 – – –")
    whole = {("FedAvg", 0.3, c): near for c in (0.1, 0.3, 0.5, 0.7, 1.0)}
    found = {claim.claim: claim.holds for claim in accuracy_claims(KDD, whole)}
    assert found["kdd: best accuracy, FedAvg, cr = 0.3"]
    assert found["task 3: above 99 % with FedAvg, FedCS and SAFA"] is None
