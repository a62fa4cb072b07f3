"""A site whose record of what it has answered is cut, swapped or lost answers nothing that the record is for, and never begins a new one by itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import atoll.query
from atoll.core.errors import CheckpointError
from atoll.core.persistence.files import read_message, write_message

COLUMNS = {"ward": "public", "pay": {"level": "private", "release": "aggregate", "range": [0, 99]}}
POLICY = {"policy": {"min_count": 3, "privacy": {"people": {"anna": {"epsilon": 2, "delta": 1e-6}}}}, "tables": {"p": {"columns": COLUMNS}}}  # fmt: skip
UNITS, NOISED = "query-answered-p.msg", "query-noised.msg"


def ask(tmp_path: Path, text: str = "SELECT count(*), sum(pay) FROM p", **noise: Any) -> list[Any]:
    for name in ("north", "south"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "p.csv").write_text("ward,pay\n" + "".join(f"{'AB'[k % 2]},{k}\n" for k in range(9)))
    silos = {name: str(tmp_path / name) for name in ("north", "south")}
    with atoll.query.connect(silos, POLICY, folder=tmp_path / "kept") as db:
        return db.sql(text, **noise).rows


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:60])


def swap(path: Path) -> None:
    """Another message in a file of the right form."""
    write_message(path, {**read_message(path), "value": {"closed": []}})


LOSSES: dict[str, tuple[Callable[[Path], None], str]] = {"cut": (cut, "the file is damaged"), "swapped": (swap, "is no record of what north has answered"), "lost": (Path.unlink, "of what north has answered is gone")}  # fmt: skip


@pytest.mark.parametrize("loss", LOSSES)
def test_a_record_of_units_that_is_damaged_or_lost_ends_answers(tmp_path: Path, loss: str) -> None:
    assert ask(tmp_path) == [(18, 72)]
    change, match = LOSSES[loss]
    change(tmp_path / "kept" / "north" / UNITS)
    for _ in range(2):  # a refusal writes nothing that the next statement could take for the record
        with pytest.raises(CheckpointError, match=match):
            ask(tmp_path, "SELECT count(*), sum(pay) FROM p WHERE pay <> 8")


@pytest.mark.parametrize("loss", LOSSES)
def test_a_budget_that_is_damaged_or_lost_is_not_given_anew(tmp_path: Path, loss: str) -> None:
    noise = {"epsilon": 2.0, "analyst": "anna"}
    before = ask(tmp_path, **noise)
    assert ask(tmp_path, **noise) == before
    change, match = LOSSES[loss]
    for name in ("north", "south"):
        change(tmp_path / "kept" / name / NOISED)
    for _ in range(2):
        with pytest.raises(CheckpointError, match=match):
            ask(tmp_path, "SELECT count(*) FROM p", **noise)


def test_a_person_who_removes_both_files_begins_anew(tmp_path: Path) -> None:
    ask(tmp_path)
    kept = tmp_path / "kept" / "north"
    for name in (UNITS, UNITS.replace(".msg", "-begun.msg")):
        (kept / name).unlink()
    assert ask(tmp_path) == [(18, 72)]
