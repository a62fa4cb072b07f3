"""A silo: one site's tables with its policy, and a locked DuckDB that runs local SQL over them.

Local SQL always runs on DuckDB, so that a statement means the same at every site. A file of DuckDB is opened read-only; other sources are loaded into memory, table by
table, when a statement first needs them, and again when their files have changed. Before any statement runs, the connection can reach nothing else: extensions are
neither installed nor loaded, ``enable_external_access`` is off, memory is limited, and ``lock_configuration`` keeps all of that.

All work is done in the silo's own thread. A statement that takes too long, or that a person stops, is interrupted, and the silo answers the next one. The text of a
database's own error may quote values of rows, so it never leaves: the error names its kind.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

from atoll.core.errors import AtollError, TaskError
from atoll.core.extras import need

from ..policy import QueryPolicy

__all__ = ["EMPTY", "Silo", "SiloSource", "bounded_cell", "connect_duckdb", "lock_connection", "quote", "quote_text"]

EMPTY = "NULL"
"""The type of a column without any value, which has every type."""
Schema = dict[str, dict[str, str]]
"""Table -> column -> DuckDB's name of its type; names as the source writes them."""
T = TypeVar("T")
_LOOK = 0.05
"""Seconds after which a thread that waits for the silo's looks whether somebody wants it to stop."""
_REMEMBERED = 32
"""Most queries whose rows a silo keeps."""
Watch = Callable[[Callable[[], None]], None]
WriteTexts = Callable[[Callable[[str], Any], dict[Any, Any]], Sequence[str]]


def quote(name: str) -> str:
    """A name as SQL quotes it."""
    return '"' + name.replace('"', '""') + '"'


def bounded_cell(policy: QueryPolicy, table: str, column: str, kind: str) -> str:
    """Local SQL of a column's value with its type in the catalog; NULL outside the site's own range."""
    one, cell = policy.table(table).column(column), f"CAST({quote(column)} AS {kind})"
    if one.low is None or one.high is None:
        return cell
    return f"CASE WHEN {quote(column)} BETWEEN {one.low!r} AND {one.high!r} THEN {cell} END"


def quote_text(value: str) -> str:
    """A text as SQL quotes it."""
    return "'" + value.replace("'", "''") + "'"


def connect_duckdb(path: str = ":memory:", memory: int | None = None, threads: int | None = None) -> Any:
    """Open DuckDB without extensions from elsewhere, and without files to spill to.

    Args:
        path: the database; in memory by default.
        memory: most bytes.
        threads: number of threads; by default one a processor.

    Raises:
        MissingExtraError: duckdb is not installed.
    """
    duckdb = need("duckdb", "sql", "SQL over silos")
    config: dict[str, Any] = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
    if memory is not None:
        config |= {"memory_limit": f"{memory}B", "temp_directory": ""}
    if threads is not None:
        config["threads"] = threads
    return duckdb.connect(path, config=config)


def lock_connection(connection: Any) -> None:
    """Let a connection reach nothing but its database, for good."""
    for name, value in (("enable_external_access", "false"), ("lock_configuration", "true")):
        connection.execute(f"SET {name} = {value}")


class SiloSource:
    """Base class of what a silo's tables lie in. It is used in the silo's thread alone."""

    def read_schema(self) -> Schema:
        """The tables and the types of their columns.

        Raises:
            DataError: it cannot be read.
        """
        raise NotImplementedError

    def stamp(self, table: str) -> Any:
        """A value that changes when the table's file does; of all tables for an empty name."""
        raise NotImplementedError

    def connect(self, tables: Sequence[str], memory: int, watch: Watch) -> Any:
        """A connection to DuckDB that has these tables, not yet locked.

        Args:
            tables: the tables, as the source names them.
            memory: most bytes.
            watch: is told what interrupts the work, before work begins that may take long; another thread may call it.

        Raises:
            DataError: a table cannot be read.
        """
        raise NotImplementedError

    def interrupt(self) -> None:
        """Interrupt what reads the source now, if something does; another thread may call it."""

    def close(self) -> None:
        """End what the source keeps open."""


