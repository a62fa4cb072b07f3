"""The reproduction on crowds, on sets that the test makes: which cells hold, and which do not."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from atoll.reproduce import Lab
from atoll_papers import truth_crowds


def write(folder: Path, name: str, labels: list[tuple[str, str, str]], truth: dict[str, str]) -> None:
    place = folder / "crowd_truth"
    place.mkdir(exist_ok=True)
    rows = "".join(f"{','.join(row)}\n" for row in labels)
    known = "".join(f"{t},{x}\n" for t, x in truth.items())
    (place / f"{name}_labels.csv.gz").write_bytes(gzip.compress(f"task,worker,label\n{rows}".encode()))
    (place / f"{name}_truth.csv.gz").write_bytes(gzip.compress(f"task,truth\n{known}".encode()))


def test_a_cell_holds_within_one_task_of_the_number_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four tasks the vote has three right, and one by a draw."""
    monkeypatch.setenv("ATOLL_DATA", str(tmp_path))
    labels = [(f"t{t}", w, str(t % 2)) for t in range(3) for w in "abc"] + [("t3", "a", "0"), ("t3", "b", "1")]
    write(tmp_path, "bluebirds", [*labels, ("t0", "a", "1")], {"t0": "0", "t1": "1", "t2": "0", "t3": "1"})
    write(tmp_path, "snow_temp", labels, {"t0": "0", "t1": "1", "t2": "1"})
    numbers = [("t0", "a", "-10"), ("t0", "b", "10"), ("t1", "a", "-100"), ("t1", "b", "100")]
    write(tmp_path, "emotion_numeric", numbers, {"t0": "12.02", "t1": "-12.02"})
    beside = {"bluebirds": {"vote": 62.6, "Sum": 62.4}, "snow_temp": {"vote": 66.7}}
    monkeypatch.setattr(truth_crowds, "PUBLISHED", beside)
    claims = {claim.claim: claim for claim in truth_crowds.ENTRY.run(Lab(tmp_path), True)}
    found = {name: (claim.ours, claim.holds) for name, claim in claims.items() if "part of the tasks" not in name}
    assert found == {
        "bluebirds, vote: accuracy in %": ("87.5", True),
        "bluebirds, Sum: accuracy in %": ("87.5", False),
        "snow_temp, vote: accuracy in %": ("66.7", True),
        "emotions, CRH: mean absolute error": ("12.02", False),
        "emotions, mean: mean absolute error": ("12.02", True),
    }
    assert "1 repeated reports left out" in claims["bluebirds, vote: accuracy in %"].note
    played = {name: claim for name, claim in claims.items() if "part of the tasks" in name}
    assert len(played) == 6
    for name, claim in played.items():
        assert claim.holds, name
        assert claim.ours.startswith("1, probabilities within ")
        assert "3 workers, " in claim.note
