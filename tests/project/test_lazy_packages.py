"""Packages that load their parts when they are used: the stub is the one list of their names."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

from atoll.core.addresses import RENAMED, MovedWarning
from atoll.core.errors import ConfigError, MissingExtraError
from atoll.core.lazy import read_stub
from tests.support.sources import modules

PACKAGES = {module.name: module for module in modules() if module.stub}


def _package(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, stub: str, code: str = "") -> None:
    """A package of the test's own."""
    (folder / name).mkdir()
    (folder / name / "__init__.pyi").write_text(stub, encoding="utf-8")
    text = f"from atoll.core.lazy import attach_names\n__getattr__, __dir__, __all__ = attach_names(__name__{code})\n"
    (folder / name / "__init__.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setitem(sys.modules, name, sys)  # forgotten after the test: another one may have a module of this name
    del sys.modules[name]


@pytest.mark.parametrize("name", sorted(PACKAGES))
def test_no_name_is_hidden_by_a_module(name: str) -> None:
    """``from package import thing`` must not give the module ``package.thing`` once somebody has loaded it."""
    if PACKAGES[name].path.name != "__init__.py":
        return
    inside = {path.stem if path.is_file() else path.name for path in PACKAGES[name].path.parent.iterdir()}
    attributes = {public for public, home in read_stub(name).items() if home.attribute}
    assert not (inside - {"__init__"}) & attributes


def test_names_and_modules_are_found_and_others_are_not() -> None:
    package = importlib.import_module("atoll.privacy")
    assert package.Budget is importlib.import_module("atoll.privacy.budget").Budget
    assert package.accountant is importlib.import_module("atoll.privacy.accountant")
    assert sorted(package.__all__) == dir(package)
    with pytest.raises(AttributeError, match=r"module 'atoll\.privacy' has no attribute 'Budgets'"):
        package.Budgets
    with pytest.raises(AttributeError, match="has no attribute '__wrapped__'"):
        package.__wrapped__
    with pytest.raises(ConfigError, match=r"'math' has no stub.*list its names there"):
        read_stub("math")


def test_a_stub_names_parts_modules_and_own_values(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stub = "from . import inner as inner\nfrom .inner import Thing as Other\nfrom .inner import _hidden as _hidden\nsize: int\n"
    _package(monkeypatch, tmp_path, "listed", stub)
    (tmp_path / "listed" / "inner.py").write_text("class Thing: ...\n_hidden = 1\n", encoding="utf-8")
    package = importlib.import_module("listed")
    assert package.__all__ == ["Other", "inner", "size"]
    assert package.Other.__name__ == "Thing"
    assert package.inner.Thing is package.Other


def test_an_old_address_works_and_says_the_new_one_wherever_it_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _package(monkeypatch, tmp_path, "left", "")
    monkeypatch.setitem(RENAMED, "left.Budget", "atoll.privacy.Budget")
    package = importlib.import_module("left")
    for _ in range(2):
        with pytest.warns(MovedWarning, match=r"left\.Budget is atoll\.privacy\.Budget now") as told:
            assert package.Budget is importlib.import_module("atoll.privacy").Budget
        assert told[0].filename == __file__  # the line that asks, not the loader
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        package.Nothing
    algorithms = importlib.import_module("atoll.learn.algorithms")
    with pytest.warns(MovedWarning, match=r"atoll\.learn\.algorithms\.FedProx is atoll\.algorithms\.FedProx now"):
        algorithms.FedProx


def test_an_old_module_gives_the_new_names_and_runs_as_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    for old in ("atoll.sweeps", "atoll.client.flare"):
        monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(MovedWarning, match=r"atoll\.sweeps is atoll\.study now"):
        sweeps = importlib.import_module("atoll.sweeps")
    study = importlib.import_module("atoll.study")
    assert sweeps.SweepResult is study.StudyResult
    assert sweeps.sweep is study.sweep
    # What ``python -m`` asks: the code of the new module, under its file.
    spec = importlib.util.find_spec("atoll.client.flare")
    new = importlib.util.find_spec("atoll.bridges.nvflare")
    assert spec is not None
    assert new is not None
    assert spec.submodule_search_locations is None
    assert spec.origin == new.origin
    assert spec.loader.get_code("atoll.client.flare") == new.loader.get_code("atoll.bridges.nvflare")  # type: ignore[union-attr]


def test_a_part_whose_library_is_not_installed_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Here the module itself stands for the library that is missing."""
    missing = "needy.no_such_library"
    _package(
        monkeypatch,
        tmp_path,
        "needy",
        "from .no_such_library import Budget as Budget\n",
        f', needs={{"{missing}": "torch"}}',
    )
    with pytest.raises(MissingExtraError, match=r'Budget needs .*pip install "atoll\[torch\]"'):
        importlib.import_module("needy").Budget
    _package(monkeypatch, tmp_path, "unnamed", "from .no_such_library import Budget as Budget\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        importlib.import_module("unnamed").Budget
