"""A store in memory: for tests, and as the simplest description of what a store does."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from atoll.core.persistence.trail import EMPTY, AuditEvent, Head
from atoll.runtime.store.changes import (
    DELETED,
    LOG_LINES,
    LOG_WIDTH,
    chain_event,
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
    submit_event,
    without_bundle,
)
from atoll.runtime.store.records import (
    ACTIVE,
    ALL,
    JobFilter,
    JobRecord,
    JobState,
    LogLine,
    Submission,
)

__all__ = ["MemoryStore"]


class MemoryStore:
    """A ``JobStore`` in dictionaries.

    Args:
        log_lines: lines kept of each node of a job.
        log_width: characters kept of a line.
    """

    def __init__(self, *, log_lines: int = LOG_LINES, log_width: int = LOG_WIDTH) -> None:
        self._jobs: dict[str, JobRecord] = {}
        self._bundles: dict[str, bytes] = {}
        self._events: list[AuditEvent] = []
        self._lines: dict[str, list[LogLine]] = {}
        self._last: dict[str, int] = {}
        self._log_lines, self._log_width = log_lines, log_width
        self._numbers = 0

    def submit(self, job: Submission, *, now: float, who: str) -> JobRecord:
        """See ``JobStore``."""
        made = first_record(self._numbers + 1, job, now)
        if (there := self.submitted(made.submitter, made.token)) is not None:
            conflict(there, job)
            return there
        if job.bundle and job.bundle not in self._bundles:
            raise without_bundle(job.bundle)
        self._jobs[made.id], self._numbers = made, self._numbers + 1
        self.record(submit_event(made, who))
        return made

    def get(self, job: str) -> JobRecord:
        """See ``JobStore``."""
        if job not in self._jobs:
            raise missing(job)
        return self._jobs[job]

    def find_numbered(self, number: int) -> JobRecord:
        """See ``JobStore``."""
        found = [job for job in self._jobs.values() if int(job.id.partition("-")[0]) == number]
        if not found:
            raise missing(str(number))
        return found[0]

    def submitted(self, submitter: str, token: str) -> JobRecord | None:
        """See ``JobStore``."""
        found = [job for job in self._jobs.values() if (job.submitter, job.token) == (clean(submitter), clean(token))]
        return found[0] if found else None

    def jobs(self, wanted: JobFilter = ALL, *, limit: int | None = None) -> list[JobRecord]:
        """See ``JobStore``."""
        found = [replace(job, spec={}) for job in self._jobs.values() if wanted.has(job)]
        return found if limit is None else found[max(0, len(found) - limit) :]

    def count(self, wanted: JobFilter = ALL) -> int:
        """See ``JobStore``."""
        return len(self.jobs(wanted))

    def count_kept(self, submitter: str) -> int:
        """See ``JobStore``."""
        own = [job.bundle for job in self._jobs.values() if job.submitter == submitter]
        return sum(len(self._bundles[digest]) for digest in own if digest)

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
        old = self.get(job)
        new = move_record(old, state, now=now, reason=reason, error=error, sites=sites, progress=progress)
        self._jobs[job] = new
        self.record(move_event(old, new, who))
        return new

    def resume(self, job: str, *, now: float, who: str, token: str = "") -> JobRecord:
        """See ``JobStore``."""
        old = self.get(job)
        new = resume_record(old, now=now, who=who)
        self._jobs[job] = new
        self.record(resume_event(old, new, who, token))
        return new

    def delete(self, job: str, *, now: float, who: str) -> JobRecord:
        """See ``JobStore``."""
        old = self.get(job)
        self.record(delete_event(old, now=now, who=who))
        del self._jobs[job]
        self._lines.pop(job, None)
        if not any(other.bundle == old.bundle for other in self._jobs.values()):
            self._bundles.pop(old.bundle, None)
        return old

    def deleted(self, job: str) -> bool:
        """See ``JobStore``."""
        return any(event.what == DELETED for event in self.events(job=job))

    def restart(self, *, now: float) -> list[JobRecord]:
        """See ``JobStore``."""
        for old in [job for job in self._jobs.values() if job.state in ACTIVE]:
            new = restart_record(old, now)
            self._jobs[old.id] = new
            self.record(move_event(old, new, "server"))
        return [job for job in self._jobs.values() if job.state is JobState.QUEUED]

    def put_bundle(self, content: bytes) -> str:
        """See ``JobStore``."""
        digest = hashlib.sha256(content).hexdigest()
        self._bundles[digest] = bytes(content)
        return digest

    def bundle(self, digest: str) -> bytes:
        """See ``JobStore``."""
        if digest not in self._bundles:
            raise without_bundle(digest)
        return self._bundles[digest]

    def record(self, event: AuditEvent, *, durable: bool = True) -> int:
        """See ``JobStore``."""
        del durable
        self._events.append(chain_event(event, self.head()))
        return self._events[-1].number

    def head(self) -> Head:
        """See ``JobStore``."""
        return Head(self._events[-1].number, self._events[-1].hash) if self._events else EMPTY

    def events(self, *, job: str | None = None, after: int = 0, limit: int | None = None) -> list[AuditEvent]:
        """See ``JobStore``."""
        return [event for event in self._events[max(0, after) :] if job is None or event.job == job][:limit]

    def log(self, job: str, node: str, lines: Iterable[str], *, now: float) -> None:
        """See ``JobStore``."""
        self.get(job)
        name, first = clean(node), self._last.get(job, 0) + 1
        new = [
            LogLine(first + i, now, name, text) for i, text in enumerate(cut(lines, self._log_lines, self._log_width))
        ]
        kept = [*self._lines.get(job, []), *new]
        self._last[job] = first + len(new) - 1
        own = [line for line in kept if line.node == name]
        spent = {line.number for line in own[: max(0, len(own) - self._log_lines)]}
        self._lines[job] = [line for line in kept if line.number not in spent]

    def lines(self, job: str, *, node: str | None = None, after: int = 0, limit: int | None = None) -> list[LogLine]:
        """See ``JobStore``."""
        self.get(job)
        found = [line for line in self._lines.get(job, []) if line.number > after and node in (None, line.node)]
        return found[:limit]

    def close(self) -> None:
        """Do nothing."""
