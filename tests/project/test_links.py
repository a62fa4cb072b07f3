"""Links between the files of the repository lead somewhere; nothing names a machine or a private place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.sources import ROOT

# Pages of the site that are made from files of the root.
MADE = {"architecture.md", "changelog.md", "contributing.md"}
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "papers").rglob("*.md")])
LINK = re.compile(r"(?<!`)\]\((?!https?:|mailto:|#)([^)\s#]+)(?:#[^)]*)?\)")


def targets(page: Path) -> list[Path]:
    """The files that a page links to, without what the site makes itself."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found = [(page.parent / link) for link in LINK.findall(text)]
    kept = [path for path in found if path.name not in MADE and "reference" not in path.parts]
    return [path.with_suffix(".ipynb") if "tutorials" in path.parts else path for path in kept]  # made from notebooks


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    missing = [str(path.relative_to(page.parent)) for path in targets(page) if not path.exists()]
    assert not missing


def test_links_are_found() -> None:
    assert ROOT / "ARCHITECTURE.md" in targets(ROOT / "README.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_page_names_a_place_on_one_machine(page: Path) -> None:
    assert not re.findall(r"(?<![\w.])/(?:home|root|work|tmp|Users|opt)/\w+", page.read_text(encoding="utf-8"))
