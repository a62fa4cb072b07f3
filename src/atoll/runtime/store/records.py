"""What a server remembers of a job: its record, its state, its log, and what every store offers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, Protocol, runtime_checkable

from atoll.core.errors import JobError
from atoll.core.persistence.trail import AuditEvent, Head

__all__ = [
    "ACTIVE",
    "ALL",
    "MOVES",
    "RESUMABLE",
    "TERMINAL",
    "JobFilter",
    "JobRecord",
    "JobState",
    "JobStore",
    "LogLine",
    "Submission",
    "after_crash",
    "after_restart",
    "literal",
    "require_ended",
    "require_move",
    "require_resumable",
]


# ------------------------------------------------------------------ the life of a job: a short list of states and the moves between them
#
# ```
# QUEUED ──► SCHEDULED ──► DEPLOYING ──► RUNNING ──► FINISHED
# ▲            │             │            │
# └────────────┴─────────────┴────────────┘   a refusal, or the next attempt after a crash
# any of the four  ──►  FAILED | ABORTED  ──►  QUEUED, if a person resumes it
# ```
#
# A job is a series of attempts. An attempt that dies takes the job back to QUEUED; the next one continues from the last
# checkpoint. So does the first attempt after a failure or an abort, once a person has resumed the job.


class JobState(StrEnum):
    """The state of a job.

    QUEUED waits for sites; SCHEDULED asks them and holds reservations; DEPLOYING sends bundles and starts processes;
    RUNNING computes; FINISHED has a result; FAILED has an error; ABORTED was stopped by a person.
    """

    QUEUED = "queued"
    SCHEDULED = "scheduled"
    DEPLOYING = "deploying"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    ABORTED = "aborted"

    @property
    def terminal(self) -> bool:
        """Tell whether the job has ended for good."""
        return self in TERMINAL


TERMINAL = frozenset({JobState.FINISHED, JobState.FAILED, JobState.ABORTED})
"""States that a job never leaves by itself."""

RESUMABLE = frozenset({JobState.FAILED, JobState.ABORTED})
"""Ends after which a person may resume the job."""

ACTIVE = frozenset({JobState.SCHEDULED, JobState.DEPLOYING, JobState.RUNNING})
"""States in which sites hold something for the job."""

_BACK = frozenset({JobState.QUEUED, JobState.FAILED, JobState.ABORTED})

MOVES: dict[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.SCHEDULED, JobState.FAILED, JobState.ABORTED}),
    JobState.SCHEDULED: _BACK | {JobState.DEPLOYING},
    JobState.DEPLOYING: _BACK | {JobState.RUNNING},
    JobState.RUNNING: _BACK | {JobState.FINISHED},
    **{end: frozenset() for end in TERMINAL},
}
"""State -> the states that may follow it."""


def require_move(job: str, old: JobState, new: JobState) -> None:
    """Refuse an impossible move.

    Raises:
        JobError: the job has ended, or the move is not in ``MOVES``.
    """
    if new in MOVES[old]:
        return
    if old.terminal:
        raise JobError(
            f"the job has ended ({old}) and cannot become {new}",
            where=f"job {job}",
            remedy=f"atoll resume {job} continues after a failure; atoll clone {job} runs it once more",
        )
    follow = ", ".join(sorted(MOVES[old]))
    raise JobError(f"a job that is {old} cannot become {new}", where=f"job {job}", remedy=f"next may be {follow}")


def require_ended(job: str, state: JobState) -> None:
    """Refuse to delete a job that has not ended.

    Raises:
        JobError: its state is not in ``TERMINAL``.
    """
    if not state.terminal:
        raise JobError(
            f"the job is {state}, and only a job that has ended can be deleted",
            where=f"job {job}",
            remedy=f"abort it first: atoll abort {job}",
        )


def require_resumable(job: str, state: JobState) -> None:
    """Refuse to resume a job that has not ended, or has its result.

    Raises:
        JobError: its state is not in ``RESUMABLE``.
    """
    if state is JobState.FINISHED:
        raise JobError(
            "the job has its result, so there is nothing left to do",
            where=f"job {job}",
            remedy=f"to run it once more: atoll clone {job}",
        )
    if state not in RESUMABLE:
        raise JobError(f"the job is {state}, and goes on by itself", where=f"job {job}", remedy=f"see atoll logs {job}")


def after_restart(state: JobState) -> JobState:
    """Return the state of a job after a crash of the server: work in progress is queued again."""
    return JobState.QUEUED if state in ACTIVE else state


def after_crash(barren: int, most: int) -> JobState:
    """Return the state that follows an attempt that died.

    Args:
        barren: attempts in a row, this one included, that ended without a new checkpoint.
        most: how many of those a job may have.

    Returns:
        QUEUED for the next attempt; FAILED if the job only ever crashes, since it would try for ever without this
        bound.
    """
    return JobState.QUEUED if barren < most else JobState.FAILED


# ------------------------------------------------------------------ what a store keeps of a job: the job itself, and the lines of its log; events of the audit trail are those of `atoll.core.persistence.trail`


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A job as a person submits it.

    Attributes:
        name: a short word for tables.
        submitter: name of the admin.
        org: the admin's organisation.
        spec: the job file as a plain tree (what JSON can express).
        bundle: digest of its bundle, as ``put_bundle`` gave it; ``""`` for none.
        token: chosen by the submitter: the same token again is the same job, so that a submission may be repeated after
            a lost answer.
    """

    name: str
    submitter: str
    org: str
    spec: Mapping[str, Any]
    token: str
    bundle: str = ""


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """The current state of a job.

    Attributes:
        id: unique in this store; later jobs sort after earlier ones.
        name: a short word for tables.
        submitter: name of the admin who submitted it.
        org: that admin's organisation.
        created: when, in seconds since 1970.
        state: its state.
        attempts: attempts started so far; 1 while the first one is deployed or runs.
        barren: attempts in a row that died without a new checkpoint.
        reason: why it is in this state, in words; for a queued job, what it waits for.
        error: what ended it, as ``core.wire.pack_error`` gives it; None while nothing did.
        spec: the job file as a plain tree.
        bundle: digest of its bundle, or ``""``.
        sites: the sites of its attempts, in order; empty until the first reservation.
        times: (state, seconds since 1970) of every move, oldest first.
        token: the submitter's token.
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
class JobFilter:
    """Which jobs a list has; what is None excludes none.

    Attributes:
        states: the states.
        submitter: the name of the admin.
        name: a pattern of the job's name, with ``*`` and ``?``.
        site: a site of its attempts.
        since: submitted at this time or later, in seconds since 1970.
        before: submitted before the job with this id.
    """

    states: frozenset[JobState] | None = None
    submitter: str | None = None
    name: str | None = None
    site: str | None = None
    since: float | None = None
    before: str | None = None

    def has(self, job: JobRecord) -> bool:
        """Tell whether a job is in the list."""
        return (
            (self.states is None or job.state in self.states)
            and self.submitter in (None, job.submitter)
            and (self.name is None or fnmatchcase(job.name, literal(self.name)))
            and (self.site is None or self.site in job.sites)
            and (self.since is None or job.created >= self.since)
            and (self.before is None or job.id < self.before)
        )


def literal(pattern: str) -> str:
    """Return a pattern in which ``*`` and ``?`` alone stand for others, for ``fnmatch`` and for SQLite's GLOB."""
    return pattern.replace("[", "[[]")


ALL = JobFilter()
"""All jobs."""


@dataclass(frozen=True)
class LogLine:
    """A line of a node's output.

    Attributes:
        number: position in the job's log, from 1; a gap means that older lines were dropped.
        when: seconds since 1970, on the server's clock.
        node: ``server`` or a site's name.
        text: the line, without its end.
    """

    number: int
    when: float
    node: str
    text: str


# ------------------------------------------------------------------ what a server remembers of its jobs, in any backend: SQLite, memory, later PostgreSQL


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
