"""Budgets of size: modules neither long nor tiny, short functions, tests in proportion."""

from __future__ import annotations

import ast
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from functools import cache

from tests.support.sources import Module, modules

HARD_CAP = 600  # code lines of a file: one idea may take them, and its docstrings as well
MEAN = 130  # code lines of a module in the mean, at least: a module is a thing that one opens on purpose
NINETIETH = 350  # code lines that nine modules in ten stay under
FUNCTION = 60  # code lines of a function


def code_lines(text: str, nodes: Iterable[ast.AST]) -> set[int]:
    """The lines that hold code: no blanks, comments or docstrings; of a text and the nodes of its tree."""
    rows = enumerate(map(str.strip, text.split("\n")), 1)
    written = {number for number, row in rows if row and not row.startswith("#")}
    inside, docstrings = set[int](), set[int]()
    for node in nodes:
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)):
            inside |= _lines(node)  # where blanks and hashes are text
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings |= _lines(node)
    return (written | inside) - docstrings


def _lines(node: ast.expr | ast.stmt) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


@cache
def lines_of(module: Module) -> list[int]:
    """The lines of a file that hold code, in order."""
    return sorted(code_lines(module.text, module.nodes))


def test_no_module_passes_the_cap() -> None:
    assert not {m.name: len(lines_of(m)) for m in modules() if len(lines_of(m)) > HARD_CAP}


def test_modules_are_neither_tiny_nor_long() -> None:
    sizes = sorted(size for size in map(len, map(lines_of, modules())) if size > 3)
    assert statistics.mean(sizes) >= MEAN, "let a module that one other imports live in that one"
    assert sizes[int(0.9 * len(sizes))] <= NINETIETH


def test_functions_are_short() -> None:
    long = {}
    for module in modules():
        lines = lines_of(module)
        for node in module.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                own = bisect_right(lines, node.end_lineno or node.lineno) - bisect_left(lines, node.lineno)
                if own > FUNCTION:
                    long[module.at(node)] = own
    assert not long, f"functions stay within {FUNCTION} code lines"


def test_no_junk_drawers() -> None:
    drawers = {"utils", "util", "common", "helpers", "helper", "misc", "constants"}
    assert not [m.name for m in modules() if drawers & {part.strip("_") for part in m.name.split(".")}]


def test_code_lines_counts_code() -> None:
    text = '"""Doc."""\n\n# why\nx = 1\ny = """a\n\n#b"""\n'
    assert code_lines(text, ast.walk(ast.parse(text))) == {4, 5, 6, 7}
