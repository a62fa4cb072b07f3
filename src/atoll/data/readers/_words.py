"""Text that is no category: numbers written otherwise, and dates. Codes of it would look like numbers and mean nothing."""

from __future__ import annotations

import codecs
import re

import numpy as np

from atoll.core.errors import DataError

from .._checks import Array

__all__ = ["first_word", "likely_encoding", "mostly_numbers", "require_categories"]

_COMMA = re.compile(r"[+-]?[\d.]*,\d+(e[+-]?\d+)?|[+-]?\d+(e[+-]?\d+)?", re.IGNORECASE)
_DATE = re.compile(
    r"\d{4}[-/.]\d{1,2}([-/.]\d{1,2})?([T ].*)?|\d{1,2}[-/.]\d{1,2}[-/.](\d{2}|\d{4})( .*)?|\d{1,2}:\d{2}(:\d{2}.*)?"
)


def require_categories(values: Array, column: str, where: str, offset: int) -> None:
    """Refuse a column of text that is to become codes although its values are numbers or dates.

    Args:
        values: text, ``(rows,)``.
        column: its name.
        where: for errors.
        offset: added to row numbers.

    Raises:
        DataError: at least half of the distinct values are numbers, or all are numbers with a decimal comma, or dates.
    """
    found, first = np.unique(values, return_index=True)
    words = [str(value) for value in found]
    unless = f"or, if these are names, list them: categories={{{column!r}: [...]}}"
    if any("," in word for word in words) and all(map(_COMMA.fullmatch, words)):
        raise DataError(
            f"column {column!r} holds numbers with a comma, such as {next(w for w in words if ',' in w)!r}",
            where=where,
            remedy=f"say decimal=',' if it is the decimal sign, and remove it if not; {unless}",
        )
    if all(map(_DATE.fullmatch, words)):
        raise DataError(
            f"column {column!r} holds dates or times, such as {words[0]!r}, and their codes would be no amounts",
            where=where,
            remedy=f"make numbers of them before (days since a day), leave the column out with drop= or keep=, {unless}",
        )
    others = [k for k, word in enumerate(words) if not _is_number(word)]
    if others and 2 * len(others) <= len(words):
        row = int(first[others].min())
        raise DataError(
            f"column {column!r} holds numbers, and {str(values[row])!r} at row {row + offset}",
            where=where,
            remedy=f"correct the value, or leave the column out with drop=; {unless}",
        )


def likely_encoding(error: UnicodeDecodeError) -> str:
    """How a file may be written that is not in the encoding it was read with."""
    return "utf-16" if error.object[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "latin-1"


def first_word(values: Array) -> tuple[int, str]:
    """The first row of a column of text that is no number, and its word; where all are numbers, the first row."""
    return next(((row, str(word)) for row, word in enumerate(values) if not _is_number(word)), (0, str(values[0])))


def mostly_numbers(values: Array) -> bool:
    """Whether at least half of the distinct values are numbers: the others are slips, and no categories."""
    found = np.unique(values)
    return 2 * sum(map(_is_number, found)) >= len(found)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
