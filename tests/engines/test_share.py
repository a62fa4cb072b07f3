"""A cohort is cut by declared work, in order, whatever the number of workers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.core.execution.executor import Executor
from atoll.core.requests.cohort import Community
from atoll.core.requests.party import Roster
from atoll.core.requests.request import Request
from atoll.core.requests.task import Task, Work
from atoll.engines import remote
from atoll.engines.remote import cut, dealt, shares

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


@given(st.lists(st.integers(1, 60), min_size=2, max_size=30), st.integers(2, 4))
def test_clients_are_dealt_out_once_each_and_never_worse_than_in_order(rows: list[int], parts: int) -> None:
    task = Task(
        "count", lambda island, message: None, work=lambda data, args, message: Work(0.0, float(len(data)), 1.0)
    )
    population = Community([[0] * n for n in rows])
    executor, positions = Executor(Roster(population.names), population), np.arange(len(rows))[::-1]
    hands, in_order = (split(executor, asking(task), positions, parts) for split in (dealt, shares))
    assert sorted(np.concatenate(hands).tolist()) == sorted(positions.tolist())
    for hand in hands:
        assert (np.diff(hand) < 0).all()  # each part keeps the order of the cohort
    busiest = [max(sum(rows[p] for p in part.tolist()) for part in split) for split in (hands, in_order)]
    assert busiest[0] <= busiest[1]


@pytest.mark.network
def test_clients_that_were_dealt_out_are_reported_in_the_order_of_the_cohort(monkeypatch) -> None:
    """Client values, which are not added up, must be those of one process, client by client."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr("atoll.engines.batched.WORTH_A_PROCESS", 0.0)
    dealings: list[list[list[int]]] = []
    deal = remote.dealt

    def seen(*given):
        made = deal(*given)
        dealings.append([part.tolist() for part in made])
        return made

    monkeypatch.setattr("atoll.engines.batched.dealt", seen)
    draw = np.random.default_rng(0)
    sizes = [3, 50, 4, 45, 5, 40, 6, 30]
    rows = {
        f"client-{k}": atoll.data.Dataset(
            {"x": draw.normal(size=(n, 4)).astype(np.float32), "y": draw.integers(0, 2, n)}, classes=2
        )
        for k, n in enumerate(sizes)
    }
    job = atoll.Training(
        model=lambda: torch.nn.Sequential(torch.nn.Linear(4, 2)),
        algorithm=atoll.FedAvg(lr=0.1, batch_size=5),
        selection=atoll.Schedule([[7, 1, 0, 3, 2, 6, 4, 5]] * 2),
        rounds=2,
        compile="never",
        evaluation=atoll.Evaluation(clients=-1, participants=True),
    )
    one, two = (
        atoll.simulate(job, atoll.data.Islands.from_datasets(rows), engine="batched", workers=n).metrics for n in (1, 2)
    )
    assert any(np.any(np.diff(np.concatenate(parts)) > 0) for parts in dealings)
    for a, b in zip(one, two, strict=True):
        assert a["replied_clients"] == b["replied_clients"]
        np.testing.assert_allclose(a["clients/loss/values"], b["clients/loss/values"], rtol=1e-5)
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
