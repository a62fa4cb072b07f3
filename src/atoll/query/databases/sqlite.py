"""Files of SQLite as sources of a silo: columns are copied, cell by cell, into DuckDB, which runs all SQL.

SQLite decides a value's type cell by cell, and its SQL makes ``//`` and DECIMAL floating-point numbers, so it only hands over columns. The type of a column follows from its
declaration (sqlite.org/datatype3.html, section 3.1) and every cell is held to it. The file is opened with ``mode=ro``; an authorizer lets nothing but reading through,
since even a read-only connection may attach other files. The silo interrupts it when the time is up.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any
from urllib.parse import quote as quote_url

from atoll.core.errors import DataError
from atoll.core.extras import need

from .files import _stamp
from .silo import EMPTY, Schema, SiloSource, connect_duckdb, quote

__all__ = ["SQLiteFile"]

_ALLOWED = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_RECURSIVE})  # fmt: skip
_BATCH = 1 << 16
_PRAGMAS = frozenset({"table_info", "data_version"})


def _authorize(action: int, first: Any, second: Any, *rest: Any) -> int:
    del rest
    if action in _ALLOWED and str(second).lower() != "load_extension":
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_PRAGMA and first in _PRAGMAS:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


class SQLiteFile(SiloSource):
    """A file of SQLite; its tables and views.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reading: sqlite3.Connection | None = None

    def interrupt(self) -> None:
        """Interrupt what reads the file now: a view may never end, also where only its columns are looked at."""
        reading = self._reading
        if reading is not None:
            with contextlib.suppress(sqlite3.ProgrammingError):  # it has just been closed
                reading.interrupt()

    @contextlib.contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        """A connection that only reads.

        Raises:
            DataError: the file cannot be read.
        """
        try:
            made = sqlite3.connect(f"file:{quote_url(str(self._path.resolve()))}?mode=ro", uri=True, isolation_level=None)  # fmt: skip
            made.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.Error as error:
            raise DataError(f"the file cannot be read: {error}", where=str(self._path), remedy="give a file of SQLite") from error  # fmt: skip
        made.set_authorizer(_authorize)
        self._reading = made
        try:
            yield made
        finally:
            self._reading = None
            made.close()

    def stamp(self, table: str) -> Any:
        """When the file was changed, or its write-ahead log."""
        del table
        log = self._path.with_name(self._path.name + "-wal")
        return _stamp(self._path), _stamp(log) if log.exists() else None

    def read_schema(self) -> Schema:
        """The tables and the types of their columns.

        Raises:
            DataError: the file cannot be read.
        """
        with self.opened() as connection:
            return self._schema(connection)

    def _schema(self, connection: sqlite3.Connection) -> Schema:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%' ORDER BY name")]  # fmt: skip
        found: Schema = {}
        for name in names:
            rows = connection.execute(f"PRAGMA table_info({quote(name)})").fetchall()
            found[name] = {column: self._type_of(connection, name, column, declared) for _, column, declared, *_ in rows}  # fmt: skip
        return found

    def _type_of(self, connection: sqlite3.Connection, table: str, column: str, declared: str) -> str:
        kind = type_of_declared(declared)
        if kind:
            return kind
        text = f"SELECT DISTINCT typeof({quote(column)}) FROM {quote(table)}"
        kinds = {row[0] for row in connection.execute(text)} - {"null"}
        if not kinds:
            return EMPTY
        if kinds <= {"integer", "real"}:
            return "BIGINT" if kinds == {"integer"} else "DOUBLE"
        return "BLOB" if kinds == {"blob"} else "VARCHAR"

    def connect(self, tables: Sequence[str], memory: int, watch: Callable[[Callable[[], None]], None]) -> Any:
        """A connection of DuckDB with copies of these tables, of one moment.

        Raises:
            DataError: a cell does not have the type of its column.
        """
        arrow = need("pyarrow", "sql", "reading SQLite")
        made = connect_duckdb(memory=memory)
        watch(made.interrupt)
        try:
            with self.opened() as connection:
                connection.execute("BEGIN")
                schema = self._schema(connection)
                for name in tables:
                    types = schema[name]
                    made.execute(f"CREATE TABLE main.{quote(name)} ({', '.join(f'{quote(c)} {_SQL.get(kind, kind)}' for c, kind in types.items())})")  # fmt: skip
                    rows, first = connection.execute(f"SELECT {', '.join(map(quote, types))} FROM {quote(name)}"), 0
                    while batch := rows.fetchmany(_BATCH):  # so that a view without end meets DuckDB's limit of memory
                        self._copy(made, arrow, name, types, list(zip(*batch, strict=True)), first)
                        first += len(batch)
        except sqlite3.Error as error:
            made.close()
            raise DataError(f"the file cannot be read: {type(error).__name__}", where=str(self._path), remedy="give a file of SQLite that nobody replaces meanwhile") from error  # fmt: skip
        except BaseException:
            made.close()
            raise
        return made

    def _copy(self, made: Any, arrow: Any, name: str, types: dict[str, str], columns: Sequence[Sequence[Any]], first: int) -> None:  # fmt: skip
        checked = {}
        for (column, kind), cells in zip(types.items(), columns, strict=True):
            checked[column] = arrow.array(self._checked(cells, kind, f"{name}.{column}", first), _ARROW.get(kind.partition("(")[0], "string"))  # fmt: skip
        made.register("atoll_copied", arrow.table(checked))
        shown = ", ".join(f"CAST({quote(c)} AS {_SQL.get(kind, kind)}) AS {quote(c)}" for c, kind in types.items())
        made.execute(f"INSERT INTO main.{quote(name)} SELECT {shown} FROM atoll_copied")
        made.unregister("atoll_copied")

    def _checked(self, cells: Sequence[Any], kind: str, where: str, first: int) -> list[Any]:
        """The cells as Arrow takes them.

        Raises:
            DataError: a cell has another type; names its row and no value.
        """
        convert = _CONVERT.get(kind.partition("(")[0], _as_text)
        made = []
        for row, cell in enumerate(cells, first):
            try:
                made.append(None if cell is None else convert(cell))
            except (TypeError, ValueError, InvalidOperation):
                raise DataError(f"row {row + 1} of {where} holds a {type(cell).__name__} where the column is {kind}", where=str(self._path), remedy="correct the cell, or declare the column without a type") from None  # fmt: skip
        return made


