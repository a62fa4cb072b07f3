"""Remedies are true: each option, command, class, argument and page that a remedy names exists where the reader is."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import typer

from atoll.cli.app import app
from atoll.cli.commands import register
from tests.support.sources import PACKAGE, ROOT, Module, modules

AT_A_COMMAND = {"cli", "runtime"}
"""Rooms whose readers typed a command or run a daemon; readers of all others may have written Python."""
OF_COMMANDS = {
    "atoll.study.adaptation": "labels adapt",
    "atoll.study.label_methods": "labels compare",
    "atoll.study.label_rows": "labels compare",
    "atoll.bridges.flower": "flower",
}
"""Modules of other rooms that only a command runs."""
DAEMONS = {
    "site": {"site"},
    "server": {"server"},
    "provision": {"provision", "doctor"},
    "daemon": {"server", "site"},
    "admin": {"poc", "submit", "result", "clone"},
    "poc": {"poc"},
}
"""Folders and modules of ``runtime``, and the commands whose readers they have."""
FOREIGN_OPTIONS = {"--head"}
"""Of ``ray start``."""
FOREIGN = {
    # PyTorch, scikit-learn, XGBoost and Flower
    "BatchNorm", "CrossEntropyLoss", "GroupNorm", "Linear", "Module", "Sequential", "ArrayRecord", "ConfigRecord", "MetricRecord", "Message",
    "ColumnTransformer", "MinMaxScaler", "Pipeline", "RobustScaler", "SGDClassifier", "StandardScaler", "DataFrame", "Table", "PyTorch", "NumPy",
    # transformers, which has more of them than the names that a test may import
    "BitImageProcessor", "ViTImageProcessor", "ViTModel",
    # words
    "Atoll", "Bayes", "Class", "False", "Flower", "Hessian", "LimitNOFILE", "Metropolis", "Name", "None", "Parquet", "Python", "Shamir", "True", "Unix",
    "GiB", "XGBoost", "LightGBM", "SecAgg", "DuckDB", "PostgreSQL", "MNIST", "NaN",
    # functions of SQL
    "Distance", "DistanceSphere",
}  # fmt: skip
"""Names of other libraries, and words with capitals inside."""
FOREIGN_ARGUMENTS = {
    "reply_to",
    "ward",
    "average",
    "truncation",
    "early_stopping",
    "requires_grad",
    "journal_mode",
    "persistent",
}
"""Of Flower's ``Message``, an example of a column, tokenisers, scikit-learn, PyTorch and SQLite."""


# Reading the remedies.


def _texts(node: ast.AST | None, module: Module) -> Iterator[str]:
    """Each text that an expression may be; ``{…}`` stands for what is known later."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=values):
            yield "".join(part.value if isinstance(part, ast.Constant) else "{…}" for part in values)
        case ast.BinOp(left=left, right=right):
            ends = [*_texts(right, module)] or ["{…}"]
            yield from (one + end for one in [*_texts(left, module)] or ["{…}"] for end in ends)
        case ast.BoolOp(values=values):
            for value in values:
                yield from _texts(value, module)
        case ast.IfExp(body=body, orelse=orelse):
            yield from _texts(body, module)
            yield from _texts(orelse, module)
        case ast.Name(id=name):
            for other in module.nodes:
                if (
                    isinstance(other, ast.Assign)
                    and any(isinstance(t, ast.Name) and t.id == name for t in other.targets)
                    and not any(isinstance(inner, ast.Name) and inner.id == name for inner in ast.walk(other.value))
                ):
                    yield from _texts(other.value, module)


@cache
def remedies() -> tuple[tuple[str, Module, str], ...]:
    """(place, module, text) of every remedy of the package."""
    found = []
    for module in modules():
        if module.room == "papers":
            continue
        for node in module.nodes:
            said: list[ast.AST] = []
            if isinstance(node, ast.Call):
                said = [key.value for key in node.keywords if key.arg == "remedy"]
                if isinstance(node.func, ast.Name) and node.func.id == "Need":
                    said += node.args[2:3]
                if (
                    isinstance(node.func, ast.Attribute)
                    and node.func.attr in ("problem", "warning")
                    and len(node.args) == 3
                ):
                    said += node.args[2:]  # a finding of `atoll doctor`
            if said:
                place = f"{module.path.relative_to(PACKAGE)}:{getattr(node, 'lineno', 0)}"
                found += [(place, module, text) for value in said for text in _texts(value, module)]
    return tuple(found)


# What exists.


@cache
def commands() -> dict[str, set[str]]:
    """Each command, such as ``labels adapt``, with its options."""
    register([])
    found: dict[str, set[str]] = {}

    def walk(command: Any, name: str) -> None:
        found[name] = {
            word for one in command.params for word in (*one.opts, *one.secondary_opts) if word[:2] == "--"
        } | {"--help"}
        for word, inner in getattr(command, "commands", {}).items():
            walk(inner, f"{name} {word}".strip())

    walk(typer.main.get_command(app), "")
    return found


@cache
def stub_names() -> frozenset[str]:
    """The names of every package's stub, and of the modules beside."""
    found: set[str] = set()
    for module in modules():
        for node in module.stub.body if module.stub is not None else ():
            if isinstance(node, ast.ImportFrom):
                found |= {alias.asname or alias.name for alias in node.names}
        for node in module.nodes:
            if isinstance(node, ast.Assign) and any(getattr(t, "id", "") == "__all__" for t in node.targets):
                found |= {str(one.value) for one in ast.walk(node.value) if isinstance(one, ast.Constant)}
    return frozenset(found)


