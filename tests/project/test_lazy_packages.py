"""Packages that load their parts when they are used: what type checkers see is what a process gets."""

from __future__ import annotations

import ast
import importlib

import pytest

from atoll.core.errors import MissingExtraError
from atoll.core.lazy import lazy
from tests.support.sources import Module, modules


def _call(module: Module) -> ast.Call | None:
    """The call of ``lazy`` in a package, if it has one."""
    calls = [n for n in ast.walk(module.tree) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "lazy"]
    return calls[0] if calls else None


PACKAGES = {module.name: module for module in modules() if module.path.name == "__init__.py" and _call(module)}


def _table(module: Module) -> dict[str, str]:
    """Name -> module, as the package loads it."""
    call = _call(module)
    assert call is not None
    return {name: home for home, names in ast.literal_eval(call.args[1]).items() for name in names}


@pytest.mark.parametrize("name", sorted(PACKAGES))
def test_type_checkers_see_what_is_loaded(name: str) -> None:
    module = PACKAGES[name]
    typed = next(n for n in module.tree.body if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test))
    imports = [n for n in typed.body if isinstance(n, ast.ImportFrom) and n.module is not None]
    seen = {alias.asname or alias.name: n.module for n in imports for alias in n.names}
    assert seen == _table(module)


@pytest.mark.parametrize("name", sorted(PACKAGES))
def test_no_name_is_hidden_by_a_module(name: str) -> None:
    """``from package import thing`` must not give the module ``package.thing`` once somebody has loaded it."""
    inside = {path.stem if path.is_file() else path.name for path in PACKAGES[name].path.parent.iterdir()}
    assert not inside & set(_table(PACKAGES[name]))


def test_names_and_modules_are_found_and_others_are_not() -> None:
    package = importlib.import_module("atoll.privacy")
    find, names = lazy("atoll.privacy", {"budget": ["Budget"]})
    assert find("Budget") is importlib.import_module("atoll.privacy.budget").Budget
    assert find("accountant") is importlib.import_module("atoll.privacy.accountant")
    assert names() == sorted(package.__all__) == dir(package)
    with pytest.raises(AttributeError, match=r"module 'atoll\.privacy' has no attribute 'Budgets'"):
        find("Budgets")
    with pytest.raises(AttributeError, match="has no attribute '__wrapped__'"):
        find("__wrapped__")


def test_a_part_whose_library_is_not_installed_names_the_extra() -> None:
    """Here the module itself stands for the library that is missing."""
    missing = "atoll.privacy.no_such_library"
    find, _ = lazy("atoll.privacy", {"no_such_library": ["Budget"]}, needs={missing: "torch"})
    with pytest.raises(MissingExtraError, match=r'Budget needs .*pip install "atoll\[torch\]"'):
        find("Budget")
    find, _ = lazy("atoll.privacy", {"no_such_library": ["Budget"]})
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        find("Budget")
