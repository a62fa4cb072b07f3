"""Files as people have them: tabs, a column too many, the label among the features."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.cli import run

ROWS = 80


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    rng = np.random.default_rng(0)
    made = []
    for name, more in (("north", []), ("south", ["note"])):
        columns = {"age": rng.integers(20, 90, ROWS), "died": rng.integers(0, 2, ROWS), "time": rng.integers(1, 99, ROWS), **{one: rng.integers(0, 9, ROWS) for one in more}}  # fmt: skip
        lines = ["\t".join(columns), *("\t".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        made.append(str(tmp_path / f"{name}.csv"))
    return made


def told(capsys: Any, *words: str, code: int = 0) -> dict[str, Any]:
    assert run([*words, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("tab", ["tab", r"\t", "\t"])
def test_tabs_can_be_typed(capsys, files, tab):
    assert told(capsys, "fit", "glm", *files, "--label", "died", "--columns", "age", "--delimiter", tab)["rows"] == 160


def test_remedies_can_be_typed(capsys, files):
    assert r"--delimiter '\t'" in told(capsys, "fit", "glm", *files, "--label", "died", code=3)["error"]["remedy"]
    remedy = told(capsys, "trees", *files, "--label", "died", "--delimiter", "tab", code=3)["error"]["remedy"]
    assert "--columns NAME,NAME" in remedy
    assert "Ellipsis" not in remedy
    assert "one character" in told(capsys, "stats", *files, "--delimiter", "||", code=2)["error"]["remedy"]


@pytest.mark.parametrize(
    "words",
    [("fit", "glm", "--label", "died", "--columns", "age,died"), ("trees", "--label", "died", "--columns", "age,died"),
     ("fit", "cox", "--set", "time=time", "--set", "event=died", "--columns", "age,time")],
    ids=["glm", "trees", "cox"],
)  # fmt: skip
def test_the_label_is_no_feature(capsys, files, words):
    code = 2 if words[0] == "fit" else 3
    error = told(capsys, *words, *files, "--delimiter", "tab", code=code)["error"]
    assert "leave it out of" in error["remedy"]