@cache
def arguments() -> frozenset[str]:
    """Every argument and field that something public in the package takes."""
    found: set[str] = set()
    for module in modules():
        for node in module.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found |= {one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(node.target.id)
    return frozenset(found)


# The laws.


def _command_in(text: str) -> Iterator[tuple[str, str]]:
    """(command, rest of its line) for each ``atoll VERB …``."""
    known = commands()
    for match in re.finditer(r"(?<![\w/.-])atoll ((?:[a-z]+)(?: [a-z]+)*)([^`;,)]*)", text):
        words = match[1].split()
        name = next((" ".join(words[:n]) for n in (2, 1) if " ".join(words[:n]) in known), words[0])
        yield name, match[1].removeprefix(name) + match[2]


def _wrong_options(module: Module, text: str) -> list[str]:
    known, places = commands(), [*_command_in(text)]
    own = OF_COMMANDS.get(module.name)
    wrong = []
    for name, rest in places:
        if name not in known:
            wrong.append(f"there is no command `atoll {name}`")
            continue
        wrong += [
            f"`atoll {name}` does not take {o}"
            for o in re.findall(r"(?<!\S)--[a-z][a-z-]*", rest)
            if o not in known[name]
        ]
    everywhere = set().union(*known.values()) | FOREIGN_OPTIONS
    said = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)) - FOREIGN_OPTIONS
    wrong += [f"no command takes {option}" for option in said - everywhere]
    if own is not None:
        takes = set().union(*(options for name, options in known.items() if name.startswith(own)))
        wrong += [f"`atoll {own}` does not take {option}" for option in said & everywhere - takes]
    elif said and not places and module.room == "runtime" and (daemon := module.name.split(".")[2]) in DAEMONS:
        takes = set().union(*(known[name] for name in DAEMONS[daemon]))
        wrong += [
            f"atoll {' or '.join(DAEMONS[daemon])} does not take {option}"
            for option in said - takes
            if "its " + option not in text
        ]
    elif said and module.room not in AT_A_COMMAND and not places:
        wrong.append(f"{', '.join(sorted(said))} is an option of a command, and the reader may have written Python")
    return wrong


def test_options_and_commands_exist_where_the_reader_is() -> None:
    wrong = {f"{place}: {text}": found for place, module, text in remedies() if (found := _wrong_options(module, text))}
    assert len(remedies()) > 2000
    assert not wrong


def test_classes_and_addresses_exist() -> None:
    names, wrong = set(stub_names()), []
    for place, module, text in remedies():
        words = re.findall(r"(?<![\w.{\"'/-])(?<!^)(?<![:.] )([A-Z][a-z]\w+)", text)
        own = set(re.findall(r"^class (\w+)", module.text, re.MULTILINE))
        wrong += [f"{place}: {word} in {text!r}" for word in words if word not in names | FOREIGN | own]
        for path in re.findall(r"(?<![\w/\"'<{-])atoll(?:\.[A-Za-z_]\w*)+", text):
            wrong += [f"{place}: {path}"] if not _resolves(path) else []
    assert not wrong, "\n".join(wrong)


def _resolves(path: str) -> bool:
    words = path.split(".")
    for end in range(len(words), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(words[:end]))
        except ModuleNotFoundError:
            continue
        try:
            for word in words[end:]:
                found = getattr(found, word)
        except AttributeError:
            return False
        return True
    return False


def test_arguments_exist() -> None:
    known, wrong = arguments() | FOREIGN_ARGUMENTS, []
    for place, _, text in remedies():
        bare = re.sub(r"\"[^\"]*\"", "", text)
        wrong += [
            f"{place}: {name}= in {text!r}"
            for name in re.findall(r"(?<![\w.{-])([a-z][a-z_0-9]*)=(?!=)", bare)
            if name not in known
        ]
    assert not wrong, "\n".join(wrong)


def test_classes_take_the_arguments_with_which_remedies_call_them() -> None:
    homes, seen, wrong = _homes(), 0, []
    for place, _, text in remedies():
        for word, inside in re.findall(r"(?<![\w.])(?:atoll\.(?:\w+\.)*)?([A-Z]\w+)\(([^()]*)\)", text):
            if word not in homes or "..." in inside:
                continue
            takes = inspect.signature(getattr(importlib.import_module(homes[word]), word)).parameters
            if any(one.kind is one.VAR_KEYWORD for one in takes.values()):
                continue
            names = re.findall(r"(?<![\w.{])([a-z_]+)=(?!=)", inside)
            seen += len(names)
            wrong += [f"{place}: {word}({name}=) in {text!r}" for name in names if name not in takes]
    assert seen >= 20
    assert not wrong, "\n".join(wrong)


@cache
def _homes() -> dict[str, str]:
    """Each class that a stub lists, and a package that has it."""
    found: dict[str, str] = {}
    for module in modules():
        for node in module.stub.body if module.stub is not None else ():
            if isinstance(node, ast.ImportFrom):
                found |= {
                    alias.asname or alias.name: module.name
                    for alias in node.names
                    if (alias.asname or alias.name)[0].isupper()
                }
    return found


def test_pages_exist() -> None:
    pages = [(place, page) for place, _, text in remedies() for page in re.findall(r"docs/[\w/-]+\.md", text)]
    assert pages
    assert not [one for one in pages if not (ROOT / one[1]).is_file()]


def test_extras_exist() -> None:
    declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = {extra for _, _, text in remedies() for extra in re.findall(r"atoll\[(\w+)\]", text)}
    assert extras
    assert all(re.search(rf"^{extra} = \[", declared, re.MULTILINE) for extra in extras)
