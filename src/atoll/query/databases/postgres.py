"""Databases of PostgreSQL as sources of a silo: tables are copied into DuckDB, which runs all SQL.

PostgreSQL only hands over columns: one ``COPY (SELECT columns FROM table) TO STDOUT (FORMAT BINARY)`` a table, all of them in one transaction that only reads and sees one moment.
No word of a statement reaches it. A session may lift its own ``statement_timeout`` and read-only mode, so these protect from mistakes; what keeps a statement from more is that the text comes from here.
A role that reaches files or programs of the server is refused.

The tables are those of the role's current schema that it may read. Foreign tables are left out: their rows lie at another server, and a change there cannot be seen from here.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from atoll.core.errors import DataError, PolicyError
from atoll.core.extras import need

from .silo import EMPTY, Schema, SiloSource, connect_duckdb, quote

__all__ = ["PostgresDatabase", "is_postgres"]

_BATCH = 1 << 16
"""Rows that are in Python at a time."""
_FULL_DIGITS = 38
"""Most digits of a DECIMAL of DuckDB."""
_MIGHTY = "pg_read_server_files", "pg_write_server_files", "pg_execute_server_program"
_KINDS = {
    "smallint": ("SMALLINT", "int8"), "integer": ("INTEGER", "int8"), "bigint": ("BIGINT", "int8"), "real": ("FLOAT", "float8"), "double precision": ("DOUBLE", "float8"), "boolean": ("BOOLEAN", "bool"),
    "date": ("DATE", "date"), "timestamp without time zone": ("TIMESTAMP", "timestamp"), "timestamp with time zone": ("TIMESTAMP WITH TIME ZONE", "timestamptz"),
    "time without time zone": ("TIME", "time"), "bytea": ("BLOB", "bytea"),
}  # fmt: skip
"""PostgreSQL's type -> DuckDB's, and the type that it is sent as; all others are sent as their text."""


def is_postgres(words: str) -> bool:
    """Whether the words name a database of PostgreSQL."""
    return words.partition("://")[0] in ("postgresql", "postgres") and "://" in words


class PostgresDatabase(SiloSource):
    """A database of PostgreSQL.

    Args:
        uri: as libpq writes it: ``postgresql://user@/name?host=/var/run/postgresql``.
        seconds: longest time of one command.
    """

    def __init__(self, uri: str, seconds: float = 30.0) -> None:
        self._uri, self._seconds = uri, seconds
        self._connection: Any = None

    def __str__(self) -> str:
        return f"PostgreSQL database {urlsplit(self._uri).path.strip('/')!r}"

    # ------------------------------------------------------------------ the source

    def stamp(self, table: str) -> Any:
        """What transactions have ended: while it is the same, no table has changed."""
        del table
        with self._reading() as cursor:
            return cursor.execute("SELECT pg_current_snapshot()::text").fetchone()[0]

    def read_schema(self) -> Schema:
        """The tables of the current schema, and the types of their columns.

        Raises:
            DataError: the database cannot be read.
            PolicyError: the role reaches files or programs of the server.
        """
        with self._reading() as cursor:
            return {table: {column: kind for column, (kind, _) in columns.items()} for table, columns in self._look(cursor).items()}  # fmt: skip

    def connect(self, tables: Sequence[str], memory: int, watch: Callable[[Callable[[], None]], None]) -> Any:
        """A connection of DuckDB with copies of these tables, of one moment.

        Raises:
            DataError: a table cannot be read.
        """
        arrow = need("pyarrow", "sql", "reading PostgreSQL")
        made = connect_duckdb(memory=memory)
        watch(made.interrupt)
        try:
            with self._reading() as cursor:
                watch(cursor.connection.cancel)
                schema = self._look(cursor)
                for name in tables:
                    if name not in schema:
                        raise DataError(f"the table {name!r} is gone", where=str(self), remedy="ask again: the tables are read anew")  # fmt: skip
                    self._copy(made, arrow, cursor, name, schema[name])
        except BaseException:
            made.close()
            raise
        return made

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # ------------------------------------------------------------------ PostgreSQL

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Any]:
        """A cursor in a transaction that only reads, and sees one moment."""
        psycopg = need("psycopg", "postgres", "reading PostgreSQL")
        try:
            if self._connection is None or self._connection.broken or self._connection.closed:
                self._connection = self._open(psycopg)
            with self._connection.transaction(), self._connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                yield cursor
        except psycopg.Error as error:
            # The server's own text may quote values of rows, and the client's may hold a password.
            raise DataError(f"it cannot be read: {type(error).__name__}{_said(error)}", where=str(self), remedy="try it with psql as this role; values that DuckDB does not have, such as infinity, need a view that leaves them out") from None  # fmt: skip

    def _open(self, psycopg: Any) -> Any:
        made = psycopg.connect(self._uri, autocommit=True, client_encoding="UTF8", connect_timeout=max(2, int(self._seconds)))  # fmt: skip
        try:
            made.execute("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")
            made.execute(f"SET statement_timeout = {int(self._seconds * 1000)}")
            text = "SELECT rolname FROM pg_roles WHERE pg_has_role(current_user, oid, 'MEMBER') AND (rolsuper OR rolname = ANY(%s)) ORDER BY rolname <> current_user LIMIT 1"
            mighty = made.execute(text, (list(_MIGHTY),)).fetchone()
        except BaseException:
            made.close()
            raise
        if mighty is not None:
            made.close()
            raise PolicyError(f"the role is {mighty[0]!r}, or in it, and reaches files or programs of the server", where=str(self), remedy="CREATE ROLE reader LOGIN, GRANT SELECT on the tables to it, and name it: postgresql://reader@/name")  # fmt: skip
        return made

    def _look(self, cursor: Any) -> dict[str, dict[str, tuple[str, str]]]:
        """Table -> column -> DuckDB's type, and the type that it is sent as."""
        text = """SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid
            WHERE c.relkind IN ('r', 'p', 'v', 'm') AND NOT c.relispartition AND n.nspname = current_schema() AND a.attnum > 0 AND NOT a.attisdropped
            AND has_column_privilege(c.oid, a.attnum, 'SELECT') ORDER BY c.relname, a.attnum"""
        found: dict[str, dict[str, tuple[str, str]]] = {}
        free: dict[str, list[str]] = {}
        for table, column, kind in cursor.execute(text).fetchall():
            found.setdefault(table, {})[column] = _kind_of(kind)
            if kind == "numeric":
                free.setdefault(table, []).append(column)
        for table, columns in free.items():
            for column in columns:
                found[table][column] = self._measure(cursor, table, column)
        return found

    def _measure(self, cursor: Any, table: str, column: str) -> tuple[str, str]:
        """The type of a column of numbers whose digits are not declared: the digits that its cells have."""
        cell = quote(column)
        text = f"SELECT max(scale({cell})), max(length(trunc(abs({cell}))::text)), bool_or({cell}::text IN ('NaN', 'Infinity', '-Infinity')), count({cell}) FROM {quote(table)}"
        scale, digits, odd, count = cursor.execute(text).fetchone()
        if not count:
            return EMPTY, "text"
        if odd or scale + digits > _FULL_DIGITS:
            raise DataError(f"{table}.{column} holds {'NaN or infinity' if odd else f'numbers of {scale + digits} digits'}, and a DECIMAL has {_FULL_DIGITS} digits", where=str(self), remedy="give a view that casts the column to double precision, or to numeric with fewer digits")  # fmt: skip
        return f"DECIMAL({min(_FULL_DIGITS, scale + digits)},{scale})", "numeric"

    def _copy(self, made: Any, arrow: Any, cursor: Any, name: str, columns: dict[str, tuple[str, str]]) -> None:
        """Copy one table, a batch of rows at a time."""
        types = ", ".join(f"{quote(c)} {'INTEGER' if kind == EMPTY else kind}" for c, (kind, _) in columns.items())
        made.execute(f"CREATE TABLE main.{quote(name)} ({types})")
        shown = ", ".join(f"{quote(c)}::{sent}" for c, (_, sent) in columns.items())
        kinds = [_arrow_type(arrow, kind, sent) for kind, sent in columns.values()]
        names = [f"c{k}" for k in range(len(columns))]
        cast = ", ".join(f"CAST({c} AS {'INTEGER' if kind == EMPTY else kind})" for c, (kind, _) in zip(names, columns.values(), strict=True))  # fmt: skip
        with cursor.copy(f"COPY (SELECT {shown} FROM {quote(name)}) TO STDOUT (FORMAT BINARY)") as copy:
            copy.set_types([sent for _, sent in columns.values()])
            rows = copy.rows()
            while batch := list(itertools.islice(rows, _BATCH)):
                cells = [arrow.array(one, kind) for one, kind in zip(zip(*batch, strict=True), kinds, strict=True)]
                made.register("atoll_copied", arrow.table(cells, names=names))
                made.execute(f"INSERT INTO main.{quote(name)} SELECT {cast} FROM atoll_copied")
                made.unregister("atoll_copied")


