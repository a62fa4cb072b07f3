"""Jobs and events as rows of SQLite's tables."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from .changes import chain_event, missing, submit_event
from .records import AuditEvent, JobFilter, JobRecord, literal
from .states import JobState
from .trail import EMPTY, Head, link

__all__ = ["append", "chain_up", "events_of", "find", "get", "head_of", "insert", "list_jobs", "matching", "update"]

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
