"""Optional dependencies, imported when they are used."""

from __future__ import annotations

import importlib
from typing import Any

from atoll.core.errors import MissingExtraError


def need(module: str, extra: str, what: str) -> Any:
    """Import a module of an optional dependency.

    Args:
        module: name of the module.
        extra: the extra of this package that brings it.
        what: what it is needed for.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{what} needs {module.partition('.')[0]}", remedy=f'pip install "atoll[{extra}]"'
        ) from error