class Silo:
    """One site's tables.

    Args:
        source: where they lie.
        policy: what the site allows.
        name: what errors call it.

    Attributes:
        seconds: what its statements have taken so far, together.
        kept: the cells of the statement that is being answered, so that all of its requests see one snapshot.
        charged: what the statement has cost since the last event; see `atoll.query.events`.
        asker: who has signed the job; empty for the silo's own owner.
        job: the id of the job.
        signed: the queries of the job that a person has signed: nothing else is answered. ``None`` where statements are the silo's own owner's.
    """

    kept: Any = None
    charged: dict[str, Any] | None = None
    asker: str = ""
    job: str = ""
    signed: tuple[Any, ...] | None = None

    def __init__(self, source: SiloSource, policy: QueryPolicy | None = None, name: str = "silo") -> None:
        self.policy, self.name, self.seconds = policy or QueryPolicy(), name, 0.0
        self._source = source
        self._connection: Any = None
        self._loading: list[Callable[[], None]] = []
        self._loaded: dict[str, Any] = {}
        self._remembered: dict[str, Any] = {}
        self._kept_parts: dict[Any, Any] = {}
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="atoll-silo")
        self._schema_stamp: Any = None
        self._lock = threading.Lock()

    @property
    def policy(self) -> QueryPolicy:
        """What the site allows; once its tables are known, with the parts of tables whose columns lie apart under their own names."""
        return self._policy

    @policy.setter
    def policy(self, declared: QueryPolicy) -> None:
        self._policy = self._declared = declared
        self._parts: dict[str, str] = {}
        self._schema: Schema | None = None

    def __len__(self) -> int:
        """The number of tables: what a federation shows as the size of a client."""
        return len(self.read_schema())

    def bind_jobs(self, jobs: Iterable[Any], asker: str = "", job: str = "") -> None:
        """Answer the statements of these jobs alone.

        Args:
            jobs: the job that was signed, and those that its program runs inside.
            asker: who has signed it.
            job: its id.
        """
        self.asker, self.job = asker, job
        self.signed = tuple(one for one in jobs if getattr(one, "kind", "") == "query")

    def close(self) -> None:
        """End the thread and the connection."""
        if self._connection is not None:
            self._thread.submit(self._connection.close)
            self._connection = None
        self._thread.submit(self._source.close)
        self._thread.shutdown(wait=True)

    def cancel(self) -> None:
        """Interrupt the statement that runs now, if there is one, or the loading of its tables."""
        self._source.interrupt()
        for stop in [*self._loading, *([] if self._connection is None else [self._connection.interrupt])]:
            with contextlib.suppress(Exception):  # what has ended meanwhile is closed, and needs no interrupt
                stop()

    def read_schema(self) -> Schema:
        """The tables and the types of their columns.

        Raises:
            DataError: the source cannot be read.
        """
        return self._in_thread(self._read_schema, "its tables")

    def stamp(self) -> dict[str, Any]:
        """A value for each table that changes when its rows do."""
        return self._in_thread(
            lambda: {name: self._source.stamp(self._parts.get(name, name)) for name in self._read_schema()},
            "its tables",
        )

    def name_tables(self) -> dict[str, str]:
        """Table in lower case -> as the source writes it; a part of a table whose columns lie apart has a name of its own in statements."""
        return {name.lower(): self._parts.get(name, name) for name in self.read_schema()}

    def _read_schema(self) -> Schema:
        stamp = self._source.stamp("")
        if self._schema is None or stamp != self._schema_stamp:
            schema = self._source.read_schema()
            self._declared.require_columns(schema, f"policy of {self.name}")
            self._policy, self._parts = self._declared.name_parts(schema)
            parts = {table: part for part, table in self._parts.items()}
            self._schema = {parts.get(table, table): columns for table, columns in schema.items()}
            self._schema_stamp = stamp
        return self._schema

    def run_all(
        self, texts: Sequence[str] | WriteTexts, tables: Sequence[str], *, arrow: bool | Callable[[str], bool] = False, stable: Collection[str] = ()
    ) -> list[Any]:  # fmt: skip
        """The rows of several queries over one snapshot.

        Args:
            texts: local SQL; tables are in the schema ``main``. Or what writes it, of the same snapshot: it takes a function that returns the columns of a query, and a dictionary that is kept until a table has changed.
            tables: the tables that it needs, as the source names them.
            arrow: return tables of Arrow instead of lists of tuples, for all texts, or for which of them.
            stable: those of the texts that later statements ask again, such as the values of a column; their rows are kept until a table has changed.

        Raises:
            TaskError: a query failed, or took longer than the policy allows.
            DataError: a table cannot be read.
        """
        return self._in_thread(lambda: self._run_all(texts, tables, stable, arrow=arrow), "a statement")

    def _run_all(self, texts: Sequence[str] | WriteTexts, tables: Sequence[str], stable: Collection[str], *, arrow: bool | Callable[[str], bool]) -> list[Any]:  # fmt: skip
        self._connect(tables)
        self._connection.execute("BEGIN TRANSACTION")
        try:
            made = texts(lambda text: self._connection.execute(text).fetchnumpy(), self._kept_parts) if callable(texts) else texts  # fmt: skip
            return [self._rows(text, keep=text in stable, arrow=arrow(text) if callable(arrow) else arrow) for text in made]  # fmt: skip
        finally:
            self._connection.execute("ROLLBACK")

    def _rows(self, text: str, *, keep: bool, arrow: bool) -> Any:
        name = f"{arrow} {text}"
        if name in self._remembered:
            return self._remembered[name]
        found = self._connection.sql(text).to_arrow_table() if arrow else self._connection.execute(text).fetchall()
        if keep:
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.pop(next(iter(self._remembered)))
            self._remembered[name] = found
        return found

    def _connect(self, tables: Sequence[str]) -> None:
        """Have a locked connection with these tables, as they are now."""
        wanted = dict.fromkeys([*self._loaded, *filter(None, tables)])
        stamps = {name: self._source.stamp(name) for name in wanted}
        if self._connection is not None and stamps == self._loaded:
            return
        try:
            made = self._source.connect(list(stamps), self.policy.memory, self._loading.append)
        finally:
            self._loading = []
        lock_connection(made)
        if self._connection is not None:
            self._connection.close()
        self._connection, self._loaded, self._remembered, self._kept_parts = made, stamps, {}, {}

    def _in_thread(self, work: Callable[[], T], what: str) -> T:
        """Do work in the silo's thread, for no longer than the policy allows."""
        begin = time.perf_counter()
        with self._lock:
            running, until = self._thread.submit(work), time.perf_counter() + self.policy.seconds
            try:
                # The system may give a signal to any thread, and Python's handler runs in the main one: if that one waits here, it must look up now and then.
                while not running.done() and time.perf_counter() < until:
                    concurrent.futures.wait([running], timeout=_LOOK)
                if not running.done():
                    self._stop(running)
                    raise TaskError(f"{what} took more than {self.policy.seconds:g} seconds", where=self.name, remedy="ask for less, or let the site raise limits.seconds")  # fmt: skip
                return running.result()
            except (KeyboardInterrupt, SystemExit):
                self._stop(running)
                raise
            except AtollError:
                raise
            except Exception as error:  # DuckDB's own text may quote values of rows
                raise TaskError(f"{what} failed with {type(error).__name__}", where=self.name, remedy=_REMEDIES.get(type(error).__name__, _OTHER)) from None  # fmt: skip
            finally:
                self.seconds += time.perf_counter() - begin

    def _stop(self, running: concurrent.futures.Future[Any]) -> None:
        """Interrupt until the work has ended: an interrupt between two queries is lost."""
        while not running.done():
            self.cancel()
            concurrent.futures.wait([running], timeout=_LOOK)


_OTHER = "look into the site's own log: the text may name values of rows, so it stays there"
_WORDS = "under smcql whole numbers end at 64 bits, so MAX(x::DOUBLE * 2), or SUM((x // 1000) * 2)"
_REMEDIES = {
    "OutOfMemoryException": "ask for less, or let the site raise limits.memory",
    "OutOfRangeException": f"a number of a row left the range of its type: cast before you compute, x::BIGINT * 2 or x::DOUBLE * 2; {_WORDS}",
    "InterruptException": "ask again: somebody stopped it, and the site is ready",
    "ConversionException": f"a value of a row does not fit the type: use TRY_CAST; {_WORDS}",
}
