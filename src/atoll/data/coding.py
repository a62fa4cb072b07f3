"""Data sets that meet: one code, one class, although they were read apart, and rows of one form."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from atoll.core.errors import DataError

if TYPE_CHECKING:
    from .about import About
    from .dataset import Dataset

__all__ = ["in_codes_of", "in_one_coding", "recoded", "require_same_form", "united"]


def united(names: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """All names of classes, in the order of the codes that rows read together would have: numbers by value, words by spelling."""
    union = {label for labels in names for label in labels}
    return tuple(sorted(union, key=float if all(map(_is_number, union)) else str))


def in_one_coding(parts: Sequence[Dataset]) -> list[Dataset]:
    """Data sets whose labels have the codes of all their classes together, where these are named and differ.

    Raises:
        DataError: some name their classes differently, and others do not name them.
    """
    named = [part for part in parts if _named(part.about)]
    if len({part.about.labels for part in named}) < 2:
        return list(parts)
    if len(named) < len(parts):
        bare = next(k for k, part in enumerate(parts) if not _named(part.about))
        raise DataError(
            f"part {bare} has labels without names, and the others number their classes differently",
            where=f"data set {parts[bare].name!r}",
            remedy="give all parts the same labels=",
        )
    union = united(part.about.labels for part in parts)
    return [recoded(part, union) for part in parts]


def in_codes_of(about: About, test: Dataset | None) -> Dataset | None:
    """Test rows with the codes of the rows that they test.

    Raises:
        DataError: they have classes that those lack, so that one code would mean two classes.
    """
    if test is None or not _named(about) or not _named(test.about):
        return test
    own, named = about.labels, test.about.labels
    if named == own[: len(named)]:
        return test
    others = [named[code] for code in np.unique(test.y) if named[code] not in own]
    if others and own == named[: len(own)]:
        return test
    if others:
        raise DataError(
            f"the test rows have the class {others[0]!r}, and the rows to train on the classes {', '.join(own[:8])}",
            where=f"data set {test.name!r}",
            remedy="read both with the same classes, in one order: categories={target: [...]}",
        )
    return recoded(test, own)


def require_same_form(rows: Dataset, test: Dataset | None) -> None:
    """Refuse test rows whose features or targets have another shape than those to train on.

    Raises:
        DataError: the column is named.
    """
    for name in ("x", "y"):
        if test is None or name not in rows or name not in test:
            continue
        own, other = rows._base[name].shape[1:], test._base[name].shape[1:]
        if own != other:
            raise DataError(
                f"column {name!r} has rows of shape {other} to test and {own} to train on",
                where=f"data set {test.name!r}",
                remedy="bring both to one form, or give other test rows",
            )


def recoded(data: Dataset, labels: tuple[str, ...]) -> Dataset:
    """A data set, its test rows too, with the codes of these classes, among which those of its rows are."""
    test = data.test
    if data.about.labels != labels:
        code = {label: k for k, label in enumerate(labels)}
        places = np.array([code.get(label, -1) for label in data.about.labels], dtype=np.int64)
        data = data.with_columns({"y": places[data.y]}, labels=labels, classes=len(labels))
    return data if test is None else data.with_test(test)


def _named(about: About) -> bool:
    """Whether every code of a class has a name."""
    return about.task == "classification" and len(about.labels) == about.classes


def _is_number(label: str) -> bool:
    try:
        return math.isfinite(float(label))
    except ValueError:
        return False
