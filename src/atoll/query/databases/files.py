"""Folders of CSV and Parquet files, and files of DuckDB, as sources of a silo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from atoll.core.errors import DataError

from .silo import EMPTY, Schema, SiloSource, connect_duckdb, quote, quote_text

__all__ = ["DuckDBFile", "Folder"]

_READERS = {".csv": "read_csv", ".csv.gz": "read_csv", ".parquet": "read_parquet", ".pq": "read_parquet"}


class Folder(SiloSource):
    """A folder whose files are tables, called as the files are: ``patients.csv`` is the table ``patients``.

    The types of a CSV file's columns are those that DuckDB reads from all of its lines. A column without a value has every type.

    Args:
        path: the folder, or one file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._types: dict[str, tuple[Any, dict[str, str]]] = {}

    def _files(self) -> dict[str, tuple[Path, str]]:
        """Table -> its file, and the function that reads it."""
        found: dict[str, tuple[Path, str]] = {}
        for path in sorted(self._path.iterdir()) if self._path.is_dir() else [self._path]:
            ending = next((ending for ending in _READERS if path.name.endswith(ending)), None)
            if ending is None or not path.is_file():
                continue
            name = path.name.removesuffix(ending)
            if name.lower() in map(str.lower, found):
                raise DataError(f"two files are the table {name!r}", where=str(self._path), remedy="leave one, or rename it")  # fmt: skip
            found[name] = (path, _READERS[ending])
        if not found:
            raise DataError("the folder has no CSV or Parquet file", where=str(self._path), remedy=f"give a folder with files NAME{', NAME'.join(_READERS)}")  # fmt: skip
        return found

    def stamp(self, table: str) -> Any:
        """When the table's file was changed; of all files for no name."""
        files = self._files()
        return tuple(_stamp(path) for name, (path, _) in files.items() if table in ("", name))

    def _reading(self, table: str) -> str:
        path, reader = self._files()[table]
        more = ", sample_size = -1, header = true" if reader == "read_csv" else ""
        return f"{reader}({quote_text(str(path))}{more})"

    def read_schema(self) -> Schema:
        """The tables and the types of their columns.

        Raises:
            DataError: a file cannot be read.
        """
        found: Schema = {}
        with connect_duckdb() as connection:
            for name, (path, reader) in self._files().items():
                known = self._types.get(name)
                if known is None or known[0] != _stamp(path):
                    known = _stamp(path), self._look(connection, name, csv=reader == "read_csv")
                self._types[name] = known
                found[name] = known[1]
        return found

    def _look(self, connection: Any, name: str, *, csv: bool) -> dict[str, str]:
        import duckdb

        try:
            rows = connection.execute(f"DESCRIBE SELECT * FROM {self._reading(name)}").fetchall()
            types = {str(row[0]): str(row[1]) for row in rows}
            texts = [column for column, kind in types.items() if kind == "VARCHAR"] if csv else []
            if texts:
                counts = ", ".join(f"count({quote(column)})" for column in texts)
                full = connection.execute(f"SELECT {counts} FROM {self._reading(name)}").fetchone()
                types |= {column: EMPTY for column, count in zip(texts, full, strict=True) if not count}
        except duckdb.InterruptException:  # somebody stops it, and nothing is wrong with the file
            raise
        except Exception as error:  # whatever DuckDB finds wrong with a file
            raise DataError(f"the file of the table {name!r} cannot be read: {_first_line(error)}", where=str(self._path), remedy="open it with DuckDB to see what is wrong") from error  # fmt: skip
        return types

    def connect(self, tables: Sequence[str], memory: int, watch: Callable[[Callable[[], None]], None]) -> Any:
        """A connection with these tables in memory.

        Raises:
            DataError: a file cannot be read.
        """
        import duckdb

        made = connect_duckdb(memory=memory)
        watch(made.interrupt)
        for name in tables:
            try:
                made.execute(f"CREATE TABLE main.{quote(name)} AS SELECT * FROM {self._reading(name)}")
            except duckdb.InterruptException:
                made.close()
                raise
            except Exception as error:
                made.close()
                raise DataError(f"the file of the table {name!r} cannot be read: {type(error).__name__}", where=str(self._path), remedy="open it with DuckDB to see what is wrong, or let the site raise limits.memory") from error  # fmt: skip
        return made


class DuckDBFile(SiloSource):
    """A file of DuckDB, attached read-only; its tables and views of the schema ``main``.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def stamp(self, table: str) -> Any:
        """When the file was changed: a reader sees the file as it was when it opened it."""
        del table
        return _stamp(self._path)

    def read_schema(self) -> Schema:
        """The tables and the types of their columns.

        Raises:
            DataError: the file cannot be opened.
        """
        found: Schema = {}
        with self._attach(1 << 30) as connection:
            rows = connection.execute("SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE database_name = 'silo' AND schema_name = 'main' ORDER BY table_name, column_index").fetchall()  # fmt: skip
        for table, column, kind in rows:
            found.setdefault(table, {})[column] = kind
        return found

    def connect(self, tables: Sequence[str], memory: int, watch: Callable[[Callable[[], None]], None]) -> Any:
        """A connection that reads the file.

        Raises:
            DataError: the file cannot be opened.
        """
        del tables, watch  # it reads nothing yet
        return self._attach(memory)

    def _attach(self, memory: int) -> Any:
        made = connect_duckdb(memory=memory)
        try:
            made.execute(f"ATTACH {quote_text(str(self._path))} AS silo (READ_ONLY)")
            made.execute("USE silo")
        except Exception as error:
            made.close()
            raise DataError(f"the file cannot be opened: {_first_line(error)}", where=str(self._path), remedy="let its writer close it: a DuckDB file has no readers while a process writes it") from error  # fmt: skip
        return made


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]
