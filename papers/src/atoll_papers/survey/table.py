"""All rows of the convergence table, family by family, and all claimed rates."""

from __future__ import annotations

import importlib
import pkgutil

from .rate import Rate
from .row import SurveyRow

__all__ = ["families", "rates", "rows", "unclaimed"]

_OTHERS = {"row", "table"}


def families() -> dict[str, tuple[SurveyRow, ...]]:
    """Return the rows of each module of this package that defines ``ROWS``, by the module's name."""
    package = importlib.import_module("atoll_papers.survey")
    names = sorted(m.name for m in pkgutil.iter_modules(package.__path__) if m.name not in _OTHERS)
    modules = {name: importlib.import_module(f"atoll_papers.survey.{name}") for name in names}
    return {name: tuple(module.ROWS) for name, module in modules.items() if hasattr(module, "ROWS")}


def rows() -> tuple[SurveyRow, ...]:
    """Return all rows."""
    return tuple(row for some in families().values() for row in some)


def rates() -> tuple[Rate, ...]:
    """Return all claimed rates."""
    from . import rates as tables
    from . import rates_noise

    return tables.RATES + rates_noise.RATES


def unclaimed() -> dict[str, tuple[str, ...]]:
    """Return why no rate is claimed -> names of methods in the catalogue."""
    from .rates import UNCLAIMED

    return UNCLAIMED
