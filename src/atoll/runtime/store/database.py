"""A store's SQLite file: its tables, its connection, and room on its disk."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from atoll.core.errors import ConfigError, JobError
from atoll.core.persistence.trail import EMPTY, AuditEvent, Head, link

from .changes import chain_event, missing, submit_event
from .records import JobFilter, JobRecord, JobState, literal

__all__ = [
    "SCHEMA_VERSION",
    "Database",
    "Reserve",
    "append",
    "chain_up",
    "events_of",
    "find",
    "get",
    "head_of",
    "insert",
    "list_jobs",
    "matching",
    "update",
]


# ------------------------------------------------------------------ disk space reserved for final records


_SIZE = 1 << 20
_PLENTY = 16
"""The reserve is made again once this many times its size is free."""


class Reserve:
    """A file of zeros that is emptied when the disk is full, so that the end of every job can still be recorded.

    Args:
        path: of the file.
        size: bytes.
    """

    def __init__(self, path: Path, size: int = _SIZE) -> None:
        self._path = path
        self._size = size
        self._filled = False

    def fill(self) -> None:
        """Reserve the space if there is plenty; otherwise do without."""
        if self._filled:
            return
        with contextlib.suppress(OSError):
            if self._path.exists() and self._path.stat().st_size == self._size:
                self._filled = True
                return
            free = os.statvfs(self._path.parent) if hasattr(os, "statvfs") else None
            if free is not None and free.f_bavail * free.f_frsize < _PLENTY * self._size:
                return
            with self._path.open("wb") as file:
                file.write(bytes(self._size))
                file.flush()
                os.fsync(file.fileno())
            self._filled = True

    def release(self) -> None:
        """Release the space."""
        self._filled = False
        with contextlib.suppress(OSError):
            os.truncate(self._path, 0)


# ------------------------------------------------------------------ jobs and events as rows of SQLite's tables


_COLUMNS = (
    "id", "name", "submitter", "org", "created", "state", "attempts", "barren", "reason", "error", "spec", "bundle", "sites",
    "times", "token",
)  # fmt: skip
_JSON = ("error", "spec", "sites", "times")


def find(open_: sqlite3.Connection, where: str, values: Sequence[Any]) -> list[JobRecord]:
    """Return the jobs that match a WHERE clause (and what follows it)."""
    rows = open_.execute(f"SELECT {', '.join(_COLUMNS)} FROM jobs {where}", values)  # noqa: S608 - our own words
    return [_record(row) for row in rows]


def list_jobs(open_: sqlite3.Connection, wanted: JobFilter, limit: int | None) -> list[JobRecord]:
    """Return the newest jobs of a list, oldest first, without their ``spec``."""
    where, values = matching(wanted)
    names = ", ".join("'{}'" if name == "spec" else name for name in _COLUMNS)
    text = f"SELECT {names} FROM jobs {where} ORDER BY number DESC LIMIT ?"  # noqa: S608 - our own words
    return [_record(row) for row in open_.execute(text, (*values, -1 if limit is None else limit))][::-1]


def matching(wanted: JobFilter) -> tuple[str, list[Any]]:
    """Return the WHERE clause of a list, and its values."""
    states = None if wanted.states is None else sorted(wanted.states)
    rows = (
        (states, f"state IN ({', '.join('?' * len(states or ()))})", states or ()),
        (wanted.submitter, "submitter = ?", (wanted.submitter,)),
        (wanted.name, "name GLOB ?", (literal(wanted.name or ""),)),
        (wanted.site, "EXISTS (SELECT 1 FROM json_each(sites) WHERE value = ?)", (wanted.site,)),
        (wanted.since, "created >= ?", (wanted.since,)),
        (wanted.before, "id < ?", (wanted.before,)),
    )
    asked = [(clause, values) for given, clause, values in rows if given is not None]
    text = " AND ".join(clause for clause, _ in asked)
    return f"WHERE {text}" if text else "", [value for _, values in asked for value in values]


def get(open_: sqlite3.Connection, job: str) -> JobRecord:
    """Return the job with this id.

    Raises:
        JobError: there is none.
    """
    found = find(open_, "WHERE id = ?", (job,))
    if not found:
        raise missing(job)
    return found[0]


def insert(open_: sqlite3.Connection, new: JobRecord, who: str) -> None:
    """Insert a new job, and its event."""
    marks = ", ".join("?" * len(_COLUMNS))
    open_.execute(f"INSERT INTO jobs ({', '.join(_COLUMNS)}) VALUES ({marks})", _row(new))  # noqa: S608 - our own words
    append(open_, submit_event(new, who))


def update(open_: sqlite3.Connection, new: JobRecord) -> None:
    """Update a job that has moved."""
    names = ("state", "attempts", "barren", "reason", "error", "sites", "times")
    values = [value for name, value in zip(_COLUMNS, _row(new), strict=True) if name in names]
    open_.execute(f"UPDATE jobs SET {', '.join(f'{name} = ?' for name in names)} WHERE id = ?", (*values, new.id))  # noqa: S608


def append(open_: sqlite3.Connection, event: AuditEvent) -> int:
    """Append an event; return its number."""
    before = head_of(open_)
    made = chain_event(event, before)
    text = "INSERT INTO events (number, at, who, what, job, details, hash) VALUES (?, ?, ?, ?, ?, ?, ?)"
    open_.execute(text, (made.number, made.when, made.who, made.what, made.job, json.dumps(made.details), made.hash))
    return made.number


def head_of(open_: sqlite3.Connection) -> Head:
    """Return the end of the trail."""
    found = open_.execute("SELECT number, hash FROM events ORDER BY number DESC LIMIT 1").fetchone()
    return EMPTY if found is None else Head(*found)


def events_of(open_: sqlite3.Connection, job: str | None = None, after: int = 0, limit: int = -1) -> list[AuditEvent]:
    """Return events after a number, oldest first."""
    text = "SELECT at, who, what, job, details, number, hash FROM events WHERE number > ?1 AND (?2 IS NULL OR job = ?2)"
    rows = open_.execute(f"{text} ORDER BY number LIMIT ?3", (after, job, limit))
    return [
        AuditEvent(when=at, who=who, what=what, job=of, details=json.loads(details), number=number, hash=digest)
        for at, who, what, of, details, number, digest in rows
    ]


def chain_up(open_: sqlite3.Connection) -> None:
    """Chain the events of a store that was made before events had hashes."""
    before = ""
    for event in events_of(open_):
        before = link(before, event)
        open_.execute("UPDATE events SET hash = ? WHERE number = ?", (before, event.number))


def _row(record: JobRecord) -> list[Any]:
    return [json.dumps(getattr(record, n)) if n in _JSON else getattr(record, n) for n in _COLUMNS]


def _record(row: Sequence[Any]) -> JobRecord:
    said = {n: json.loads(v) if n in _JSON else v for n, v in zip(_COLUMNS, row, strict=True)}
    said["state"], said["sites"] = JobState(said["state"]), tuple(said["sites"])
    said["times"] = tuple((JobState(state), at) for state, at in said["times"])
    return JobRecord(**said)


# ------------------------------------------------------------------ a database file of one process: opened, checked, locked, and never of a newer version


SCHEMA_VERSION = 2
"""Kept in the file as ``user_version``; a store of a newer version is left alone."""

_APPLICATION = 0x41544F4C
"""``ATOL``, kept in the file as ``application_id``."""

_STAY = "CREATE TRIGGER events_stay BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'events are never changed'); END;"
_TABLES = f"""
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, name TEXT NOT NULL, submitter TEXT NOT NULL,
    org TEXT NOT NULL, created REAL NOT NULL, state TEXT NOT NULL, attempts INTEGER NOT NULL, barren INTEGER NOT NULL,
    reason TEXT NOT NULL, error TEXT, spec TEXT NOT NULL, bundle TEXT NOT NULL, sites TEXT NOT NULL, times TEXT NOT NULL,
    token TEXT NOT NULL, UNIQUE (submitter, token));
