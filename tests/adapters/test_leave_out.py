"""Leaving one domain out: what is measured on which rows, and the command that prints it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.adapters import LinearHead, Tuning, leave_domains_out
from atoll.cli.app import run
from atoll.core.errors import AtollError
from tests.support.encoders import make_encoder, make_reviews


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "cache"))
    make_encoder(tmp_path / "tiny")
    make_reviews(tmp_path / "data", sites=3, rows=20)
    return tmp_path


def rows_of(place: Path) -> list[list[str]]:
    rows: list[list[str]] = [[], [], []]
    for file in sorted((place / "data").glob("*.csv")):
        for line in file.read_text().splitlines()[1:]:
            text, label = line.split(",")
            for column, value in zip(rows, (text, label, file.stem), strict=True):
                column.append(value)
    return rows


def test_no_row_of_the_domain_left_out_is_trained_on_and_parts_are_apart(place: Path) -> None:
    seen: list[Any] = []

    def simulate(job: Any, islands: Any, seed: int) -> Any:
        seen.append((list(islands.names), islands.sizes.tolist(), len(islands.test)))
        return atoll.simulate(job, islands, engine="inline", seed=seed)

    job = Tuning(
        encoder=str(place / "tiny"),
        method=LinearHead(),
        length=8,
        rounds=2,
        algorithm=atoll.FedAvg(lr=0.1, batch_size=8),
    )
    found = leave_domains_out(job, *rows_of(place), run=simulate)
    assert seen == [([f"site{i}" for i in range(3) if i != out], [12, 12], 8) for out in range(3)]
    assert [fold["left_out"] for fold in found["folds"]] == ["site0", "site1", "site2"]
    for fold in found["folds"]:
        own = [*fold["domains"].values()]
        assert fold["comprehensive"] == pytest.approx(np.mean([*own, fold["generalization"]]))
    assert found["trainable"] == 34
    assert found["bytes_up"] > 34 * 4
    again = leave_domains_out(job, *rows_of(place), run=simulate)
    assert {**again, "seconds": 0} == {**found, "seconds": 0}
    with pytest.raises(AtollError, match=r"leave_out='site9'\. Did you mean"):
        leave_domains_out(job, *rows_of(place), run=simulate, leave_out="site9")


def test_the_command_prints_the_keys(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = place / "all.csv"
    lines = ["text,label,site", *(",".join(row) for row in zip(*rows_of(place), strict=True))]
    texts.write_text("\n".join(lines) + "\n")
    words = [
        "adapters",
        "train",
        str(texts),
        "--group",
        "site",
        "--encoder",
        str(place / "tiny"),
        "--prompt",
        "{label} crew",
    ]
    for method in (["--method", "linear", "--leave-out", "site1", "--rounds", "1"], ["--method", "zero-shot"]):
        assert run([*words, *method, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert {
            "zero_shot",
            "personalization",
            "generalization",
            "comprehensive",
            "trainable",
            "bytes_up",
            "seconds",
        } <= set(found)
        assert 0.0 <= found["zero_shot"] <= 1.0


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["--method", "lora", "--side", "text"], "leave --side out, or use --method attai"),
        (["--method", "zero-shot", "--side", "both"], "leave --side out, or use --method attai"),
        (["--method", "zero-shot", "--loss", "batch"], "leave --loss batch out, or use a method that trains"),
        (["--method", "zero-shot", "--mix"], "leave --mix out, or use a method that trains"),
    ],
)
def test_an_option_that_the_method_would_not_follow_is_refused(
    words: list[str], remedy: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["adapters", "train", str(place / "all.csv"), "--encoder", str(place / "tiny"), *words]) == 2
    assert remedy in " ".join(capsys.readouterr().err.replace("│", "").split())


def test_a_missing_number_is_no_class_and_a_missing_text_no_sentence(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = place / "all.csv"
    texts.write_text(
        "text,label,group\n" + "\n".join(f"good crew,{'' if i == 3 else i % 2},g{i // 6}" for i in range(12))
    )
    assert run(["adapters", "train", str(texts), "--encoder", str(place / "tiny"), "--method", "linear"]) == 3
    assert "row 4 has no label" in " ".join(capsys.readouterr().err.split())
    texts.write_text(
        "text,label,group\n" + "\n".join(f"{'' if i == 4 else 'good crew'},{i % 2},g{i // 6}" for i in range(12))
    )
    assert run(["adapters", "train", str(texts), "--encoder", str(place / "tiny"), "--method", "zero-shot"]) == 3
    assert "row 5 has no text" in " ".join(capsys.readouterr().err.split())
