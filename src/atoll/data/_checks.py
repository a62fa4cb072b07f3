"""Checks of a data set's columns: same number of rows, plain dtypes, finite features, valid labels."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import DataError, nearest
from atoll.core.redaction import private

from .missing import Missing, known_labels, without_hidden

Array = NDArray[Any]

TASKS = ("classification", "binary", "regression", "multilabel", "tokens", "unlabelled")
_PLAIN = "biufUSM"
_FASTEST = np.dtype(np.float32)  # fastest to sum; a sum that overflows is checked again
_TABLES = {
    "DataFrame": "read it with atoll.data.from_pandas(frame, target=...)",
    "Table": "read it with atoll.data.from_arrow(table, target=...)",
}
_DECLARE = "; if -1 says that there is no label, declare it: missing=-1"
_STRETCH = 32 << 20  # bytes of a mapped file that are read at once


def as_columns(
    columns: Mapping[str, Any], where: str, missing: Missing = None, missing_features: bool = False
) -> dict[str, Array]:
    """Return read-only arrays with equal first dimensions, or raise a ``DataError`` that names the column.

    If labels are missing, the column ``labelled`` says which, and the labels hold 0 there.
    """
    if not isinstance(columns, Mapping):
        raise DataError(
            f"the columns are a {type(columns).__name__}, not a mapping",
            where=where,
            remedy=_TABLES.get(type(columns).__name__, 'pass {"x": ..., "y": ...}'),
        )
    if not columns:
        raise DataError("the data set has no columns", where=where, remedy='pass {"x": ..., "y": ...}')
    arrays = {name: _plain(name, values, where) for name, values in columns.items()}
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name!r} has {n}" for name, n in lengths.items())
        raise DataError(
            f"columns of different lengths: {shown}",
            where=where,
            remedy="give every column one entry per row",
        )
    if "y" in arrays:
        _tell_labels_apart(arrays, missing, where)
    for name, array in arrays.items():
        _finite(name, array, where, holes=missing_features and name == "x")
    return arrays


def _tell_labels_apart(arrays: dict[str, Array], missing: Missing, where: str) -> None:
    """Mark missing labels in the column ``labelled`` and erase them in ``y``; both stay as they are if none is missing."""
    y, marked = arrays["y"], arrays.get("labelled")
    holes = _has_nan(y)
    there = known_labels(y, missing) if holes or missing is not None else None
    if there is None or there.all():
        if marked is None:
            return
        there = marked
    else:
        there = _by_row(there)
        if marked is not None:
            without_hidden(y, marked, where)  # refuses a column of another form
            there = _both(there, marked.astype(bool))
    arrays["y"] = without_hidden(y, there, where)
    arrays["labelled"] = there.astype(bool)
    for name in ("y", "labelled"):
        arrays[name].flags.writeable = False


def _has_nan(array: Array) -> bool:
    """Whether there is a NaN; the sum of all entries is one then."""
    if array.dtype.kind != "f":
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isnan(_total(array)) and np.isnan(array).any())


def _by_row(there: Array) -> Array:
    """One boolean a row, if the entries of each row are missing together."""
    if there.ndim == 1:
        return there
    rows = there.reshape(len(there), -1)
    return rows[:, 0] if (rows == rows[:, :1]).all() else there


def _both(a: Array, b: Array) -> Array:
    """Labels that both masks have; one may have an entry a row, the other one an entry of the labels."""
    wide = max(a.ndim, b.ndim)
    a, b = (mask.reshape(mask.shape + (1,) * (wide - mask.ndim)) for mask in (a, b))
    return a & b


def _plain(name: str, values: Any, where: str) -> Array:
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise DataError(
            f"column {name!r} is ragged: {private(error)}", where=where, remedy="pad its entries to one shape"
        ) from error
    if array.ndim == 0:
        raise DataError(
            f"column {name!r} is a single value, not one entry per row",
            where=where,
            remedy="pass an array whose first dimension is the rows",
        )
    if array.dtype.kind not in _PLAIN:
        raise DataError(
            f"column {name!r} has dtype {array.dtype}, which holds arbitrary values",
            where=where,
            remedy="convert it to numbers, text (dtype=str) or dates first",
        )
    view = array.view()
    view.flags.writeable = False
    return view


def _total(array: Array) -> float:
    """The sum of all entries. A file that is mapped for reading is read piece by piece, and its pages are released afterwards."""
    mapped = _mapping(array)
    if mapped is None or not hasattr(mmap, "MADV_DONTNEED"):
        return float(array.sum(dtype=max(array.dtype, _FASTEST)))
    rows = max(1, _STRETCH // max(1, array[:1].nbytes))
    total = 0.0
    for begin in range(0, len(array), rows):
        total += float(array[begin : begin + rows].sum(dtype=np.float64))
        mapped.madvise(mmap.MADV_DONTNEED)
    return total


def _mapping(array: Any) -> mmap.mmap | None:
    """The file mapping behind an array, if it is read-only, so that dropping its pages loses nothing."""
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap) and array.mode == "r" and isinstance(array.base, mmap.mmap):
            return array.base
        array = array.base
    return None


def _finite(name: str, array: Array, where: str, holes: bool = False) -> None:
    if array.dtype.kind != "f" or array.size == 0:
        return
    # A sum is almost always finite, and needs no array of flags.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(_total(array)):
            return
    bad = np.argwhere(np.isinf(array) if holes else ~np.isfinite(array))
    if not len(bad):
        return
    place = f"row {bad[0][0]}"
    if array.ndim > 1:
        place += f", feature {', '.join(str(k) for k in bad[0][1:])}"
    value = array[tuple(bad[0])]
    remedy = "drop these rows or fill the values before making the data set"
    if name == "x" and np.isnan(value):
        remedy += ", or declare them: missing_features=True, for jobs that can use them"
    raise DataError(f"column {name!r} has {value} at {place} ({len(bad)} such value(s))", where=where, remedy=remedy)


def whole_labels(y: Array, task: str | None, there: Array | None) -> Array:
    """Return labels that are fractions only because some of them were NaN as whole numbers, unless the task is a regression."""
    if there is None or y.dtype.kind != "f" or task in ("regression", "unlabelled") or (task is None and y.ndim > 1):
        return y
    known = y[there]
    return y.astype(np.int64) if np.array_equal(known, np.rint(known)) else y


def resolve_task(y: Array | None, task: str | None, where: str) -> str:
    """Return the task; infer it from the labels' dtype if it is not given. Missing labels are left out of ``y``."""
    if task is None:
        if y is None:
            return "unlabelled"
        if y.dtype.kind == "f":
            if y.ndim == 1 and len(y) > 1 and np.array_equal(np.unique(y), (0.0, 1.0)):
                raise DataError(
                    f"the targets are 0 and 1, as fractions (dtype {y.dtype})",
                    where=where,
                    remedy="turn them into whole numbers for a classification, or set task='regression'",
                )
            if _one_hot(y):
                raise DataError(
                    f"each row of the targets {y.shape} is 0 but for a single 1, as fractions (dtype {y.dtype})",
                    where=where,
                    remedy="give class codes for a classification, y.argmax(1); or Dataset(columns, task='regression') for a squared error or a loss of your own",
                )
            return "regression"
        return "binary" if y.ndim == 1 and _signs(y[:4096]) else "classification"
    if task not in TASKS:
        raise DataError(
            f"unknown task {task!r}.{nearest(task, TASKS)}",
            where=where,
            remedy=f"use one of {', '.join(TASKS)}",
        )
    if y is None and task != "unlabelled":
        raise DataError(
            f"a {task} task without a column 'y'",
            where=where,
            remedy="add the column, or set task='unlabelled'",
        )
    return task


