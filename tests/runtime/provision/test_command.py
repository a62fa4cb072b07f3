"""``atoll provision``: what people type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from atoll.cli import run
from atoll.runs import yaml
from atoll.runtime.provision import Kit


@pytest.fixture
def project(tree: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "project.yaml"
    path.write_text(yaml.dump(tree), encoding="utf-8")
    return path


def typed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any], str]:
    code = run([*words, "--json"])
    said = capsys.readouterr()
    return code, json.loads(said.out), " ".join(said.err.replace("│", " ").split())


def test_the_life_of_a_project(project: Path, tree: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    code, first, _ = typed(capsys, "provision", "project.yaml")
    assert (code, first["made"]) == (0, ["server", "north", "south", "anna", "otto"])
    tree["sites"].append({"name": "west", "org": "West"})
    project.write_text(yaml.dump(tree), encoding="utf-8")
    code, second, said = typed(capsys, "provision", "project.yaml", "--revoke", "south", "--renew", "north")
    assert (code, second["made"], second["renewed"], list(second["revoked"])) == (0, ["west"], ["north"], ["south"])
    assert "To do: copy revoked.crl from the kit of server to the running server" in said
    assert run(["provision", "project.yaml"]) == 0
    assert "not touched" in capsys.readouterr().out


def test_every_readme_names_one_command(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed(capsys, "provision", "project.yaml")
    starts = {
        name: Path(f"kits/{name}/README.txt").read_text().partition("Start:")[2].partition("\n")[0].strip()
        for name in ("server", "north", "anna", "otto")
    }
    assert starts["server"] == "atoll server server"
    assert starts["north"] == "atoll site north --data FOLDER"
    assert all(text.startswith("atoll ") for text in starts.values())


def test_encrypted_with_a_file(project: Path, tree: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    project.write_text(yaml.dump({**tree, "sites": tree["sites"][:1], "admins": []}), encoding="utf-8")
    Path("kits.txt").write_text("a secret of kits\n")
    Path("ca.txt").write_text("a secret of the authority\n")
    words = ("--encrypt", "--passphrase-file", "kits.txt", "--encrypt-ca", "--ca-passphrase-file", "ca.txt")
    code, _, _ = typed(capsys, "provision", "project.yaml", *words)
    assert code == 0
    Kit.read("kits/north", "a secret of kits").credentials()
    code, error, _ = typed(capsys, "provision", "project.yaml", "--renew", "north")
    assert (code, error["error"]["kind"]) == (2, "ConfigError")
    assert "would not be" in error["error"]["what"]


def test_encryption_without_a_passphrase_is_refused(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    code, error, _ = typed(capsys, "provision", "project.yaml", "--encrypt")
    assert (code, error["error"]["where"]) == (2, "ATOLL_PASSPHRASE")
    assert not list(Path("kits").glob("[!c]*"))


def test_bad_input_has_exit_code_2(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, error, _ = typed(capsys, "provision", "nowhere.yaml")
    assert (code, error["error"]["where"]) == (2, "nowhere.yaml")
    code, error, _ = typed(capsys, "provision", "project.yaml", "--renew", "nort")
    assert (code, error["error"]["where"]) == (2, "--renew")
