"""Class names of data sets that meet: one code means one class, even if the rows were read separately."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import DataError
from atoll.core.redaction import private

from .about import About

__all__ = ["common_labels", "named", "places_in", "united"]


def united(names: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """All class names, in the order of the codes that reading the rows together would give: numbers by value, words alphabetically."""
    union = {label for labels in names for label in labels}
    return tuple(sorted(union, key=float if all(map(_is_number, union)) else str))


def named(about: About) -> bool:
    """Whether each class code has a name."""
    return about.task == "classification" and len(about.labels) == about.classes


def common_labels(own: About, other: About, codes: NDArray[np.int64]) -> tuple[str, ...]:
    """Return the labels that give test rows the codes of the training rows.

    Args:
        own: the description of the training rows.
        other: the description of the test rows.
        codes: the classes of the test rows.

    Raises:
        DataError: the test rows have a class that the training rows lack, so that one code would mean two classes.
    """
    mine, theirs = own.labels, other.labels
    if theirs == mine[: len(theirs)]:
        return theirs
    others = [theirs[code] for code in np.unique(codes) if theirs[code] not in mine]
    if others and mine == theirs[: len(mine)]:
        return theirs
    if others:
        raise DataError(
            f"the test rows have the class {private(others[0])}, but the training rows have only {private(', '.join(mine[:8]))}",
            where=f"data set {other.name!r}",
            remedy="read both with the same classes, in one order: categories={target: [...]}",
        )
    return mine


def places_in(labels: tuple[str, ...], own: tuple[str, ...]) -> NDArray[np.int64]:
    """The code among ``labels`` of each label in ``own``; -1 for a class that is missing there."""
    code = {label: k for k, label in enumerate(labels)}
    return np.array([code.get(label, -1) for label in own], dtype=np.int64)


def _is_number(label: str) -> bool:
    try:
        return math.isfinite(float(label))
    except ValueError:
        return False
