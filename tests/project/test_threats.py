"""The page of promises: each promise names the tests that hold it, and each of these tests exists."""

from __future__ import annotations

import re

import pytest

from tests.support.sources import ROOT, defined_in

PAGE = (ROOT / "docs" / "concepts" / "threats.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")


def promises(page: str) -> list[str]:
    """The rows of every table that has a column of tests."""
    rows, inside = [], False
    for line in page.splitlines():
        if not line.startswith("|"):
            inside = False
        elif re.fullmatch(r"\|.*\| tests \|", line):
            inside = True
        elif inside and not line.startswith("| ---"):
            rows.append(line)
    return rows


def unheld(page: str) -> list[str]:
    """The promises without a test, and the tests that do not exist."""
    rows = promises(page)
    bare = [row for row in rows if not NAMED.search(row.rsplit("|", 2)[1])]
    return [*bare, *(f"{file}::{name}" for file, name in NAMED.findall(page) if name not in defined_in(file))]


def test_every_promise_names_tests_that_exist() -> None:
    assert len(promises(PAGE)) >= 25
    assert not unheld(PAGE)


def test_nothing_else_on_the_page_looks_like_a_test() -> None:
    assert len(re.findall(r"`[^`]*test_[^`]*`", PAGE)) == len(NAMED.findall(PAGE))


HELD = "| promise | tests |\n| --- | --- |\n| it stays | `project/test_threats.py::test_every_promise_names_tests_that_exist` |\n"


@pytest.mark.parametrize(
    "row",
    [
        "| it goes | |",
        "| it goes | `project/test_threats.py::test_of_nothing` |",
        "| it goes | `no/where.py::test_x` |",
    ],
)
def test_a_promise_that_nothing_holds_is_found(row: str) -> None:
    assert unheld(HELD) == []
    assert len(unheld(HELD + row + "\n")) == 1
