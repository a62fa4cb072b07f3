"""How a submission and a move change a record: the same for every store."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from atoll.core.errors import JobError
from atoll.core.persistence.trail import AuditEvent, Head, link

from .records import (
    JobRecord,
    JobState,
    Submission,
    after_restart,
    require_ended,
    require_move,
    require_resumable,
)

__all__ = [
    "DELETED",
    "LOG_LINES",
    "LOG_WIDTH",
    "chain_event",
    "clean",
    "conflict",
    "cut",
    "delete_event",
    "first_record",
    "missing",
    "move_event",
    "move_record",
    "plain",
    "restart_record",
    "resume_event",
    "resume_record",
    "submit_event",
    "visible",
    "without_bundle",
]

_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Control characters and those that change the direction of writing, except tabs and line ends."""

LOG_LINES = 10_000
"""Lines kept of each node in a job's log."""

LOG_WIDTH = 4_000
"""Characters kept of a line."""

RESTARTED = "the server was started again"

DELETED = "deleted"
"""The event of a deletion."""


def plain(tree: Any, where: str) -> Any:
    """Return a tree as JSON gives it back: tuples become lists.

    Raises:
        JobError: it holds something that JSON cannot express.
    """
    try:
        return json.loads(json.dumps(tree))
    except (TypeError, ValueError, RecursionError) as error:
        raise JobError(
            f"it cannot be kept: {error}", where=where, remedy="use numbers, words, lists and mappings"
        ) from error


def clean(text: str) -> str:
    """Return a text that every store can keep and every terminal can show: without halves of surrogate pairs and control characters."""
    return _OBEYED.sub("\ufffd", text.encode("utf-8", "replace").decode())


def visible(text: str, width: int) -> str:
    """Return a text without control characters, cut to ``width``; line ends and tabs stay.

    Raises:
        TypeError: it is not text.
    """
    if not isinstance(text, str):
        raise TypeError(type(text).__name__)
    kept = clean(text[: width + 1])
    return kept if len(kept) <= width else kept[: width - 1] + "…"


def shorten_texts(tree: Any) -> Any:
    """Return a tree of plain data whose texts are cut to the width of a line: what others have said ends in a store, a log and a terminal."""
    if isinstance(tree, str):
        return visible(tree, LOG_WIDTH)
    if isinstance(tree, Mapping):
        return {key[:LOG_WIDTH]: shorten_texts(value) for key, value in tree.items()}
    return [shorten_texts(value) for value in tree] if isinstance(tree, list) else tree


def cut(lines: Iterable[str], keep: int, width: int) -> list[str]:
    """Return lines as a log keeps them."""
    found = [line.rstrip("\r\n").replace("\r", "\n").replace("\n", " ⏎ ") for line in lines]
    return [visible(line, width) for line in found[-keep:]]


def first_record(number: int, job: Submission, now: float) -> JobRecord:
    """Return the record of a new job, the store's ``number``-th."""
    tag = hashlib.sha256(f"{job.submitter}\0{job.token}".encode("utf-8", "replace")).hexdigest()[:6]
    return JobRecord(
        id=f"{number:08d}-{tag}",
        name=clean(job.name),
        submitter=clean(job.submitter),
        org=clean(job.org),
        created=now,
        state=JobState.QUEUED,
        attempts=0,
        barren=0,
        reason="",
        error=None,
        spec=plain(job.spec, f"job {job.name!r}, spec"),
        bundle=job.bundle,
        sites=(),
        times=((JobState.QUEUED, now),),
        token=clean(job.token),
    )


def conflict(there: JobRecord, job: Submission) -> None:
    """Refuse a token that belongs to another job.

    Raises:
        JobError: the existing job is not this one.
    """
    same = first_record(0, job, there.created)
    if any(getattr(there, name) != getattr(same, name) for name in ("name", "org", "spec", "bundle")):
        raise JobError(
            f"the token {job.token!r} belongs to job {there.id}, and this is another job",
            where=f"job {job.name!r}, submission",
            remedy="submit it with a new token",
        )


