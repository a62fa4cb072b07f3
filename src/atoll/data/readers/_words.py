"""Text that is not a category: numbers in another notation, and dates. Their codes would look like numbers but mean nothing."""

from __future__ import annotations

import codecs
import re

import numpy as np

from atoll.core.errors import DataError
from atoll.core.redaction import private

from .._checks import Array
from ..codings import require_one_spelling

__all__ = ["first_word", "is_number", "likely_encoding", "mostly_numbers", "require_categories"]

_COMMA = re.compile(r"[+-]?[\d.]*,\d+(e[+-]?\d+)?|[+-]?\d+(e[+-]?\d+)?", re.IGNORECASE)
_DATE = re.compile(
    r"\d{4}[-/.]\d{1,2}([-/.]\d{1,2})?([T ].*)?|\d{1,2}[-/.]\d{1,2}[-/.](\d{2}|\d{4})( .*)?|\d{1,2}:\d{2}(:\d{2}.*)?"
)


def require_categories(values: Array, column: str, where: str, offset: int) -> None:
    """Refuse to code a text column whose values are numbers or dates.

    Args:
        values: text, ``(rows,)``.
        column: the column's name.
        where: the place, for errors.
        offset: added to row numbers in errors.

    Raises:
        DataError: at least half of the distinct values are numbers, or all are numbers with a decimal comma, or dates; or one value is written in two ways.
    """
    found, first = np.unique(values, return_index=True)
    words = [str(value) for value in found]
    unless = f"or list its values if they are names: categories={{{column!r}: [...]}}"
    if any("," in word for word in words) and all(map(_COMMA.fullmatch, words)):
        raise DataError(
            f"column {column!r} has numbers with a comma, such as {private(next(w for w in words if ',' in w))}",
            where=where,
            remedy=f"if the comma is the decimal sign set decimal=',', else remove it; {unless}",
        )
    if all(map(_DATE.fullmatch, words)):
        raise DataError(
            f"column {column!r} has dates or times, such as {private(words[0])}, whose codes would not be amounts",
            where=where,
            remedy=f"turn them into numbers first (days since a day), leave the column out with drop=[{column!r}]; {unless}",
        )
    others = [k for k, word in enumerate(words) if not is_number(word)]
    if others and 2 * len(others) <= len(words):
        row = int(first[others].min())
        raise DataError(
            f"column {column!r} has numbers, but {private(values[row])} at row {row + offset}",
            where=where,
            remedy=f"correct the value, or leave the column out with drop=[{column!r}]; {unless}",
        )
    require_one_spelling(words, column, where)


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
