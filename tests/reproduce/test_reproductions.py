"""Reproductions: what distributions list, claims as data, and trainings that are kept."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

import atoll.reproduce
from atoll.cli import run
from atoll.core.addresses import load_object
from atoll.core.errors import ConfigError, DataError, MissingExtraError
from atoll.reproduce import Claim, Interrupted, Lab, TrainedRun, entries, find_entry, names, tallies
from atoll.runs import RunFolder, Stopping

ENTRY = """
from atoll.reproduce import Claim, Entry
ENTRY = Entry("whole-page", "A title", "A paper", lambda lab, quick: [Claim("a", 1, 1, True)])
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EntryPoint]]:
    """A distribution of three reproductions, two of which are broken."""
    home = tmp_path / "site" / "pages_of_mine"
    home.mkdir(parents=True)
    (home / "__init__.py").touch()
    (home / "whole.py").write_text(ENTRY)
    (home / "torn.py").write_text("raise RuntimeError('half a file')")
    (home / "empty.py").write_text("")
    (home / "tally.json").write_text('{"whole-page": {"measured": {"holds": 1}}}')
    monkeypatch.syspath_prepend(str(home.parent))
    points = [
        EntryPoint(f"{name}-page", f"pages_of_mine.{name}:ENTRY", "atoll.papers") for name in ("whole", "torn", "empty")
    ]
    monkeypatch.setattr(atoll.reproduce, "entry_points", lambda group: points)
    yield points
    for name in [name for name in sys.modules if name.partition(".")[0] == "pages_of_mine"]:
        del sys.modules[name]


def test_names_are_those_of_the_distributions(installed: list[EntryPoint]) -> None:
    assert names() == ["empty-page", "torn-page", "whole-page"]
    assert find_entry("whole-page").title == "A title"
    with pytest.raises(ConfigError, match=r"no reproduction 'whole-pge'\. Did you mean 'whole-page'"):
        find_entry("whole-pge")


def test_without_a_distribution_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(atoll.reproduce, "entry_points", lambda group: [])
    hint = "in a clone of Atoll: pip install ./papers"
    for words in (["reproduce"], ["reproduce", "--list"], ["reproduce", "fedavg-mnist", "--quick"]):
        assert run([*words, "--json"]) == MissingExtraError.exit_code
        error = json.loads(capsys.readouterr().out)["error"]
        assert (error["what"], error["remedy"]) == ("no reproductions are installed", hint)
    with pytest.raises(MissingExtraError, match="no reproductions are installed"):
        tallies()


def test_the_hint_names_the_distribution_that_lies_in_the_repository() -> None:
    root = Path(__file__).parents[2]
    assert 'name = "atoll-papers"' in (root / "papers" / "pyproject.toml").read_text(encoding="utf-8")


