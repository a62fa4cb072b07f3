"""Campaigns between real processes over mutual TLS find what a simulation finds."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import atoll
from atoll.cli.app import run
from atoll.truth import OneCoin, Shamir, Truth
from tests.truth.test_campaigns import drawn

pytestmark = pytest.mark.network


def test_three_sites_find_the_truth_of_a_simulation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Labels stay words on the way: 007 is another class than 7."""
    words = {"c0": "007", "c1": "7", "c2": "duck"}
    sites: dict[str, list[tuple[str, str, str]]] = {"east": [], "north": [], "south": []}
    for task, worker, label in drawn(6):
        sites[list(sites)[int(worker[1:]) // 2]].append((task, worker, words[label]))
    (tmp_path / "data").mkdir()
    for name, rows in sites.items():
        text = "task,worker,label\n" + "".join(",".join(row) + "\n" for row in rows)
        (tmp_path / "data" / f"{name}.csv").write_text(text)
    (tmp_path / "job.yaml").write_text("name: ask\njob: truth\nmodel: {name: OneCoin, iterations: 2}\nprotocol: {name: Shamir, threshold: 2}\n")  # fmt: skip
    asked = ["poc", str(tmp_path / "job.yaml"), "--data", str(tmp_path / "data"), "--sites", "east,north,south", "--folder", str(tmp_path / "trial")]  # fmt: skip
    assert run(asked) == 0, capsys.readouterr().err
    simulated = atoll.simulate(Truth(model=OneCoin(iterations=2), protocol=Shamir(threshold=2)), sites, engine="inline", progress=False)  # fmt: skip
    found = list(csv.reader((tmp_path / "trial" / "result" / "truth.csv").read_text().splitlines()))[1:]
    assert {task: label for task, label, _ in found} == simulated.truth
    assert {task: float(sure) for task, _, sure in found} == {t: pytest.approx(s, abs=1e-6) for t, s in simulated.confidence.items()}  # fmt: skip
