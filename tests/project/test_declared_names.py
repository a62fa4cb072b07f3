"""Declared names: tasks, stages and metrics keep the names that messages, random keys, ledgers and saved folders hold.

``declared_names.txt`` has every one, with what it names: a ``task``, ``stage`` or ``metric`` that ``module:name`` finds, or a ``local`` task that a
program registers (``{}`` stands for what a user supplies). A new one is a new line. No line goes: what is no longer there becomes ``retired``, so that
the name never means another thing.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from typing import Any, ClassVar

import pytest

from atoll.core import addresses
from atoll.core.addresses import MOVED, declared_name, load_object
from atoll.core.errors import ConfigError
from atoll.core.requests.disclosure import RULES_TASK
from atoll.core.requests.stage import Stage
from atoll.core.requests.task import Task, resolve, task
from atoll.learn.metrics import ScoreMetric
from tests.support.sources import ROOT, Module, modules

LIST = ROOT / "tests" / "project" / "declared_names.txt"
KINDS: dict[str, type] = {"task": Task, "stage": Stage, "metric": ScoreMetric}
BASES = {"Stage": "stage", "ScoreMetric": "metric"}
FROZEN = [(kind, name) for kind, name in (line.split() for line in LIST.read_text(encoding="utf-8").splitlines())]


def _text(node: ast.expr) -> str | None:
    """A string of the source, with ``{}`` for what is known at run time."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(v.value) if isinstance(v, ast.Constant) else "{}" for v in node.values)
    return None


def _place(module: str, name: str) -> str:
    """The declared name of what lies there."""
    return {place: declared for declared, place in MOVED.items()}.get(f"{module}:{name}", f"{module}:{name}")


def _given(call: ast.expr) -> str | None:
    """The name that ``@task(name=...)`` gives."""
    given = [k.value for k in call.keywords if k.arg == "name"] if isinstance(call, ast.Call) else []
    if not given:
        return None
    return RULES_TASK if getattr(given[0], "id", "") == "RULES_TASK" else _text(given[0])


def _decorated(module: Module) -> Iterator[tuple[str, str]]:
    for node in module.nodes:
        for mark in getattr(node, "decorator_list", []) if not isinstance(node, ast.ClassDef) else []:
            if getattr(getattr(mark, "func", mark), "id", "") == "task":
                yield "task", _given(mark) or _place(module.name, node.name)  # type: ignore[attr-defined]


def _made(module: Module) -> Iterator[tuple[str, str]]:
    """Tasks that a program registers: ``Task("...", run)``, ``self.survey("...")`` and the prefix that a learner hands to its base."""
    for node in module.nodes:
        if not isinstance(node, ast.Call) or not node.args:
            continue
        called, text = getattr(node.func, "id", getattr(node.func, "attr", "")), _text(node.args[0])
        if text is not None and (called in ("Task", "survey") or (called == "__init__" and text.startswith("atoll."))):
            yield "local", text


def _plain(base: ast.expr) -> str:
    return ast.unparse(base).partition("[")[0].rpartition(".")[2]


def _says(node: ast.ClassDef) -> str | None:
    """The name that a class says itself."""
    lines = (each for each in node.body if isinstance(each, ast.AnnAssign) and each.value is not None)
    return next((_text(each.value) for each in lines if getattr(each.target, "id", "") == "declared"), None)  # type: ignore[arg-type]


@cache
def _classes() -> list[tuple[str, str, list[str]]]:
    """Every class: its name, its declared name, and the names of its bases."""
    return [
        (node.name, _says(node) or _place(module.name, node.name), list(map(_plain, node.bases)))
        for module in modules()
        for node in module.tree.body
        if isinstance(node, ast.ClassDef)
    ]


@cache
def _kind(name: str) -> str | None:
    """What a class is, by its bases."""
    if name in BASES:
        return BASES[name]
    bases = (base for own, _, bases in _classes() if own == name for base in bases)
    return next(filter(None, map(_kind, bases)), None)


