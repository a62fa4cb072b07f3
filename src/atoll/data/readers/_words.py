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
    "hold_dates",
    "hold_moments",
    "is_number",
    "likely_encoding",
    "mostly_numbers",
    "read_truths",
    "require_categories",
    "require_no_moments",
    "require_one_notation",
    "require_plain_numbers",
]

_COMMA = re.compile(r"[+-]?[\d.]*,\d+(e[+-]?\d+)?|[+-]?\d+(e[+-]?\d+)?", re.IGNORECASE)
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?|[+-]?\d+(\.\d+)?")
_POINTS = re.compile(r"[+-]?\d{1,3}(\.\d{3})+(,\d+)?|[+-]?\d+(,\d+)?")
_SHARE = re.compile(r"[+-]?\d+([.,]\d+)?\s*%|[+-]?\d+([.,]\d+)?")
_BETWEEN = " \u00a0\u2009\u202f'\u2019_"
"""Signs between thousands beside points and commas: blanks of four widths, apostrophes, and the underline of programs."""
_GROUPS = re.compile(rf"[+-]?\d{{1,3}}([{_BETWEEN}]\d{{3}})+([.,]\d+)?|[+-]?\d+([.,]\d+)?")
_AMOUNT = rf"[+-]?\d[\d.,{_BETWEEN}]*"
_MONEY = "[€$£¥]|eur|usd|gbp|chf|sek|nok|dkk|jpy"
_LONG_UNITS = "kg|mg|[µμu]g|ng|pg|ml|dl|[µμu]l|[mnµμup]?mol|mm|cm|km|nm|yrs?|years?|months?|weeks?|days?|hrs?|hours?|mins?|secs?|bpm|mmhg|k?pa|iu|meq|lbs?|oz|°[cf]?|jahre?|monate?|wochen?|tage?|stunden?"
_SHORT_UNITS = "[glmdhsufck]|ft|in"  # behind a blank, since 2a, 3c and 60m may be codes
_UNIT = rf"({_LONG_UNITS}|{_SHORT_UNITS})[²2]?"
_MEASURED = re.compile(
    rf"({_MONEY})\s*{_AMOUNT}|{_AMOUNT}\s*({_MONEY})|{_AMOUNT}(\s*({_LONG_UNITS})|\s+({_SHORT_UNITS}))[²2]?(/{_UNIT})*|{_AMOUNT}",
    re.IGNORECASE,
)
_BARE = re.compile(_AMOUNT)
_DATE = re.compile(
    r"\d{4}[-/.]\d{1,2}([-/.]\d{1,2})?([T ].*)?|\d{1,2}[-/.]\d{1,2}[-/.](\d{2}|\d{4})( .*)?|\d{1,2}:\d{2}(:\d{2}.*)?"
)
_MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]00:?00)?)?")


def require_categories(values: Array, column: str, where: str, offset: int, remedy: str = "") -> None:
    """Refuse to code a text column whose values are numbers or dates.

    Args:
        values: text, ``(rows,)``.
        column: the column's name.
        where: the place, for errors.
        offset: added to row numbers in errors.
        remedy: how to leave the column out, where that is not ``drop=``.

    Raises:
        DataError: at least half of the distinct values are numbers, or all are numbers in another notation, codes such as 01067, or dates; or one value is written in two ways.
    """
    require_plain_numbers(values, column, where, offset)
    _require_no_codes(values, column, where, offset)
    require_no_moments(values, column, where, remedy)
    require_one_notation(values, column, where, offset, remedy or f"or leave the column out with drop=[{column!r}]")
    require_one_spelling(np.unique(values).tolist(), column, where)


def _require_no_codes(values: Array, column: str, where: str, offset: int) -> None:
    """Refuse whole numbers some of which begin with zeros: they may be codes, or amounts of one width, which nobody can see.

    Raises:
        DataError: names the first that does.
    """
    words = values.tolist()
    row = next((k for k, word in enumerate(words) if len(word) > 1 and word[0] == "0"), None)
    if row is not None and all(map(str.isdecimal, words)):
        raise DataError(
            f"column {column!r} has whole numbers that begin with 0, such as {private(words[row])} at row {row + offset}: codes, or amounts",
            where=where,
            remedy=f"if they are amounts write them without these zeros; {_unless(column)}",
        )