CREATE INDEX jobs_by_state ON jobs (state);
CREATE TABLE events (
    number INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, who TEXT NOT NULL, what TEXT NOT NULL, job TEXT NOT NULL,
    details TEXT NOT NULL, hash TEXT NOT NULL DEFAULT '');
CREATE INDEX events_by_job ON events (job, number);
{_STAY}
CREATE TRIGGER events_last BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'events are never removed'); END;
CREATE TABLE lines (
    job TEXT NOT NULL REFERENCES jobs (id), number INTEGER NOT NULL, at REAL NOT NULL, node TEXT NOT NULL, text TEXT NOT NULL,
    PRIMARY KEY (job, number)) WITHOUT ROWID;
CREATE INDEX lines_by_node ON lines (job, node, number);
"""


_LATER = """
CREATE INDEX IF NOT EXISTS jobs_of_people ON jobs (submitter, state);
CREATE INDEX IF NOT EXISTS jobs_by_bundle ON jobs (bundle);
"""
"""Indices that an earlier Atoll did not make; it can do without them, so the version is the same."""


class Database:
    """An SQLite file with a write-ahead log, held by this process alone.

    Args:
        path: the file, created if missing.
        wait: wait until no other process holds it.

    Raises:
        JobError: another process holds it, or it is damaged, of a newer version, or not a store.
    """

    def __init__(self, path: Path, *, wait: bool = False) -> None:
        self.path = path
        self._guard = threading.RLock()
        self._lock: IO[str] | None = None
        self._connection: sqlite3.Connection | None = None
        self._reserve = Reserve(path.with_name(f".{path.name}.reserve"))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = _lock_file(path, wait)
            with self._explain_errors():
                self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0.0)
                self._prepare(self._connection)
            self._reserve.fill()
        except OSError as error:
            self.close()
            raise self._make_refusal(
                f"it cannot be opened: {error.strerror or error}", "correct its permissions"
            ) from error
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def writing(self, *, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """Run one transaction: all of it or nothing.

        Args:
            durable: it is on the disk before this returns. Otherwise a power cut may lose it, but a crash of the
                process never does.

        Raises:
            JobError: the disk is full or damaged; the old content is unchanged. A durable transaction that finds the
                disk full makes room for the next one from a reserve.
        """
        with self._guard, self._explain_errors():
            connection = self._open()
            connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            # IMMEDIATE takes the lock before anything is read, so that no transaction fails halfway because another one wrote.
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                # The refusal itself must be recorded, and the jobs be ended in order: the reserve is the room for that.
                if durable and _full(sys.exception()):
                    self._reserve.release()
                raise
            if durable:
                self._reserve.fill()

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Run statements that change nothing.

        Raises:
            JobError: the file is damaged, or closed.
        """
        with self._guard, self._explain_errors():
            yield self._open()

    def close(self) -> None:
        """Close the file. Closing twice is allowed."""
        with self._guard:
            if self._connection is not None:
                self._connection.close()
            if self._lock is not None:
                self._lock.close()
            self._connection = self._lock = None

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            raise self._make_refusal("the store is closed", "open it again")
        return self._connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        kind = connection.execute("PRAGMA application_id").fetchone()[0]
        # A new file has no identity yet; one with tables and another identity is some other program's, and is left as it is.
        fresh = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
        if not fresh and kind != _APPLICATION:
            raise self._make_refusal("it is a database of something else", "name another folder")
        if version > SCHEMA_VERSION:
            raise self._make_refusal(
                f"it has version {version}, and this Atoll knows versions to {SCHEMA_VERSION}", "install a newer Atoll"
            )
        # While this process lives, no other gets a lock on the file: a job could hold one for ever.
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA foreign_keys = ON")
        if fresh:
            made = f"PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {SCHEMA_VERSION};"
            connection.executescript(f"BEGIN IMMEDIATE; {_TABLES} {made} COMMIT;")
        elif version < SCHEMA_VERSION:
            self._chain_up(connection)
        connection.executescript(_LATER)
        if (found := connection.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            raise sqlite3.DatabaseError(found)

    @staticmethod
    def _chain_up(connection: sqlite3.Connection) -> None:
        """Give the events of a store of version 1 their hashes, once."""
        connection.execute("BEGIN IMMEDIATE")
        try:
            # The trigger forbids all changes of events, this one too; the transaction puts it back, or nothing has happened.
            connection.execute("DROP TRIGGER events_stay")
            connection.execute("ALTER TABLE events ADD COLUMN hash TEXT NOT NULL DEFAULT ''")
            chain_up(connection)
            connection.execute(_STAY)
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def _explain_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._make_refusal(
                f"the store cannot be used: {error}", "free space, check the disk, or restore the folder from a backup"
            ) from error

    def _make_refusal(self, what: str, remedy: str) -> JobError:
        return JobError(what, where=str(self.path), remedy=remedy)


def _full(error: BaseException | None) -> bool:
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL


def _lock_file(path: Path, wait: bool) -> IO[str] | None:
    """Lock a file next to the database; the system releases it when the process dies."""
    try:
        import fcntl
    except ImportError as error:  # not on POSIX: SQLite's own locks still keep transactions atomic
        if wait:
            raise ConfigError(
                "this system has no locks of files that a standby could wait for",
                where=str(path),
                remedy="leave --standby out, and start this server when the other one is gone",
            ) from error
        return None
    file = path.with_name(f".{path.name}.lock").open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException as error:
        file.close()
        if not isinstance(error, OSError):  # Ctrl-C while it waits
            raise
        raise JobError(
            "another process holds the store", where=str(path), remedy="stop the other server, or name another folder"
        ) from error
    return file
