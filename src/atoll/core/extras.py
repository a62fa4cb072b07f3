"""Optional dependencies, imported when they are used."""

from __future__ import annotations

import importlib
from typing import Any

from .errors import MissingExtraError

__all__ = ["need"]


def need(module: str, extra: str, what: str, where: str | None = None) -> Any:
    """Import a module of an optional dependency, or raise an error that names what to install.

    Args:
        module: name of the module.
        extra: the extra of this package that brings it.
        what: what it is needed for.
        where: the part that needs it, for the error.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{what} needs {module.partition('.')[0]}, which is not installed",
            where=where,
            remedy=f'pip install "atoll[{extra}]"',
        ) from error
