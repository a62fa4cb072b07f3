"""A small run that trains in a blink, and a way to type commands; shared by the tests of runs, reports and the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atoll.cli import run
from atoll.runs import yaml


def small() -> dict[str, Any]:
    """A linear model on iris, six clients, five rounds."""
    return {
        "name": "small",
        "data": {"source": "iris", "partition": {"name": "iid", "parties": 6}},
        "model": {"name": "linear", "features": 4, "outputs": 3},
        "algorithm": {"name": "FedAvg", "lr": 0.1, "epochs": 1},
        "selection": {"name": "Uniform", "count": 3},
        "rounds": 5,
        "engine": "inline",
    }


@pytest.fixture
def settings() -> dict[str, Any]:
    """The small run as a configuration that a test may change."""
    return small()


@pytest.fixture
def config(settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The small run as a file in the working folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.yaml"
    path.write_text(yaml.dump(settings), encoding="utf-8")
    return path


Typed = tuple[int, dict[str, Any], str]


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Callable[..., Typed]:
    """Type a command with --json; give its exit code, its one JSON object and what stood on stderr, without line breaks."""

    def type_it(*words: str | Path) -> Typed:
        capsys.readouterr()
        code = run([str(word) for word in words] + ["--json"])
        said = capsys.readouterr()
        lines = said.out.splitlines()
        assert len(lines) == 1, f"not exactly one line on stdout: {said.out!r}"
        flat = " ".join(said.err.replace("│", " ").split())
        return code, json.loads(lines[0]), flat

    return type_it
