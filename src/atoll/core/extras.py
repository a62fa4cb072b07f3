"""Optional dependencies, imported on use."""

from __future__ import annotations

import importlib
from typing import Any

from .errors import MissingExtraError

__all__ = ["need"]


def need(module: str, extra: str, what: str, where: str | None = None) -> Any:
    """Import a module of an optional dependency, or raise an error that names what to install.

    Args:
        module: name of the module.
        extra: the extra of this package that installs it.
        what: what needs it.
        where: the part that needs it, for the error.

    Raises:
        MissingExtraError: the module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{what} needs {module.partition('.')[0]}, which is not installed",
            where=where,
            remedy=f'pip install "atoll[{extra}]"',
        ) from error
