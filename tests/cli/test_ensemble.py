"""``atoll ensemble``: clusters, arms and epsilons of a file, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.cli.app import run


def write_segments(path: Path, users: int = 18, rows: int = 24, segments: int = 3) -> Path:
    """Users of segments whose labels follow another input each."""
    draw = np.random.default_rng(1)
    lines = ["user,label,segment,a,b,c"]
    for i in range(users):
        x = draw.normal(size=(rows, 3))
        y = x[:, i % segments] > 0
        lines += [
            f"u{i},{'yes' if c else 'no'},s{i % segments},{r[0]:.4f},{r[1]:.4f},{r[2]:.4f}"
            for r, c in zip(x, y, strict=True)
        ]
    path.write_text("\n".join(lines) + "\n")
    return path


def told(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """The JSON that the command prints."""
    assert run(["ensemble", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_command_compares_arms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(write_segments(tmp_path / "rows.csv"))
    found = told(capsys, file, "--cluster", "segment", "--rounds", "12", "--width", "3")
    assert list(found)[:10] == [
        "baseline",
        "wide",
        "opt_in_alone",
        "mean",
        "median",
        "max",
        "weights",
        "over_arch",
        "gate",
        "own_leaf",
    ]
    assert found["gate"]["auc"] > found["baseline"]["auc"] + 0.05
    assert found["gate"]["auc"] > found["own_leaf"]["auc"] - 0.01
    assert found["epsilon"] == {"leaves": None, "aggregator": 0.0, "total": None}
    assert found["parameters"]["baseline"] == 3 * 3 + 3 + 3 * 2 + 2  # the segment is no input
    assert found["parameters"]["wide"] == 3 * 9 + 9 + 9 * 2 + 2
    assert (found["leaves"], found["users"], found["opt_in"]) == (3, 18, 2)


@pytest.mark.slow  # `test_the_command_compares_arms` has the arms, and `tests/ensemble/test_trainings.py` what leaves cost
def test_with_an_epsilon_the_leaves_cost_it_once_and_a_page_has_the_arms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, page = str(write_segments(tmp_path / "rows.csv")), tmp_path / "arms.html"
    found = told(capsys, file, "--cluster", "kmeans:2:a", "--rounds", "2", "--epsilon", "9", "--html", str(page))
    assert "Against one model" in page.read_text()
    assert found["left_out"] == ["segment"]
    assert found["epsilon"]["leaves"] == pytest.approx(9, rel=1e-3)
    assert found["epsilon"]["total"] == found["epsilon"]["leaves"]
    assert found["parameters"]["baseline"] == 2 * 4 + 4 + 4 * 2 + 2


def test_the_number_of_leaves_is_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Eight leaves of 16 users have fewer than two somewhere, or are no better: what is chosen is said, and why."""
    file = str(write_segments(tmp_path / "rows.csv", rows=12))
    found = told(capsys, file, "--cluster", "random:auto", "--rounds", "1", "--width", "2")
    assert found["leaves"] == found["search"]["clusters"]
    assert [one["clusters"] for one in found["search"]["candidates"]] == [1, 2, 4, 8]
    assert found["search"]["why"].startswith(f"{found['leaves']} leaves: ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cluster", "segmnt"], "is no column"),
        (["--cluster", "label"], "is the label"),
        (["--cluster", "kmeans:x"], "is no column"),
        (["--cluster", "segment", "--label", "a"], "they are to be classes"),
        (["--cluster", "random:18", "--drop", "segment"], "users to train it"),
    ],
)
def test_what_makes_no_ensemble_is_refused(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["ensemble", str(write_segments(tmp_path / "rows.csv")), *words]) != 0
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("column", "words"), [("label", "column 'label' has missing"), ("user", "column 'user'"), ("segment", "'segment'")]
)
def test_a_missing_label_user_or_cluster_is_no_value_of_its_own(
    column: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_segments(tmp_path / "rows.csv", users=6, rows=4)
    head, *lines = file.read_text().splitlines()
    first = lines[0].split(",")
    first[head.split(",").index(column)] = ""
    file.write_text("\n".join([head, ",".join(first), *lines[1:]]) + "\n")
    assert run(["ensemble", str(file), "--cluster", "segment"]) == 3
    told = " ".join(capsys.readouterr().err.split())
    assert words in told
    assert "leave such rows out" in told


def test_remedies_are_those_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(write_segments(tmp_path / "rows.csv", users=6, rows=4))
    assert run(["ensemble", file, "--cluster", "segment", "--test", "0.01"]) == 3
    assert "a larger --test" in " ".join(capsys.readouterr().err.split())
    assert run(["ensemble", file, "--cluster", "segment", "--opt-in", "0.9"]) == 3
    assert "a smaller --opt-in" in " ".join(capsys.readouterr().err.split())


def test_columns_may_be_called_x_y_and_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_segments(tmp_path / "rows.csv", users=6, rows=8)
    quick = ("--rounds", "1", "--opt-in", "0")
    plain = told(capsys, str(file), "--cluster", "segment", *quick)
    head, lines = file.read_text().split("\n", 1)
    file.write_text(head.replace("user", "who").replace("segment", "user").replace("b,c", "x,y") + "\n" + lines)
    named = told(capsys, str(file), "--user", "who", "--cluster", "user", *quick)
    assert plain["own_leaf"] == named["own_leaf"]
    assert plain["parameters"] == named["parameters"]
