"""Text that is not a category: numbers in another notation, and dates. Their codes would look like numbers but mean nothing."""

from __future__ import annotations

import codecs
import re

import numpy as np

from atoll.core.errors import DataError
from atoll.core.redaction import private

from .._checks import Array
from ..codings import require_one_spelling

MISSING = ("", "NA", "N/A", "n/a", "#N/A", "#NA", "<NA>", "NaN", "nan", "null", "NULL", "None", "?")
"""The words of files that say that a value is missing."""

__all__ = [
    "first_word",
    "hold_moments",
    "is_number",
    "likely_encoding",
    "mostly_numbers",
    "require_categories",
    "require_no_moments",
    "require_plain_numbers",
]

_COMMA = re.compile(r"[+-]?[\d.]*,\d+(e[+-]?\d+)?|[+-]?\d+(e[+-]?\d+)?", re.IGNORECASE)
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?|[+-]?\d+(\.\d+)?")
_POINTS = re.compile(r"[+-]?\d{1,3}(\.\d{3})+(,\d+)?|[+-]?\d+(,\d+)?")
_SHARE = re.compile(r"[+-]?\d+([.,]\d+)?\s*%|[+-]?\d+([.,]\d+)?")
_DATE = re.compile(
    r"\d{4}[-/.]\d{1,2}([-/.]\d{1,2})?([T ].*)?|\d{1,2}[-/.]\d{1,2}[-/.](\d{2}|\d{4})( .*)?|\d{1,2}:\d{2}(:\d{2}.*)?"
)
_MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?)?")


def require_categories(values: Array, column: str, where: str, offset: int, remedy: str = "") -> None:
    """Refuse to code a text column whose values are numbers or dates.

    Args:
        values: text, ``(rows,)``.
        column: the column's name.
        where: the place, for errors.
        offset: added to row numbers in errors.
        remedy: how to leave the column out, where that is not ``drop=``.

    Raises:
        DataError: at least half of the distinct values are numbers, or all are numbers in another notation, or dates; or one value is written in two ways.
    """
    require_plain_numbers(values, column, where, offset)
    require_no_moments(values, column, where, remedy)
    found, first = np.unique(values, return_index=True)
    words = [str(value) for value in found]
    others = [k for k, word in enumerate(words) if not is_number(word)]
    if others and 2 * len(others) <= len(words):
        row = int(first[others].min())
        raise DataError(
            f"column {column!r} has numbers, but {private(values[row])} at row {row + offset}",
            where=where,
            remedy=f"correct the value, or leave the row out if it is one of totals or units; {remedy or f'or leave the column out with drop=[{column!r}]'}; {_unless(column)}",
        )
    require_one_spelling(words, column, where)


def _unless(column: str) -> str:
    return f"or list its values if they are names: categories={{{column!r}: [...]}}"


def require_plain_numbers(values: Array, column: str, where: str, offset: int) -> None:
    """Refuse a text column all of whose values are numbers in another notation: with a decimal comma, with signs between thousands, or with a percent sign.

    Args:
        values: text, ``(rows,)``.
        column: the column's name.
        where: the place, for errors.
        offset: added to row numbers in errors.

    Raises:
        DataError: names the first value that shows it, and what to do.
    """
    words = [str(value) for value in np.unique(values)]

    def refuse(what: str, sign: str, remedy: str) -> DataError:
        row = next(k for k, value in enumerate(values.tolist()) if sign in value)
        return DataError(
            f"column {column!r} has numbers with {what}, such as {private(values[row])} at row {row + offset}",
            where=where,
            remedy=f"{remedy}; {_unless(column)}",
        )

    points, commas = any("." in word for word in words), any("," in word for word in words)
    if points and commas and all(map(_POINTS.fullmatch, words)):
        raise refuse("a point between thousands", ".", "write them without points, 1000 for 1.000, and set decimal=','")
    if points and not commas and (all(map(_POINTS.fullmatch, words)) or all(map(is_number, words))):
        raise refuse("a point, as text", ".", "if points separate thousands, write 1000 for 1.000; if they are decimal signs, set decimal='.' or convert the text to numbers")  # fmt: skip
    if commas and all(map(_THOUSANDS.fullmatch, words)):
        decimal = "" if points else "; if the comma is the decimal sign set decimal=','"
        raise refuse("a comma", ",", f"if commas separate thousands, write 1000 for 1,000{decimal}")
    if commas and all(map(_COMMA.fullmatch, words)):
        raise refuse("a comma", ",", "if the comma is the decimal sign set decimal=',', else remove it")
    if any("%" in word for word in words) and all(map(_SHARE.fullmatch, words)):
        raise refuse("a percent sign", "%", "write them as plain numbers")


def hold_moments(values: Array) -> bool:
    """Whether a column holds moments: of NumPy's kind, or texts such as ``2026-11-26`` or ``2026-11-26 14:30``, empty where one is missing."""
    if values.dtype.kind != "U" or values.ndim > 1:
        return values.dtype.kind == "M"
    words = [str(value) for value in np.unique(values)]
    full = [word for word in words if word not in MISSING]
    return bool(full) and all(map(_MOMENT.fullmatch, full))


def require_no_moments(values: Array, column: str, where: str, remedy: str = "") -> None:
    """Refuse dates and times as a feature, whether text or of NumPy's kind: their codes, and seconds since 1970, are no amounts that one compares.

    Args:
        values: the known values, ``(rows,)``.
        column: the column's name.
        where: the place, for errors.
        remedy: how to leave the column out, where that is not ``drop=``.

    Raises:
        DataError: all values are dates or times.
    """
    words = values.astype(np.str_) if values.dtype.kind == "M" else np.unique(values)
    if values.dtype.kind == "M" or (len(words) and all(_DATE.fullmatch(str(word)) for word in words)):
        raise DataError(
            f"column {column!r} has dates or times, such as {private(words[0])}, whose codes would not be amounts",
            where=where,
            remedy=f"turn them into numbers first (days since a day), {remedy or f'or leave the column out with drop=[{column!r}]'}; {_unless(column)}",
        )


def likely_encoding(error: UnicodeDecodeError) -> str:
    """The likely encoding of a file that could not be read in another one."""
    return "utf-16" if error.object[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "latin-1"


def first_word(values: Array) -> tuple[int, str]:
    """The first row of a text column that is not a number, and its word; the first row if all are numbers."""
    return next(((row, str(word)) for row, word in enumerate(values) if not is_number(word)), (0, str(values[0])))


def mostly_numbers(values: Array) -> bool:
    """Whether at least half of the distinct values are numbers, so that the others are typing errors, not categories."""
    found = np.unique(values)
    return 2 * sum(map(is_number, found)) >= len(found)


def is_number(word: str) -> bool:
    """Whether a word is a number."""
    try:
        float(word)
    except ValueError:
        return False
    return True
