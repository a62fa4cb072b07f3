"""The life of a job: a short list of states and the moves between them.

```
QUEUED ──► SCHEDULED ──► DEPLOYING ──► RUNNING ──► FINISHED
  ▲            │             │            │
  └────────────┴─────────────┴────────────┘   a refusal, or the next attempt after a crash
            any of the four  ──►  FAILED | ABORTED  ──►  QUEUED, if a person resumes it
```

A job is a series of attempts. An attempt that dies takes the job back to QUEUED; the next one continues from the last
checkpoint. So does the first attempt after a failure or an abort, once a person has resumed the job.
"""

from __future__ import annotations

from enum import StrEnum

from atoll.core.errors import JobError

__all__ = [
    "ACTIVE",
    "MOVES",
    "RESUMABLE",
    "TERMINAL",
    "JobState",
    "after_crash",
    "after_restart",
    "require_ended",
    "require_move",
    "require_resumable",
]


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
