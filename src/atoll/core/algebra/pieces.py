"""Long arrays piece by piece: data read from a mapped file stays in memory for one piece only."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["finite", "pieces"]

_PIECE = 1 << 20  # bytes


def pieces(into: NDArray[Any], leaf: NDArray[Any]) -> Iterable[tuple[NDArray[Any], NDArray[Any]]]:
    """Yield both arrays piece by piece; pages of a mapped file under ``leaf`` are released after each."""
    if leaf.nbytes <= _PIECE or not leaf.flags.c_contiguous:
        yield into, leaf
        return
    mapped, ours, theirs = _mapping(leaf), into.reshape(-1), leaf.reshape(-1)
    step = max(1, _PIECE // leaf.itemsize)
    for start in range(0, len(theirs), step):
        yield ours[start : start + step], theirs[start : start + step]
        if mapped is not None:
            mapped.madvise(mmap.MADV_DONTNEED)


def finite(leaf: Any) -> bool:
    """Tell whether a number or every entry of an array is finite; integers always are."""
    array = np.asarray(leaf)
    if array.dtype.kind not in "fc":
        return True
    return all(bool(np.isfinite(part).all()) for part, _ in pieces(array, array))


def _mapping(array: NDArray[Any]) -> mmap.mmap | None:
    """Return the mapped file that an array views, if it does."""
    base: Any = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return base if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED") else None
