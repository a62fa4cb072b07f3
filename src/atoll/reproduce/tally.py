"""How many statements of each reproduction hold: the numbers of the written pages, for `atoll reproduce --list`.

``tally.json`` has them. After a page was written anew, run ``python -m atoll.reproduce.tally docs/results``.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.resources import files
from pathlib import Path

from .page import COUNTED

__all__ = ["Tally", "read", "tallies"]

Tally = dict[str, dict[str, int]]
"""``{"measured": {"holds": 5, "does not hold": 1, ...}, "derived": {...}}``; verdicts that no statement has are left out."""

_BLOCK = re.compile(r"<!-- atoll reproduce ([\w-]+) -->\s+(Of \d+ measured statements: .*)")
_HEADS = {"measured": r"Of (\d+) measured statements: ([^.]*)\.", "derived": r"Of (\d+) derived [\w' ]+: ([^.]*)\."}


def tallies() -> dict[str, Tally]:
    """Return the tally of every reproduction whose page is written."""
    made: dict[str, Tally] = json.loads(files(__package__).joinpath("tally.json").read_text(encoding="utf-8"))
    return made


def read(folder: Path) -> dict[str, Tally]:
    """Return the tallies that the pages of a folder state."""
    found = {}
    for page in sorted(folder.glob("*.md")):
        for name, head in _BLOCK.findall(page.read_text(encoding="utf-8")):
            found[name] = {
                basis: _counts(match[2]) for basis, form in _HEADS.items() if (match := re.search(form, head))
            }
    return dict(sorted(found.items()))


def _counts(told: str) -> dict[str, int]:
    verdicts = {words: verdict for verdict, words in COUNTED}
    parts = (part.strip().split(" ", 1) for part in told.split(","))
    return {verdicts[words]: int(count) for count, words in parts if int(count)}


if __name__ == "__main__":
    text = json.dumps(read(Path(sys.argv[1])), indent=2)
    Path(__file__).with_name("tally.json").write_text(text + "\n", encoding="utf-8")