def _one_hot(y: Array) -> bool:
    """Whether rows of fractions say one class each: a squared error of them would look like a training. One row may be so by chance."""
    if y.ndim != 2 or min(y.shape) < 2:
        return False
    return bool(((y == 0) | (y == 1)).all() and (y.sum(axis=1) == 1).all())


def _signs(y: Array) -> bool:
    """Whether the labels are -1 and +1, both of them, and nothing else."""
    if not len(y) or y.dtype.kind != "i" or y[0] not in (-1, 1):
        return False
    return bool((y == -y[0]).any() and ((y == 1) | (y == -1)).all())


def check_labels(
    y: Array, task: str, classes: int | None, where: str, there: Array | None = None
) -> tuple[Array, int | None]:
    """Return the labels (integer ones as int64) and the number of classes; ``there`` says which labels exist."""
    if task in ("regression", "unlabelled"):
        if y.dtype.kind in "US" and task == "regression":
            raise DataError(
                f"text targets (dtype {y.dtype}) in a regression",
                where=where,
                remedy="use task='classification' and integer codes",
            )
        return y, None
    if y.dtype.kind not in "biu":
        raise DataError(
            f"labels of dtype {y.dtype} in a {task} task",
            where=where,
            remedy=_codes_of(y),
        )
    codes = y.astype(np.int64, copy=False)
    codes.flags.writeable = False
    if task == "multilabel":
        return codes, _check_multilabel(codes, where)
    if task == "tokens":
        return codes, _check_tokens(codes, classes, where)
    if codes.ndim != 1:
        raise DataError(
            f"labels of shape {codes.shape} in a {task} task",
            where=where,
            remedy="give one label per row, or set task='multilabel', or task='tokens' for a class of each entry",
        )
    return (
        (codes, _check_binary(codes if there is None else codes[there], where))
        if task == "binary"
        else (codes, _check_range(codes, classes, where))
    )


