"""Packages that load a part on first use, so that a process pays only for what it uses."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from . import addresses  # noqa: F401 - it lets old addresses of modules be found
from .errors import ConfigError, MissingExtraError, nearest

__all__ = ["UnknownName", "lazy", "unknown"]


class UnknownName(ConfigError, AttributeError):  # noqa: N818 - what Python calls an AttributeError
    """A name that a package, or a result, does not have."""


def unknown(package: str, name: str) -> UnknownName:
    """The error about a name that a package does not have: where it is, or what it resembles."""
    home = "" if name.startswith("_") else _home_of(name, package.partition(".")[0])
    said = "" if home else nearest(name, sys.modules[package].__all__)
    return UnknownName(
        f"module {package!r} has no attribute {name!r}.{said}",
        where=package,
        remedy=f"use {home}" if home else f"its names are in {package}.__all__",
    )


def _home_of(name: str, root: str) -> str:
    """The package of this library that has a name, such as ``atoll.learn.algorithms.FedProx``; empty if none of those that are cheap to load has it."""
    for package in (f"{root}.{room}" for room in _PLACES):
        if name in importlib.import_module(package).__all__:
            return f"{package}.{name}"
    return ""


_PLACES = (
    "learn.algorithms", "learn.selection", "learn.pacing", "learn.topology", "learn.aggregation", "learn.transforms", "programs", "learn", "stages",
    "rounds", "privacy", "devices", "data", "models", "engines", "core", "statistics",
    "labels",
)  # fmt: skip
"""Packages that load their parts when they are used."""


def _loaded(module: str, name: str, needs: Mapping[str, str]) -> Any:
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


def lazy(
    package: str,
    where: Mapping[str, Iterable[str]],
    needs: Mapping[str, str] | None = None,
    moved: Mapping[str, str] | None = None,
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` (PEP 562) of a package that loads its names on first use.

    Type checkers see the same names through imports below ``if TYPE_CHECKING:``. A name must differ from the package's modules, since a loaded
    module would hide it. The modules themselves can be accessed by name, as if they had been loaded at once.

    Args:
        package: the package's ``__name__``.
        where: maps a module of the package to the names that it defines.
        needs: libraries that the parts load, each with the extra that installs it.
        moved: names that left for another package, which they name for one version.
    """
    home = {name: module for module, names in where.items() for name in names}

    def find(name: str) -> Any:
        if name in home:
            value = getattr(_loaded(f"{package}.{home[name]}", name, needs or {}), name)
        elif moved is not None and name in moved:
            text = f"{package}.{name} is {moved[name]}.{name} now: use that"
            warnings.warn(text, DeprecationWarning, stacklevel=2)
            value = getattr(importlib.import_module(moved[name]), name)
        elif not name.startswith("_") and importlib.util.find_spec(f"{package}.{name}") is not None:
            value = importlib.import_module(f"{package}.{name}")
        else:
            raise unknown(package, name)
        setattr(sys.modules[package], name, value)
        return value

    return find, lambda: sorted(sys.modules[package].__all__)