def type_of_declared(declared: str) -> str:
    """DuckDB's type of a column that SQLite declares so; empty if the cells decide."""
    words = (declared or "").upper()
    decimal = re.fullmatch(r"\s*(?:DECIMAL|NUMERIC)\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)\s*", words)
    if decimal:
        return f"DECIMAL({decimal[1]},{decimal[2] or 0})"
    for kind, names in _DECLARED.items():
        if any(name in words for name in names):
            return kind
    return ""


_DECLARED = {
    "TIMESTAMP": ("DATETIME", "TIMESTAMP"),
    "DATE": ("DATE",),
    "BOOLEAN": ("BOOL",),
    "BIGINT": ("INT",),
    "VARCHAR": ("CHAR", "CLOB", "TEXT"),
    "BLOB": ("BLOB",),
    "DOUBLE": ("REAL", "FLOA", "DOUB"),
}
_ARROW = {"BIGINT": "int64", "DOUBLE": "float64", "BOOLEAN": "bool", "BLOB": "binary"}
_SQL = {EMPTY: "INTEGER"}


def _as_int(cell: Any) -> int:
    if isinstance(cell, bool) or not isinstance(cell, int):
        raise TypeError
    return cell


def _as_float(cell: Any) -> float:
    if not isinstance(cell, int | float):
        raise TypeError
    return float(cell)


def _as_bool(cell: Any) -> bool:
    if cell not in (0, 1):
        raise ValueError
    return bool(cell)


def _as_decimal(cell: Any) -> str:
    if isinstance(cell, bytes):
        raise TypeError
    return str(Decimal(repr(cell) if isinstance(cell, float) else str(cell)))


def _as_text(cell: Any) -> str:
    if not isinstance(cell, str):
        raise TypeError
    return cell


def _as_bytes(cell: Any) -> bytes:
    if not isinstance(cell, bytes):
        raise TypeError
    return cell


_CONVERT = {"BIGINT": _as_int, "DOUBLE": _as_float, "BOOLEAN": _as_bool, "DECIMAL": _as_decimal, "BLOB": _as_bytes}
