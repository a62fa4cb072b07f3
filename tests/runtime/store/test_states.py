"""The life of a job: which moves there are, and that every life ends."""

from __future__ import annotations

import itertools

import pytest

from atoll.core.errors import JobError
from atoll.runtime.store.records import (
    ACTIVE,
    MOVES,
    RESUMABLE,
    TERMINAL,
    JobState,
    after_crash,
    after_restart,
    require_move,
    require_resumable,
)

S = JobState


def test_moves_are_those_of_the_drawing() -> None:
    drawn = {
        ("queued", "scheduled"), ("scheduled", "deploying"), ("deploying", "running"), ("running", "finished"),
        ("scheduled", "queued"), ("deploying", "queued"), ("running", "queued"),
        *itertools.product(("queued", "scheduled", "deploying", "running"), ("failed", "aborted")),
    }  # fmt: skip
    assert {(str(old), str(new)) for old, follow in MOVES.items() for new in follow} == drawn
    assert set(MOVES) == set(S)


@pytest.mark.parametrize("end", sorted(TERMINAL))
def test_nothing_leaves_an_end(end: JobState) -> None:
    assert end.terminal
    for state in S:
        with pytest.raises(JobError, match=rf"has ended \({end}\).*atoll clone 7"):
            require_move("7", end, state)


def test_a_person_resumes_ends_without_a_result_and_nothing_else() -> None:
    assert TERMINAL - {S.FINISHED} == RESUMABLE
    for state in RESUMABLE:
        require_resumable("7", state)
    for state in set(S) - RESUMABLE:
        with pytest.raises(JobError, match=r"(has its result|goes on by itself).*atoll (clone|logs) 7"):
            require_resumable("7", state)


def test_an_illegal_move_names_the_legal_ones() -> None:
    with pytest.raises(JobError, match=r"queued cannot become running .in job 7.*aborted, failed, scheduled"):
        require_move("7", S.QUEUED, S.RUNNING)
    require_move("7", S.RUNNING, S.FINISHED)


def test_every_state_can_reach_every_end_it_should() -> None:
    def reachable(state: JobState) -> set[JobState]:
        seen, waiting = {state}, [state]
        while waiting:
            new = MOVES[waiting.pop()] - seen
            seen |= new
            waiting += new
        return seen

    for state in set(S) - TERMINAL:
        assert reachable(state) >= TERMINAL


def test_a_restart_queues_what_was_under_way_and_nothing_else() -> None:
    assert {s for s in S if after_restart(s) is not s} == ACTIVE
    assert {after_restart(s) for s in ACTIVE} == {S.QUEUED}


def test_a_job_that_only_crashes_fails_in_the_end() -> None:
    assert [after_crash(n, 3) for n in (1, 2, 3, 4)] == [S.QUEUED, S.QUEUED, S.FAILED, S.FAILED]
