"""Putting data sets one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from atoll.core.errors import DataError

from .coding import named, united
from .dataset import Dataset

__all__ = ["concatenate"]


def concatenate(parts: Sequence[Dataset]) -> Dataset:
    """Put data sets of the same columns one after the other; `About` and ``test`` are the first one's.

    Parts that name their classes differently, as files that were read apart, get the codes of all classes together.

    Raises:
        DataError: nothing to join, or columns whose names, shapes or kinds differ; the part is named.
    """
    if not parts:
        raise DataError("no data sets to join", remedy="pass at least one")
    parts = _in_one_coding(parts)
    first = parts[0]
    for k, part in enumerate(parts[1:], start=1):
        for name in {*first.columns, *part.columns}:
            _check_same(first, part, name, k)
    base = {name: np.concatenate([p[name] for p in parts]) for name in first.columns}
    for array in base.values():
        array.flags.writeable = False
    return Dataset._of(base, None, sum(map(len, parts)), first.about, first.test)


def _in_one_coding(parts: Sequence[Dataset]) -> list[Dataset]:
    """Data sets whose labels have the codes of all their classes together, where these are named and differ.

    Raises:
        DataError: some name their classes differently, and others do not name them.
    """
    with_names = [part for part in parts if named(part.about)]
    if len({part.about.labels for part in with_names}) < 2:
        return list(parts)
    if len(with_names) < len(parts):
        bare = next(k for k, part in enumerate(parts) if not named(part.about))
        raise DataError(
            f"part {bare} has labels without names, and the others number their classes differently",
            where=f"data set {parts[bare].name!r}",
            remedy="give all parts the same labels=",
        )
    union = united(part.about.labels for part in parts)
    return [part.recoded(union) for part in parts]


def _check_same(first: Dataset, part: Dataset, name: str, position: int) -> None:
    a = first._base.get(name)
    b = part._base.get(name)
    if a is None or b is None or a.shape[1:] != b.shape[1:] or a.dtype.kind != b.dtype.kind:
        shown = ["missing" if c is None else f"{c.dtype}{list(c.shape[1:])}" for c in (a, b)]
        raise DataError(
            f"column {name!r} is {shown[0]} in part 0 and {shown[1]} in part {position}",
            where=f"data set {part.name!r}",
            remedy="give every part the same columns",
        )