def move_record(
    record: JobRecord,
    state: JobState,
    *,
    now: float,
    reason: str,
    error: Mapping[str, Any] | None,
    sites: Sequence[str] | None,
    progress: bool,
) -> JobRecord:
    """Return the record after a move.

    Raises:
        JobError: there is no such move.
    """
    require_move(record.id, record.state, state)
    died = state is JobState.QUEUED and record.state in (JobState.DEPLOYING, JobState.RUNNING)
    barren = 0 if progress else record.barren + died
    return replace(
        record,
        state=state,
        attempts=record.attempts + (state is JobState.DEPLOYING),
        barren=barren,
        reason=visible(reason, LOG_WIDTH),
        error=None if error is None else shorten_texts(plain(error, f"job {record.id}, error")),
        sites=record.sites if sites is None else tuple(map(clean, sites)),
        times=(*record.times, (state, now)),
    )


def restart_record(record: JobRecord, now: float) -> JobRecord:
    """Return the record as a server finds it after a crash of its own."""
    state = after_restart(record.state)
    return replace(record, state=state, reason=RESTARTED, times=(*record.times, (state, now)))


def resume_record(record: JobRecord, *, now: float, who: str) -> JobRecord:
    """Return the record of a job that a person resumes: its barren count restarts, all else continues.

    Raises:
        JobError: it has not ended, or has its result.
    """
    require_resumable(record.id, record.state)
    times = (*record.times, (JobState.QUEUED, now))
    return replace(record, state=JobState.QUEUED, barren=0, reason=clean(f"resumed by {who}"), error=None, times=times)


def resume_event(old: JobRecord, new: JobRecord, who: str, token: str) -> AuditEvent:
    """Return the event of a resumption, with what had ended the job."""
    details: dict[str, Any] = {"from": str(old.state), "attempt": new.attempts, "token": clean(token)}
    details |= {key: value for key, value in (("reason", old.reason), ("error", old.error)) if value}
    return AuditEvent(when=new.times[-1][1], who=who, what="resumed", job=new.id, details=details)


def submit_event(record: JobRecord, who: str) -> AuditEvent:
    """Return the event of a submission."""
    details = {"name": record.name, "bundle": record.bundle}
    return AuditEvent(when=record.created, who=who, what="submit", job=record.id, details=details)


def move_event(old: JobRecord, new: JobRecord, who: str) -> AuditEvent:
    """Return the event of a move."""
    details: dict[str, Any] = {"from": str(old.state), "to": str(new.state), "attempt": new.attempts}
    details |= {key: value for key, value in (("reason", new.reason), ("error", new.error)) if value}
    return AuditEvent(when=new.times[-1][1], who=who, what="moved", job=new.id, details=details)


def delete_event(record: JobRecord, *, now: float, who: str) -> AuditEvent:
    """Return the event of a deletion.

    Raises:
        JobError: the job has not ended.
    """
    require_ended(record.id, record.state)
    details = {"name": record.name, "submitter": record.submitter, "state": str(record.state), "bundle": record.bundle}
    return AuditEvent(when=now, who=who, what=DELETED, job=record.id, details=details)


def chain_event(event: AuditEvent, before: Head) -> AuditEvent:
    """Return an event as the trail keeps it, behind its end."""
    made = replace(
        event, who=clean(event.who), what=clean(event.what), job=clean(event.job),
        details=shorten_texts(plain(event.details, f"event {event.what!r}")), number=before.number + 1,
    )  # fmt: skip
    return replace(made, hash=link(before.hash, made))


def missing(job: str) -> JobError:
    """Return the error for a job that does not exist."""
    return JobError(f"there is no job {job!r}", where="store", remedy="atoll jobs lists them")


def without_bundle(digest: str, why: str = "is not in the store") -> JobError:
    """Return the error for a bundle that is not available."""
    return JobError(f"the bundle {digest!r} {why}", where="store", remedy="submit the job again from its folder")
