"""Packages that load a part on first use, so that a process pays only for what it uses."""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .addresses import RENAMED, MovedWarning, find_renamed, warn_moved
from .elsewhere import find_peer, plain_name
from .errors import ConfigError, MissingExtraError, nearest

__all__ = ["MovedWarning", "UnknownName", "attach_names", "read_stub"]


class UnknownName(ConfigError, AttributeError):  # noqa: N818 - what Python calls an AttributeError
    """A name that a package, or a result, does not have."""


class _Home(NamedTuple):
    """Where a public name is defined: an empty attribute means the module itself."""

    module: str
    attribute: str


def attach_names(
    package: str, *, needs: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` (PEP 562) and ``__all__`` of a package whose names are listed in its stub.

    The stub, ``__init__.pyi`` beside ``__init__.py``, is the one list: type checkers read it, and so does this function. A module whose stub
    has its own name, such as ``algorithms.pyi``, works as well. A public name must differ from the package's modules, since a loaded module
    would hide it. Modules can be accessed by name, as if they had been loaded at once. Names that left are found by `RENAMED` of `atoll.core.addresses`.

    Example::

        # __init__.pyi
        from .clip import Clip as Clip

        # __init__.py
        __getattr__, __dir__, __all__ = attach_names(__name__)

    Args:
        package: ``__name__`` of the package.
        needs: libraries that the parts load, each with the extra that installs it.
    """
    homes = {} if f"{package}.*" in RENAMED else read_stub(package)  # all of its names left
    names = sorted(name for name in homes if not hasattr(builtins, name))  # `import *` leaves the builtin alone

    def find(name: str) -> Any:
        if name in homes:
            module, attribute = homes[name]
            value = _load(module, name, needs or {})
            value = getattr(value, attribute) if attribute else value
        elif not name.startswith("_") and (new := find_renamed(package, name)):
            warn_moved(f"{package}.{name}", new, stacklevel=2)
            # The value is not kept, so that each place that asks is told.
            module, _, attribute = new.rpartition(".")
            return getattr(importlib.import_module(module), attribute)
        elif not name.startswith("_") and _has_module(package, name):
            value = importlib.import_module(f"{package}.{name}")
        else:
            raise _name_missing(package, name)
        setattr(sys.modules[package], name, value)
        return value

    return find, lambda: sorted(sys.modules[package].__all__), names


def read_stub(package: str) -> dict[str, _Home]:
    """Return where the stub of a package says that each public name is defined; names that the package defines itself are in their own module."""
    spec = importlib.util.find_spec(package)
    stub = Path(spec.origin or "").with_suffix(".pyi") if spec is not None else Path()
    if spec is None or not stub.is_file():
        raise ConfigError(
            f"{package!r} has no stub", where=str(stub), remedy="list its names there: from .module import Name as Name"
        )
    parent = package if spec.submodule_search_locations is not None else package.rpartition(".")[0]
    homes: dict[str, _Home] = {}
    for node in ast.parse(stub.read_bytes()).body:
        if isinstance(node, ast.ImportFrom):
            module = (
                importlib.util.resolve_name(f"{'.' * node.level}{node.module or ''}", parent)
                if node.level
                else str(node.module)
            )
            for alias in node.names:
                public = alias.asname or alias.name
                homes[public] = _Home(module, alias.name) if node.module else _Home(f"{module}.{alias.name}", "")
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            homes[node.target.id] = _Home(package, node.target.id)
    return {name: home for name, home in homes.items() if not name.startswith("_") or name == "__version__"}


def _has_module(package: str, name: str) -> bool:
    return hasattr(sys.modules[package], "__path__") and importlib.util.find_spec(f"{package}.{name}") is not None


def _name_missing(package: str, name: str) -> UnknownName:
    """Return the error about a name that a package does not have: where it is, or what it resembles."""
    root = package.partition(".")[0]
    hidden = name.startswith(
        "_"
    )  # `inspect`, pytest and debuggers ask each package for dozens of them, and read no answer
    home = "" if hidden else _home_of(name, root)
    peer = "" if home or hidden or root != __name__.partition(".")[0] else find_peer(name)
    home = home or ("" if peer or hidden else _home_of(name, root, alike=True))
    said = "" if home or peer or hidden else nearest(name, sys.modules[package].__all__)
    return UnknownName(
        f"module {package!r} has no attribute {name!r}.{said}",
        where=package,
        remedy=f"use {home}" if home else _say_peer(peer) or f"its names are in {package}.__all__",
    )


def _say_peer(place: str) -> str:
    """What others' name is here, as a remedy."""
    return f"use {place}" if place.startswith(("atoll.", "`atoll")) and " " not in place.partition(",")[0] else place


def _home_of(name: str, root: str, alike: bool = False) -> str:
    """The public address of a name, such as ``atoll.algorithms.FedProx``; empty if no package has it that is cheap to load.

    Args:
        name: the name.
        root: the package in which it was looked for.
        alike: whether case, hyphens and underscores do not matter.
    """
    for package in (f"{root}.{room}" for room in _PLACES if root == __name__.partition(".")[0]):
        for own in importlib.import_module(package).__all__:
            if own == name or (alike and plain_name(own) == plain_name(name)):
                return f"{package}.{own}"
    return ""


_PLACES = (
    "algorithms", "selection", "pacing", "topology", "aggregation", "mechanisms", "reducers", "stages", "learn.transforms", "programs", "learn",
    "rounds", "privacy", "devices", "data", "models", "engines", "core", "statistics", "labels", "trees", "fitting", "secure", "study", "auditing",
    "views", "truth",
)  # fmt: skip
"""Packages that load their parts when they are used."""


def _load(module: str, name: str, needs: Mapping[str, str]) -> Any:
    """Import a module, or raise an error that names the extra that it needs."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name not in needs:
            raise
        raise MissingExtraError(
            f"{name} needs {error.name}, which is not installed",
            where=module,
            remedy=f'pip install "atoll[{needs[error.name]}]"',
        ) from error
