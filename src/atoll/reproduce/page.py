"""The page of a reproduction: its verdicts and tables in Markdown, written by the command that made them.

A page has a place for each of its reproductions, between two marks that readers do not see::

    <!-- atoll reproduce NAME -->
    <!-- end of NAME -->

The command replaces the text between the marks and leaves the rest. It creates a missing page.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from atoll.core.errors import ConfigError

from .entry import Claim, Entry

__all__ = ["COUNTED", "Page", "block"]

COUNTED = (
    ("holds", "hold"),
    ("does not hold", "do not hold"),
    ("undecided", "are undecided"),
    ("not judged", "are not judged"),
    ("not run", "were not run"),
)
"""Verdicts, and the words that count them."""
_TAG = re.compile("<(?=[A-Za-z/!?])")
"""Where Markdown would begin a tag: names of classes and columns are text."""
_COLUMNS = ("claim", "paper", "ours", "verdict", "note")


@dataclass(frozen=True)
class Page:
    """The place of a reproduction in a Markdown file.

    Attributes:
        file: the page.
        entry: the reproduction.
    """

    file: Path
    entry: Entry

    @property
    def marks(self) -> tuple[str, str]:
        """Return the lines before and after the written text."""
        return f"<!-- atoll reproduce {self.entry.name} -->", f"<!-- end of {self.entry.name} -->"

    def check(self) -> Page:
        """Refuse a page that has no place for the reproduction, before anything is trained.

        Raises:
            ConfigError: the page exists, but does not have each mark once, in order.
        """
        self._around()
        return self

    def write(self, found: dict[str, Any]) -> None:
        """Replace the text between the marks by the result of `reproduce`."""
        before, after = self._around()
        begin, end = self.marks
        text = "\n".join([begin, block(found), end])
        self.file.write_text(before + text + after, encoding="utf-8")

    def _around(self) -> tuple[str, str]:
        if not self.file.exists():
            return f"# {self.entry.title}\n\n{self.entry.source}.\n\n", "\n"
        text, (begin, end) = self.file.read_text(encoding="utf-8"), self.marks
        if text.count(begin) != 1 or text.count(end) != 1 or text.index(end) < text.index(begin):
            raise ConfigError(
                f"the page has no place for {self.entry.name}",
                where=str(self.file),
                remedy=f"write the lines {begin} and {end} where it belongs, once each",
            )
        return text[: text.index(begin)], text[text.index(end) + len(end) :]


def block(found: dict[str, Any]) -> str:
    """Return the result of `reproduce` in Markdown: how many statements hold, and a table for each part.

    Statements that we measured are counted apart from those derived from the paper's own numbers. Figures are shown, and counted in no verdict. A column that is empty throughout a table is left out.
    """
    claims = [Claim(**plain) for plain in found["claims"]]
    stated = [claim for claim in claims if claim.kind == "statement"]
    measured = [claim for claim in stated if claim.basis == "measured"]
    derived = [claim for claim in stated if claim.basis != "measured"]
    told = f"Of {len(measured)} measured statements: {_told(measured)}. "
    if derived:
        told += f"Of {len(derived)} derived from the paper's own numbers: {_told(derived)}. "
    if figures := len(claims) - len(stated):
        told += f"Figures without a statement: {figures}. "
    parts = [f"{told}`atoll reproduce {found['name']}` makes them again."]
    for part, some in groupby(claims, key=lambda claim: claim.part):
        parts += [f"**{part}**"] * bool(part) + [_table([_row(claim) for claim in some])]
    return "\n" + "\n\n".join(parts) + "\n"


def _told(claims: list[Claim]) -> str:
    """Return how many have which verdict; a verdict that none has is left out, but for the first two."""
    counts = [(sum(claim.verdict == verdict for claim in claims), words) for verdict, words in COUNTED]
    return ", ".join(f"{count} {words}" for i, (count, words) in enumerate(counts) if count or i < 2)


def _row(claim: Claim) -> tuple[str, ...]:
    derived = "" if claim.basis == "measured" else f"; {claim.basis}"
    verdict = "" if claim.verdict == "figure" else claim.verdict + derived
    values = (claim.claim, claim.paper, claim.ours, verdict, claim.note)
    return tuple(_TAG.sub("&lt;", _shown(value)).replace("|", "\\|").replace("\n", " ") for value in values)


def _shown(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_shown, value))
    return "" if value is None else str(value)


def _table(rows: list[tuple[str, ...]]) -> str:
    used = [i for i in range(len(_COLUMNS)) if any(row[i] for row in rows)]
    lines = [tuple(_COLUMNS[i] for i in used), ("---",) * len(used), *(tuple(row[i] for i in used) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