def declared() -> set[tuple[str, str]]:
    """Every name that the source declares."""
    found = {row for module in modules() for row in (*_decorated(module), *_made(module))}
    return found | {(kind, declared) for name, declared, _ in _classes() for kind in [_kind(name)] if kind}


def test_the_source_declares_the_names_of_the_list_and_no_other() -> None:
    frozen, source = {row for row in FROZEN if row[0] != "retired"}, declared()
    lost, new = sorted(frozen - source), sorted(source - frozen)
    assert not lost, (
        "these names changed: add what moved to MOVED in atoll.core.addresses, and mark what is gone as retired"
    )
    assert not new, "add these lines to tests/project/declared_names.txt"


def test_no_name_means_two_things() -> None:
    assert [name for name, n in Counter(name for _, name in FROZEN).items() if n > 1] == []
    assert [place for place, n in Counter(MOVED.values()).items() if ":" in place and n > 1] == []
    assert sorted(FROZEN) == FROZEN, "the list is sorted"


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_finds_its_object_and_the_object_has_the_name(kind: str) -> None:
    for name in (name for each, name in FROZEN if each == kind and not _lacks_library(name)):
        thing = resolve(name, {}, KINDS[kind])
        own = thing.name if isinstance(thing, Task) else declared_name(thing)
        assert own == name


def _lacks_library(name: str) -> bool:
    """Whether it lies in a room that loads at once what is not installed here."""
    return name.startswith("atoll.flower.") and find_spec("flwr") is None


def test_names_that_moved_are_in_the_list() -> None:
    known = {name for _, name in FROZEN}
    assert {name for name in MOVED if ":" in name} <= known


@task
def weigh(island: Any, message: Any) -> Any:
    """A task of this module."""
    return message


class _Halve(Stage):
    pass


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> str:
    """The task and the stage of this module lie here, and were declared in a module that is gone."""
    for name in ("weigh", "again", "_Halve"):
        old, place = f"atoll.gone.room:{name}", f"{__name__}:{name}"
        monkeypatch.setitem(addresses.MOVED, old, place)
        monkeypatch.setitem(addresses._DECLARED, place, old)
    monkeypatch.setitem(addresses.MOVED, "atoll.gone.whole", __name__)
    return "atoll.gone.room"


def test_an_object_that_moved_keeps_its_name_and_is_found_by_it(moved: str) -> None:
    def again(island: Any, message: Any) -> Any:
        return message

    again.__qualname__ = "again"
    assert task(again).name == f"{moved}:again"
    assert resolve(f"{moved}:weigh", {}) is weigh
    assert resolve(f"{moved}:_Halve", {}, Stage) is _Halve
    assert _Halve().name == f"{moved}:_Halve"
    assert Stage.of(_Halve().spec(), lambda name: resolve(name, {}, Stage)) == _Halve()


def test_a_class_says_its_name_itself_and_its_subclass_does_not_inherit_it() -> None:
    class Mine(Stage):
        declared: ClassVar[str] = "my.old.place:Mine"

    class Theirs(Mine):
        pass

    assert Mine().name == "my.old.place:Mine"
    assert Theirs().name.endswith("<locals>.Theirs")


def test_other_names_of_a_module_that_moved_are_found(moved: str) -> None:
    assert load_object("atoll.gone.whole:weigh") is weigh
    assert declared_name(test_other_names_of_a_module_that_moved_are_found).startswith(__name__)


def test_what_moved_is_of_its_kind_or_is_not_found(moved: str) -> None:
    with pytest.raises(ConfigError, match=r"no stage named 'atoll\.gone\.room:weigh' can be found here"):
        resolve(f"{moved}:weigh", {}, Stage)
    with pytest.raises(ConfigError, match=r"no task named 'atoll\.gone\.room:other' can be found here"):
        resolve(f"{moved}:other", {})


@pytest.mark.parametrize("name", [":weigh", "weigh", "atoll.gone.room:a.<locals>.b", "", ":"])
def test_words_that_are_no_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"no task named {name!r}")):
        resolve(name, {})
