"""SAFA's three reproductions: found by name, and honest about what a quick run leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.reproduce import Lab, entry, reproduce


@pytest.mark.parametrize("task", ["boston", "mnist", "kdd"])
def test_entries_are_found(task: str) -> None:
    found = entry(f"safa-{task}")
    assert found.name == f"safa-{task}"
    assert "ATOLL_DATA" in found.needs
    assert ("scaled down to 6000 training and 2000 test rows and 20 rounds" in found.title) is (task == "mnist")


def test_a_quick_run_needs_no_data_and_trains_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATOLL_DATA", raising=False)
    made = reproduce("safa-boston", Lab(tmp_path), quick=True)
    assert made["seconds"] == 0
    untrained = [claim for claim in made["claims"] if "best accuracy" in claim["claim"]]
    assert len(untrained) == 16
    assert all(claim["ours"] is None and not claim["holds"] and "not trained" in claim["note"] for claim in untrained)
    held = [claim for claim in made["claims"] if claim["holds"]]
    assert len(held) > 55
    assert list(tmp_path.iterdir()) == []