def _codes_of(y: Array) -> str:
    """The remedy that turns labels into codes."""
    if y.dtype.kind in "US":
        return "code them: names, y = np.unique(y, return_inverse=True), and pass labels=names.tolist()"
    return "give integer codes, as in y.astype(np.int64)"


def _check_multilabel(codes: Array, where: str) -> int:
    if codes.ndim != 2 or (codes.size and (codes.min() < 0 or codes.max() > 1)):
        raise DataError(
            f"multilabel targets must be a matrix of 0 and 1, not shape {codes.shape}",
            where=where,
            remedy="give one column per label",
        )
    return int(codes.shape[1])


def _check_tokens(codes: Array, classes: int | None, where: str) -> int:
    if codes.ndim < 2:
        raise DataError(
            f"labels of shape {codes.shape} in a task of tokens",
            where=where,
            remedy="give one class for each entry of a row, (rows, length), or set task='classification'",
        )
    return _check_range(codes, classes, where)


def _check_binary(codes: Array, where: str) -> int:
    found = np.unique(codes)
    if not (np.isin(found, (0, 1)).all() or np.isin(found, (-1, 1)).all()):
        raise DataError(
            f"binary labels {private(found[:5].tolist())}",
            where=where,
            remedy="use 0 and 1, or -1 and +1" + (_DECLARE if -1 in found else ""),
        )
    return 2


def _check_range(codes: Array, classes: int | None, where: str) -> int:
    low, high = (int(codes.min()), int(codes.max())) if len(codes) else (0, 0)
    count = classes if classes is not None else max(high + 1, 1)
    if low < 0 or high >= count:
        outside = (codes < 0) | (codes >= count)
        place = np.argwhere(outside)[0]
        row = int(place[0]) if codes.ndim == 1 else tuple(place.tolist())
        raise DataError(
            f"label {private(int(codes[tuple(place)]))} at row {row} is outside 0..{count - 1}",
            where=where,
            remedy=f"recode the labels, or raise classes={count}" + (_DECLARE if low == -1 else ""),
        )
    return count
