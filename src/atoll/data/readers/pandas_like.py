"""Data frames of pandas, through their methods; pandas itself is not imported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from atoll.core.calls import checked_call
from atoll.core.errors import DataError

from .._checks import Array
from ..dataset import Dataset
from .table import from_table

__all__ = ["from_pandas", "table_of_frame"]


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
    return {column: _plain(frame.iloc[:, k]) for k, column in enumerate(names)}


def _plain(column: Any) -> Array:
    """Return numbers, dates or text; missing values become "" or NaN. Mixed values stay objects, which are refused on use."""
    holes = np.asarray(column.isna(), dtype=bool)
    array = np.asarray(column)
    if array.dtype.kind != "O":
        return array
    kept = [value for value, hole in zip(array.tolist(), holes, strict=True) if not hole]
    if kept and all(isinstance(value, str) for value in kept):
        return np.array(["" if hole else value for value, hole in zip(array, holes, strict=True)], dtype=np.str_)
    if all(isinstance(value, bool | int | float | np.number) for value in kept):
        plain = [np.nan if hole else value for value, hole in zip(array, holes, strict=True)]
        return np.array(plain, dtype=np.float64) if holes.any() else np.array(plain)
    return array
