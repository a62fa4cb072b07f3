"""A party's data as columns to describe: numbers, categories and words, from tables, data sets, images and texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import DataError, nearest
from atoll.core.redaction import private
from atoll.data.missing import labelled_rows
from atoll.data.readers._words import hold_dates, hold_moments, read_truths, require_one_notation, require_plain_numbers
from atoll.data.readers.table import holes, without_holes
from atoll.data.table import DataTable

__all__ = ["TableColumn", "columns_of", "moments_in_time", "nearly_all_differ", "settle_kind", "table_of"]

Kind = Literal["number", "category", "words"]
Rows = NDArray[np.int64] | None


@dataclass(frozen=True)
class TableColumn:
    """One column.

    Attributes:
        name: its name.
        kind: ``"number"``, ``"category"`` (a text a row) or ``"words"`` (a set of words a row).
        values: numbers ``(rows, ...)``, of which a row may have many (the pixels of an image); texts ``(rows,)``.
    """

    name: str
    kind: Kind
    values: NDArray[Any]

    def numbers(self, rows: Rows = None) -> NDArray[Any]:
        """The numbers of some rows, flat; of a text column without any value, which is one of numbers elsewhere, NaN."""
        if self.values.dtype.kind == "U" and self.empty:
            return np.full(len(self.values) if rows is None else len(rows), np.nan)
        return (self.values if rows is None else self.values[rows]).reshape(-1)

    @cached_property
    def empty(self) -> bool:
        """Whether no row has a value: such a column is of whatever kind it is elsewhere, since files and frames do not say what is missing."""
        if self.values.ndim > 1:
            return not self.values.size or (self.values.dtype.kind == "f" and not np.isfinite(self.values).any())
        return bool(holes(self.values).all())

    def told_kind(self, least: int = 1) -> str:
        """The kind as a party tells it, with a ``?`` if it has no value, or fewer rows than ``least``, so that nothing follows of single rows."""
        return f"{self.kind}?" if self.empty or len(self.values) < least else self.kind

    def as_kind(self, kind: str) -> TableColumn:
        """This column as one of the kind that the parties agree on, if it has no value; else as it is."""
        if kind == self.kind or not self.empty or kind not in ("number", "category") or self.kind == "words":
            return self
        values = np.full(len(self.values), np.nan) if kind == "number" else np.full(len(self.values), "", dtype="<U1")
        return TableColumn(self.name, "number" if kind == "number" else "category", values)

    @property
    def single(self) -> bool:
        """Whether a row has one number."""
        return self.values.ndim == 1

    @property
    def per_row(self) -> int:
        """How many numbers a row has."""
        return int(np.prod(self.values.shape[1:]))

    @cached_property
    def listable(self) -> bool:
        """Whether the values may be listed: text and whole numbers that nearly all differ may not. Of such texts, words that several rows have are listed."""
        if self.kind == "number" and self.values.dtype.kind == "f":
            there = self.values[np.isfinite(self.values)]
            return bool((there != np.rint(there)).any()) or not nearly_all_differ(there)
        return not nearly_all_differ(self.values)

    @cached_property
    def coded(self) -> tuple[tuple[str, ...], NDArray[np.int64], NDArray[np.int64]]:
        """The distinct values, the code of each entry, and the row of each entry; a row without a value has no entry."""
        if self.kind == "words":
            split = [sorted(set(_words(text))) for text in self.values.tolist()]
            rows = np.repeat(np.arange(len(split)), [len(words) for words in split])
            entries = np.array([word for words in split for word in words], dtype=np.str_)
        else:
            rows = np.flatnonzero(~holes(self.values))
            entries = self.values[rows]
        names, codes = np.unique(entries, return_inverse=True)
        return tuple(map(str, names.tolist())), codes.astype(np.int64), rows.astype(np.int64)

    def counted(self, rows: Rows, of: int) -> tuple[NDArray[np.int64], int, int]:
        """How many of some rows have each value, how many have any, and how many have none.

        Args:
            rows: the rows; ``None`` is all.
            of: number of rows of the party.
        """
        names, codes, where = self.coded
        inside = np.ones(of, bool) if rows is None else np.zeros(of, bool)
        if rows is not None:
            inside[rows] = True
        kept = inside[where]
        counts = np.bincount(codes[kept], minlength=len(names))
        present = len(np.unique(where[kept]))
        return counts, present, int(inside.sum()) - present


def settle_kind(told: Iterable[str]) -> str | None:
    """The one kind of a column, given what parties tell of it (`TableColumn.told_kind`); ``None`` if two of them have values of two kinds.

    Where no party has a value, text wins: an empty column of a file is read as numbers.
    """
    kinds = list(dict.fromkeys(told))
    sure = [kind for kind in kinds if not kind.endswith("?")]
    if len(sure) > 1:
        return None
    return sure[0] if sure else min(kind.removesuffix("?") for kind in kinds)


def nearly_all_differ(values: NDArray[Any]) -> bool:
    """Whether more than three in four of the values that are there are different: names, numbers of patients, dates of birth.

    Such values stand for single rows. They are never listed, whatever the minimum count; statistics of numbers, such as moments, are told of them as of any column.
    """
    there = values[~holes(values)] if values.ndim == 1 else values.reshape(-1)
    return len(np.unique(there)) > 0.75 * len(there)


def table_of(data: Any) -> DataTable:
    """A party's data as a table: of a `DataTable`, a `Dataset` or a part of one, a ``pandas.DataFrame``, or a dict of columns.

    Of a data set, each feature is a column of its name, or ``x0``, ``x1``, ...; images are the column ``intensity`` of the values of all their pixels, with
    ``red``, ``green`` and ``blue`` besides if they have three colours; rows of tokens are ``length`` and ``token``. The labels are ``y``, by the names of their classes.

    Raises:
        DataError: anything else.
    """
    if isinstance(data, DataTable):
        return data
    if isinstance(data, Mapping) or hasattr(data, "iloc"):
        return DataTable.of(data)
    about = getattr(data, "about", None) or getattr(getattr(data, "source", None), "about", None)
    if about is None or not hasattr(data, "columns"):
        raise DataError(
            f"a {type(data).__name__} has no columns to describe",
            where="statistics",
            remedy="give each party an atoll.data.DataTable, a Dataset, a pandas.DataFrame, or a dict of columns",
        )
    found: dict[str, NDArray[Any]] = {}
    there = labelled_rows(data)
    for name in data.columns:
        values = np.asarray(data[name])
        if name == "labelled":
            continue
        if name == "y" and values.ndim == 1 and not there.all():
            found["y"] = _with_holes(values, there, about)
            continue
        if name == "x":
            found |= _features(values, about)
        elif name == "y" and about.labels and values.dtype.kind in "iu" and values.ndim == 1:
            found["y"] = np.array(about.labels, dtype=np.str_)[values]
        elif name == "y" and about.task in ("classification", "binary") and values.ndim == 1:
            found["y"] = values.astype(np.str_)
        else:
            found[name] = values
    return DataTable(found, name=about.name)


def _with_holes(labels: NDArray[Any], there: NDArray[np.bool_], about: Any) -> NDArray[Any]:
    """Labels as names or numbers, with "" or NaN where there is none."""
    if about.labels and labels.dtype.kind in "iu":
        return np.where(there, np.array(about.labels, dtype=np.str_)[labels], "")
    if about.task in ("classification", "binary"):
        return np.where(there, labels.astype(np.str_), "")
    return np.where(there, labels.astype(np.float64), np.nan)


def _features(x: NDArray[Any], about: Any) -> dict[str, NDArray[Any]]:
    if about.task == "tokens":
        return {
            "length": (x != 0).reshape(len(x), -1).sum(axis=1),
            "token": np.array([" ".join(map(str, row[row != 0])) for row in x.reshape(len(x), -1)], dtype=np.str_),
        }
    if x.ndim > 2:
        colours = dict(zip(("red", "green", "blue"), np.moveaxis(x, -1, 0), strict=True)) if x.shape[-1] == 3 else {}
        return {"intensity": x, **colours}
    x = x.reshape(len(x), -1)
    names = about.features or tuple(f"x{i}" for i in range(x.shape[1]))
    return dict(zip(names, x.T, strict=True))


def columns_of(
    table: DataTable,
    wanted: Sequence[str] = (),
    text: Iterable[str] = (),
    categories: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, TableColumn]:
    """The columns to describe.

    A column of free text becomes three: ``NAME/characters`` and ``NAME/words``, numbers, and ``NAME/vocabulary``, its sets of words. Moments, also texts such as
    ``2026-11-26``, become seconds since 1970. The words true and false are 1 and 0, as truth values of Parquet and of frames are.

    Args:
        table: a party's table.
        wanted: names of columns, in order; by default all.
        text: those that hold free text.
        categories: those whose values, if they are numbers, are categories.

    Raises:
        DataError: the table lacks a column, or text is numbers in another notation, such as ``1.000,5``, or mostly numbers or dates.
    """
    made: dict[str, TableColumn] = {}
    free = set(text) | ({"token"} & set(table.columns) if "length" in table else set())
    for name in wanted or table.columns:
        if name not in table:
            raise DataError(
                f"no column {name!r}.{nearest(name, table.columns)}",
                where="statistics",
                remedy=f"its columns are {', '.join(table.columns)}",
            )
        values = table[name]
        if name in free:
            made |= {column.name: column for column in _of_text(name, values)}
        elif name in (categories or {}):
            made[name] = TableColumn(name, "category", _texts(values))
        elif hold_moments(values):
            moments = moments_in_time(values, name, f"table {table.name!r}", table.row_offset)
            made[name] = TableColumn(name, "number", seconds(moments))
        elif (truths := read_truths(values)) is not None:
            made[name] = TableColumn(name, "number", truths)
        elif values.dtype.kind == "U":
            full, where = without_holes(values), f"table {table.name!r}"
            if not holes(full).any() and hold_dates(full):
                moments_in_time(full, name, where, table.row_offset)  # refuses them
            require_plain_numbers(full, name, where, table.row_offset)
            require_one_notation(full, name, where, table.row_offset, "or name the other columns, columns=[...]")
            made[name] = TableColumn(name, "category", values)
        else:
            made[name] = TableColumn(name, "number", values)
    return made


def _of_text(name: str, values: NDArray[Any]) -> list[TableColumn]:
    texts = _texts(values)
    hole = holes(texts)
    lengths = np.where(hole, np.nan, np.char.str_len(texts).astype(np.float64))
    words = np.where(hole, np.nan, [float(len(_words(text))) for text in texts.tolist()])
    return [
        TableColumn(f"{name}/characters", "number", lengths),
        TableColumn(f"{name}/words", "number", words),
        TableColumn(f"{name}/vocabulary", "words", np.where(hole, "", texts)),
    ]


def _words(text: str) -> list[str]:
    """The words of a text: runs of letters, digits and apostrophes, in lower case."""
    return "".join(sign if sign.isalnum() or sign == "'" else " " for sign in text.lower()).split()


def _texts(values: NDArray[Any]) -> NDArray[np.str_]:
    if values.dtype.kind == "U":
        return values
    if values.dtype.kind == "f":  # 1.0 is written as 1, as a file with a missing value among whole numbers has it
        return np.array(["" if v != v else str(int(v)) if v == int(v) else str(v) for v in values.tolist()], np.str_)
    return values.astype(np.str_)


def seconds(values: NDArray[Any]) -> NDArray[np.float64]:
    """Moments as seconds since 1970 in UTC, NaN where there is none."""
    found = values.astype("datetime64[us]").astype(np.int64) / 1e6
    return np.where(np.isnat(values), np.nan, found)


def moments_in_time(
    values: NDArray[Any], column: str, where: str = "statistics", offset: int = 0
) -> NDArray[np.datetime64]:
    """A column of moments: ``datetime64``, or texts such as ``2026-11-26``, ``2026-11-26T14:30`` or ``2026-11-26T14:30:00Z``.

    Args:
        values: the column, ``(rows,)``.
        column: its name.
        where: the place, for errors.
        offset: added to row numbers in errors.

    Raises:
        DataError: it holds anything else; names the first value.
    """
    if values.dtype.kind == "M":
        return values
    wrong = ""
    if values.dtype.kind == "U":
        hole = holes(values)
        plain = np.array([_ZONE.sub("", text) for text in np.where(hole, "NaT", values).tolist()], dtype=np.str_)
        try:
            return plain.astype("datetime64[s]")
        except ValueError:
            row = next(k for k, text in enumerate(plain.tolist()) if not _is_moment(text))
            wrong = f": {private(values[row])} at row {row + offset} is none"
    raise DataError(
        f"column {column!r} does not hold moments{wrong}",
        where=where,
        remedy="write them as 2026-11-26 or 2026-11-26T14:30",
    )


_ZONE = re.compile(r"(Z|[+-]00:?00)$")


def _is_moment(text: str) -> bool:
    try:
        np.datetime64(text)
    except ValueError:
        return False
    return True
