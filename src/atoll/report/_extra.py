"""Optional dependencies of the report."""

from __future__ import annotations

import importlib
from typing import Any

from atoll.core.errors import MissingExtraError


def need(module: str, extra: str = "report", what: str = "a report") -> Any:
    """Import a module, or raise an error that names what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{what} needs {module.partition('.')[0]}, which is not installed",
            where=f"atoll.{extra}" if extra == "report" else f"atoll.report.{extra}",
            remedy=f'pip install "atoll[{extra}]"',
        ) from error