def test_a_module_that_moved_is_found_under_its_old_name(
    installed: list[EntryPoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Configurations and saved runs name parts by the module that they had."""
    moved = {
        "atoll.reproduce.old.page": EntryPoint("atoll.reproduce.old.page", "pages_of_mine.whole", "atoll.addresses")
    }
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group, name: [moved[name]] if name in moved else [])
    assert load_object("atoll.reproduce.old.page:ENTRY") is find_entry("whole-page")
    with pytest.raises(AttributeError, match="no attribute 'NOTHING'"):
        load_object("atoll.reproduce.old.page:NOTHING")
    with pytest.raises(ModuleNotFoundError, match=r"atoll\.reproduce\.older"):
        load_object("atoll.reproduce.older:ENTRY")


def test_an_old_name_does_not_hide_what_its_module_lacks(
    installed: list[EntryPoint], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A module that is there, and imports what is not, is not taken for one that moved."""
    (tmp_path / "site" / "pages_of_mine" / "lacking.py").write_text("import no_such_library")
    moved = [EntryPoint("pages_of_mine.lacking", "pages_of_mine.whole", "atoll.addresses")]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group, name: moved)
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        load_object("pages_of_mine.lacking:ENTRY")


def test_a_broken_entry_is_in_nobodys_way(installed: list[EntryPoint], capsys: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"'torn-page' cannot be loaded: RuntimeError: half a file.*repair that module"
    ):
        find_entry("torn-page")
    assert run(["reproduce", "torn-page"]) == ConfigError.exit_code
    capsys.readouterr()
    assert [type(found).__name__ for found in entries().values()] == ["ConfigError", "ConfigError", "Entry"]
    assert run(["reproduce", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["reproductions"]}
    assert rows["torn-page"]["title"].startswith(
        "broken: the reproduction 'torn-page' cannot be loaded: RuntimeError: half a file"
    )
    assert "no attribute 'ENTRY'" in rows["empty-page"]["title"]
    assert {"name", "title", "source", "needs", "verdicts"} == set(rows["whole-page"])
    assert rows["whole-page"]["title"] == "A title"
    assert rows["whole-page"]["verdicts"] == {"measured": {"holds": 1}}


def test_a_training_runs_once(settings: dict[str, Any], tmp_path: Path) -> None:
    seen: list[int] = []
    watch = lambda title, rounds: lambda row: seen.append(row["round"])  # noqa: E731
    first = Lab(tmp_path, watch=watch).train(settings)
    assert seen == [1, 2, 3, 4]
    lab = Lab(tmp_path, watch=watch)
    again = lab.train({**settings, "name": "blink"})
    assert seen == [1, 2, 3, 4]
    assert again.rows == first.rows
    assert lab.seconds == first.seconds > 0
    Lab(tmp_path, watch=watch).train({**settings, "seed": 1})
    assert len(seen) == 8
    Lab(tmp_path, watch=watch, fresh=True).train(settings)
    assert len(seen) == 12


def test_a_training_that_was_stopped_goes_on(settings: dict[str, Any], tmp_path: Path) -> None:
    stopping = Stopping()
    stopping.ask()
    with pytest.raises(Interrupted, match="blink"):
        Lab(tmp_path, stopping).train(settings)
    seen: list[int] = []
    made = Lab(tmp_path, watch=lambda title, rounds: lambda row: seen.append(row["round"])).train(settings)
    assert seen == [2, 3, 4]
    assert [row["round"] for row in made.rows] == [1, 2, 3, 4]


def test_a_damaged_training_is_not_taken_for_a_finished_one(settings: dict[str, Any], tmp_path: Path) -> None:
    made = Lab(tmp_path).train(settings)
    (made.folder.path / "manifest.json").unlink()
    seen: list[int] = []
    again = Lab(tmp_path, watch=lambda title, rounds: lambda row: seen.append(row["round"])).train(settings)
    assert seen == []  # its checkpoint is whole: there is nothing left to train
    assert again.rows == made.rows


def rows(*values: float | None) -> TrainedRun:
    made = [{"round": i, "test/accuracy": v} for i, v in enumerate(values, 1)]
    return TrainedRun(RunFolder("nowhere"), made, 1.0)


def test_rounds_to_a_target_are_interpolated_on_the_best_so_far() -> None:
    # McMahan et al. 2017, section 3: curves are made monotone, crossings are interpolated linearly.
    assert rows(0.2, 0.6, 0.4, 0.8).rounds_to(0.7) == 3.5
    assert rows(0.2, 0.6).rounds_to(0.4) == 1.5
    assert rows(0.2, None, 0.6).rounds_to(0.4) == 2.0
    assert rows(0.5).rounds_to(0.25) == 0.5
    assert rows(0.2, 0.3).rounds_to(0.9) is None
    assert (rows(0.2, 0.6, 0.4).best(), rows(0.2, 0.6, 0.4).last()) == (0.6, 0.4)
    with pytest.raises(DataError, match="test/accuracy was never measured"):
        rows(None).best()


def test_a_claim_is_plain_data() -> None:
    claim = Claim("rounds to 97 %", 87, 80.5, True, "rule").plain()
    assert json.loads(json.dumps(claim)) == claim
