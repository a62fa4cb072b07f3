"""Every error of Atoll has an exit code of its own and a section in docs/errors.md."""

from __future__ import annotations

import importlib
import re

import pytest

from atoll.core.errors import AtollError
from tests.support.sources import ROOT, modules

CATALOGUE = ROOT / "docs" / "errors.md"


def every_error() -> list[type[AtollError]]:
    """``AtollError`` and everything that inherits from it, wherever it is defined."""
    for module in modules():
        if re.search(r"^class \w+\(.*Error", module.text, re.MULTILINE):
            importlib.import_module(module.name)
    found, waiting = [], [AtollError]
    while waiting:
        kind = waiting.pop()
        found.append(kind)
        waiting += kind.__subclasses__()
    # A kind without a code of its own is documented with its base.
    ours = [kind for kind in found if kind.__module__.startswith("atoll.") and "exit_code" in vars(kind)]
    return sorted(ours, key=lambda kind: kind.exit_code)


@pytest.fixture(scope="module")
def sections() -> dict[str, str]:
    """Heading -> text of the catalogue's sections."""
    parts = re.split(r"^#{2,3} +(.+)$", CATALOGUE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_exit_codes_are_distinct_and_small() -> None:
    codes = [kind.exit_code for kind in every_error()]
    assert len(codes) == len(set(codes))
    # 0 is success, 64 and above are taken by shells and signals (126, 127, 128 + n; 130 is Ctrl-C).
    assert all(0 < code < 64 for code in codes)


@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.__name__)
def test_every_error_has_a_section_with_its_exit_code(kind: type[AtollError], sections: dict[str, str]) -> None:
    found = [(head, text) for head, text in sections.items() if re.search(rf"\b{kind.__name__}\b", head)]
    assert found, f"docs/errors.md has no section for {kind.__name__}"
    head, text = found[0]
    assert re.search(rf"\b{kind.exit_code}\b", head + text), f"it does not name exit code {kind.exit_code}"
    assert len(text.split()) >= 15, "it says too little to help"


@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.__name__)
def test_every_error_says_what_where_and_what_to_do(kind: type[AtollError]) -> None:
    error = kind("lr=-1.0", where="round 3", remedy="use a positive learning rate")
    assert str(error) == "lr=-1.0 (in round 3). Remedy: use a positive learning rate"
