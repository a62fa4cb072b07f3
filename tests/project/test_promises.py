"""Pages that promise: each sentence that does names the test that holds it, and each of these tests exists.

The convention. A paragraph, an item of a list or a row of a table that promises something ends with a comment, which readers do not see::

    A site refuses a smaller sum. <!-- held by: secure/masking/test_attacks.py::test_a_small_sum -->

Tests are named relative to ``tests/``, several with commas between. A comment on its own line after a table is for all of its rows, and one after a paragraph for the paragraph. A row
that names tests in a column of its own needs no comment. A sentence that has one of the words and promises nothing of Atoll says so:
``<!-- no promise: why -->``. What a page does not promise stands below a heading of `NOT_PROMISED`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support.sources import ROOT, defined_in

PAGES = (
    "concepts/secure-sums.md",
    "concepts/who-sees-what.md",
    "concepts/threats.md",
    "concepts/hostile-sites.md",
    "howto/privacy.md",
    "howto/ledger.md",
)
PROMISE = re.compile(
    r"\b(never|cannot|can not|refuses?|refused|no one|nobody|no other|nothing|always|only|alone|none|must not|does not see|sees no|learns? no\w*|rejected|left out by name)\b",
    re.I,
)
"""Words that make a sentence a promise."""
NOT_PROMISED = (
    "does not promise",
    "does not do",
    "is not there",
    "not promised",
    "Each guard was switched off",
    "Speed",
)
"""Headings below which a page promises nothing."""
HELD = re.compile(r"<!-- held by: (.*?) -->", re.S)
NONE = re.compile(r"<!-- no promise: (\S.*?) -->", re.S)
NAMED = re.compile(r"([\w/]+\.py)::(\w+)")
COMMENT = re.compile(r"<!--.*?-->", re.S)


@dataclass(frozen=True)
class Block:
    """A paragraph, an item of a list, or a row of a table.

    Attributes:
        line: where it begins.
        text: what it says, comments included, and those that follow it.
    """

    line: int
    text: str

    @property
    def promises(self) -> list[str]:
        """Its sentences that promise."""
        said = COMMENT.sub("", self.text)
        return [
            one.strip() for one in re.split(r"(?<=[.:;!?])\s+", said) if PROMISE.search(re.sub(r"`[^`]*`", "", one))
        ]

    @property
    def held(self) -> bool:
        """Whether it names tests, or says that it promises nothing."""
        return bool(
            HELD.search(self.text) or NONE.search(self.text) or (self.text.startswith("|") and NAMED.search(self.text))
        )


def blocks(page: str) -> list[Block]:
    """The blocks of a page, without code, headings, and what stands below a heading of `NOT_PROMISED`."""
    made: list[Block] = []
    rows: list[str] = []
    start = 0
    for number, line in [*_lines(page), (0, "")]:
        alone = HELD.fullmatch(line.strip()) or NONE.fullmatch(line.strip())
        if rows and (not line or _begins(line, rows[0])) and not alone:
            made.append(Block(start, "\n".join(rows)))
            rows = []
        if alone and not rows and made:
            made[-1] = Block(made[-1].line, f"{made[-1].text}\n{line.strip()}")
        elif line:
            start = start if rows else number
            rows.append(line.strip() if alone else line)
    return _tables_held(made)


def _begins(line: str, first: str) -> bool:
    """Whether a line begins an item of a list, a row of a table, or what comes after a table."""
    return line.startswith(("|", "* ", "- ")) or first.startswith("|")


def _lines(page: str) -> Iterator[tuple[int, str]]:
    """Number and text of each line that counts; code and headings count as empty lines, and so does what stands below a heading of `NOT_PROMISED`."""
    code, skipped = False, 0
    for number, line in enumerate(page.splitlines(), 1):
        fence, heading = line.lstrip().startswith("```"), re.match(r"(#+) (.*)", line)
        code = code != fence
        if heading and not code and (not skipped or len(heading[1]) <= skipped):
            skipped = len(heading[1]) if any(words in heading[2] for words in NOT_PROMISED) else 0
        yield number, "" if code or fence or heading or skipped else line.rstrip()


def _tables_held(made: list[Block]) -> list[Block]:
    """Rows of a table take the comment that stands after its last row, without the row of heads."""
    found: list[Block] = []
    table: list[Block] = []
    for block in [*made, Block(0, "")]:
        if block.text.startswith("|"):
            table.append(block)
            continue
        after = COMMENT.findall(table[-1].text.rpartition("|")[2]) if table else []
        found += [Block(row.line, "\n".join([row.text, *after])) for row in table[2:]]
        table = []
        found.append(block)
    return found[:-1]


def unheld(page: str) -> list[str]:
    """Promises without a test, and tests that do not exist."""
    bare = [f"line {block.line}: {block.promises[0]}" for block in blocks(page) if block.promises and not block.held]
    named = [pair for comment in HELD.findall(page) for pair in NAMED.findall(comment)]
    empty = [comment for comment in HELD.findall(page) if not NAMED.search(comment)]
    return [*bare, *empty, *(f"{file}::{name}" for file, name in named if name not in defined_in(file))]


@pytest.mark.parametrize("page", PAGES)
def test_every_promise_of_a_page_names_a_test_that_exists(page: str) -> None:
    found = unheld((ROOT / "docs" / page).read_text(encoding="utf-8"))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", PAGES)
def test_what_is_not_promised_stands_beside_it(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert re.search(rf"^#+ .*({'|'.join(NOT_PROMISED[:4])})", text, re.M), (
        "a heading for what the page does not promise"
    )


GOOD = "The server never sees it. <!-- held by: project/test_promises.py::test_a_promise_without_a_test_is_found -->\n"


@pytest.mark.parametrize(
    "text",
    [
        "The server never sees it.\n",
        "* A site refuses it.\n* It is small.\n",
        "| a | b |\n| --- | --- |\n| x | nobody reads it |\n",
        "It cannot. <!-- held by: project/test_promises.py::test_of_nothing -->\n",
        "It cannot. <!-- held by: somebody -->\n",
        "## What it does not promise\n\nIt cannot.\n\n## More\n\nIt cannot.\n",
    ],
)
def test_a_promise_without_a_test_is_found(text: str) -> None:
    assert len(unheld(f"{GOOD}\n{text}")) == 1


def test_comments_after_a_paragraph_or_a_table_count_for_it() -> None:
    held = GOOD.partition(". ")[2]
    table = f"| a | b |\n| --- | --- |\n| x | nobody reads it |\n| y | it cannot |\n{held}"
    item = f"* It refuses.\n  {held}* Small.\n"
    assert (
        unheld(
            f"It cannot,\nnever.\n{held}\n{table}\n{item}\nOnly here. <!-- no promise: an example -->\n```\nnever\n```\n"
        )
        == []
    )
