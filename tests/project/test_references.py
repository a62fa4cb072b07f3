"""Dotted names in pages and docstrings, such as ``atoll.data.Islands``, name something that is there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.support.sources import ROOT, Module, modules

# The changelog also names what was renamed since.
PAGES = [
    p
    for p in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "papers").rglob("*.md")])
    if p.name != "CHANGELOG.md"
]
NAME = re.compile(r"(?<![\w/.@\-\"'])atoll(?:_papers)?(?:\.[A-Za-z_]\w*)+")
ENTRY_POINTS = {"atoll.papers", "atoll.addresses", "atoll.transports"}  # groups, which are named like modules
MODULES = {module.name: module for module in modules()}


@cache
def defined(module: Module) -> frozenset[str]:
    """Names at the top of a module: classes, functions, values and what it imports, for type checkers too."""
    found: set[str] = set()
    waiting = [*module.tree.body, *(module.stub.body if module.stub else ())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
        elif isinstance(node, ast.If | ast.Try):
            waiting += [*node.body, *node.orelse]
    return frozenset(found)


def is_there(name: str) -> bool:
    """Whether a dotted name is a module, or starts with one that defines what follows."""
    whole = name
    while whole not in MODULES:
        whole = whole.rpartition(".")[0]
    first = name[len(whole) + 1 :].partition(".")[0]
    return not first or first in defined(MODULES[whole])


def wrong(path: Path) -> list[str]:
    """Dotted names of a file that name nothing, with their lines."""
    lines = path.read_text(encoding="utf-8").split("\n")
    return [
        f"{n}: {m[0]}"
        for n, line in enumerate(lines, 1)
        for m in NAME.finditer(line)
        if m[0] not in ENTRY_POINTS and not is_there(m[0])
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_names_on_pages_are_there(page: Path) -> None:
    assert wrong(page) == []


def test_names_in_modules_are_there() -> None:
    found = {path.relative_to(ROOT).as_posix(): wrong(path) for path in sorted(module.path for module in modules())}
    assert {path: names for path, names in found.items() if names} == {}


def test_a_name_that_is_not_there_is_found() -> None:
    assert is_there("atoll.models.linear")
    assert is_there("atoll.core.requests.task.Task.name")
    assert not is_there("atoll.models.nonlinear")
    assert not is_there("atoll.nowhere.linear")
