"""Missing labels, numbers as names of classes, and values that single precision would lose."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import DataError

__all__ = [
    "Missing",
    "declared",
    "known_labels",
    "known_rows",
    "labelled_rows",
    "name_number",
    "require_single_precision",
    "without_hidden",
]

Array = NDArray[Any]
Mask = NDArray[np.bool_]
Missing = str | float | Iterable[str | float] | None
"""Values of the target that say "no label": one, several, or ``None`` for no more than NaN and empty cells."""


def declared(missing: Missing) -> tuple[str | float, ...]:
    """Return the values that a caller declares as "no label", as a tuple."""
    if missing is None:
        return ()
    return (missing,) if isinstance(missing, str | int | float | np.number) else tuple(missing)


def known_labels(labels: Array, missing: Missing = None) -> Mask:
    """Return which labels exist, booleans in the shape of ``labels``.

    A label is missing if it is NaN, or equals a value that the caller declares. Numbers equal numbers (``-1`` and ``-1.0``, and the text ``"-1"`` in a
    column of numbers); text equals text.

    Args:
        labels: ``(rows, ...)``, numbers or text.
        missing: values that mean "no label".
    """
    there = np.ones(labels.shape, np.bool_)
    if labels.dtype.kind == "f":
        there &= ~np.isnan(labels)
    for value in declared(missing):
        if labels.dtype.kind == "U":
            there &= labels != (value if isinstance(value, str) else name_number(value))
        elif labels.dtype.kind in "biuf" and _number(value) is not None:
            there &= labels != _number(value)
    return there


def name_number(value: float | np.floating[Any]) -> str:
    """Return the text of a number that names a class or a category: ``7`` for 7.0, and different texts for different numbers."""
    if isinstance(value, int | np.integer) or (abs(float(value)) < 2**53 and float(value).is_integer()):
        return str(int(value))
    short = f"{value:g}"
    return short if float(short) == value else repr(float(value))


def _number(value: str | float) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None


def labelled_rows(data: Any) -> Mask:
    """Return which rows have a label, ``(rows,)``; of a row with several labels, whether all exist.

    Args:
        data: a `Dataset` or a `Shard`.
    """
    if "y" not in data.columns:
        return np.zeros(len(data), np.bool_)
    if "labelled" not in data.columns:
        return np.ones(len(data), np.bool_)
    there = np.asarray(data["labelled"]).astype(bool)
    return np.asarray(there.reshape(len(there), -1).all(axis=1))


def without_hidden(labels: Array, labelled: Array, where: str = "data set") -> Array:
    """Return the labels with 0 (or empty text) for missing ones, so that nothing can depend on the hidden values.

    Args:
        labels: ``(rows, ...)``.
        labelled: which labels are present: booleans or 0 and 1, one a row or one an entry of the labels.
        where: the place, for errors.

    Raises:
        DataError: ``labelled`` has another shape, or other values.
    """
    there = np.asarray(labelled)
    if there.dtype.kind not in "biuf" or not np.isin(there, (0, 1)).all():
        raise DataError(
            "the column 'labelled' says whether each label is present, but has other values than 0 and 1",
            where=where,
            remedy="use True and False, or 1 and 0",
        )
    if there.shape not in (labels.shape, labels.shape[:1]):
        raise DataError(
            f"the column 'labelled' has shape {there.shape}, but the labels have {labels.shape}",
            where=where,
            remedy="give one entry a row, or one an entry of the labels",
        )
    there = there.astype(bool)
    if there.all():
        return labels
    there = there.reshape(there.shape + (1,) * (labels.ndim - there.ndim))
    made: Array = np.where(there, labels, np.zeros((), labels.dtype)).astype(labels.dtype, copy=False)
    return made


def known_rows(data: Any, who: str) -> Any:
    """Return the rows with a label, or the data themselves if all rows have one.

    Args:
        data: a `Dataset` or a `Shard`, or any object with columns that has no ``labelled`` among them.
        who: the part that drops the other rows, for errors.

    Raises:
        DataError: a row has labels for only part of its entries, which ``who`` does not support.
    """
    if "labelled" not in getattr(data, "columns", ()):
        return data
    there = np.asarray(data["labelled"])
    if there.all():
        return data
    if there.ndim > 1:
        raise DataError(
            f"some labels of a row are missing, but {who} needs whole rows",
            where="column 'labelled'",
            remedy="mark each row as labelled or not, or use a PyTorch model with a loss for each entry",
        )
    rows = data.dataset() if hasattr(data, "dataset") else data
    return rows.take(there.astype(bool))


_MERGED, _COARSE = 0.01, 1e-6


def require_single_precision(values: Array, column: str, where: str) -> None:
    """Refuse a feature whose different values become equal in single precision, such as timestamps in seconds: 128 of them are one number; and one that is too large for it.

    A column is refused if more than one in a hundred of its different values become equal to another, and rounding moves them by more than 1e-6 of the
    distance between its quartiles (of its deviation, where that is 0). Numbers with a few more digits than single precision has lose nothing that matters.

    Args:
        values: ``(rows,)``; NaN is missing.
        column: its name.
        where: the place, for errors.

    Raises:
        DataError: names the column, and what to do.
    """
    if values.dtype.kind not in "iuf" or values.dtype.itemsize <= (4 if values.dtype.kind == "f" else 2):
        return
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    beyond = np.isinf(single) & np.isfinite(values)
    if beyond.any():
        raise DataError(
            f"column {column!r} has {float(values[np.argmax(beyond)]):g}, which is beyond single precision (float32): {np.finfo(np.float32).max:.2g}",
            where=where,
            remedy="correct the value, leave these rows out, or use larger units at all parties",
        )
    if np.array_equal(single.astype(np.float64), values.astype(np.float64), equal_nan=values.dtype.kind == "f"):
        return
    known = np.isfinite(single)
    wide = values[known].astype(np.float64)
    quarters = np.percentile(wide, [25, 75])
    spread = float(quarters[1] - quarters[0]) or float(wide.std())
    if np.abs(wide - single[known]).max() <= _COARSE * spread:
        return
    different = len(np.unique(values[known]))
    if len(np.unique(single[known])) < (1 - _MERGED) * different:
        raise DataError(
            f"column {column!r} has values that differ, but are equal in single precision (float32)",
            where=where,
            remedy="subtract a fixed number from the column at all parties, such as the first day of a timestamp, and use larger units, such as days",
        )
