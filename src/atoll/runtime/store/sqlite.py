"""The store in SQLite: one file for the jobs, the audit trail and the logs, and one file for each bundle."""

from __future__ import annotations

import contextlib
import hashlib
import re
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from atoll.core.persistence.files import write_bytes
from atoll.core.persistence.trail import AuditEvent, Head, altered_event

from .changes import (
    DELETED,
    LOG_LINES,
    LOG_WIDTH,
    clean,
    conflict,
    cut,
    delete_event,
    first_record,
    missing,
    move_event,
    move_record,
    restart_record,
    resume_event,
    resume_record,
    without_bundle,
)
from .database import Database, append, events_of, find, get, head_of, insert, list_jobs, matching, update
from .records import ACTIVE, ALL, JobFilter, JobRecord, JobState, LogLine, Submission

__all__ = ["SqliteStore"]

_DIGEST = re.compile("[0-9a-f]{64}")


class SqliteStore:
    """A ``JobStore`` that survives crashes of the server and of its machine.

    Args:
        folder: the folder of ``jobs.sqlite`` and ``bundles/``, created if missing.
        log_lines: lines kept of each node of a job.
        log_width: characters kept of a line.
        wait: wait until no other process holds the folder.

    Raises:
        JobError: another process holds the folder, or it cannot be read.
    """

    def __init__(
        self, folder: str | Path, *, log_lines: int = LOG_LINES, log_width: int = LOG_WIDTH, wait: bool = False
    ) -> None:
        self._folder = Path(folder)
        self._log_lines, self._log_width = log_lines, log_width
        self._database = Database(self._folder / "jobs.sqlite", wait=wait)
        self._guard = threading.RLock()
        try:
            with self._database.reading() as open_:
                self._head = head_of(open_)
            self._sweep()
        except BaseException:
            self._database.close()
            raise

    def submit(self, job: Submission, *, now: float, who: str) -> JobRecord:
        """See ``JobStore``."""
        with self._recording() as open_:
            # The highest number ever, also of a job that was deleted.
            last = open_.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'jobs'").fetchone()[0]
            made = first_record(last + 1, job, now)
            there = find(open_, "WHERE submitter = ? AND token = ?", (made.submitter, made.token))
            if there:
                conflict(there[0], job)
                return there[0]
            if job.bundle and not self._blob(job.bundle).is_file():
                raise without_bundle(job.bundle)
            insert(open_, made, who)
        return made

    def get(self, job: str) -> JobRecord:
        """See ``JobStore``."""
        with self._database.reading() as open_:
            return get(open_, job)

    def find_numbered(self, number: int) -> JobRecord:
        """See ``JobStore``."""
        with self._database.reading() as open_:
            found = find(open_, "WHERE number = ?", (number,)) if abs(number) < 1 << 62 else []
        if not found:
            raise missing(str(number))
        return found[0]

    def submitted(self, submitter: str, token: str) -> JobRecord | None:
        """See ``JobStore``."""
        with self._database.reading() as open_:
            found = find(open_, "WHERE submitter = ? AND token = ?", (clean(submitter), clean(token)))
        return found[0] if found else None

    def jobs(self, wanted: JobFilter = ALL, *, limit: int | None = None) -> list[JobRecord]:
        """See ``JobStore``."""
        with self._database.reading() as open_:
            return list_jobs(open_, wanted, limit)

    def count(self, wanted: JobFilter = ALL) -> int:
        """See ``JobStore``."""
        where, values = matching(wanted)
        with self._database.reading() as open_:
            return int(open_.execute(f"SELECT count(*) FROM jobs {where}", values).fetchone()[0])  # noqa: S608

    def count_kept(self, submitter: str) -> int:
        """See ``JobStore``."""
        with self._database.reading() as open_:
            text = "SELECT bundle, count(*) FROM jobs WHERE submitter = ? GROUP BY bundle"
            rows = open_.execute(text, (submitter,)).fetchall()
        paths = [(self._blob(digest), jobs) for digest, jobs in rows if digest]
        return sum(path.stat().st_size * jobs for path, jobs in paths if path.is_file())

    def move(
        self,
        job: str,
        state: JobState,
        *,
        now: float,
        who: str = "server",
        reason: str = "",
        error: Mapping[str, Any] | None = None,
        sites: Sequence[str] | None = None,
        progress: bool = False,
    ) -> JobRecord:
        """See ``JobStore``."""
        with self._recording() as open_:
            old = get(open_, job)
            new = move_record(old, state, now=now, reason=reason, error=error, sites=sites, progress=progress)
            update(open_, new)
            append(open_, move_event(old, new, who))
        return new

    def resume(self, job: str, *, now: float, who: str, token: str = "") -> JobRecord:
        """See ``JobStore``."""
        with self._recording() as open_:
            old = get(open_, job)
            new = resume_record(old, now=now, who=who)
            update(open_, new)
            append(open_, resume_event(old, new, who, token))
        return new

    def delete(self, job: str, *, now: float, who: str) -> JobRecord:
        """See ``JobStore``."""
        with self._recording() as open_:
            old = get(open_, job)
            append(open_, delete_event(old, now=now, who=who))
            open_.execute("DELETE FROM lines WHERE job = ?", (job,))
            open_.execute("DELETE FROM jobs WHERE id = ?", (job,))
            left = open_.execute("SELECT 1 FROM jobs WHERE bundle = ? LIMIT 1", (old.bundle,)).fetchone()
        if old.bundle and left is None:
            self._blob(old.bundle).unlink(missing_ok=True)
        return old

    def deleted(self, job: str) -> bool:
        """See ``JobStore``."""
        with self._database.reading() as open_:
            text = "SELECT 1 FROM events WHERE job = ? AND what = ? LIMIT 1"
            return open_.execute(text, (job, DELETED)).fetchone() is not None

    def restart(self, *, now: float) -> list[JobRecord]:
        """See ``JobStore``."""
        with self._recording() as open_:
            active = ", ".join(f"'{state}'" for state in ACTIVE)
            for old in find(open_, f"WHERE state IN ({active}) ORDER BY number", ()):
                new = restart_record(old, now)
                update(open_, new)
                append(open_, move_event(old, new, "server"))
        with self._database.reading() as open_:
            return find(open_, f"WHERE state = '{JobState.QUEUED}' ORDER BY number", ())

    def put_bundle(self, content: bytes) -> str:
        """See ``JobStore``."""
        digest = hashlib.sha256(content).hexdigest()
        if not self._blob(digest).is_file():
            write_bytes(self._blob(digest), content)
        return digest

    def bundle(self, digest: str) -> bytes:
        """See ``JobStore``."""
        path = self._blob(digest)
        if not path.is_file():
            raise without_bundle(digest)
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != digest:
            raise without_bundle(digest, "was altered on the disk")
        return content

    def record(self, event: AuditEvent, *, durable: bool = True) -> int:
        """See ``JobStore``."""
        with self._recording(durable=durable) as open_:
            return append(open_, event)

    def events(self, *, job: str | None = None, after: int = 0, limit: int | None = None) -> list[AuditEvent]:
        """See ``JobStore``."""
        with self._database.reading() as open_:
            return events_of(open_, job, after, -1 if limit is None else limit)

    def head(self) -> Head:
        """See ``JobStore``."""
        return self._head

    @contextlib.contextmanager
    def _recording(self, *, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """Run a transaction that may append to the trail. Its end stands in this process's memory: whatever else changes the file is recorded."""
        with self._guard:
            with self._database.writing(durable=durable) as open_:
                if (found := head_of(open_)) != self._head:
                    append(open_, altered_event(time.time(), self._head, found))
                yield open_
                end = head_of(open_)
            self._head = end

    def log(self, job: str, node: str, lines: Iterable[str], *, now: float) -> None:
        """See ``JobStore``."""
        kept, name = cut(lines, self._log_lines, self._log_width), clean(node)
        with self._database.writing(durable=False) as open_:
            get(open_, job)
            last = open_.execute("SELECT coalesce(max(number), 0) FROM lines WHERE job = ?", (job,)).fetchone()[0]
            rows = [(job, number, now, name, text) for number, text in enumerate(kept, last + 1)]
            open_.executemany("INSERT INTO lines (job, number, at, node, text) VALUES (?, ?, ?, ?, ?)", rows)
            spent = "SELECT number FROM lines WHERE job = ?1 AND node = ?2 ORDER BY number DESC LIMIT 1 OFFSET ?3"
            open_.execute(
                f"DELETE FROM lines WHERE job = ?1 AND node = ?2 AND number <= ({spent})",  # noqa: S608
                (job, name, self._log_lines),
            )

    def lines(self, job: str, *, node: str | None = None, after: int = 0, limit: int | None = None) -> list[LogLine]:
        """See ``JobStore``."""
        text = "SELECT number, at, node, text FROM lines WHERE job = ?1 AND number > ?2 AND (?3 IS NULL OR node = ?3)"
        with self._database.reading() as open_:
            get(open_, job)
            most = -1 if limit is None else limit
            return [
                LogLine(*row) for row in open_.execute(f"{text} ORDER BY number LIMIT ?4", (job, after, node, most))
            ]

    def close(self) -> None:
        """See ``JobStore``."""
        self._database.close()

    def _sweep(self) -> None:
        """Remove bundles of no job: a crash has left them."""
        with self._database.reading() as open_:
            wanted = {digest for (digest,) in open_.execute("SELECT DISTINCT bundle FROM jobs")}
        for path in (self._folder / "bundles").glob("*"):
            if _DIGEST.fullmatch(path.name) and path.name not in wanted:
                path.unlink(missing_ok=True)

    def _blob(self, digest: str) -> Path:
        if not _DIGEST.fullmatch(digest):
            raise without_bundle(digest, "has no such digest")
        return self._folder / "bundles" / digest
