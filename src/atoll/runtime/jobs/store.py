"""What a server remembers of its jobs, whatever keeps it: SQLite, memory, later PostgreSQL."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from .states import JobState

__all__ = ["Event", "JobRecord", "JobStore", "LogLine", "Submission"]


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A job as somebody hands it in.

    Attributes:
        name: a short word for tables.
        submitter: name of the admin.
        org: the admin's organisation.
        spec: the job file as a plain tree (what JSON can say).
        bundle: digest of its bundle, as ``put_bundle`` gave it; ``""`` for none.
        token: chosen by the submitter: the same token again is the same job, so that a submission may be repeated after a lost answer.
    """

    name: str
    submitter: str
    org: str
    spec: Mapping[str, Any]
    token: str
    bundle: str = ""


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """A job as it stands.

    Attributes:
        id: unique in this store; later jobs sort behind earlier ones.
        name: a short word for tables.
        submitter: name of the admin who handed it in.
        org: that admin's organisation.
        created: when, in seconds since 1970.
        state: where it is.
        attempts: attempts begun so far; 1 while the first one is deployed or runs.
        barren: attempts in a row that died without a new checkpoint.
        reason: why it is where it is, in words; for a queued job what it waits for.
        error: what ended it, as ``core.wire.pack_error`` gives it; None while nothing did.
        spec: the job file as a plain tree.
        bundle: digest of its bundle, or ``""``.
        sites: the sites of its attempts, in order; empty until the first reservation.
        times: (state, seconds since 1970) of every move, oldest first.
        token: the submitter's.
    """

    id: str
    name: str
    submitter: str
    org: str
    created: float
    state: JobState
    attempts: int
    barren: int
    reason: str
    error: Mapping[str, Any] | None
    spec: Mapping[str, Any]
    bundle: str
    sites: tuple[str, ...]
    times: tuple[tuple[JobState, float], ...]
    token: str


@dataclass(frozen=True, kw_only=True)
class Event:
    """Who did what, when: a line of the audit trail. Events are never changed or removed.

    Attributes:
        when: seconds since 1970.
        who: the party, such as ``admin 'ann' of 'Bonn'``, or ``server``.
        what: one word: submit, abort, moved, refused, ...
        job: the job it is about, or ``""``.
        details: a plain tree.
        number: position in the trail, from 1; 0 before it is stored.
    """

    when: float
    who: str
    what: str
    job: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    number: int = 0


@dataclass(frozen=True)
class LogLine:
    """A line that a node of a job has said.

    Attributes:
        number: position in the job's log, from 1; a gap means that older lines were let go.
        when: seconds since 1970, on the server's clock.
        node: ``server`` or a site's name.
        text: the line, without its end.
    """

    number: int
    when: float
    node: str
    text: str


@runtime_checkable
class JobStore(Protocol):
    """Keeps jobs, bundles, the audit trail and logs. Every method is one transaction: after a crash it happened or it did not.

    One process at a time holds a store; its threads may share it. ``tests/runtime/jobs/store_laws.py`` has the laws.
    """

    def submit(self, job: Submission, *, now: float, who: str) -> JobRecord:
        """Take a job, QUEUED, and write the event ``submit``. The same submitter and token again give the job that is there.

        Raises:
            JobError: the token stands for another job, or the bundle is not here.
        """

    def get(self, job: str) -> JobRecord:
        """A job by its id.

        Raises:
            JobError: there is none.
        """

    def jobs(
        self, *, states: Collection[JobState] | None = None, submitter: str | None = None, limit: int | None = None
    ) -> list[JobRecord]:
        """Jobs, oldest first; with ``limit`` the newest so many."""

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

        Counts itself: ``attempts`` at every move to DEPLOYING; ``barren`` grows by one when an attempt (DEPLOYING or RUNNING) goes back
        to QUEUED and begins at 0 again with ``progress``.

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

    def note(self, job: str, reason: str) -> None:
        """Say why a job waits, without moving it. Not durable at once, no event.

        Raises:
            JobError: there is no such job.
        """

    def restart(self, *, now: float) -> list[JobRecord]:
        """To be called when a server begins: what was under way is QUEUED again; the queued jobs, oldest first.

        A server's death says nothing against its jobs: ``barren`` stays.
        """

    def put_bundle(self, content: bytes) -> str:
        """Keep a bundle; the SHA-256 of its bytes, in hex. The same bytes again are kept once."""

    def bundle(self, digest: str) -> bytes:
        """A bundle's bytes.

        Raises:
            JobError: it is not here, or the disk has altered it.
        """

    def record(self, event: Event) -> int:
        """Append to the audit trail, durably; the event's number."""

    def events(self, *, job: str | None = None, after: int = 0, limit: int | None = None) -> list[Event]:
        """Events behind a number, oldest first; ``limit`` keeps the first so many."""

    def log(self, job: str, node: str, lines: Iterable[str], *, now: float) -> None:
        """Add lines to a job's log. The newest ``log_lines`` of each node are kept, each cut to ``log_width`` characters.

        Raises:
            JobError: there is no such job.
        """

    def lines(self, job: str, *, node: str | None = None, after: int = 0, limit: int | None = None) -> list[LogLine]:
        """Lines of a job's log behind a number, oldest first; ``limit`` keeps the first so many.

        Raises:
            JobError: there is no such job.
        """

    def close(self) -> None:
        """Let go of everything. Closing twice is allowed."""
