"""Optional dependencies, imported on use."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from .errors import MissingExtraError

__all__ = ["need", "one_thread"]


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


@contextlib.contextmanager
def one_thread(library: Any) -> Iterator[None]:
    """Run with one thread: small operations lose more to threads than they gain, and cohorts are spread over processes instead.

    Args:
        library: a module with ``get_num_threads`` and ``set_num_threads``, as PyTorch has them.
    """
    before = library.get_num_threads()
    if before == 1:
        yield
        return
    library.set_num_threads(1)
    try:
        yield
    finally:
        library.set_num_threads(before)
