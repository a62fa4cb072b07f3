"""Data sets of other libraries: Hugging Face, PyTorch and pandas."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from atoll.core.calls import checked_call
from atoll.core.errors import DataError, nearest

from .._checks import Array
from ..dataset import Dataset
from ..missing import Missing
from .table import from_table

__all__ = ["from_hugging_face", "from_pandas", "from_torch", "plain_of_objects", "table_of_frame"]


# Data sets of the Hugging Face ``datasets`` library, through their methods; the library itself is not imported.


@checked_call
def from_hugging_face(
    source: Any,
    *,
    x: str | Sequence[str],
    y: str | None = "label",
    keep: Iterable[str] = (),
    test: Any = None,
    task: str | None = None,
    missing: Missing = None,
    name: str = "hugging-face",
    citation: str | None = None,
) -> Dataset:
    """Make a data set from an in-memory (map-style) Hugging Face one.

    Args:
        source: an object with ``column_names``, ``features`` and ``with_format("numpy")``, such as ``datasets.Dataset``.
        x: the feature column, or several numeric columns to put side by side. Bytes (images) stay bytes.
        y: the label column; a ``ClassLabel`` names the classes.
        keep: columns to keep besides ``x`` and ``y``.
        test: the split to evaluate on, of the same form.
        task: see `About`; inferred from the labels when omitted.
        missing: labels that mean "no label", such as the -1 of test splits; see `Dataset`.
        name: short name.
        citation: the source of the data; by default that of ``source``.

    Raises:
        DataError: the object is of another kind, columns are unknown, or rows differ in shape.
    """
    _check_source(source, name)
    wanted = [x] if isinstance(x, str) else list(x)
    others = [*([y] if y else []), *keep]
    for column in [*wanted, *others]:
        if column not in source.column_names:
            raise DataError(
                f"no column {column!r}.{nearest(column, source.column_names)}",
                where=f"data set {name!r}",
                remedy=f"its columns are {', '.join(source.column_names)}",
            )
    rows = source.with_format("numpy")[:]
    parts = [_convert_column(rows[column], column, name) for column in wanted]
    columns: dict[str, Array] = {"x": parts[0] if isinstance(x, str) else np.stack(parts, axis=1)}
    labels: tuple[str, ...] = ()
    if y:
        columns["y"] = _convert_column(rows[y], y, name)
        labels = tuple(getattr((source.features or {}).get(y), "names", None) or ())
    columns |= {column: _convert_column(rows[column], column, name) for column in keep}
    if citation is None:
        citation = str(getattr(getattr(source, "info", None), "citation", "") or "")
    test_rows = None
    if test is not None:
        test_rows = from_hugging_face(
            test, x=x, y=y, keep=keep, task=task, missing=missing, name=name, citation=citation
        )
    return Dataset(columns, task=task, labels=labels, name=name, citation=citation, test=test_rows, missing=missing)


def _check_source(source: Any, name: str) -> None:
    lacking = [a for a in ("column_names", "features", "with_format") if not hasattr(source, a)]
    if lacking or isinstance(source.column_names, dict):
        what = "a dictionary of splits" if not lacking else f"a {type(source).__name__} without {', '.join(lacking)}"
        raise DataError(what, where=f"data set {name!r}", remedy='pass one split, such as load_dataset(...)["train"]')


def _convert_column(values: Any, column: str, name: str) -> Array:
    try:
        array = np.asarray(values)
    except ValueError:
        array = np.empty(0, object)
    if array.dtype.kind == "O":
        if all(isinstance(value, str) for value in values):
            return np.array(list(values), dtype=np.str_)
        raise DataError(
            f"the rows of column {column!r} have different shapes",
            where=f"data set {name!r}",
            remedy="map them to one shape first (resize images, pad sequences)",
        )
    return array


# PyTorch map-style data sets, through ``__len__`` and ``__getitem__``; PyTorch itself is not imported.


@checked_call
def from_torch(
    source: Any,
    *,
    test: Any = None,
    task: str | None = None,
    classes: int | None = None,
    missing: Missing = None,
    name: str = "torch",
    citation: str = "",
) -> Dataset:
    """Copy a map-style data set into columns, item by item.

    Args:
        source: an object with ``len(source)`` and ``source[i]``; an item is ``(x, y)``, or a mapping of column names. Values
            are tensors, arrays, images or numbers that NumPy can turn into arrays of one shape.
        test: the test split, of the same form.
        task: see `About`; inferred from the labels when omitted.
        classes: number of classes; ``len(source.classes)`` if the source has it.
        missing: labels that mean "no label", such as -1; see `Dataset`.
        name: short name.
        citation: the source of the data.

    Raises:
        DataError: the data set is empty, or items differ in form or shape; names the item.
    """
    if not hasattr(source, "__len__") or not hasattr(source, "__getitem__"):
        raise DataError(
            f"a {type(source).__name__} has no length or no items",
            where=f"data set {name!r}",
            remedy="pass a map-style data set; collect a stream into a list of (x, y) first",
        )
    if not len(source):
        raise DataError("no items", where=f"data set {name!r}", remedy="pass at least one")
    columns = _fill_columns(source, name)
    labels = tuple(map(str, getattr(source, "classes", ()) or ()))
    if classes is None and labels:
        classes = len(labels)
    test_rows = (
        None
        if test is None
        else from_torch(test, task=task, classes=classes, missing=missing, name=name, citation=citation)
    )
    return Dataset(
        columns,
        task=task,
        classes=classes,
        labels=labels,
        name=name,
        citation=citation,
        test=test_rows,
        missing=missing,
    )


def _fill_columns(source: Any, name: str) -> dict[str, Array]:
    """Fill one array per column, with the form of the first item."""
    columns: dict[str, Array] = {}
    for i in range(len(source)):
        item = _split_item(source[i], i, name)
        if not columns:
            columns = {key: np.empty((len(source), *v.shape), v.dtype) for key, v in item.items()}
        for key, array in columns.items():
            value = item.get(key)
            if value is None or value.shape != array.shape[1:] or value.dtype.kind != array.dtype.kind:
                shown = "no such value" if value is None else f"{value.dtype}{list(value.shape)}"
                raise DataError(
                    f"item {i} has {shown} for {key!r}, but item 0 has {array.dtype}{list(array.shape[1:])}",
                    where=f"data set {name!r}",
                    remedy="bring all items to one form with a transform",
                )
            array[i] = value
    return columns


def _split_item(item: Any, position: int, name: str) -> dict[str, Array]:
    if isinstance(item, tuple | list) and len(item) == 2:
        item = {"x": item[0], "y": item[1]}
    if not isinstance(item, dict):
        raise DataError(
            f"item {position} is a {type(item).__name__}",
            where=f"data set {name!r}",
            remedy="items must be (x, y) or a dict of columns",
        )
    arrays = {str(key): np.asarray(value) for key, value in item.items()}
    for key, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise DataError(
                f"item {position} has {array.dtype} for {key!r}",
                where=f"data set {name!r}",
                remedy="turn it into numbers with a transform",
            )
    return arrays


# Data frames of pandas, through their methods; pandas itself is not imported.


@checked_call
def from_pandas(frame: Any, *, target: str | Sequence[str] | None, name: str = "frame", **options: Any) -> Dataset:
    """Make a data set from a ``pandas.DataFrame``; a categorical column counts as the type of its values, and the index is left out.

    Args:
        frame: the table.
        target: target column, or columns.
        name: short name.
        options: ``task``, ``features``, ``keep``, ``drop``, ``categories``, ``missing``, ``missing_features`` and ``citation``, see `read_csv`.

    Raises:
        DataError: the object is not a data frame, columns are unknown, features are missing, or a column in use has dates or objects.
    """
    return from_table(table_of_frame(frame, name), target=target, name=name, **options)


def table_of_frame(frame: Any, name: str) -> dict[str, Array]:
    """The columns of a data frame by name.

    Raises:
        DataError: the object is not a data frame, or two columns share a name.
    """
    if not all(hasattr(frame, attribute) for attribute in ("columns", "iloc", "isna")):
        raise DataError(
            f"a {type(frame).__name__}", where=f"table {name!r}", remedy="pass a pandas.DataFrame, or make a Dataset"
        )
    names = [str(column) for column in frame.columns]
    if len(set(names)) != len(names):
        raise DataError(f"the columns are {', '.join(names)}", where=f"table {name!r}", remedy="give each its own name")
    return {column: _convert_plain(frame.iloc[:, k]) for k, column in enumerate(names)}


def _convert_plain(column: Any) -> Array:
    """Return numbers, dates or text; missing values become "", NaN or NaT. Mixed values stay objects, which are refused on use."""
    if getattr(column.dtype, "tz", None) is not None:  # moments are those of UTC
        column = column.dt.tz_convert("UTC").dt.tz_localize(None)
    holes = np.asarray(column.isna(), dtype=bool)
    array = np.asarray(column)
    return array if array.dtype.kind != "O" else plain_of_objects(array, holes)


def plain_of_objects(array: Array, holes: Array) -> Array:
    """Return objects as text, numbers or moments, if all that are there are of one kind; else as they are.

    Args:
        array: objects, ``(rows,)``.
        holes: which are missing.
    """
    kept = [value for value, hole in zip(array.tolist(), holes, strict=True) if not hole]
    if kept and all(isinstance(value, str) for value in kept):
        return np.array(["" if hole else value for value, hole in zip(array, holes, strict=True)], dtype=np.str_)
    if all(isinstance(value, bool | int | float | np.number | Decimal) for value in kept):
        numbers = [float(value) if isinstance(value, Decimal) else value for value in array.tolist()]
        plain = [np.nan if hole else value for value, hole in zip(numbers, holes, strict=True)]
        return np.array(plain, dtype=np.float64) if holes.any() else np.array(plain)
    if all(isinstance(value, datetime.date) and getattr(value, "tzinfo", None) is None for value in kept):
        unit = "us" if any(isinstance(value, datetime.datetime) for value in kept) else "D"
        return np.array(
            [None if hole else value for value, hole in zip(array, holes, strict=True)], f"datetime64[{unit}]"
        )
    return array
    kept = [value for value, hole in zip(array.tolist(), holes, strict=True) if not hole]
    if kept and all(isinstance(value, str) for value in kept):
        return np.array(["" if hole else value for value, hole in zip(array, holes, strict=True)], dtype=np.str_)
    if all(isinstance(value, bool | int | float | np.number) for value in kept):
        plain = [np.nan if hole else value for value, hole in zip(array, holes, strict=True)]
        return np.array(plain, dtype=np.float64) if holes.any() else np.array(plain)
    return array
