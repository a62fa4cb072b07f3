"""What a store keeps of a job: the job itself, the events of the audit trail, the lines of its log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from .states import JobState

__all__ = ["ALL", "AuditEvent", "JobFilter", "JobRecord", "LogLine", "Submission", "literal"]


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


@dataclass(frozen=True, kw_only=True)
class AuditEvent:
    """Who did what, when: a line of the audit trail. Events are never changed or removed.

    Attributes:
        when: seconds since 1970.
        who: the party, such as ``admin 'ann' of 'Bonn'``, or ``server``.
        what: one word: submit, abort, moved, refused, ...
        job: the job it is about, or ``""``.
        details: a plain tree.
        number: position in the trail, from 1; 0 before it is stored.
        hash: of this event and all before it, see `atoll.runtime.store.trail.link`; empty before it is stored.
    """

    when: float
    who: str
    what: str
    job: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    number: int = 0
    hash: str = ""


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