def require_one_notation(values: Array, column: str, where: str, offset: int, remedy: str) -> None:
    """Refuse a text column at least half of whose distinct values are numbers, or dates: the others are typing errors, not categories.

    Args:
        values: text, ``(rows,)``.
        column: the column's name.
        where: the place, for errors.
        offset: added to row numbers in errors.
        remedy: how to leave the column out.

    Raises:
        DataError: names the first value that is none.
    """
    found, first = np.unique(values, return_index=True)
    words = [str(value) for value in found]
    for kind, fits in (("numbers", is_number), ("dates", _MOMENT.fullmatch)):
        others = [k for k, word in enumerate(words) if not fits(word)]
        if others and 2 * len(others) <= len(words):
            row = int(first[others].min())
            raise DataError(
                f"column {column!r} has {kind}, but {private(values[row])} at row {row + offset}",
                where=where,
                remedy=f"correct the value, or leave the row out if it is one of totals or units; {remedy}; {_unless(column)}",
            )


def _unless(column: str) -> str:
    return f"or list its values if they are names: categories={{{column!r}: [...]}}"


def require_plain_numbers(values: Array, column: str, where: str, offset: int) -> None:
    """Refuse a text column all of whose values are numbers in another notation: with a decimal comma, with signs between thousands, with a percent sign, a currency or a unit.

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
        decimal = "" if points else "; if the comma is the decimal sign write 1.5 for 1,5, or set decimal=','"
        raise refuse("a comma", ",", f"if commas separate thousands, write 1000 for 1,000{decimal}")
    if commas and all(map(_COMMA.fullmatch, words)):
        raise refuse(
            "a comma", ",", "if the comma is the decimal sign write 1.5 for 1,5, or set decimal=','; else remove it"
        )
    if any("%" in word for word in words) and all(map(_SHARE.fullmatch, words)):
        raise refuse("a percent sign", "%", "write them as plain numbers")
    sign = next((sign for sign in _BETWEEN if any(sign in word for word in words)), "")
    if sign and all(map(_GROUPS.fullmatch, words)):
        name = {"_": "an underline", "'": "an apostrophe", "\u2019": "an apostrophe"}.get(sign, "a blank")
        raise refuse(f"{name} between thousands", sign, "write them as plain numbers, 1200 for 1 200")
    bare = next((value for value in values.tolist() if not _BARE.fullmatch(value)), "")
    if bare and all(map(_MEASURED.fullmatch, words)):
        raise refuse(
            "a unit or a currency", bare, "write them as plain numbers, 60 for 60 kg, in one unit at all sites"
        )


def hold_moments(values: Array) -> bool:
    """Whether a column holds moments: of NumPy's kind, or texts such as ``2026-11-26`` or ``2026-11-26 14:30``, empty where one is missing."""
    if values.dtype.kind != "U" or values.ndim > 1:
        return values.dtype.kind == "M"
    words = [str(value) for value in np.unique(values)]
    full = [word for word in words if word not in MISSING]
    return bool(full) and all(map(_MOMENT.fullmatch, full))


def hold_dates(values: Array) -> bool:
    """Whether all values of a text column are dates, in any notation or several; times of day are none."""
    return all(len(word) > 7 and _DATE.fullmatch(word) for word in np.unique(values).tolist())


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


_TRUTHS = {"false": 0.0, "true": 1.0}


def read_truths(values: Array) -> Array | None:
    """Return a text column of the words true and false, in any case, as 1 and 0, NaN where one is missing; ``None`` if it holds anything else, or nothing.

    Files have truth values so, and Parquet and frames as a type of their own: one coding for both.
    """
    if values.dtype.kind != "U" or values.ndim != 1:
        return None
    words, codes = np.unique(values, return_inverse=True)
    known = [np.nan if word in MISSING else _TRUTHS.get(word.strip().lower()) for word in words.tolist()]
    if any(one is None for one in known) or not any(one == one for one in known):
        return None
    return np.array(known, dtype=np.float64)[codes.reshape(-1)]


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
    """Whether a word is a number; ``1_200`` is one in programs alone."""
    try:
        float(word)
    except ValueError:
        return False
    return "_" not in word
