"""Keys as text: which rows of two tables are the same, and in which order both sides put them."""

from __future__ import annotations

import hashlib
import re
import unicodedata
import warnings
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError, DataError
from atoll.core.redaction import private
from atoll.core.requests.cohort import Community

__all__ = ["RowKeys", "name_columns", "name_rows_without_key", "normalise_key", "offset_of", "order_keys"]

Reading = Literal["text", "number"]

_OUTER = re.compile(r"^[\s\ufeff]+|[\s\ufeff]+$")
_NUMBER = re.compile(r"([+-]?)0*(\d+?)(?:\.(\d*?)0*)?", re.ASCII)
BETWEEN = "\x1f"
"""Between the parts of a composite key: the unit separator of ASCII, which no part may hold."""


def name_columns(table: Any) -> list[str]:
    """The names of a table's columns: a mapping, or what has ``columns``, such as a `DataTable`, which is not iterable."""
    return [str(name) for name in getattr(table, "columns", table)]


def offset_of(table: Any, given: int = 0) -> int:
    """What is added to row numbers in errors: what is ``given``, else what the table knows: 2 for the lines of a CSV file, whose first is the header."""
    return given or int(getattr(table, "row_offset", 0))


def normalise_key(value: Any) -> str:
    """The text of one key: without outer blanks and byte order marks, in the normal form C of Unicode; "" for null.

    A whole number is written without a point, so that 7, 7.0, "7" and " 7" are one key, while "007" is another one.

    Raises:
        DataError: the text cannot be written as UTF-8.
    """
    if value is None or (isinstance(value, float | np.floating) and np.isnan(value)):
        return ""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        value = int(value)
    try:
        text = value.decode("utf-8") if isinstance(value, bytes) else str(value)
        text = unicodedata.normalize("NFC", _OUTER.sub("", text))
        text.encode("utf-8")
    except UnicodeError as error:
        raise DataError(f"the key {private(value)} is not UTF-8", where="keys", remedy="correct the value") from error
    return text


def name_rows_without_key(population: Any, columns: Sequence[str]) -> list[str]:
    """Say how many rows of which party have no key, where the tables are at hand; between organisations each site's own log says it, and nobody else learns it.

    Args:
        population: the parties, with a table, a frame, a `Dataset` or a dict of columns each.
        columns: of the key.
    """
    if not getattr(population, "separate", isinstance(population, Community)):
        return []
    told = []
    for place, party in enumerate(population.names):
        table = population.shard(place)
        table = table.dataset() if hasattr(table, "dataset") else table
        if not all(column in name_columns(table) for column in columns):
            continue  # a helper's
        parts = [np.asarray(table[column]).tolist() for column in columns]
        lost = sum(not all(map(normalise_key, row)) for row in zip(*parts, strict=True))
        told += _say_without_key(f" of {str(party)!r}", lost, len(parts[0]), columns)
    return told


def _say_without_key(whose: str, lost: int, rows: int, columns: Sequence[str]) -> list[str]:
    if not lost:
        return []
    of = " and ".join(map(repr, columns))
    return [f"{lost} of {rows} rows{whose} {'has' if lost == 1 else 'have'} no key in {of}: they match no row of another party"]  # fmt: skip


def order_keys(keys: Sequence[str], seed: int = 0) -> NDArray[np.uint64]:
    """``u`` of each key: the big-endian number of BLAKE2b with 8 bytes of ``"seed:key"`` in UTF-8.

    All sides sort shared rows by it, so nobody's file order shows, and ``u / 2^64`` splits rows alike everywhere.
    """
    digests = (hashlib.blake2b(f"{seed}:{key}".encode(), digest_size=8).digest() for key in keys)
    return np.frombuffer(b"".join(digests), dtype=">u8").astype(np.uint64)


_READ: OrderedDict[bytes, RowKeys] = OrderedDict()
"""The keys of large tables that were read last, by their content: a second alignment of a job reads a million keys in the time of a digest."""
_MOST_READ = 2
_LARGE = 20_000
"""Rows from which keys are worth keeping."""


def _digest_of(columns: Sequence[Any], settings: Any) -> bytes | None:
    """A digest of the values themselves and of how they are read; ``None`` for small tables. Values that may have changed in place are looked at each time."""
    if len(columns[0]) < _LARGE:
        return None
    made = hashlib.blake2b(repr(settings).encode(), digest_size=32)
    for values in columns:
        if isinstance(values, np.ndarray) and values.dtype.kind != "O":
            made.update(repr((values.dtype.str, values.shape)).encode())
            made.update(np.ascontiguousarray(values).view(np.uint8).data)
        else:
            made.update(repr(list(values)).encode("utf-8", "surrogatepass"))
    return made.digest()


