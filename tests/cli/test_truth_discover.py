"""``atoll truth discover``: a campaign on a file, its keys, and what it refuses."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import re

import pytest

from atoll.cli.app import run
from atoll.truth import OneCoin, read_reports
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
@pytest.mark.parametrize("more", [("--protocol", "shamir", "--loss", "0.1"), ("--checks", "--threshold", "2"), ("--protocol", "plain", "--site", "ward"), ("--protocol", "virtual", "--committee", "auto"), ("--min-reporters", "3")])  # fmt: skip
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
    hidden = [task for task, label in said.items() if not label]
    assert len(hidden) == found.get("withheld", 0)
    assert ("withheld" in found) == ("--min-reporters" in more)
    shown = {task: label for task, label in right.items() if task not in hidden}
    assert found["accuracy"] == sum(said[task] == label for task, label in shown.items()) / len(shown)
    assert found["mae"] is None


@pytest.mark.filterwarnings("ignore:1 report left out")
def test_it_ranks_the_parties_by_how_reliable_they_are(labels, capsys):
    asked = ("--method", "one-coin", "--iterations", "2", "--rank", "1")
    assert discover(labels, *asked, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    skills = OneCoin(iterations=2).fit(read_reports(labels / "labels.csv.gz")).skills_
    assert sorted(found["ranking"]) == sorted(skills)
    assert all(skills[late] < skills[early] + 1e-6 for early, late in itertools.pairwise(found["ranking"]))
    assert discover(labels, *asked, "--site", "ward") != 0
    assert "ranking" in capsys.readouterr().err
    assert discover(labels, *asked) == 0
    said = capsys.readouterr().out
    assert re.search(r"ranking (w\d, ){5}…", " ".join(said.split()))


@pytest.mark.filterwarnings("ignore:1 report left out")
def test_auto_chooses_what_all_reports_in_one_place_would(labels, capsys):
    assert discover(labels, "--method", "auto", "--iterations", "2", "--protocol", "plain", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["chosen"] == max(found["scores_plain"], key=found["scores_plain"].get)
    assert found["scores"] == pytest.approx(found["scores_plain"], abs=1e-6)
    assert {"majority-vote", "dawid-skene", "mace"} < set(found["scores"])
    assert discover(labels, "--method", "auto", "--iterations", "1", "--protocol", "plain") == 0
    assert f"chosen {found['chosen']}" in " ".join(capsys.readouterr().out.split())


@pytest.mark.filterwarnings("ignore:1 report left out")
def test_with_noise_it_says_how_much(labels, capsys):
    asked = ("--method", "majority-vote", "--epsilon", "4", "--clip", "3", "--json")
    assert discover(labels, *asked) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["epsilon"], found["delta"], found["iterations"]) == (4.0, 1e-5, 1)
    assert found["deviation"] > 3


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
        (("--protocol", "masks", "--pack", "2"), "--pack 2 with --protocol masks"),
        (("--clip", "2"), "--clip 2 without --epsilon"),
        (("--epsilon", "2"), "say how much a worker may add"),
        (("--protocol", "masks", "--min-reporters", "2"), "which compares nothing under shares"),
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


@pytest.mark.filterwarnings("ignore:1 report left out")
@pytest.mark.parametrize(
    ("short", "whole"), [("vote", "majority-vote"), ("Sum", "weighted-sum"), ("D&S", "dawid-skene")]
)
def test_models_have_the_names_of_tables_too(labels, capsys, short, whole):
    rows = []
    for word in (short, whole):
        assert discover(labels, "--method", word, "--protocol", "plain", "--iterations", "2", "--out", str(labels / "o.csv"), "--json") == 0  # fmt: skip
        capsys.readouterr()
        rows.append((labels / "o.csv").read_text())
    assert rows[0] == rows[1]


def test_a_truth_of_claims_may_be_a_path_to_what_contains_it(tmp_path, capsys):
    """As sets with a hierarchy write it; a value with a comma that somebody claims is compared as it is."""
    claims = 'obj,src,value\nada,wiki,Oslo\nada,news,Norway\nada,blog,Oslo\nbo,wiki,"Bergen, Rhine"\nbo,news,"Bergen, Rhine"\n'
    (tmp_path / "c.csv").write_text(claims)
    (tmp_path / "t.csv").write_text('obj,value\nada,"Oslo,Norway"\nbo,"Bergen, Rhine"\n')
    assert discover(tmp_path, "--method", "one-coin", "--protocol", "plain", "--truth", str(tmp_path / "t.csv"), "--json", file="c.csv") == 0  # fmt: skip
    assert json.loads(capsys.readouterr().out)["accuracy"] == 1.0


def test_scores_within_a_unit_are_refused_by_groups_and_ranked_by_helpers(tmp_path, capsys):
    """By groups their order would be one of chance; scores that are equal have none."""
    file = tmp_path / "scores.csv"
    file.write_text("worker,score\n" + "".join(f"w{i},{1e9 + i}\n" for i in (2, 0, 3, 1)))
    assert run(["truth", "rank", str(file), "--json"]) == 3
    said = json.loads(capsys.readouterr().out)["error"]
    assert "the scores of «w0» and «w1» differ by less than 14.9012" in said["what"]
    assert "--by helpers" in said["remedy"]
    assert run(["truth", "rank", str(file), "--by", "helpers", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["order"] == ["w3", "w2", "w1", "w0"]
    file.write_text("worker,score\na,0.5\nb,0.5\nc,0.7\n")
    assert run(["truth", "rank", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["order"][0] == "c"
