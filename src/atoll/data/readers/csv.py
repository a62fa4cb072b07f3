"""Comma-separated values, with the standard library."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from atoll.core.calls import checked_call
from atoll.core.errors import DataError, nearest
from atoll.core.redaction import private

from .._checks import Array
from ..dataset import Dataset
from ..missing import Missing
from ._files import content
from ._words import MISSING, likely_encoding
from .table import from_table

__all__ = ["read_csv", "table_of_csv"]


@checked_call
def read_csv(
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
    text: Sequence[str] = (),
    delimiter: str = ",",
    decimal: str = ".",
    encoding: str = "utf-8",
    name: str | None = None,
    citation: str = "",
) -> Dataset:
    """Read a CSV file with a header line, plain or gzip-compressed.

    A column is numeric if all its values except missing ones are numbers; otherwise it is text and is coded, see
    `from_table` for the arguments and the codes. Missing values are: empty, NA, N/A, #N/A, NaN, null, None and "?". Rows whose target is missing are rows
    without a label; missing features raise an error, unless you declare them.

    Args:
        path: the file.
        target: target column, or columns.
        task: see `About`; inferred from the target when omitted: fractions are a regression, whole numbers and
            text a classification.
        features: names of the feature columns.
        keep: columns to keep besides features and target.
        drop: columns to leave out.
        categories: maps a column to its values in code order.
        missing: values of the target that mean "no label", such as -1, besides the words above.
        missing_features: whether features may be missing; they become NaN, which trees can use.
        text: columns that stay text, such as keys: "007" is not the number 7 there.
        delimiter: the separator of the values.
        decimal: the decimal sign, "." or ",".
        encoding: the encoding of the text.
        name: short name; the file's by default.
        citation: the source of the data.

    Raises:
        DataError: there is no header, lines differ in length, columns are unknown, features are missing, text is not a
            category, or the target may be classes or amounts; names the line.
    """
    table = table_of_csv(path, text=text, delimiter=delimiter, decimal=decimal, encoding=encoding)
    label = name or Path(path).name.split(".")[0]
    return from_table(
        table,
        target=target,
        task=task,
        features=features,
        keep=keep,
        drop=drop,
        categories=categories,
        missing=missing,
        missing_features=missing_features,
        name=label,
        citation=citation,
        row_offset=2,
    )


def table_of_csv(
    path: str | Path,
    *,
    text: Sequence[str] | Literal["all"] = (),
    holes: Sequence[str] = MISSING,
    delimiter: str = ",",
    decimal: str = ".",
    encoding: str = "utf-8",
) -> dict[str, Array]:
    """Return the columns of a CSV file: numbers if every value is one, else text.

    Args:
        path: the file.
        text: columns that stay text even if all their values are numbers, with "" where a value is missing; or "all".
        holes: the words that say that a value of these columns is missing.
        delimiter: the separator of the values.
        decimal: the decimal sign.
        encoding: the encoding of the file.

    Raises:
        DataError: the file has no such column, or is not a table.
    """
    where = Path(path).name
    if decimal not in (".", ","):
        raise DataError(f"decimal={decimal!r}", where=where, remedy="use '.' or ','")
    raw = content(path)
    _require_text(raw, where)
    try:
        written = raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise DataError(
            f"not {encoding} text: {private(error)}",
            where=where,
            remedy=f"write the file as UTF-8, or set its encoding, perhaps encoding={likely_encoding(error)!r}",
        ) from error
    if not written.strip("\ufeff \t\r\n"):
        raise DataError(
            "the file is empty", where=where, remedy="remove it, or fill it: a line of column names, then rows"
        )
    written = written.removeprefix("\ufeff")
    said = _EXCEL_SEPARATOR.match(written)  # of Excel, which reads the separator of a file there
    if said is not None:
        delimiter, written = (said[1] if delimiter == "," else delimiter), "\n" + written[said.end() :]
    lines = csv.reader(io.StringIO(written, newline=""), delimiter=delimiter)
    try:
        header = _header(next(filter(None, lines), []), where)
        body = _body(lines, len(header), where)
    except csv.Error as error:
        raise DataError(f"line {lines.line_num}: {private(error)}", where=where, remedy="correct the line") from error
    header, body = _without_empty_end(header, body)
    twice = next((column for column in header if header.count(column) > 1), None)
    if not header or twice is not None:
        what = f"two columns are called {private(twice)}" if header else "there is no header"
        raise DataError(what, where=where, remedy="begin with a line of column names, each with a name of its own")
    if not body:
        raise DataError("there are no rows below the header", where=where, remedy="give at least one row")
    text = header if text == "all" else text
    unknown = next((column for column in text if column not in header), None)
    if unknown is not None:
        raise DataError(
            f"there is no column {unknown!r}.{nearest(unknown, header)}", where=where, remedy=f"choose from {header}"
        )
    return {
        column: _words(values, holes) if column in text else _typed(values, decimal)
        for column, values in zip(header, zip(*body, strict=True), strict=True)
    }


def _header(line: Sequence[str], where: str) -> list[str]:
    other = next((sign for sign in ";\t|," if len(line) == 1 and sign in line[0]), None)
    if other is not None:
        raise DataError(
            f"the header is one column, {private(line[0])}",
            where=where,
            remedy=f"write the values with commas between them, or set delimiter={other!r}",
        )
    return [column.strip() for column in line]


def _body(lines: Any, width: int, where: str) -> list[list[str]]:
    body = []
    for line in lines:
        if not any(map(str.strip, line)):  # an empty line, also as Excel writes one: ,,,,
            continue
        if len(line) != width:
            raise DataError(
                f"line {lines.line_num} has {len(line)} values, but the header has {width}",
                where=where,
                remedy="correct the line, remove lines above the header if there are any, or set delimiter=",
            )
        body.append(line)
    return body


_CODE = re.compile(r"0\d")
_EXCEL_SEPARATOR = re.compile(r"sep=(.)\r?\n", re.IGNORECASE)
_BINARY = {
    b"PK\x03\x04": ("an Excel workbook or another archive", "save its sheet as CSV, or as Parquet"),
    b"\xd0\xcf\x11\xe0": ("an Excel workbook", "save its sheet as CSV, or as Parquet"),
    b"PAR1": ("a Parquet file", "give it a name that ends in .parquet"),
}


def _require_text(raw: bytes, where: str) -> None:
    for begins, (what, remedy) in _BINARY.items():
        if raw.startswith(begins):
            raise DataError(f"{what}, not a CSV file", where=where, remedy=remedy)


def _without_empty_end(header: list[str], body: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """The table without columns at its end that have neither a name nor a value: a separator stands behind each line."""
    width = len(header)
    while width > 1 and not header[width - 1] and not any(line[width - 1].strip() for line in body):
        width -= 1
    return (header, body) if width == len(header) else (header[:width], [line[:width] for line in body])


def _words(values: Sequence[str], holes: Sequence[str]) -> Array:
    """Return text as it stands, "" where it is missing."""
    text = np.array([v.strip() for v in values], dtype=np.str_)
    return np.where(np.isin(text, holes), "", text)


def _typed(values: Sequence[str], decimal: str) -> Array:
    """Return whole numbers, numbers (NaN where missing) or text."""
    text = np.array([v.strip() for v in values], dtype=np.str_)
    signs = text if decimal == "." else np.char.replace(text, decimal, ".")
    if (np.char.find(text, "_") >= 0).any():  # Python reads 1_200 as 1200, and nobody else does
        return text
    if any(map(_CODE.match, text.tolist())) and all(map(str.isdecimal, text[~np.isin(text, MISSING)].tolist())):
        return text  # 01067 is a code, such as that of a post office, and another one than 1067
    try:
        return signs.astype(np.int64)
    except (ValueError, OverflowError):
        pass
    holes = np.isin(text, MISSING)
    if holes.all():
        return text
    try:
        made = np.where(holes, "nan", signs).astype(np.float64)
    except ValueError:
        return text
    # With a decimal comma, a point stands between thousands: 1.000 is not 1. What nobody can read stays text, which is refused where it is used.
    return text if decimal == "," and (np.char.find(text, ".") >= 0).any() else made