@dataclass(frozen=True)
class RowKeys:
    """The distinct keys of one party, in the order of u.

    Attributes:
        names: the keys, ``(keys,)``.
        places: the first row of each.
        rows: for each row of the table, the place of its key in ``names``; -1 for null.
        seed: the seed of u.
        u: u of each, ascending.
        row_offset: added to row numbers in errors.
    """

    names: tuple[str, ...] = field(repr=False)
    places: NDArray[np.int64] = field(repr=False)
    rows: NDArray[np.int64] = field(repr=False)
    seed: int = 0
    u: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, dtype=np.uint64), repr=False)
    row_offset: int = 0

    @classmethod
    def of(
        cls,
        table: Mapping[str, Any],
        columns: str | Sequence[str],
        *,
        seed: int = 0,
        key: Reading | None = None,
        where: str = "keys",
        row_offset: int = 0,
    ) -> RowKeys:
        """Read the keys of a table.

        Args:
            table: maps a column to its values.
            columns: the column of the keys, or several, whose values together are the key. A row with a null in one has no key.
            seed: the seed of the order.
            key: how two texts of one number in a column, such as "7" and "007", count: "text" as two keys, "number" as one.
            where: the table, for errors.
            row_offset: added to row numbers in errors; by default what the table says, see `offset_of`.

        Raises:
            DataError: a column is unknown, or has two texts of one number and ``key`` does not say what they are.
            ConfigError: ``key`` is unknown, or there is no column.

        Warns:
            UserWarning: two keys differ in capitals alone.
        """
        columns, row_offset = [columns] if isinstance(columns, str) else list(columns), offset_of(table, row_offset)
        if key not in (None, "text", "number") or not columns:
            raise ConfigError(
                f"key={key!r} of columns {columns}", where=where, remedy="name a column, and 'text' or 'number'"
            )
        unknown = [column for column in columns if column not in table]
        if unknown:
            raise DataError(
                f"there is no column {unknown[0]!r}", where=where, remedy=f"choose from {name_columns(table)}"
            )
        about = _digest_of([table[column] for column in columns], (columns, seed, key, row_offset))
        if about is not None and about in _READ:
            _READ.move_to_end(about)
            return _READ[about]
        parts = [_texts(table[column], column, key, where, row_offset) for column in columns]
        found = parts[0] if len(parts) == 1 else [_joined(row, where) for row in zip(*parts, strict=True)]
        first: dict[str, int] = {}
        for row, text in enumerate(found):
            if text:
                first.setdefault(text, row)
        _warn_of_capitals(first, where, row_offset)
        u = order_keys(list(first), seed)
        names = [text for _, text in sorted(zip(u.tolist(), first, strict=True))]
        place = {text: i for i, text in enumerate(names)}
        rows = np.array([place.get(text, -1) for text in found], dtype=np.int64)
        places = np.array([first[text] for text in names], dtype=np.int64)
        made = cls(tuple(names), places, rows, seed, np.sort(u), row_offset)
        if about is not None:
            _READ[about] = made
            while len(_READ) > _MOST_READ:
                _READ.popitem(last=False)
        return made

    def __len__(self) -> int:
        return len(self.names)

    def require_distinct(self, repeats: Literal["first"] | None = None, where: str = "keys") -> None:
        """Refuse keys that stand in several rows, unless the first row of each is to count.

        Raises:
            DataError: a key stands in two rows; names them.
        """
        known = self.rows[self.rows >= 0]
        again = np.flatnonzero(np.bincount(known, minlength=len(self)) > 1)
        if len(again) and repeats != "first":
            rows = (np.flatnonzero(self.rows == again[0])[:2] + self.row_offset).tolist()
            raise DataError(
                f"{len(again)} keys stand in several rows, one in rows {rows[0]} and {rows[1]}: {private(self.names[again[0]])}",
                where=where,
                remedy="leave one row of each key, or take the first with repeats='first'",
            )

    def name_lost(self, columns: Sequence[str]) -> list[str]:
        """Say how many rows have no key, in a sentence for the party itself."""
        return _say_without_key("", int((self.rows < 0).sum()), len(self.rows), columns)

    def shape(self) -> dict[str, int]:
        """How many keys have which form, with 9 for a digit, A and a for letters: what you look at where nothing is shared."""
        forms = Counter(
            "".join("9" if c.isdigit() else "A" if c.isupper() else "a" if c.isalpha() else c for c in name)
            for name in self.names
        )
        return dict(forms.most_common(5))


def _texts(values: Any, column: str, key: Reading | None, where: str, offset: int) -> list[str]:
    """The texts of one column, by the chosen reading of numbers."""
    texts = [normalise_key(value) for value in (values.tolist() if isinstance(values, np.ndarray) else values)]
    if key == "text":
        return texts
    seen: dict[str, tuple[str, int]] = {}
    numbers = []
    for row, text in enumerate(texts):
        number = _number_of(text)
        numbers.append(text if number is None else number)
        if number is None or key == "number":
            continue
        other, before = seen.setdefault(number, (text, row))
        if other != text:
            raise DataError(
                f"column {column!r} has {private(other)} at row {before + offset} and {private(text)} at row {row + offset}: one number, two texts",
                where=where,
                remedy="say whether keys are text (two keys) or numbers (one key): key='text' or key='number'",
            )
    return numbers if key == "number" else texts


def _number_of(text: str) -> str | None:
    """The shortest text of a plain decimal number, ``None`` for any other text."""
    found = _NUMBER.fullmatch(text)
    if found is None:
        return None
    sign, whole, fraction = found.groups()
    short = whole + (f".{fraction}" if fraction else "")
    return f"-{short}" if sign == "-" and short != "0" else short


def _joined(parts: tuple[str, ...], where: str) -> str:
    if any(BETWEEN in part for part in parts):
        raise DataError(
            "a part of a composite key holds the unit separator U+001F", where=where, remedy="remove it from the values"
        )
    return BETWEEN.join(parts) if all(parts) else ""


def _warn_of_capitals(first: Mapping[str, int], where: str, offset: int) -> None:
    folded: dict[str, str] = {}
    pairs = [(text, other) for text in first if (other := folded.setdefault(text.casefold(), text)) != text]
    if pairs:
        text, other = pairs[0]
        many = "1 key differs" if len(pairs) == 1 else f"{len(pairs)} keys differ"
        warnings.warn(
            f"{where}: {many} from another key in capitals alone, first in rows {first[other] + offset} and {first[text] + offset}; they are different keys",
            UserWarning,
            stacklevel=3,
        )
