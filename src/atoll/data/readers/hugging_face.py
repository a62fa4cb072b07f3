"""Data sets of the Hugging Face ``datasets`` library, through their methods; the library itself is not imported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from atoll.core.calls import checked_call
from atoll.core.errors import DataError, nearest

from .._checks import Array
from ..dataset import Dataset
from ..missing import Missing

__all__ = ["from_hugging_face"]


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
    _check(source, name)
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
    parts = [_array(rows[column], column, name) for column in wanted]
    columns: dict[str, Array] = {"x": parts[0] if isinstance(x, str) else np.stack(parts, axis=1)}
    labels: tuple[str, ...] = ()
    if y:
        columns["y"] = _array(rows[y], y, name)
        labels = tuple(getattr((source.features or {}).get(y), "names", None) or ())
    columns |= {column: _array(rows[column], column, name) for column in keep}
    if citation is None:
        citation = str(getattr(getattr(source, "info", None), "citation", "") or "")
    test_rows = None
    if test is not None:
        test_rows = from_hugging_face(
            test, x=x, y=y, keep=keep, task=task, missing=missing, name=name, citation=citation
        )
    return Dataset(columns, task=task, labels=labels, name=name, citation=citation, test=test_rows, missing=missing)


def _check(source: Any, name: str) -> None:
    lacking = [a for a in ("column_names", "features", "with_format") if not hasattr(source, a)]
    if lacking or isinstance(source.column_names, dict):
        what = "a dictionary of splits" if not lacking else f"a {type(source).__name__} without {', '.join(lacking)}"
        raise DataError(what, where=f"data set {name!r}", remedy='pass one split, such as load_dataset(...)["train"]')


def _array(values: Any, column: str, name: str) -> Array:
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
