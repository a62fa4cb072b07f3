"""A cohort is cut by declared work, in order, whatever the number of workers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.execution.executor import Executor
from atoll.core.requests.cohort import Community
from atoll.core.requests.party import Roster
from atoll.core.requests.request import Request
from atoll.core.requests.task import Task, Work
from atoll.engines.share import cut, shares

WORK = st.lists(st.floats(0, 1e6), min_size=1, max_size=40)


@given(WORK, st.integers(1, 6))
def test_parts_are_the_cohort_in_order_and_none_is_far_above_its_share(work: list[float], parts: int) -> None:
    positions = np.arange(len(work)) * 3 + 1
    found = cut(positions, np.array(work), parts)
    assert len(found) == parts
    assert np.array_equal(np.concatenate(found), positions)
    loads = [sum(work[(p - 1) // 3] for p in part.tolist()) for part in found]
    assert max(loads) <= sum(work) / parts + max(work) * (1 + 1e-9)


def test_a_giant_has_a_worker_to_itself() -> None:
    assert [part.tolist() for part in cut(np.arange(5), np.array([1.0, 1, 40, 1, 1]), 3)] == [[0, 1], [2], [3, 4]]


def test_equal_work_and_no_work_are_cut_by_number() -> None:
    for work in (np.zeros(5), np.full(5, 2.0)):
        assert [len(part) for part in cut(np.arange(5), work, 2)] == [3, 2]


def asking(task: Task) -> Request:
    return Request("main/asking/0", task, None, "main", 0)


def test_work_is_what_the_task_declares() -> None:
    rows = [1, 1, 1, 9, 1, 1]
    task = Task("count", lambda island, message: None, work=lambda data, args, message: Work(0.0, 2.0 * len(data), 1.0))
    population = Community([[0] * n for n in rows])
    executor = Executor(Roster(population.names), population)
    assert [p.tolist() for p in shares(executor, asking(task), np.arange(6), 2)] == [[0, 1, 2], [3, 4, 5]]
    assert [p.tolist() for p in shares(executor, asking(task), np.array([0, 3, 1, 2, 4]), 2)] == [[0, 3], [1, 2, 4]]
    silent = Task("silent", lambda island, message: None)
    assert [len(p) for p in shares(executor, asking(silent), np.arange(6), 2)] == [3, 3]
