"""A site whose record of what it has answered is cut, swapped or lost answers nothing that the record is for, and never begins a new one by itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import atoll.query
from atoll.core.errors import AtollError, CheckpointError, PolicyError
from atoll.core.persistence.files import read_message, write_message
from atoll.core.persistence.named_results import NamedResults

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


def test_two_who_ask_at_once_are_both_answered_and_each_is_charged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """Just before a site writes a record, another job writes to it: the site compares its answer, and what is left of the budget, anew."""
    put, asked = NamedResults.put, list[str]()

    def late(kept: NamedResults, party: str, name: str, value: Any, *, at_once: bool = False) -> None:
        if party == "north" and name in (UNITS.removesuffix(".msg"), NOISED.removesuffix(".msg")) and name not in asked:
            asked.append(name)
            if "noised" in name:
                asked.extend(
                    map(str, ask(tmp_path, "SELECT count(*) FROM p WHERE pay > 1", epsilon=1.0, analyst="anna"))
                )
            else:
                asked.extend(map(str, ask(tmp_path, "SELECT count(*), sum(pay) FROM p WHERE pay > 3")))
        put(kept, party, name, value, at_once=at_once)

    monkeypatch.setattr(NamedResults, "put", late)
    assert ask(tmp_path) == [(18, 72)]
    ask(tmp_path, epsilon=1.0, analyst="anna")
    assert len(asked) == 4
    answers = NamedResults(tmp_path / "kept").get("north", "query-noised")["answers"]
    assert [one["epsilon"] for one in answers] == [1.0, 1.0]
    with pytest.raises(PolicyError, match="the epsilon of anna is 2 here: 2 is spent"):
        ask(tmp_path, "SELECT count(*) FROM p WHERE pay > 2", epsilon=0.1, analyst="anna")


def test_of_two_who_ask_at_once_for_what_differs_by_few_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    put, asked = NamedResults.put, list[list[Any]]()

    def late(kept: NamedResults, party: str, name: str, value: Any, *, at_once: bool = False) -> None:
        if party == "north" and f"{name}.msg" == UNITS and not asked:
            asked.append([])
            asked.append(ask(tmp_path, "SELECT count(*), sum(pay) FROM p WHERE pay <> 8"))
        put(kept, party, name, value, at_once=at_once)

    monkeypatch.setattr(NamedResults, "put", late)
    with pytest.raises(AtollError, match="is fewer than min_count=3 rows"):
        ask(tmp_path)
    assert asked[1] == [(16, 56)]
