"""PyTorch map-style data sets, through ``__len__`` and ``__getitem__``; PyTorch itself is not imported."""

from __future__ import annotations

from typing import Any

import numpy as np

from atoll.core.calls import checked_call
from atoll.core.errors import DataError

from .._checks import Array
from ..dataset import Dataset
from ..missing import Missing

__all__ = ["from_torch"]


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
    columns = _columns(source, name)
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


def _columns(source: Any, name: str) -> dict[str, Array]:
    """Fill one array per column, with the form of the first item."""
    columns: dict[str, Array] = {}
    for i in range(len(source)):
        item = _item(source[i], i, name)
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


def _item(item: Any, position: int, name: str) -> dict[str, Array]:
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
