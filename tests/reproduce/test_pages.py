"""A reproduction writes its own page: what stands there is what was found, and nothing else of the page changes."""

from __future__ import annotations

import json
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import atoll.reproduce
from atoll.cli import run
from atoll.core.errors import CheckpointError, ConfigError
from atoll.reproduce import Claim, Entry, Lab, Page, read_tallies, reproduce, write_block

CLAIMS = [
    Claim("a|b grows", 0.5, [0.4, 0.6], True, "by a rule"),
    Claim("c shrinks", None, 2.5, False),
    Claim("Syn(iid)", None, None, None, part="Cells"),
    Claim("Syn(0,0)", None, "1 -> 2", None, part="Cells"),
]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> Entry:
    """A reproduction of one blink: what it trains is four rounds of a linear model."""

    def judged(lab: Lab, quick: bool) -> list[Claim]:
        lab.train(settings)
        return CLAIMS

    entry = Entry("blink", "A title", "A paper, Table 1", judged)
    point = EntryPoint("blink", "page_of_blink:ENTRY", "atoll.papers")
    monkeypatch.setattr(atoll.reproduce, "entry_points", lambda group: [point])
    monkeypatch.setitem(sys.modules, "page_of_blink", SimpleNamespace(ENTRY=entry))
    return entry


def test_a_new_page_has_title_source_counts_and_a_table_a_part(made: Entry, tmp_path: Path) -> None:
    page = Page(tmp_path / "new.md", made).check()
    page.write(reproduce("blink", Lab(tmp_path / "kept")))
    assert page.file.read_text(encoding="utf-8") == (
        "# A title\n\nA paper, Table 1.\n\n<!-- atoll reproduce blink -->\n\n"
        "Of 4 measured statements: 1 hold, 1 do not hold, 1 are undecided, 1 were not run. `atoll reproduce blink` makes them again.\n\n"
        "| claim | paper | ours | verdict | note |\n| --- | --- | --- | --- | --- |\n"
        "| a\\|b grows | 0.5 | 0.4, 0.6 | holds | by a rule |\n| c shrinks |  | 2.5 | does not hold |  |\n\n"
        "**Cells**\n\n| claim | ours | verdict |\n| --- | --- | --- |\n"
        "| Syn(iid) |  | not run |\n| Syn(0,0) | 1 -> 2 | undecided |\n\n<!-- end of blink -->\n"
    )


def test_only_what_stands_between_the_marks_is_replaced(made: Entry, tmp_path: Path) -> None:
    page = Page(tmp_path / "page.md", made)
    begin, end = page.marks
    page.file.write_text(f"Mine, before.\n\n{begin}\nold numbers\n{end}\n\nMine, after.\n", encoding="utf-8")
    found = reproduce("blink", Lab(tmp_path / "kept"))
    page.write(found)
    once = page.file.read_text(encoding="utf-8")
    assert once.startswith(f"Mine, before.\n\n{begin}\n\nOf 4 measured statements")
    assert once.endswith(f"| undecided |\n\n{end}\n\nMine, after.\n")
    assert "old numbers" not in once
    page.write(found)
    assert page.file.read_text(encoding="utf-8") == once


@pytest.mark.parametrize("text", ["", "{begin}", "{end}\n{begin}", "{begin}\n{end}\n{begin}\n{end}"])
def test_a_page_without_a_place_is_refused_before_anything_is_trained(made: Entry, tmp_path: Path, text: str) -> None:
    page = Page(tmp_path / "page.md", made)
    begin, end = page.marks
    page.file.write_text(text.format(begin=begin, end=end), encoding="utf-8")
    with pytest.raises(ConfigError, match="the page has no place for blink"):
        page.check()
    kept = tmp_path / "kept"
    assert run(["reproduce", "blink", "--root", str(kept), "--page", str(page.file), "--json"]) == ConfigError.exit_code
    assert not kept.exists()


def test_the_command_writes_the_page_and_trains_nothing_where_it_may_not(
    made: Entry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "blink", "--root", str(tmp_path / "kept"), "--page", str(tmp_path / "a.md"), "--json"]
    assert run([*command, "--kept"]) == CheckpointError.exit_code
    assert json.loads(capsys.readouterr().out)["error"]["remedy"] == "run it without --kept, which trains"
    assert not (tmp_path / "a.md").exists()
    assert run(command) == 0
    told = json.loads(capsys.readouterr().out)["claims"]
    assert [claim["holds"] for claim in told] == [True, False, None, None]
    first = (tmp_path / "a.md").read_text(encoding="utf-8")
    assert run([*command, "--kept"]) == 0
    assert (tmp_path / "a.md").read_text(encoding="utf-8") == first
    assert run([*command, "--kept", "--fresh"]) == ConfigError.exit_code


def test_derived_statements_are_counted_apart_and_circular_ones_are_not_judged(made: Entry) -> None:
    claims = [*CLAIMS, Claim("d", 1, 1, True, basis="derived"), Claim("e", 1, 9, None, basis="circular")]
    text = write_block({"name": "blink", "claims": [claim.plain() for claim in claims]})
    assert (
        "Of 4 measured statements: 1 hold, 1 do not hold, 1 are undecided, 1 were not run. "
        "Of 2 derived from the paper's own numbers: 1 hold, 0 do not hold, 1 are not judged."
    ) in text
    assert "| d | 1 | 1 | holds; derived |" in text
    assert "| e | 1 | 9 | not judged; circular |" in text


def test_figures_are_shown_and_counted_in_no_verdict(made: Entry, tmp_path: Path) -> None:
    figures = [Claim.figure("accuracy", 0.9, "one seed", part="Accuracy"), Claim.figure("other", None, part="Accuracy")]
    page = Page(tmp_path / "page.md", made)
    page.write({"name": "blink", "claims": [claim.plain() for claim in (*CLAIMS[:2], *figures)]})
    text = page.file.read_text(encoding="utf-8")
    assert "Of 2 measured statements: 1 hold, 1 do not hold. Figures without a statement: 2. `atoll" in text
    assert "| accuracy | 0.9 |  | one seed |" in text
    assert "| other |  | not run |  |" in text
    assert read_tallies(tmp_path) == {"blink": {"measured": {"holds": 1, "does not hold": 1}}}
    assert [claim.verdict for claim in figures] == ["figure", "not run"]


def test_the_tally_of_a_page_is_what_its_first_line_states(made: Entry, tmp_path: Path) -> None:
    page = Page(tmp_path / "page.md", made)
    derived = Claim("d", 1, 2, False, basis="derived")
    page.write({"name": "blink", "claims": [claim.plain() for claim in (*CLAIMS, derived)]})
    counts = dict.fromkeys(("holds", "does not hold", "undecided", "not run"), 1)
    assert read_tallies(tmp_path) == {"blink": {"measured": counts, "derived": {"does not hold": 1}}}
