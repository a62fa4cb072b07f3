"""The public surface: what ``import atoll`` offers is written down, exists, is documented and stays small."""

from __future__ import annotations

import ast
import importlib
import inspect
from types import ModuleType
from typing import Any

import pytest

import atoll
from atoll.core.addresses import RENAMED
from tests.support.sources import PACKAGE, ROOT, public_modules

SURFACE = (ROOT / "tests" / "project" / "surface.txt").read_text(encoding="utf-8").split()


def test_the_root_names_are_those_written_down() -> None:
    assert sorted(atoll.__all__) == SURFACE, "a change of the public surface changes tests/project/surface.txt too"


def test_the_root_stays_small() -> None:
    """Verbs, jobs, base classes and first choices; beside them the packages, which completion shows."""
    packages = [name for name in atoll.__all__ if inspect.ismodule(getattr(atoll, name))]
    assert len(atoll.__all__) - len(packages) <= 40
    assert len(packages) <= 32


def test_every_root_name_can_be_had() -> None:
    for name in atoll.__all__:
        assert getattr(atoll, name) is not None
    assert dir(atoll) == sorted(atoll.__all__)


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    names = {alias.asname or alias.name for n in tree.body if isinstance(n, ast.ImportFrom) for alias in n.names}
    assert names == set(atoll.__all__) - {"__version__"}


def test_a_wrong_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'atoll' has no attribute 'FedAvgg'"):
        atoll.FedAvgg


@pytest.mark.parametrize("name", public_modules())
def test_every_room_says_what_is_public_and_documents_it(name: str) -> None:
    module = importlib.import_module(name)
    assert inspect.getdoc(module), f"{name} has no docstring"
    public = getattr(module, "__all__", [])
    if f"{name}.*" in RENAMED:
        return  # an old address, whose names have all left
    assert public, f"{name} does not say in __all__ what is public"
    assert len(public) == len(set(public)), f"{name}.__all__ repeats itself"
    undocumented = [n for n in public if not _documented(getattr(module, n))]
    assert not undocumented, f"{name}: these need a docstring of their own"
    assert not _bare_methods(module), f"{name}: these methods need a docstring"


def _documented(thing: Any) -> bool:
    if not (inspect.isclass(thing) or inspect.isroutine(thing) or inspect.ismodule(thing)):
        return True  # a constant: its comment or the string below it is seen in the reference
    text = thing.__doc__
    # A dataclass without a docstring gets its signature as one.
    return bool(text and text.strip()) and not text.startswith(f"{getattr(thing, '__name__', '')}(")


def _bare_methods(module: ModuleType) -> list[str]:
    classes = [getattr(module, name) for name in module.__all__]
    ours = [c for c in classes if inspect.isclass(c) and c.__module__.startswith("atoll")]
    methods = [(c, n, m) for c in ours for n, m in vars(c).items() if not n.startswith("_") and inspect.isfunction(m)]
    return [f"{c.__name__}.{n}" for c, n, m in methods if m.__name__ == n and not inspect.getdoc(m)]
