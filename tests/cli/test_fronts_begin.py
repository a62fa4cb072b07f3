"""What fronts refuse as they start, and the folders that they make: once the kit is the right one, and named where they cannot be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atoll.runtime.provision import ProjectConfig, provision

Typed = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def kits(tmp_path: Path) -> Path:
    settings = {
        "project": "p", "servers": [{"name": "server", "hosts": ["127.0.0.1"]}],
        "sites": [{"name": "north", "org": "x"}], "admins": [{"name": "anna", "org": "x"}],
    }  # fmt: skip
    return provision(ProjectConfig.model_validate(settings), tmp_path / "kits").folder


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    made = tmp_path / "rows.csv"
    made.write_text("age,outcome\n1,ill\n")
    return made


def front(kits: Path, rows: Path, kind: str, name: str) -> list[str]:
    words = {"site": ["--data", str(rows), "--target", "outcome"], "poc": ["--sites", "1"]}.get(kind, [])
    return [kind, *([] if kind == "poc" else [str(kits / name)]), *words]


@pytest.mark.parametrize(("kind", "name"), [("site", "north"), ("server", "server"), ("poc", "")])
def test_a_folder_that_cannot_be_made_is_named(kits: Path, rows: Path, typed: Typed, kind: str, name: str) -> None:
    for place in (rows, rows / "below"):
        code, said, _ = typed(*front(kits, rows, kind, name), "--folder", str(place))
        error = said["error"]
        assert (code, error["kind"]) == (2, "ConfigError")
        assert "the folder cannot be made" in error["what"]
        assert (error["where"], error["remedy"]) == (str(place), "choose another --folder")


@pytest.mark.parametrize(("kind", "whose"), [("site", "anna"), ("server", "north")])
def test_a_kit_that_is_refused_leaves_no_folder(
    kits: Path, rows: Path, typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, whose: str
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    code, said, _ = typed(*front(kits, rows, kind, whose))
    assert code == 2
    assert said["error"]["what"].startswith("this is the kit of ")
    assert f"give a {kind}'s kit" in said["error"]["remedy"]
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("cpus", ["0", "-1", "nan"])
def test_a_site_without_cores_is_refused(kits: Path, rows: Path, typed: Typed, tmp_path: Path, cpus: str) -> None:
    code, said, _ = typed(*front(kits, rows, "site", "north"), "--cpus", cpus, "--folder", str(tmp_path / "run"))
    assert code == 2
    assert said["error"]["what"] == f"--cpus {cpus} leaves no cores for jobs"
    assert "leave it out" in said["error"]["remedy"]
    assert not (tmp_path / "run").exists()
