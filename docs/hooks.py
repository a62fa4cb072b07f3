"""What the documentation's build adds: reference pages from ``__all__``, the extension guides, the changelog, and a check
that the finished site asks nothing of the network."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

from docstrings import shown
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "atoll"
RESULTS = ROOT / "papers" / "docs"
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
ELSEWHERE = re.compile(
    r"""<(?:script|img|iframe|source)[^>]*\ssrc=["'](?:https?:)?//|<link[^>]*\srel=["']stylesheet["'][^>]*href=["'](?:https?:)?//"""
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the two parts of the navigation that follow the tree."""
    for entry in config.nav or []:
        if isinstance(entry, dict) and "Extend" in entry:
            entry["Extend"] = [{_title(p): f"extend/{p.name}"} for p in sorted((ROOT / "docs" / "extend").glob("*.md"))]
        if isinstance(entry, dict) and "Tutorials" in entry:
            entry["Tutorials"] = [{_heading(p): f"tutorials/{p.stem}.md"} for p in NOTEBOOKS]
        if isinstance(entry, dict) and "Reference" in entry:
            entry["Reference"] = [{room: f"reference/{room}.md"} for room in _rooms()]
    config.nav = [entry for entry in config.nav or [] if "Extend" not in entry or entry["Extend"]]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made, not written."""
    made = {f"{name.lower()}.md": _from_root(f"{name}.md") for name in ("ARCHITECTURE", "CHANGELOG", "CONTRIBUTING")}
    made |= {f"results/{page.name}": page.read_text(encoding="utf-8") for page in RESULTS.glob("*.md")}
    made |= {f"reference/{room}.md": _reference(room) for room in _rooms()}
    made |= {f"reference/{path}.md": text for path, text in _symbols().items()}
    made |= {f"tutorials/{notebook.stem}.md": _page_of(notebook) for notebook in NOTEBOOKS}
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Turn links between `docs` and the papers' pages into those of the site, where these pages lie in `results`."""
    if page.file.src_uri.startswith("results/"):
        return markdown.replace("](../../docs/", "](../")
    return re.sub(r"\]\(((?:\.\./)*)\.\./papers/docs/", r"](\1results/", markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Refuse a site that would load something from elsewhere."""
    pages = sorted(Path(config.site_dir).rglob("*.html"))
    outside = [page.name for page in pages if ELSEWHERE.search(page.read_text(encoding="utf-8"))]
    if outside:
        raise PluginError(f"these pages load something over the network: {', '.join(outside)}")


def _from_root(name: str) -> str:
    """A page that lies at the root of the repository, with its links as seen from the site."""
    text = (ROOT / name).read_text(encoding="utf-8")
    text = re.sub(r"\]\(docs/", "](", text).replace("](papers/docs/", "](results/")
    return re.sub(r"\]\((ARCHITECTURE|CHANGELOG|CONTRIBUTING)\.md", lambda m: f"]({m[1].lower()}.md", text)


def _page_of(notebook: Path) -> str:
    """A notebook as a page: its text, its code, and what the code printed or drew when the notebook was saved."""
    parts = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [_output(output) for output in cell.get("outputs", ())]
    title, *rest = parts
    head, _, intro = title.partition("\n")
    note = f"[Download this page as a notebook]({notebook.name}){{: download }}"
    return "\n\n".join([head, note, intro.strip(), *(part for part in rest if part)]) + "\n"


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return f"![What the code draws](data:image/png;base64,{''.join(data['image/png']).strip()})"
    text = "".join(data.get("text/plain", output.get("text", ""))).rstrip()
    return f"```text\n{text}\n```" if text else ""


def _heading(notebook: Path) -> str:
    first = json.loads(notebook.read_text(encoding="utf-8"))["cells"][0]["source"][0]
    return str(first).removeprefix("# ").strip()


def _title(page: Path) -> str:
    first = page.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("# ").strip()


def _rooms() -> list[str]:
    rooms = [path.parent for path in sorted(PACKAGE.glob("[a-z]*/__init__.py"))]
    modules = [path.with_suffix("") for path in sorted(PACKAGE.glob("[a-z]*.py"))]
    return ["atoll", *sorted(path.name for path in [*rooms, *modules] if path.name != "cli")]


def _reference(room: str) -> str:
    """The page of a room: what it is for, and a line for each public name, with a link to the name's own page."""
    if room == "atoll":
        return f"# atoll\n\n{_docstring(PACKAGE / '__init__.py')}\n\n{_root_table()}"
    folder = PACKAGE / room
    file = folder / "__init__.py" if folder.is_dir() else PACKAGE / f"{room}.py"
    head = f"# atoll.{room}\n\n{_docstring(file)}\n\n"
    return head + "\n".join(_section(module, found) for module, found in _sections(room, file).items())


def _sections(room: str, file: Path) -> dict[str, dict[str, str]]:
    """Module -> its public names -> the paths of their definitions; a module's names without those that the room passes on already."""
    found = {f"atoll.{room}": _names(f"atoll.{room}", file)}
    for part in _parts(room, file):
        if not set(_public(part)) <= set(_public(file)):
            name = ".".join(["atoll", *part.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__")
            found[name] = {public: path for public, path in _names(name, part).items() if public not in _public(file)}
    return found


def _parts(room: str, file: Path) -> list[Path]:
    """The packages of a room; in the core also its modules, and the functions over trees that algorithms are written with."""
    if file.name != "__init__.py":
        return []
    packages = sorted(file.parent.glob("[a-z]*/__init__.py"))
    if room != "core":
        return packages
    return [*packages, *sorted(file.parent.glob("[a-z]*.py")), file.parent / "algebra" / "tree.py"]


def _names(module: str, file: Path) -> dict[str, str]:
    origins = _origins(file, module)
    paths = {public: origins.get(public, f"{module}.{public}") for public in _public(file)}
    return {public: path for public, path in paths.items() if path}


def _section(module: str, found: dict[str, str]) -> str:
    rows = "\n".join(f"| [`{public}`]({path}.md) | {_summary(path)} |" for public, path in sorted(found.items()))
    table = f"| name | what it is |\n| --- | --- |\n{rows}\n" if found else ""
    return f"## {module}\n\n{table}" if module.count(".") > 1 else table


def _symbols() -> dict[str, str]:
    """Each public name's own page, by the path of its definition."""
    pages = {}
    for room in _rooms():
        folder = PACKAGE / room
        file = folder / "__init__.py" if folder.is_dir() else PACKAGE / f"{room}.py"
        for module, found in _sections(room, file).items() if room != "atoll" else ():
            for public, path in found.items():
                above = f"[`{module}`]({room}.md)"
                pages.setdefault(
                    path, f"# {public}\n\nPublic name: `{module}.{public}`. Part of {above}.\n\n::: {path}\n"
                )
    return pages


def _summary(path: str) -> str:
    """The first line of a definition's docstring."""
    module, _, name = path.rpartition(".")
    file = ROOT / "src" / Path(*module.split("."))
    file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
    body = ast.parse(file.read_text(encoding="utf-8")).body if file.exists() else []
    for node, after in zip(body, [*body[1:], None], strict=False):
        if getattr(node, "name", None) == name:
            return _first(ast.get_docstring(node))  # type: ignore[arg-type]
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        if any(getattr(target, "id", "") == name for target in targets):
            text = getattr(getattr(after, "value", None), "value", None)
            return _first(text if isinstance(text, str) else None)
    return ""


def _first(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0].replace("|", "\\|")


def _docstring(file: Path) -> str:
    return shown(ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "")


def _public(file: Path) -> list[str]:
    stub = file.with_suffix(".pyi")
    if stub.exists():  # it lists the names that are loaded on first use
        imports = [
            node for node in ast.parse(stub.read_text(encoding="utf-8")).body if isinstance(node, ast.ImportFrom)
        ]
        return sorted(alias.asname or alias.name for node in imports for alias in node.names)
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if (
            isinstance(node, ast.Assign)
            and getattr(node.targets[0], "id", "") == "__all__"
            and isinstance(node.value, ast.List)
        ):
            names: list[str] = ast.literal_eval(node.value)
            return names
    return []


def _origins(file: Path, name: str) -> dict[str, str]:
    """Where the names that a package passes on are defined, so that each is documented from its own file."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    found: dict[str, str] = {}
    stub = file.with_suffix(".pyi")
    for node in ast.walk(ast.parse((stub if stub.exists() else file).read_text(encoding="utf-8"))):
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
        page = f"{path}.md" if path else f"{public}.md"
        rows.append(f"| [`atoll.{public}`]({page}) | {_summary(path) if path else 'a room'} |")
    return "| name | what it is |\n| --- | --- |\n" + "\n".join(sorted(rows)) + "\n"
