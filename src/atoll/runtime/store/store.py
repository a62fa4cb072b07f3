"""What a server remembers of its jobs, in any backend: SQLite, memory, later PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from .records import ALL, AuditEvent, JobFilter, JobRecord, LogLine, Submission
from .states import JobState
from .trail import Head

__all__ = ["JobStore"]


@runtime_checkable
class JobStore(Protocol):
    """Keeps jobs, bundles, the audit trail and logs. Every method is one transaction: after a crash it happened or it did not.

    One process at a time holds a store; its threads may share it. ``tests/support/store_laws.py`` has the laws.
    """

    def submit(self, job: Submission, *, now: float, who: str) -> JobRecord:
        """Take a job, QUEUED, and write the event ``submit``. The same submitter and token again return the existing job.

        Raises:
            JobError: the token belongs to another job, or the bundle is not here.
        """

    def get(self, job: str) -> JobRecord:
        """Return a job by its id.

        Raises:
            JobError: there is none.
        """

    def find_numbered(self, number: int) -> JobRecord:
        """Return a job by the number at the start of its id.

        Raises:
            JobError: there is none.
        """

    def submitted(self, submitter: str, token: str) -> JobRecord | None:
        """Return the job that a person has submitted with this token, if there is one."""

    def jobs(self, wanted: JobFilter = ALL, *, limit: int | None = None) -> list[JobRecord]:
        """Return jobs, oldest first; with ``limit``, only the newest. Their ``spec`` is left out: it may be long, and ``get`` has it."""

    def count(self, wanted: JobFilter = ALL) -> int:
        """Return how many jobs there are."""

    def count_kept(self, submitter: str) -> int:
        """Return the bytes of the bundles of a person's jobs; one that two of them share counts twice."""

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
        """Move a job to another state, durably, and write the event ``moved``.

        It counts ``attempts`` at every move to DEPLOYING. ``barren`` grows by one when an attempt (DEPLOYING or
        RUNNING) goes back to QUEUED, and restarts at 0 with ``progress``.

        Args:
            job: its id.
            state: the new state; one of ``MOVES``.
            now: seconds since 1970.
            who: who caused it.
            reason: why, in words.
            error: what went wrong, as ``pack_error`` gives it.
            sites: the sites of the coming attempt, kept from then on; None leaves them.
            progress: the attempt that ends here has made a checkpoint.

        Raises:
            JobError: there is no such job, or no such move.
        """

    def resume(self, job: str, *, now: float, who: str, token: str = "") -> JobRecord:
        """Take a job that failed or was aborted back to QUEUED, durably, and write the event ``resumed`` with the token.

        Its attempts, sites and bundle stay; ``barren`` restarts at 0.

        Raises:
            JobError: there is no such job, it has not ended, or it has its result.
        """

    def delete(self, job: str, *, now: float, who: str) -> JobRecord:
        """Delete a job that has ended, with its log, and its bundle if no other job has the same one; return what it was.

        It writes the event ``deleted``. The job's events stay, and no later job gets its id.

        Raises:
            JobError: there is no such job, or it has not ended.
        """

    def deleted(self, job: str) -> bool:
        """Tell whether a job was here and was deleted."""

    def restart(self, *, now: float) -> list[JobRecord]:
        """Queue work in progress again when a server starts; return the queued jobs with their ``spec``, oldest first.

        A server's crash is not the fault of its jobs: ``barren`` stays.
        """

    def put_bundle(self, content: bytes) -> str:
        """Keep a bundle; return the SHA-256 of its bytes, in hex. The same bytes are kept once."""

    def bundle(self, digest: str) -> bytes:
        """Return a bundle's bytes.

        Raises:
            JobError: it is not here, or the disk has altered it.
        """

    def record(self, event: AuditEvent, *, durable: bool = True) -> int:
        """Append to the audit trail; return the event's number.

        Args:
            event: the event.
            durable: it is on the disk before this returns. Otherwise a power cut may lose it.
        """

    def head(self) -> Head:
        """Return the end of the audit trail as this process has written it."""

    def events(self, *, job: str | None = None, after: int = 0, limit: int | None = None) -> list[AuditEvent]:
        """Return events after a number, oldest first; ``limit`` keeps the first ones."""

    def log(self, job: str, node: str, lines: Iterable[str], *, now: float) -> None:
        """Add lines to a job's log. The newest ``log_lines`` of each node are kept, each cut to ``log_width`` characters.

        Raises:
            JobError: there is no such job.
        """

    def lines(self, job: str, *, node: str | None = None, after: int = 0, limit: int | None = None) -> list[LogLine]:
        """Return lines of a job's log after a number, oldest first; ``limit`` keeps the first ones.

        Raises:
            JobError: there is no such job.
        """

    def close(self) -> None:
        """Close the store. Closing twice is allowed."""
