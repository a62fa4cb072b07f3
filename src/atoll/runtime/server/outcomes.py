"""How an attempt can end, and how it is reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from atoll.core.errors import AtollError, JobError, MessageError
from atoll.core.requests.wire import pack_error, unpack_error
from atoll.runtime.store.changes import visible
from atoll.runtime.store.records import JobRecord
from atoll.runtime.store.states import JobState, after_crash

__all__ = ["AttemptOutcome", "failed_at", "make_aborted", "make_crashed", "make_failed", "make_finished", "state_after"]

_LONGEST = 4000
_END = {"finished": JobState.FINISHED, "failed": JobState.FAILED, "aborted": JobState.ABORTED}


@dataclass(frozen=True)
class AttemptOutcome:
    """How an attempt ended.

    Attributes:
        kind: finished: there is a result; failed: it would fail again; crashed: the next attempt continues; aborted: a
            person stopped it.
        reason: in words.
        error: the error, as ``pack_error`` gives it.
        progress: whether it has made a new checkpoint.
    """

    kind: Literal["finished", "failed", "crashed", "aborted"]
    reason: str = ""
    error: Mapping[str, Any] | None = None
    progress: bool = False


def make_finished() -> AttemptOutcome:
    """Return the outcome of an attempt with a result."""
    return AttemptOutcome("finished")


def make_failed(error: AtollError) -> AttemptOutcome:
    """Return the outcome of an attempt that would fail again."""
    return AttemptOutcome("failed", error.what, pack_error(error))


def failed_at(node: str, packed: Any) -> AttemptOutcome:
    """Return the outcome of a process that reported an error of its own.

    Args:
        node: the process: ``server`` or ``site 'a'``.
        packed: the error as it travelled.
    """
    found = _readable(packed)
    place = found.where or ""
    # The server's process may report what happened at a site; then it names the site.
    said = place.removeprefix("the ").startswith(("server", "site ")) if node == "server" else node in place
    named = place if said else f"{node}: {place}" if place else node
    return make_failed(type(found)(found.what, where=named, remedy=found.remedy or "see the log: atoll logs JOB"))


def _readable(packed: Any) -> AtollError:
    """Return an error as it travelled, bounded in length: it ends in a store, a log and a terminal."""
    try:
        found = unpack_error(packed)
        if not isinstance(found, AtollError) or not isinstance(found.what, str):
            raise TypeError(packed)
        return type(found)(
            visible(found.what, _LONGEST),
            where=None if found.where is None else visible(found.where, _LONGEST),
            remedy=None if found.remedy is None else visible(found.remedy, _LONGEST),
        )
    except (KeyError, TypeError, AttributeError):
        return MessageError("it reported an unreadable error", remedy="use the same version of Atoll everywhere")


def make_crashed(why: str) -> AttemptOutcome:
    """Return the outcome of an attempt whose process or daemon died; the next one continues from the last checkpoint."""
    return AttemptOutcome("crashed", why, pack_error(JobError(why, where="job", remedy="see the log: atoll logs JOB")))


def make_aborted(who: str) -> AttemptOutcome:
    """Return the outcome of an attempt that a person stopped."""
    return AttemptOutcome("aborted", f"aborted by {who}")


def state_after(record: JobRecord, outcome: AttemptOutcome, most: int) -> tuple[JobState, AttemptOutcome]:
    """Return a job's next state, and the outcome to record.

    Args:
        record: the job before.
        outcome: of its attempt.
        most: attempts in a row that may end without a checkpoint.
    """
    if outcome.kind != "crashed":
        return _END[outcome.kind], outcome
    barren = 0 if outcome.progress else record.barren + 1
    state = after_crash(barren, most)
    if state is not JobState.FAILED:
        return state, AttemptOutcome("crashed", outcome.reason, None, outcome.progress)
    return state, make_failed(
        JobError(
            f"{barren} attempts in a row ended without a checkpoint; the last one: {outcome.reason}",
            where=f"job {record.id}",
            remedy=f"see the log: atoll logs {record.id}",
        )
    )
