"""``atoll sql``: one statement over silos of three kinds, as a person or a script reads it."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atoll.cli.app import run
from tests.query.test_databases import fill

POLICY = "policy: {min_count: 1}\ntables: {visits: {columns: public}}\n"


@pytest.fixture
def atoll(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run a command; what it printed on stdout and on stderr."""

    def asked(*words: str, expect: int = 0) -> Any:
        assert run(list(words)) == expect
        return capsys.readouterr()

    return asked


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    (tmp_path / "p.yaml").write_text(POLICY)
    silos = [word for name, path in fill(tmp_path).items() for word in ("--silo", f"{name}={path}")]
    return ["sql", *silos, "--policy", str(tmp_path / "p.yaml")]


def test_json_has_the_answer_and_what_it_cost(atoll: Callable[..., Any], words: list[str], tmp_path: Path) -> None:
    text = "SELECT ward, sum(pay) AS total, avg(age) FROM visits WHERE ward < 'Z' GROUP BY ward ORDER BY ward"
    found = json.loads(atoll(*words, "--json", "-o", str(tmp_path / "out.csv"), text).out)
    assert found["columns"] == ["ward", "total", "avg(age)"]
    assert [[row[0], float(row[1]), row[2]] for row in found["rows"]] == [["A", 42.0, 3.0], ["B", -1.0, None]]
    assert set(found) >= {"strategy", "rejected", "plan", "leakage", "rounds", "comparisons", "privacy", "approximate", "withheld_groups"}  # fmt: skip
    assert set(found["seconds"]) == {"total", "local", "secure"}
    assert set(found["bytes"]) == {"total", "predicted", "links"}
    assert set(found["bytes"]["links"]) == {"csv", "parquet", "duck", "lite"}
    with (tmp_path / "out.csv").open() as file:
        assert [row["ward"] for row in csv.DictReader(file)] == ["A", "B"]


def test_explain_says_what_leaves_and_asks_no_rows(atoll: Callable[..., Any], words: list[str]) -> None:
    said = atoll(*words, "EXPLAIN SELECT ward, stddev(x) FROM visits GROUP BY ward").out
    assert "strategy sums" in said
    assert "who learns what" in said
    assert "masked" in said


def test_errors_point_to_the_place(atoll: Callable[..., Any], words: list[str]) -> None:
    failed = atoll(*words, "SELECT wrad FROM visits", expect=2)
    assert "Did you mean ward?" in failed.err
    assert "^" in failed.err
    assert "a statement and -f" in atoll(*words, "SELECT 1", "-f", "x.sql", expect=2).err
    assert "write --silo NAME=PATH" in atoll("sql", "--silo", "north", "SELECT 1", expect=2).err
