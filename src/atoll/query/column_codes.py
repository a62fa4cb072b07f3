"""Columns as words of 64 bits that parties can compare, and back.

==========  ===========================================================================  ==============================
kind        columns                                                                      words
==========  ===========================================================================  ==============================
``whole``   integers, decimals up to 18 digits, truth values, dates, timestamps          1: the number, with the sign turned
``real``    doubles                                                                      1: IEEE 754, turned so that words ascend as numbers do
``text``    text, in UTF-8                                                               8 bytes a word, filled up with zeros
==========  ===========================================================================  ==============================

Words ascend as DuckDB orders the values: text by its bytes, NaN above infinity. A missing value has a bit beside it, and zeros as words.
"""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import CompositionError, DataError
from atoll.core.extras import need

__all__ = ["ColumnCode", "code_of"]

_TOP = np.uint64(1 << 63)
_WHOLE = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "HUGEINT", "UHUGEINT")  # fmt: skip
_EPOCH = datetime.date(1970, 1, 1)
LONGEST = 64
"""Most words of a text: 512 bytes."""
Words = NDArray[np.uint64]


@dataclass(frozen=True)
class ColumnCode:
    """How the values of one column become words.

    Attributes:
        kind: ``"whole"``, ``"real"`` or ``"text"``.
        type: DuckDB's type of the column.
        scale: digits after the point, of decimals.
    """

    kind: str
    type: str
    scale: int = 0

    def local(self, text: str) -> str:
        """Local SQL that gives an expression as it is coded: as BIGINT, DOUBLE or VARCHAR."""
        if self.kind == "real":
            return f"CAST({text} AS DOUBLE)"
        if self.kind == "text":
            return f"CAST({text} AS VARCHAR)"
        if self.type == "DATE":
            return f"CAST(date_diff('day', DATE '1970-01-01', {text}) AS BIGINT)"
        if self.type.startswith("TIMESTAMP"):
            return f"epoch_us(CAST({text} AS TIMESTAMP))"
        if self.scale:  # 18 digits times the factor leave the decimals of their own width
            return f"CAST(CAST(({text}) AS DECIMAL(38,{self.scale})) * {10**self.scale} AS BIGINT)"
        return f"CAST(({text}) AS BIGINT)"

    def encode(self, values: Any, words: int = 1) -> tuple[list[Words], NDArray[np.uint8]]:
        """The words of a column of Arrow, and 1 where a value is there.

        Args:
            values: what `local` gives.
            words: words of a text.

        Raises:
            DataError: a text holds a zero byte, or is longer.
        """
        there = np.asarray(values.is_valid().to_numpy(zero_copy_only=False)).astype(np.uint8)
        if self.kind == "text":
            return _words_of_text(values.fill_null("").to_pylist(), words), there
        if self.kind == "real":
            found = values.fill_null(0.0).to_numpy().astype(np.float64)
            return [_words_of_reals(found) * there], there
        found = values.fill_null(0).to_numpy().astype(np.int64)
        return [(found.view(np.uint64) ^ _TOP) * there], there

    def encode_constant(self, known: Any, words: int = 1) -> list[np.uint64]:
        """The words of one value of text or a real; of NULL, zeros.

        Args:
            known: the value, or ``None``.
            words: words of a text at least.
        """
        pyarrow = need("pyarrow", "sql", "constants of a plan")
        kind = {"text": pyarrow.string(), "real": pyarrow.float64()}[self.kind]
        count = max(words, -(-len(str(known or "").encode()) // 8)) if self.kind == "text" else 1
        found, _ = self.encode(pyarrow.chunked_array([[known]], kind), count)
        return [word[0] for word in found]

    def decode(self, words: list[Words], there: Any) -> list[Any]:
        """The values of words, as text that DuckDB casts to the type; ``None`` where none is there.

        Args:
            words: the words.
            there: 1 where a value is.
        """
        here = np.flatnonzero(there)
        found = iter(self._decode([one[here] for one in words]))
        return [next(found) if one else None for one in np.asarray(there)]

    def _decode(self, words: list[Words]) -> list[Any]:
        if self.kind == "text":
            raw = np.stack(words, axis=1).astype(">u8").tobytes()
            size = 8 * len(words)
            return [raw[k : k + size].rstrip(b"\0").decode("utf-8", "replace") for k in range(0, len(raw), size)]
        if self.kind == "real":
            return [repr(float(value)) for value in _reals_of_words(words[0])]
        return [self.shown(int(value)) for value in (words[0] ^ _TOP).view(np.int64)]

    def shown(self, number: int) -> str:
        """A coded number as text."""
        if self.type == "BOOLEAN":
            return "true" if number else "false"
        if self.type == "DATE":
            return (_EPOCH + datetime.timedelta(days=number)).isoformat()
        if self.type.startswith("TIMESTAMP"):
            return (datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=number)).isoformat(sep=" ")
        if self.scale:
            digits = f"{abs(number):0{self.scale + 1}d}"
            return f"{'-' if number < 0 else ''}{digits[: -self.scale]}.{digits[-self.scale :]}"
        return str(number)

    def value(self, number: int) -> Fraction:
        """A sum of coded numbers as the number it stands for."""
        return Fraction(number, 10**self.scale)


def code_of(kind: str, what: str) -> ColumnCode:
    """The code of a column of a type.

    Args:
        kind: DuckDB's name of the type.
        what: the expression, for errors.

    Raises:
        CompositionError: parties cannot compute with such values.
    """
    if kind in _WHOLE or kind in ("BOOLEAN", "DATE") or kind in ("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS"):
        return ColumnCode("whole", kind)
    if kind in ("DOUBLE", "FLOAT"):
        return ColumnCode("real", kind)
    if kind.startswith("DECIMAL("):
        digits, scale = (int(part) for part in kind[len("DECIMAL(") : -1].split(","))
        if digits <= 18:
            return ColumnCode("whole", kind, scale)
        raise CompositionError(f"{what} is of type {kind}, and parties compute with 18 digits", where="shares", remedy=f"CAST({what} AS DECIMAL(18,{min(scale, 18)}))")  # fmt: skip
    if kind == "VARCHAR":
        return ColumnCode("text", kind)
    raise CompositionError(f"{what} is of type {kind}, with which parties cannot compute", where="shares", remedy="cast it to a number, a date or text")  # fmt: skip


def _words_of_text(values: list[str], words: int) -> list[Words]:
    raw = [value.encode("utf-8") for value in values]
    longest = max(map(len, raw), default=0)
    if longest > 8 * words:
        raise DataError(f"a text of {longest} bytes where {8 * words} are agreed on", where="shares", remedy="ask again: the data have changed meanwhile")  # fmt: skip
    if any(b"\0" in one for one in raw):
        raise DataError("a text holds a zero byte", where="shares", remedy="leave such rows out: WHERE instr(x, chr(0)) = 0")  # fmt: skip
    made = np.array(raw, dtype=f"S{8 * words}").view(">u8").reshape(len(raw), words).astype(np.uint64)
    return [np.ascontiguousarray(made[:, k]) for k in range(words)]


def _words_of_reals(values: NDArray[np.float64]) -> Words:
    plain = np.where(np.isnan(values), math.nan, values) + 0.0  # one NaN, and one zero
    bits = plain.view(np.uint64)
    return np.where(bits >> np.uint64(63) == 1, ~bits, bits | _TOP)


def _reals_of_words(words: Words) -> NDArray[np.float64]:
    bits = np.where(words >> np.uint64(63) == 1, words ^ _TOP, ~words)
    return bits.view(np.float64)
