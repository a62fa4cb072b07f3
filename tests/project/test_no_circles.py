"""No module imports itself in a circle; imports for type checkers count. Within a room, those inside functions count too.

An import that waits inside a function hides a circle from Python and not from a reader, who has to open both modules to understand one. Packages
(``__init__.py``), which name their parts, are left out there: they load a part when somebody asks for it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache

from atoll.heap import loading
from tests.support.sources import Module
from tests.support.sources import modules as files

NOT_YET_CLEAN = {"fitting", "models", "runs", "statistics", "trees"}
"""Rooms with circles that only functions hide. A room that is clean leaves the list, and none is added."""

BODIES = (ast.stmt, ast.ExceptHandler, ast.match_case)
"""What imports can stand in; no expression holds one."""


@cache
def modules() -> dict[str, Module]:
    """Name -> every module."""
    return {module.name: module for module in files()}


def statements(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports outside functions, those under ``if TYPE_CHECKING`` among them."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, BODIES) and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from statements(node)


def bodies_too(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """All imports, those inside functions among them."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, BODIES):
            yield from bodies_too(node)


def parse(text: str) -> ast.Module:
    with loading():
        return ast.parse(text)


def imported(
    name: str,
    tree: ast.AST,
    known: set[str],
    package: bool = False,
    read: Callable[[ast.AST], Iterator[ast.Import | ast.ImportFrom]] = statements,
) -> set[str]:
    """Modules among ``known`` that a module names."""
    found = set()
    for node in read(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
            continue
        base = name.split(".")
        above = base[: len(base) - node.level + package] if node.level else []
        whole = ".".join([*above, *([node.module] if node.module else [])])
        found |= {inner if (inner := f"{whole}.{alias.name}") in known else whole for alias in node.names}
    return (found & known) - {name}


def circles(graph: dict[str, set[str]]) -> list[frozenset[str]]:
    """Strongly connected components of more than one module (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[frozenset[str]] = []

    def visit(one: str) -> None:
        index[one] = low[one] = len(index)
        stack.append(one)
        for other in sorted(graph[one]):
            if other not in index:
                visit(other)
                low[one] = min(low[one], low[other])
            elif other in stack:
                low[one] = min(low[one], index[other])
        if low[one] == index[one]:
            start = stack.index(one)
            found.append(frozenset(stack[start:]))
            del stack[start:]

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return [one for one in found if len(one) > 1]


def of_atoll() -> set[frozenset[str]]:
    """The circles of the package, names without ``atoll.``."""
    known = modules()
    graph = {
        name: {
            other
            for tree in filter(None, (module.tree, module.stub))
            for other in imported(name, tree, set(known), module.path.name == "__init__.py")
        }
        for name, module in known.items()
    }
    return {frozenset(name.removeprefix("atoll.") for name in one) for one in circles(graph)}


def room_of(name: str) -> str:
    """The room of a module: the second part of its name."""
    return [*name.split("."), ""][1]


def hidden(trees: dict[str, ast.Module]) -> list[frozenset[str]]:
    """The circles within rooms that imports inside functions close, of modules and their trees."""
    whole = {name: imported(name, tree, set(trees), read=bodies_too) for name, tree in trees.items()}
    return circles({name: {o for o in others if room_of(o) == room_of(name)} for name, others in whole.items()})


def test_no_room_hides_a_circle_in_functions() -> None:
    trees = {name: module.tree for name, module in modules().items() if module.path.name != "__init__.py"}
    found = {one for one in hidden(trees) if room_of(next(iter(one))) not in NOT_YET_CLEAN}
    assert found == set(), "merge what is one idea, move what both need below them, or name a small protocol"


def test_a_circle_that_a_function_hides_is_found_within_a_room_only() -> None:
    texts = {
        "p.one.a": "from .b import B\n",
        "p.one.b": "def f():\n    from .a import A\n",
        "p.two.c": "from ..one.a import A\n",
        "p.one.d": "def f():\n    from ..two.c import C\n",
    }
    assert hidden({name: parse(text) for name, text in texts.items()}) == [frozenset({"p.one.a", "p.one.b"})]


def test_there_is_no_circle() -> None:
    assert of_atoll() == set(), "break it: move what both need below them, split a module, or name a small protocol"


def test_a_circle_through_a_type_checking_import_is_found() -> None:
    """The guard itself: eager, typed and relative imports count, lazy ones do not."""
    texts = {
        "p": "",
        "p.a": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .b import B\n",
        "p.b": "import p.c\n",
        "p.c": "from . import a\n",
        "p.d": "def f():\n    from . import a\n",
    }
    graph = {name: imported(name, parse(text), set(texts), name == "p") for name, text in texts.items()}
    assert graph["p.d"] == set()
    assert circles(graph) == [frozenset({"p.a", "p.b", "p.c"})]
