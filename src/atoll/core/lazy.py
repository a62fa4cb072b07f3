"""Packages that load a part when its name is first used, so that a process pays for what it uses."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

__all__ = ["lazy"]


def lazy(package: str, where: Mapping[str, Iterable[str]]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and ``__dir__`` (PEP 562) of a package whose names are loaded when they are first used.

    The package shows type checkers the same names by imports below ``if TYPE_CHECKING:``. A name must not be that of one of its modules,
    which would hide it once that module is loaded. The modules themselves are found by their names, as if they had been loaded at once.

    Args:
        package: its ``__name__``.
        where: module of the package -> the names that it defines.
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
