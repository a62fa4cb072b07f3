"""``atoll privacy ledger``, as people and scripts type it."""

from __future__ import annotations

import json

import pytest

from atoll.cli.app import run
from atoll.core.event import Admitted, Gaussian, Ledger, NonPrivate
from atoll.privacy import exact_epsilon


@pytest.fixture
def folder(tmp_path):
    """What a site keeps: two jobs of two parties, one with a budget."""
    (tmp_path / "owner").write_text("site 'north' of project 'lungs'\n")
    ledger = Ledger(tmp_path / "ledger.jsonl")
    noise = Gaussian(noise_multiplier=2.0)
    terms = {
        "unit": "user", "epsilon": 4.0, "delta": 1e-5, "method": "pld", "adversary": "server", "neighbours": "add-remove"
    }  # fmt: skip
    most = [Gaussian(noise_multiplier=2.0, count=3).pack()]
    ledger.append(Admitted(name="first job", most=most, budget=terms), "north", "admitted", job="1")
    for number in range(2):
        ledger.append(noise, "north", f"main/t/{number}#0", job="1")
    ledger.append(Gaussian(noise_multiplier=2.0, sampling=0.1, drawn_by="server"), "south", "main/t/0#0", job="2")
    return tmp_path


def answer(capsys, *words, code=0):
    assert run(["privacy", "ledger", *map(str, words), "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_it_says_what_was_spent_by_whom_against_whom_and_what_is_left(folder, capsys):
    found = answer(capsys, folder)
    north, *south = found["entries"]
    assert (north["party"], north["unit"], north["adversaries"]) == ("north", "user", ["server", "clients", "model"])
    assert north["spent"]["pld"] == pytest.approx(exact_epsilon(2 / 4, 1e-5))
    assert north["spent"]["rdp"] >= north["spent"]["pld"]
    assert north["left"] == pytest.approx(4.0 - exact_epsilon(3 / 4, 1e-5))  # a third release is set aside
    assert [row["adversaries"] for row in south] == [["server"], ["clients", "model"]]
    assert south[0]["spent"]["pld"] > 2 * south[1]["spent"]["pld"]  # the server knows the sample
    assert found["jobs"] == {"1": "first job"}
    assert list(found["ledgers"].values()) == [Ledger(folder / "ledger.jsonl").head]


def test_the_table_names_jobs_and_units(folder, capsys):
    assert run(["privacy", "ledger", str(folder)]) == 0
    said = capsys.readouterr().out
    lines = {line.split()[0]: line.split() for line in said.splitlines()[1:] if line.strip()}
    assert lines["north"][-2:] == ["4.0000", f"{4.0 - exact_epsilon(3 / 4, 1e-5):.4f}"]
    assert "1 (first job)" in said
    assert "Neighbours: add-remove" in said


def test_what_left_without_noise_is_unbounded_and_named(folder, capsys):
    Ledger(folder / "ledger.jsonl").append(NonPrivate(what="replies of statistics"), "north", job="3")
    assert answer(capsys, folder)["entries"][0]["spent"] == {"rdp": "inf", "pld": "inf"}
    assert run(["privacy", "ledger", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "unbounded" in said
    assert "Without differential privacy: replies of statistics." in said


def test_rows_of_one_person_are_a_group(folder, capsys):
    found = answer(capsys, folder, "--records", 3)["entries"][0]
    assert found["spent"]["pld"] == pytest.approx(exact_epsilon(2 * 9 / 4, 1e-5))


def test_an_end_that_was_noted_down_is_found_again(folder, capsys):
    ledger = Ledger(folder / "ledger.jsonl")
    head = ledger.head
    ledger.append(Gaussian(noise_multiplier=9.0), "north", job="4")
    answer(capsys, folder, "--head", head)
    error = answer(capsys, folder, "--head", head[:-1] + ("0" if head[-1] != "0" else "1"), code=8)["error"]
    assert "does not have the line 4 that was noted down" in error["what"]


def test_a_folder_without_a_ledger_is_named(tmp_path, capsys):
    error = answer(capsys, tmp_path, code=2)["error"]
    assert "there is no privacy ledger in" in error["what"]
