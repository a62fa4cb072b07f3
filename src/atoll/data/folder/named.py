"""Data sets by name, for configuration files and the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from atoll.core.calls import checked_call
from atoll.core.errors import DataError, nearest

from .. import bundled
from ..dataset import Dataset
from . import domains, images, tables, texts

__all__ = ["available", "open"]

_BUNDLED: dict[str, Callable[..., Dataset]] = {name: getattr(bundled, name) for name in bundled.__all__}
_FOLDER: dict[str, Callable[..., Dataset]] = {
    name: getattr(module, name) for module in (domains, images, tables, texts) for name in module.__all__
}


@checked_call
def available() -> dict[str, str]:
    """Map each name that `open` knows to a line on the data set; those in a folder need ``ATOLL_DATA``."""
    return {name: str(load.__doc__).partition("\n")[0] for name, load in sorted((_BUNDLED | _FOLDER).items())}


def open(name: str, **options: Any) -> Dataset:  # noqa: A001 - read as atoll.data.open("mnist")
    """Load a data set by name.

    Args:
        name: one of `available`.
        options: passed to the loader of that name.

    Raises:
        DataError: an unknown name or option, or a missing or malformed file.
    """
    loaders = _BUNDLED | _FOLDER
    if name not in loaders:
        raise DataError(
            f"no data set {name!r}.{nearest(str(name), loaders)}", remedy=f"choose one of {', '.join(sorted(loaders))}"
        )
    known = inspect.unwrap(loaders[name]).__kwdefaults__ or {}
    for option in options:
        if option not in known:
            raise DataError(
                f"no option {option!r}.{nearest(option, known)}",
                where=f"data set {name!r}",
                remedy=f"its options are {', '.join(known)}",
            )
    return loaders[name](**options)
