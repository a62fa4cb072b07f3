"""Parquet files and Arrow tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from atoll.core.calls import checked_call
from atoll.core.errors import DataError
from atoll.core.extras import need
from atoll.core.redaction import private

from .._checks import Array
from ..dataset import Dataset
from ..missing import Missing, name_number
from ._files import existing
from .libraries import plain_of_objects
from .table import from_table

__all__ = ["columns_of_parquet", "distinct_of_parquet", "from_arrow", "read_parquet", "table_of_parquet"]


@checked_call
def read_parquet(
    path: str | Path,
    *,
    target: str | Sequence[str] | None,
    task: str | None = None,
    features: Sequence[str] | None = None,
    keep: Iterable[str] = (),
    drop: Iterable[str] = (),
    categories: Mapping[str, Sequence[str]] | None = None,
    missing: Missing = None,
    missing_features: bool = False,
    name: str | None = None,
    citation: str = "",
) -> Dataset:
    """Read a Parquet file; the arguments are those of `read_csv`.

    Raises:
        MissingExtraError: pyarrow is not installed.
        DataError: the file cannot be read, columns are unknown, or features are missing.
    """
    return from_table(
        table_of_parquet(path),
        target=target,
        task=task,
        features=features,
        keep=keep,
        drop=drop,
        categories=categories,
        missing=missing,
        missing_features=missing_features,
        name=name or Path(path).stem,
        citation=citation,
    )


def table_of_parquet(path: str | Path) -> dict[str, Array]:
    """Return the columns of a Parquet file: numbers, dates or text.

    Raises:
        MissingExtraError: pyarrow is not installed.
        DataError: the file cannot be read.
    """
    table = _read("read_table", path)
    return {str(column): _plain(table[column]) for column in table.column_names}


def columns_of_parquet(path: str | Path) -> list[str]:
    """Return the names of the columns of a Parquet file, without reading its rows.

    Raises:
        MissingExtraError: pyarrow is not installed.
        DataError: the file cannot be read.
    """
    return [str(column) for column in _read("read_schema", path).names]


def distinct_of_parquet(path: str | Path, column: str, most: int) -> list[str]:
    """Return the first few distinct values of a column of a Parquet file as texts, without the missing ones.

    Raises:
        MissingExtraError: pyarrow is not installed.
        DataError: the file cannot be read.
    """
    table = _read("read_table", path, columns=[column])
    values = table[column].drop_null().unique().slice(0, most)
    return [name_number(value) if isinstance(value, float) else str(value) for value in values.to_pylist()]


def _read(reader: str, path: str | Path, **options: Any) -> Any:
    path = existing(path)
    parquet = need("pyarrow.parquet", "arrow", "reading Parquet")
    arrow = need("pyarrow", "arrow", "reading Parquet")
    try:
        return getattr(parquet, reader)(path, **options)
    except (arrow.ArrowException, OSError) as error:
        raise DataError(
            f"not a readable Parquet file: {private(error)}", where=path.name, remedy="write it again"
        ) from error


@checked_call
def from_arrow(table: Any, *, target: str | Sequence[str] | None, name: str = "arrow", **options: Any) -> Dataset:
    """Make a data set of a ``pyarrow.Table``; dictionary-encoded columns count as text.

    Args:
        table: the table.
        target: target column, or columns.
        name: short name.
        options: ``task``, ``features``, ``keep``, ``drop``, ``categories``, ``missing``, ``missing_features`` and ``citation``, see `read_csv`.

    Raises:
        DataError: the object is not a table, columns are unknown, features are missing, or a column in use is nested.
    """
    if not hasattr(table, "column_names"):
        raise DataError(
            f"a {type(table).__name__}",
            where=f"table {name!r}",
            remedy="pass a pyarrow.Table; a pandas.DataFrame goes to from_pandas",
        )
    columns = {str(column): _plain(table[column]) for column in table.column_names}
    return from_table(columns, target=target, name=name, **options)


def _plain(column: Any) -> Array:
    """Return a column as text, numbers or dates; missing values become "" or NaN, other types stay objects."""
    if hasattr(column.type, "value_type") and hasattr(column.type, "index_type"):
        column = column.cast(column.type.value_type)
    kind = str(column.type)
    if kind in ("string", "large_string", "string_view"):
        return np.array(["" if v is None else v for v in column.to_pylist()], dtype=np.str_)
    if column.null_count and kind.startswith(("int", "uint", "bool", "float", "double", "halffloat")):
        return np.array([np.nan if v is None else v for v in column.to_pylist()], dtype=np.float64)
    found = np.asarray(column.to_numpy())
    return found if found.dtype.kind != "O" else plain_of_objects(found, np.asarray(column.is_null()))
