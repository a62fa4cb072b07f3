"""Modules that travel with a job: found in its source folder, named as ``module:name``."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from atoll.core.addresses import declared_name
from atoll.core.errors import ConfigError
from atoll.runs.registries import HOME

__all__ = ["importing", "reference_of", "require_reachable"]

_REMEDY = (
    "put it into a module of the job's source folder, at the top level, and name it module:name with plain arguments"
)


@contextlib.contextmanager
def importing(source: Path | None) -> Iterator[None]:
    """Find modules in a folder first, and name that folder in errors; unload the modules that this loads afterwards, so that two jobs never mix."""
    home = HOME.set("the folder that `source` names")
    try:
        with _first_from(source):
            yield
    finally:
        HOME.reset(home)


@contextlib.contextmanager
def _first_from(source: Path | None) -> Iterator[None]:
    if source is None:
        yield
        return
    folder, before = str(source.resolve()), set(sys.modules)
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(folder)
        for name, module in list(sys.modules.items()):
            if name not in before and any(_inside(place, Path(folder)) for place in _places(module)):
                del sys.modules[name]


def reference_of(found: Any, where: str) -> str:
    """Return ``module:name`` of a class or function that others can import under this name.

    Raises:
        ConfigError: it is a lambda, a closure, a live object, or defined in the script itself.
    """
    name, module = getattr(found, "__qualname__", None), getattr(found, "__module__", None)
    if not isinstance(name, str) or not isinstance(module, str):
        raise _make_refusal(f"a live {type(found).__name__} cannot travel", where)
    require_name(f"{module}:{name}", where, found)
    return declared_name(found)


def require_name(reference: str, where: str, found: Any = None) -> str:
    """Refuse a ``module:name`` that means nothing, or something else, in another process.

    Raises:
        ConfigError: it is local, defined in the script itself, or (``found`` given) another object has that name.
    """
    module, _, name = reference.partition(":")
    if module == "__main__":
        raise _make_refusal(f"{name} is defined in the script itself, which other machines do not have", where)
    if "<lambda>" in name:
        raise _make_refusal("a lambda cannot travel", where)
    if "<locals>" in name:
        raise _make_refusal(f"{name} is made inside a function and cannot travel", where)
    if found is not None:
        here: Any = sys.modules.get(module)
        for part in name.split("."):
            here = getattr(here, part, None)
        if here is not found:
            raise _make_refusal(f"{reference} is not the object that this name imports", where)
    return reference


def require_reachable(reference: str, where: str, source: Path | None) -> None:
    """Refuse a ``module:name`` whose module sites cannot import: it must be in the source folder, be installed, or be Atoll's.

    Raises:
        ConfigError: the module is not found, or lies in a folder that does not travel.
    """
    require_name(reference, where)
    root = reference.partition(":")[0].partition(".")[0]
    if root == "atoll" or root in sys.stdlib_module_names:
        return
    with importing(source):
        spec = importlib.util.find_spec(root)
    if spec is None:
        raise _make_refusal(f"there is no module {root!r} in the source folder, and none is installed", where)
    places = [Path(p) for p in ([spec.origin] if spec.origin else list(spec.submodule_search_locations or ()))]
    allowed = [Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")]
    allowed += [] if source is None else [source.resolve()]
    if not all(any(_inside(place, folder) for folder in allowed) for place in places):
        raise _make_refusal(f"module {root!r} lies in {places[0].parent}, which does not travel with the job", where)


def _places(module: ModuleType) -> list[Path]:
    file = getattr(module, "__file__", None)
    return [Path(p) for p in ([file] if file else list(getattr(module, "__path__", ())))]


def _inside(place: Path, folder: Path) -> bool:
    return place.resolve().is_relative_to(folder.resolve())


def _make_refusal(what: str, where: str) -> ConfigError:
    return ConfigError(what, where=where, remedy=_REMEDY)
