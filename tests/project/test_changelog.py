"""One version, told the same everywhere; what changes is written down."""

from __future__ import annotations

import re
import tomllib

import atoll
from tests.support.sources import ROOT

CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_version_is_the_same_everywhere() -> None:
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", CHANGELOG, flags=re.MULTILINE)
    assert PROJECT["version"] == atoll.__version__
    papers = tomllib.loads((ROOT / "papers" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert papers["version"] == atoll.__version__  # their results are those of this version
    # Before its release a version is what "Unreleased" becomes; afterwards it is the newest heading.
    assert not released or released[0] <= PROJECT["version"]


def test_the_changelog_is_short_and_grouped_by_room() -> None:
    heads = re.findall(r"^## (.+)$", CHANGELOG, flags=re.MULTILINE)
    assert heads[0] == "[Unreleased]"
    assert re.search(r"^### The waist\n- ", CHANGELOG, flags=re.MULTILINE)
    assert len(CHANGELOG.splitlines()) <= 80, "what users notice, by room; git has the history"


def test_every_extra_can_be_asked_for_at_once() -> None:
    extras = PROJECT["optional-dependencies"]
    inside = set(re.findall(r"[\w-]+", extras["all"][0].partition("[")[2]))
    assert inside <= set(extras) - {"all"}