def _kind_of(kind: str) -> tuple[str, str]:
    numeric = re.fullmatch(r"numeric\((\d+),(-?\d+)\)", kind)
    if numeric and int(numeric[1]) <= _FULL_DIGITS and 0 <= int(numeric[2]) <= int(numeric[1]):
        return f"DECIMAL({numeric[1]},{numeric[2]})", "numeric"
    return _KINDS.get(re.sub(r"\(\d+\)", "", kind), ("VARCHAR", "text"))


def _arrow_type(arrow: Any, kind: str, sent: str) -> Any:
    if sent == "numeric":
        digits, scale = map(int, kind[len("DECIMAL(") : -1].split(","))
        return arrow.decimal128(digits, scale)
    return {
        "int8": arrow.int64(), "float8": arrow.float64(), "bool": arrow.bool_(), "date": arrow.date32(), "timestamp": arrow.timestamp("us"), "timestamptz": arrow.timestamp("us", "UTC"),
        "time": arrow.time64("us"), "bytea": arrow.binary(), "text": arrow.string(),
    }[sent]  # fmt: skip


def _said(error: Any) -> str:
    """Why no connection was made, in the server's words without the client's settings; nothing about rows."""
    if getattr(error, "sqlstate", None) is None and type(error).__name__ == "OperationalError":
        words = " ".join(str(error).split()).rpartition("FATAL: ")[2].strip()
        return f": {words.rpartition('failed: ')[2][:300]}"
    return ""
