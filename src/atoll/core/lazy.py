"""Packages that load a part on first use, so that a process pays only for what it uses."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

__all__ = ["lazy"]


def lazy(package: str, where: Mapping[str, Iterable[str]]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` (PEP 562) of a package that loads its names on first use.

    Type checkers see the same names through imports below ``if TYPE_CHECKING:``. A name must differ from the package's modules, since a loaded
    module would hide it. The modules themselves can be accessed by name, as if they had been loaded at once.

    Args:
        package: the package's ``__name__``.
        where: maps a module of the package to the names that it defines.
    """
    home = {name: module for module, names in where.items() for name in names}

    def find(name: str) -> Any:
        if name in home:
            value = getattr(importlib.import_module(f"{package}.{home[name]}"), name)
        elif not name.startswith("_") and importlib.util.find_spec(f"{package}.{name}") is not None:
            value = importlib.import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)
        return value

    return find, lambda: sorted(sys.modules[package].__all__)
