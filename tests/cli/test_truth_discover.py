"""``atoll truth discover``: a campaign on a file, its keys, and what it refuses."""

from __future__ import annotations

import csv
import gzip
import json

import pytest

from atoll.cli.app import run
from tests.truth.test_campaigns import drawn

KEYS = "tasks workers labels classes repeated method protocol iterations accuracy majority mae pearson agreement max_difference lost bytes_up bytes_down seconds"


@pytest.fixture
def labels(tmp_path):
    rows = [(t, w, label, "north" if w < "w3" else "south") for t, w, label in drawn(6)]
    text = "task,worker,label,ward\n" + "".join(",".join(row) + "\n" for row in [*rows, rows[0]])
    (tmp_path / "labels.csv.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "truth.csv").write_text("task,truth\nt0,c1\nt1,c0\n")
    return tmp_path


def discover(folder, *more, file="labels.csv.gz"):
    return run(["truth", "discover", str(folder / file), *more])


@pytest.mark.filterwarnings("ignore:1 report left out")
@pytest.mark.parametrize("more", [("--protocol", "shamir", "--loss", "0.1"), ("--checks", "--threshold", "2"), ("--protocol", "plain", "--site", "ward"), ("--protocol", "virtual", "--committee", "auto")])  # fmt: skip
def test_it_says_how_good_the_truth_is(labels, capsys, more):
    out = labels / "found.csv"
    assert (
        discover(labels, "--truth", str(labels / "truth.csv"), "--iterations", "2", "--out", str(out), *more, "--json")
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert set(KEYS.split()) <= set(found)
    assert (found["tasks"], found["workers"], found["classes"], found["repeated"]) == (9, 6, 3, 1)
    assert (found["agreement"], found["wrong"], found["cheats"]) == (1.0, [], [])
    assert found["max_difference"] < 1e-5
    rows = list(csv.reader(out.read_text().splitlines()))
    assert rows[0] == ["task", "truth", "confidence"]
    right = {"t0": "c1", "t1": "c0"}
    said = {task: label for task, label, _ in rows[1:]}
    assert found["accuracy"] == sum(said[task] == label for task, label in right.items()) / 2
    assert found["mae"] is None


def test_numbers_have_errors_and_a_correlation(tmp_path, capsys):
    (tmp_path / "n.csv").write_text(
        "task,worker,label\n" + "".join(f"t{t},w{w},{10 * t + w}\n" for t in range(4) for w in range(3))
    )
    (tmp_path / "truth.csv").write_text("task,truth\n" + "".join(f"t{t},{10 * t}\n" for t in range(4)))
    assert (
        discover(tmp_path, "--truth", str(tmp_path / "truth.csv"), "--method", "mean-report", "--json", file="n.csv")
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["mae"] == pytest.approx(1.0, abs=1e-5)
    assert found["pearson"] == pytest.approx(1.0)
    assert found["accuracy"] is None


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--method", "davidskene"), "dawid-skene"),
        (("--protocol", "shamit"), "shamir"),
        (("--protocol", "masks", "--committee", "3"), "--committee 3 with --protocol masks"),
        (("--protocol", "masks", "--checks"), "--checks with --protocol masks"),
        (("--committee", "some"), "--committee some"),
        (("--hierarchy", "h.csv"), "--method tdh"),
        (("--truth", "else.csv"), "nobody reported on task"),
    ],
)
@pytest.mark.filterwarnings("ignore:1 report left out")
def test_what_makes_no_sense_is_refused_with_a_remedy(labels, capsys, monkeypatch, more, said):
    monkeypatch.chdir(labels)
    (labels / "else.csv").write_text("task,truth\nt0,c1\nx9,c0\n")
    assert discover(labels, *more) != 0
    assert said in capsys.readouterr().err
