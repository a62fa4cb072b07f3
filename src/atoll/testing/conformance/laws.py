"""How a law reports that it is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from atoll.core import message as M
from atoll.core.algebra import tree as T

__all__ = ["close", "refuses", "require", "same"]


def require(holds: Any, what: str) -> None:
    """Raise ``AssertionError`` with ``what`` unless ``holds``."""
    if not holds:
        raise AssertionError(what)


def same(one: Any, other: Any, what: str) -> None:
    """Require two trees to be equal to the bit."""
    if not M.equal(one, other):  # describing large trees takes longer than comparing them
        raise AssertionError(f"{what}: {one!r} is not {other!r}")


def close(one: Any, other: Any, what: str, tolerance: float) -> None:
    """Require two trees of numbers to agree: ``|a - b| <= tolerance * (1 + |b|)``, other leaves to be equal."""
    pairs = list(zip(_rows(one), _rows(other), strict=False))
    if len(_rows(one)) != len(_rows(other)):
        raise AssertionError(f"{what}: {one!r} and {other!r} have different leaves")
    for (path, a), (path_b, b) in pairs:
        require(path == path_b, f"{what}: leaf {path!r} stands where {path_b!r} does")
        if isinstance(b, int | float | np.ndarray | np.generic) and np.asarray(b).dtype.kind in "biufc":
            x, y = np.asarray(a), np.asarray(b)
            require(x.shape == y.shape, f"{what}/{path}: shape {x.shape} is not {y.shape}")
            off = np.abs(x.astype(np.float64) - y) - tolerance * (1 + np.abs(y.astype(np.float64)))
            if off.size and not float(off.max()) <= 0:
                raise AssertionError(f"{what}/{path}: {a!r} is not {b!r} to {tolerance:g}")
        else:
            same(a, b, f"{what}/{path}")


def _rows(tree: Any) -> list[tuple[str, Any]]:
    return sorted(T.items(tree), key=lambda row: row[0])


@contextmanager
def refuses(error: type[Exception], what: str, *words: str) -> Iterator[None]:
    """Require an error of a kind whose text contains these words."""
    try:
        yield
    except error as raised:
        missing = [word for word in words if word not in str(raised)]
        require(not missing, f"{what}: the error does not say {missing}: {raised}")
        return
    require(False, f"{what}: no {error.__name__} was raised")


Check = Callable[..., None]
