"""The layers of ``core``, as ARCHITECTURE.md names them: a part imports what is below it and nothing else, not even inside a function."""

from __future__ import annotations

import pytest

from tests.support.sources import ROOT, imports, modules

LAYERS = (
    ("addresses", "errors", "capability", "facets", "overview", "elsewhere", "redaction"),
    ("calls", "exposure", "lazy", "rooms"),
    ("extras", "validation", "message", "time"),
    ("algebra",),
    ("persistence",),
    ("event", "sealing"),
    ("requests",),
    ("execution", "job"),
    ("world",),
    ("federation",),
)
"""Packages and modules of ``core``, lowest first. Those of one layer do not know each other."""
HEIGHT = {part: height for height, layer in enumerate(LAYERS) for part in layer}


def part_of(name: str) -> str:
    """The package or module of ``core`` that a dotted name is part of; ``""`` for ``core`` itself and other rooms."""
    parts = [*name.split("."), "", ""]
    return parts[2] if parts[1] == "core" else ""


def known() -> dict[tuple[str, str], list[str]]:
    """``(part, part that it imports)`` -> where."""
    found: dict[tuple[str, str], list[str]] = {}
    for module in modules():
        own = part_of(module.name)
        for item in imports(module) if own else ():
            other = part_of(item.target)
            if other and other != own:
                found.setdefault((own, other), []).append(item.where)
    return found


def test_every_part_of_core_has_a_layer() -> None:
    assert {part_of(module.name) for module in modules()} - {""} == set(HEIGHT)


@pytest.mark.parametrize("part", sorted(HEIGHT))
def test_a_part_imports_what_is_below_it(part: str) -> None:
    wrong = {other: where for (own, other), where in known().items() if own == part and HEIGHT[other] >= HEIGHT[part]}
    assert not wrong, f"{part} may import {', '.join(p for p in HEIGHT if HEIGHT[p] < HEIGHT[part])} only"


def test_the_guard_sees_imports_for_type_checkers_and_those_inside_functions() -> None:
    assert any("execution/engine.py" in where for where in known()["execution", "persistence"])
    assert any("persistence/files.py" in where for where in known()["persistence", "message"])


def test_the_order_stands_in_the_architecture() -> None:
    written = " < ".join(part for layer in LAYERS for part in layer if (ROOT / "src/atoll/core" / part).is_dir())
    assert written in (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").replace("`", "")
