"""Atoll's own source as syntax trees, for the tests of this folder."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from atoll.heap import loading

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "atoll"
PAPERS = ROOT / "papers" / "src" / "atoll_papers"


@dataclass(frozen=True)
class Module:
    """One file of the package, or of the papers beside it."""

    path: Path

    @cached_property
    def name(self) -> str:
        """Its dotted name."""
        package = PAPERS if self.path.is_relative_to(PAPERS) else PACKAGE
        parts = self.path.relative_to(package.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def room(self) -> str:
        """The folder under ``src/atoll``, or the name of a module that lies there; ``papers`` of the papers."""
        return "papers" if self.path.is_relative_to(PAPERS) else [*self.name.split("."), "atoll"][1]

    @cached_property
    def text(self) -> str:
        """The source."""
        return self.path.read_text(encoding="utf-8")

    @property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return _parse(self.path)

    @property
    def stub(self) -> ast.Module | None:
        """The syntax tree of its stub, which lists names that are loaded on first use; the loader reads it, and so do type checkers."""
        stub = self.path.with_suffix(".pyi")
        return _parse(stub) if stub.exists() else None

    @property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of it."""
        return _nodes(self.path)

    def absolute(self, level: int, target: str | None) -> str:
        """The dotted name that a relative import means."""
        if level == 0:
            return target or ""
        package = self.name.split(".") if self.path.name == "__init__.py" else self.name.split(".")[:-1]
        base = package[: len(package) - (level - 1)]
        return ".".join([*base, *([target] if target else [])])

    def at(self, node: ast.AST) -> str:
        """Where a node is."""
        return f"{self.path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"


@cache
def _parse(path: Path) -> ast.Module:
    with loading():  # to look for garbage among growing trees takes longer than parsing
        return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def _nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(_parse(path)))


@cache
def modules() -> tuple[Module, ...]:
    """Every file of the package, and of the papers."""
    return tuple(Module(path) for package in (PACKAGE, PAPERS) for path in sorted(package.rglob("*.py")))


@dataclass(frozen=True)
class Import:
    """One import statement's target.

    Attributes:
        target: dotted name of what is imported, with the imported name at the end.
        where: file and line.
        eager: whether it runs when the module is loaded.
        typing: whether it serves type checkers only.
    """

    module: Module
    target: str
    where: str
    eager: bool
    typing: bool


@cache
def imports(module: Module) -> tuple[Import, ...]:
    """Every import of a module: statements, and ``import_module("literal")``."""
    listed = _walk(module, module.stub.body, eager=False, typing=True) if module.stub else ()
    return (*_walk(module, module.tree.body, eager=True, typing=False), *listed)


def _walk(module: Module, body: list[ast.stmt], *, eager: bool, typing: bool) -> Iterator[Import]:
    for statement in body:
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                yield Import(module, alias.name, module.at(statement), eager, typing)
        elif isinstance(statement, ast.ImportFrom):
            base = module.absolute(statement.level, statement.module)
            for alias in statement.names:
                yield Import(module, f"{base}.{alias.name}", module.at(statement), eager, typing)
        else:
            if "import_module" in module.text or "__import__" in module.text:
                yield from _calls(module, statement)
            inside = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)
            checked = isinstance(statement, ast.If) and any(
                "TYPE_CHECKING" in (getattr(node, "id", ""), getattr(node, "attr", ""))
                for node in ast.walk(statement.test)
            )
            for field in ("body", "orelse", "finalbody"):
                children = getattr(statement, field, [])
                only_typing = typing or (checked and field == "body")
                yield from _walk(module, children, eager=eager and not inside and not only_typing, typing=only_typing)
            for handler in getattr(statement, "handlers", []):
                yield from _walk(module, handler.body, eager=eager, typing=typing)


def _calls(module: Module, statement: ast.stmt) -> Iterator[Import]:
    if not isinstance(statement, ast.Expr | ast.Assign | ast.AnnAssign | ast.Return):
        return
    for node in ast.walk(statement):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        named = getattr(node.func, "attr", getattr(node.func, "id", ""))
        literal = node.args[0]
        if named in ("import_module", "__import__") and isinstance(literal, ast.Constant):
            target = str(literal.value)
            level = len(target) - len(target.lstrip("."))
            yield Import(module, module.absolute(level, target.lstrip(".")), module.at(node), eager=False, typing=False)


def public_modules() -> list[str]:
    """The root, its rooms and the modules beside them; of ``core``, every module but those of messages, since the waist is imported by module."""
    rooms = [path.parent.name for path in PACKAGE.glob("[a-z]*/__init__.py") if path.parent.name != "core"]
    beside = [path.stem for path in PACKAGE.glob("[a-z]*.py")]
    files = [path for depth in ("core/[a-z]*.py", "core/[a-z]*/[a-z]*.py") for path in PACKAGE.glob(depth)]
    waist = [
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for path in files
        if path.parent.name not in ("message", "sealing")
    ]
    waist += ["core.message"]
    return ["atoll", *sorted(f"atoll.{name}" for name in [*rooms, *beside, *waist])]


@cache
def defined_in(file: str) -> frozenset[str]:
    """The names of a file's test functions, below ``tests/``."""
    path = ROOT / "tests" / file
    found = ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if path.is_file() else ()
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in found if isinstance(node, kinds) and node.name.startswith("test_"))
