"""What the documentation's build adds: reference pages from ``__all__``, the extension guides, the changelog, and a check
that the finished site asks nothing of the network."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path

from docstrings import shown
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "atoll"
ELSEWHERE = re.compile(
    r"""<(?:script|img|iframe|source)[^>]*\ssrc=["'](?:https?:)?//|<link[^>]*\srel=["']stylesheet["'][^>]*href=["'](?:https?:)?//"""
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the two parts of the navigation that follow the tree."""
    for entry in config.nav or []:
        if isinstance(entry, dict) and "Extend" in entry:
            entry["Extend"] = [{_title(p): f"extend/{p.name}"} for p in sorted((ROOT / "docs" / "extend").glob("*.md"))]
        if isinstance(entry, dict) and "Reference" in entry:
            entry["Reference"] = [{room: f"reference/{room}.md"} for room in _rooms()]
    config.nav = [entry for entry in config.nav or [] if "Extend" not in entry or entry["Extend"]]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made, not written."""
    made = {f"{name.lower()}.md": _from_root(f"{name}.md") for name in ("ARCHITECTURE", "CHANGELOG", "CONTRIBUTING")}
    made |= {f"reference/{room}.md": _reference(room) for room in _rooms()}
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_post_build(config: MkDocsConfig) -> None:
    """Refuse a site that would load something from elsewhere."""
    pages = sorted(Path(config.site_dir).rglob("*.html"))
    outside = [page.name for page in pages if ELSEWHERE.search(page.read_text(encoding="utf-8"))]
    if outside:
        raise PluginError(f"these pages load something over the network: {', '.join(outside)}")


def _from_root(name: str) -> str:
    """A page that lies at the root of the repository, with its links as seen from the site."""
    text = (ROOT / name).read_text(encoding="utf-8")
    text = re.sub(r"\]\(docs/", "](", text)
    return re.sub(r"\]\((ARCHITECTURE|CHANGELOG|CONTRIBUTING)\.md", lambda m: f"]({m[1].lower()}.md", text)


def _title(page: Path) -> str:
    first = page.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("# ").strip()


def _rooms() -> list[str]:
    rooms = [path.parent for path in sorted(PACKAGE.glob("[a-z]*/__init__.py"))]
    modules = [path.with_suffix("") for path in sorted(PACKAGE.glob("[a-z]*.py"))]
    return ["atoll", *sorted(path.name for path in [*rooms, *modules] if path.name != "cli")]


def _reference(room: str) -> str:
    if room == "atoll":
        return f"# atoll\n\n{_docstring(PACKAGE / '__init__.py')}\n\n{_root_table()}"
    folder = PACKAGE / room
    file = folder / "__init__.py" if folder.is_dir() else PACKAGE / f"{room}.py"
    head = f"# atoll.{room}\n\n{_docstring(file)}\n"
    if room == "core":
        parts = sorted(path for path in folder.glob("[a-z]*.py"))
        inside = [*((p.stem, p) for p in parts), ("message", folder / "message" / "__init__.py")]
        return head + "".join(_module(f"atoll.core.{name}", path, heading=True) for name, path in inside)
    text = head + _module(f"atoll.{room}", file, heading=False)
    for part in sorted(folder.glob("[a-z]*/__init__.py")):
        # A folder inside a room is shown as far as the room does not pass its names on already.
        if not set(_public(part)) <= set(_public(file)):
            text += _module(f"atoll.{room}.{part.parent.name}", part, heading=True, without=_public(file))
    return text


def _module(name: str, file: Path, *, heading: bool, without: Sequence[str] = ()) -> str:
    origins = _origins(file, name)
    own = [origins.get(public, f"{name}.{public}") for public in _public(file) if public not in without]
    level = 3 if heading else 2
    title = f"\n## {name}\n\n{_docstring(file)}\n" if heading else ""
    return title + "".join(f"\n::: {path}\n    options:\n      heading_level: {level}\n" for path in own if path)


def _docstring(file: Path) -> str:
    return shown(ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "")


def _public(file: Path) -> list[str]:
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    return []


def _origins(file: Path, name: str) -> dict[str, str]:
    """Where the names that a package passes on are defined, so that each is documented from its own file."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    found: dict[str, str] = {}
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package.split(".")[: len(package.split(".")) - node.level + 1]
            where = ".".join([*base, *([node.module] if node.module else [])])
            found |= {alias.asname or alias.name: f"{where}.{alias.name}" for alias in node.names}
    return {public: _follow(path) for public, path in found.items()}


def _follow(path: str) -> str:
    """Follow a name through packages to the file that defines it; a whole module has its own page."""
    module, _, name = path.rpartition(".")
    file = ROOT / "src" / Path(*path.split("."))
    if file.is_dir() or file.with_suffix(".py").exists():
        return ""
    package = ROOT / "src" / Path(*module.split(".")) / "__init__.py"
    return _origins(package, module).get(name, path) if package.exists() else path


def _root_table() -> str:
    rows = []
    for public, path in _origins(PACKAGE / "__init__.py", "atoll").items():
        room = path.split(".")[1] if path else public
        rows.append(f"| [`atoll.{public}`]({room}.md{'#' + path if path else ''}) | `atoll.{room}` |")
    return "| name | where it lives |\n| --- | --- |\n" + "\n".join(sorted(rows)) + "\n"
