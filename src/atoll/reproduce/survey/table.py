"""All rows of the convergence table, family by family."""

from __future__ import annotations

import importlib
import pkgutil

from .row import Row

__all__ = ["families", "rows"]

_OTHERS = {"row", "table"}


def families() -> dict[str, tuple[Row, ...]]:
    """The rows of each module of this package that defines ``ROWS``, by the module's name."""
    package = importlib.import_module("atoll.reproduce.survey")
    names = sorted(m.name for m in pkgutil.iter_modules(package.__path__) if m.name not in _OTHERS)
    modules = {name: importlib.import_module(f"atoll.reproduce.survey.{name}") for name in names}
    return {name: tuple(module.ROWS) for name, module in modules.items() if hasattr(module, "ROWS")}


def rows() -> tuple[Row, ...]:
    """All rows."""
    return tuple(row for some in families().values() for row in some)
