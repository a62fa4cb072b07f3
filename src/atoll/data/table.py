"""`DataTable`: named columns as a file has them, with missing values and text."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.core.calls import checked_call
from atoll.core.errors import DataError, nearest

from .dataset import order_columns, require_columns
from .readers.arrow import table_of_parquet
from .readers.csv import table_of_csv
from .readers.libraries import table_of_frame
from .readers.table import holes

__all__ = ["DataTable"]

Array = NDArray[Any]


@checked_call
class DataTable:
    """Immutable named columns of one length: numbers, truth values, moments or text, any of which may be missing.

    A `Dataset` is what learning needs: complete features and labels. A table is what statistics look at, before anybody has cleaned it. A missing number is
    NaN; a missing text is empty, or one of the words that `read_csv` takes for missing.

    Args:
        columns: maps a name to its values, ``(rows,)``, or ``(rows, ...)`` for a column of images.
        name: short name, for errors.
        row_offset: added to row numbers in errors: 2 for the lines of a file with a header line.

    Raises:
        DataError: there are no columns, their lengths differ, or a column holds objects.

    Example:
        >>> DataTable({"age": [61.0, float("nan")], "ward": ["surgery", ""]}, name="north")
        DataTable('north': 2 rows, age float64, ward text)
    """

    __slots__ = ("_columns", "_refused", "_rows", "name", "row_offset")
    __iter__ = None

    def __init__(self, columns: Mapping[str, ArrayLike], *, name: str = "table", row_offset: int = 0) -> None:
        self.name, self.row_offset = name, row_offset
        self._refused: dict[str, DataError] = {}
        self._columns = {str(key): _plain(np.asarray(values), str(key), name) for key, values in columns.items()}
        sizes = {key: len(values) for key, values in self._columns.items()}
        if len(set(sizes.values())) != 1:
            what = f"columns of {sorted(set(sizes.values()))} rows" if sizes else "there are no columns"
            raise DataError(what, where=f"table {name!r}", remedy="give columns of one length")
        self._rows = next(iter(sizes.values()))

    @classmethod
    def read(
        cls,
        path: str | Path,
        *,
        columns: Iterable[str] = (),
        drop: Iterable[str] = (),
        text: Sequence[str] = (),
        delimiter: str = ",",
        decimal: str = ".",
        encoding: str = "utf-8",
    ) -> DataTable:
        """Read a CSV or Parquet file; see `read_csv` for the words that mean missing.

        A column of a Parquet file that holds anything else than a table does, such as times of day or lists, is refused where it is used.

        Args:
            path: the file.
            columns: columns to keep; by default all.
            drop: columns to leave out.
            text: columns of a CSV file that stay text, such as keys: "007" is not the number 7 there.
            delimiter: the separator of the values of a CSV file.
            decimal: its decimal sign, "." or ",".
            encoding: its encoding.

        Raises:
            DataError: the file cannot be read, or has no such column.
        """
        path = Path(path)
        if path.suffix in (".parquet", ".pq"):
            found = table_of_parquet(path)
        else:
            found = table_of_csv(path, text=text, delimiter=delimiter, decimal=decimal, encoding=encoding)
        readable: dict[str, Array] = {}
        refused: dict[str, DataError] = {}
        for column, values in found.items():
            try:
                readable[column] = _plain(np.asarray(values), column, path.name)
            except DataError as error:
                refused[column] = error
        if not readable and refused:
            raise next(iter(refused.values()))
        made = cls(readable, name=path.name, row_offset=0 if path.suffix in (".parquet", ".pq") else 2)
        made._refused = refused
        return made.without(drop).only(columns) if columns else made.without(drop)

    @classmethod
    def stacked(cls, parts: Sequence[DataTable], *, name: str = "table") -> DataTable:
        """The rows of several tables, one below the other, matched by the names of their columns; a column that holds text in one of them holds text.

        Raises:
            DataError: a table lacks a column or has another; names both, and the nearest name.
        """
        sets = [frozenset(part.columns) for part in parts]
        usual = parts[sets.index(max(sets, key=sets.count))].columns
        for part in parts:
            require_columns(part.columns, usual, f"table {part.name!r}", exactly=True)
        names = order_columns([part.columns for part in parts])
        columns: dict[str, Array] = {}
        for column in names:
            rows = [part[column] for part in parts]
            columns[column] = np.concatenate(_in_one_kind(rows))
        return cls(columns, name=name)

    @classmethod
    def of(cls, frame: Any, name: str = "table") -> DataTable:
        """The table of a ``pandas.DataFrame``, or of a dict of columns."""
        return cls(frame if isinstance(frame, Mapping) else table_of_frame(frame, name), name=name)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return (*self._columns, *self._refused)

    @property
    def readable(self) -> tuple[str, ...]:
        """Names of the columns without those of a file that are refused where they are used."""
        return tuple(self._columns)

    def __len__(self) -> int:
        return self._rows

    def __contains__(self, column: object) -> bool:
        return column in self._columns or column in self._refused

    def __getitem__(self, column: str) -> Array:
        if column in self._refused:
            raise self._refused[column]
        if column not in self._columns:
            raise DataError(
                f"no column {column!r}.{nearest(column, self._columns)}",
                where=f"table {self.name!r}",
                remedy=f"use one of {', '.join(self._columns)}",
            )
        return self._columns[column]

    def named(self, name: str) -> DataTable:
        """The same rows under another name, which errors say."""
        return self._keep(self._columns, name)

    def only(self, columns: Iterable[str]) -> DataTable:
        """The same rows with these columns alone, in this order."""
        return DataTable({column: self[column] for column in columns}, name=self.name, row_offset=self.row_offset)

    def without(self, columns: Iterable[str]) -> DataTable:
        """The same rows without these columns."""
        left = {column for column in columns if column in self._refused or len(self[column]) >= 0}
        return self._keep({key: values for key, values in self._columns.items() if key not in left}, self.name, left)

    def _keep(self, columns: Mapping[str, Array], name: str, left: Collection[str] = ()) -> DataTable:
        made = DataTable(columns, name=name, row_offset=self.row_offset)
        made._refused = {column: error for column, error in self._refused.items() if column not in left}
        return made

    def missing(self, column: str) -> NDArray[np.bool_]:
        """Which values of a column are missing, ``(rows,)``."""
        return holes(self[column])

    def __repr__(self) -> str:
        kinds = {
            key: "text" if values.dtype.kind == "U" else str(values.dtype) for key, values in self._columns.items()
        }
        return f"DataTable({self.name!r}: {self._rows:,} rows, {', '.join(f'{key} {kind}' for key, kind in kinds.items())})"


def _plain(values: Array, column: str, name: str) -> Array:
    """A read-only array of numbers, truth values, moments or text."""
    if values.dtype.kind == "O":
        holes = np.array([value is None or value != value for value in values.ravel()], dtype=bool).reshape(
            values.shape
        )
        kinds = {type(value) for value in values[~holes].tolist()}
        if not kinds <= {str, bool, int, float, np.str_}:
            shown = ", ".join(sorted(kind.__name__ for kind in kinds))
            raise DataError(
                f"column {column!r} holds objects ({shown})",
                where=f"table {name!r}",
                remedy="give numbers or text, or leave the column out",
            )
        values = np.where(holes, "", values).astype(np.str_) if kinds & {str, np.str_} else _numbers(values, holes)
    if values.ndim == 0 or values.dtype.kind not in "biufUM":
        raise DataError(
            f"column {column!r} has dtype {values.dtype} and shape {values.shape}",
            where=f"table {name!r}",
            remedy="give numbers, truth values, moments or text, one a row",
        )
    values = values.view()
    values.flags.writeable = False
    return values


def _numbers(values: Array, holes: NDArray[np.bool_]) -> Array:
    return np.where(holes, np.nan, np.where(holes, 0, values).astype(np.float64))


def _in_one_kind(rows: Sequence[Array]) -> list[Array]:
    """Columns of one name as text, if one of them holds text; one without a value has every kind."""
    kinds = {row.dtype.kind for row in rows if not holes(row).all()}
    if "U" in kinds or len({row.dtype.kind for row in rows}) == 1:
        return [row.astype(np.str_) if "U" in kinds else row for row in rows]
    if not kinds & set("fiub"):
        return [row.astype(np.str_) if any(one.dtype.kind == "U" for one in rows) else row for row in rows]
    return [np.full(len(row), np.nan) if row.dtype.kind == "U" else row for row in rows]
