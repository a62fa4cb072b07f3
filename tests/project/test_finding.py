"""People find what there is: by completion, by other frameworks' names, from the first pages and in ``atoll --help``."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest

import atoll
from atoll.cli.app import ANALYSE, app
from atoll.cli.commands import register
from atoll.cli.commands.algorithms import page_of_names
from atoll.core.elsewhere import PEERS, find_peer, plain_name
from tests.project.test_remedies import commands
from tests.support.small_run import typed
from tests.support.sources import ROOT

__all__ = ["typed"]

PLACES = {name: place for names in PEERS.values() for name, place in names.items()}


def test_completion_shows_verbs_jobs_kinds_and_rooms() -> None:
    shown = dir(atoll)
    assert {"simulate", "sweep", "task"} <= set(shown)
    assert {"Training", "Trees", "Fit", "Statistics"} <= set(shown)
    assert {
        "algorithms",
        "selection",
        "pacing",
        "topology",
        "aggregation",
        "mechanisms",
        "reducers",
        "stages",
        "views",
        "models",
    } <= set(shown)
    assert {
        "data",
        "labels",
        "trees",
        "fitting",
        "statistics",
        "privacy",
        "secure",
        "devices",
        "engines",
        "programs",
    } <= set(shown)
    assert atoll.Trees is importlib.import_module("atoll.trees").Trees


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("SCAFFOLD", "atoll.Scaffold"), ("CentralDP", "atoll.mechanisms.CentralDP"), ("fedprox", "atoll.algorithms.FedProx"), ("GLM", "atoll.fitting.GLM"),
        ("HomoLR", "atoll.fitting.GLM"), ("XGBoost", "atoll.trees.Trees"), ("SecAgg", "atoll.reducers.SecureAggregation"), ("NumPyClient", "atoll flower"),
        ("fed_avg", "atoll.algorithms.FedAvg"), ("Krum", "atoll.reducers.BoundedSum"), ("start_simulation", "atoll.simulate"),
    ],
)  # fmt: skip
def test_other_names_for_a_thing_lead_to_it(name: str, place: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(place)):
        getattr(atoll, name)


def test_every_place_of_the_table_exists() -> None:
    for place in PLACES.values():
        named = re.findall(r"\batoll(?:\.[A-Za-z_]\w*)+", place)
        for path in named:
            found: Any = importlib.import_module("atoll")
            for word in path.split(".")[1:]:
                found = getattr(found, word)
        verbs = re.findall(r"`atoll ([a-z]+)", place)
        assert set(verbs) <= set(commands())
        pages = re.findall(r"docs/[\w/-]+\.md", place)
        assert all((ROOT / page).is_file() for page in pages)
        assert named or verbs or pages or place.startswith("Atoll has none")


def test_no_name_of_the_table_hides_one_of_ours() -> None:
    assert len({plain_name(name) for name in PLACES}) == len(PLACES)
    assert not set(PLACES) & (set(atoll.__all__) | set(atoll.algorithms.__all__))
    assert find_peer("no such thing") == ""


def test_the_page_is_what_the_command_prints() -> None:
    written = (ROOT / "docs" / "coming-from" / "names.md").read_text(encoding="utf-8")
    assert written == page_of_names(), "run: atoll algorithms --elsewhere --markdown > docs/coming-from/names.md"


def test_the_command_tells_one_name(typed: Any) -> None:
    code, told, _ = typed("algorithms", "--elsewhere", "scaffold", "Nothing")
    assert (code, told["names"]) == (0, {"scaffold": "atoll.Scaffold", "Nothing": ""})


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_first_pages_link_trees_fits_statistics_and_sweeps(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for name in ("trees", "fit", "statistics", "sweeps"):
        assert re.search(rf"\]\((docs/)?howto/{name}\.md\)", text), f"{page} does not link {name}"


def test_the_help_has_them_in_a_group_of_their_own() -> None:
    register([])
    group = {str(one.name) for one in app.registered_commands if one.rich_help_panel == ANALYSE}
    assert group == {"crossmodal", "ensemble", "trees", "fit", "stats", "sweep", "predict", "psi", "sql", "vertical"}


def test_installation_lines_work_from_a_clone() -> None:
    """No index has the package: pages install the clone, and only errors, which installed code raises, name extras of what is there."""
    wrong = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for line in page.read_text(encoding="utf-8").splitlines():
            named = re.search(r"pip install (\"?atoll|atoll-papers)", line)
            told = page.name == "errors.md" or "installed already" in line
            wrong += [f"{page.name}: {line}"] if named and not told else []
    assert not wrong


def test_no_page_says_that_secure_reducers_are_missing() -> None:
    text = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    assert "does not include yet" not in text
    assert "reducer: {name: SecureAggregation}" in text


@pytest.mark.parametrize("page", ["speed.md", "howto/unlabelled-rows.md"])
def test_guides_are_no_diaries_and_their_tables_name_commands(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    diary = r"busy machine|earlier run|Since then|before the change|\(load \d|one run\b|on another day|measured again"
    assert not re.findall(diary, text)
    assert len(re.findall(r"`(?:make bench|python benchmarks/)|^atoll labels compare", text, re.MULTILINE)) >= 3
    assert len(text.splitlines()) < 220
