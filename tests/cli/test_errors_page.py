"""docs/errors.md and the command line agree on exit codes."""

from __future__ import annotations

import re
from pathlib import Path

from atoll.cli.app import INTERRUPT_CODE, known_codes

PAGE = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")


def test_every_error_has_a_section_with_its_code() -> None:
    sections = dict(re.findall(r"^## (\w+) \(exit (\d+)\)$", PAGE, flags=re.MULTILINE))
    ours = {name: str(code) for name, code in known_codes().items() if code}
    assert {name: sections.get(name) for name in ours} == ours


def test_the_table_lists_every_code_once() -> None:
    listed = [int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, flags=re.MULTILINE)]
    assert listed == sorted({0, INTERRUPT_CODE, *known_codes().values()})
