"""What clients declare beforehand: the work of every pass of the phase they are asked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.algorithms import GIANT, FedAvg, LocalSVRG, Mime, Scaffold
from atoll.core.facets import facet
from atoll.core.requests.results import Outcomes
from atoll.core.requests.task import Work
from atoll.learn.algorithm import Phased
from atoll.learn.local.update import count_steps, declare_workload, epochs_of_pass, quota
from atoll.learn.topology.node import Node
from tests.support.learn_toys import islands

TEN_IN_FOURS = {"epochs": 2, "batch_size": 4}  # 10 examples: 3 mini-batches an epoch


@pytest.mark.parametrize(
    ("algorithm", "phase", "work"),
    [
        (FedAvg(**TEN_IN_FOURS), "train", Work(10, 6, 2)),
        (FedAvg(steps=4, batch_size=4), "train", Work(10, 4, 4 / 3)),
        (LocalSVRG(**TEN_IN_FOURS), "train", Work(20, 7, 3)),
        (Mime(**TEN_IN_FOURS), "anchor", Work(10, 1, 1)),
        (Mime(**TEN_IN_FOURS), "train", Work(10, 6, 2)),
        (Scaffold(**TEN_IN_FOURS, option=1), "train", Work(20, 7, 3)),
        (GIANT(), "gradient", Work(10, 1, 1)),
    ],
)
def test_every_pass_of_the_phase_counts(algorithm, phase, work):
    assert declare_workload(algorithm, np.array([10]), {"phase": phase}).row(0) == work


@given(
    sizes=st.lists(st.integers(0, 40), max_size=8),
    batch=st.sampled_from([None, 1, 4, 50]),
    steps=st.sampled_from([None, 3]),
    asked=st.sampled_from([None, 1, 5]),
)
def test_columns_are_the_counts_of_each_client(sizes, batch, steps, asked):
    algorithm = Scaffold(batch_size=batch, epochs=2, steps=steps, option=1)
    message = {"phase": "train"} if asked is None else {"phase": "train", "epochs": asked}
    found = declare_workload(algorithm, np.array(sizes, dtype=np.int64), message)
    parts = [quota(part, epochs_of_pass(algorithm, part, asked)) for part in facet(algorithm, Phased).passes("train")]
    for i, n in enumerate(sizes):
        counts = [count_steps(part, n) for part in parts]
        passes = [-(-n // int(part.batch_of(n))) if n else 1 for part in parts]
        epochs = [
            part.epochs if part.steps is None else made / one
            for part, made, one in zip(parts, counts, passes, strict=True)
        ]
        assert found.row(i) == Work(2.0 * n, sum(counts), sum(epochs))


def test_a_client_without_rows_takes_no_steps():
    assert declare_workload(FedAvg(steps=4), np.array([0]), {"phase": "train"}).row(0) == Work(0, 0, 0)


def test_without_a_phase_it_is_that_of_all():
    assert declare_workload(Mime(**TEN_IN_FOURS), np.array([10])).row(0) == Work(20, 7, 3)


def test_a_node_that_is_its_own_server_does_all_phases():
    algorithm = Mime(**TEN_IN_FOURS)
    data = islands([10])
    job = atoll.Training(model=atoll.models.linear(4, 3), algorithm=algorithm)
    node = Node(algorithm, job.learner(data))
    assert node.work(data.shard(0), {}, {"init": 1, "round": 1}) == Work(20, 7, 3)


class ByBatches:
    """Devices that take a second for every mini-batch."""

    def plan(self, parties, plan):
        seconds = plan.work().batches
        return Outcomes(seconds, np.ones(len(parties), dtype=bool), np.ones(len(parties)))

    def transfer(self, source, target, nbytes):
        return 0.0


def test_virtual_time_knows_the_phase():
    """Mime's round on 10 examples: one step for the anchor, then six; it was six and six when phases were not told apart."""
    job = atoll.Training(
        model=atoll.models.linear(4, 3),
        algorithm=Mime(**TEN_IN_FOURS),
        selection=atoll.selection.Everyone(),
        rounds=1,
    )
    rows = atoll.simulate(job, islands([10, 4]), engine="inline", devices=ByBatches()).metrics
    assert (rows[0]["t_start"], rows[0]["t_end"]) == (0.0, 7.0)


@pytest.mark.parametrize(
    ("message", "epochs"),
    [
        ({}, 2),
        ({"epochs": 5}, 5),
        ({"epochs": 5, "done": 3}, 2),
        ({"epochs": 2, "done": 1}, 1),
        ({"epochs": 3, "done": 2}, 1),
    ],
)
def test_what_was_done_before_takes_no_time_again(message, epochs):
    assert declare_workload(FedAvg(**TEN_IN_FOURS), np.array([10]), {"phase": "train", **message}).row(0) == Work(
        10, 3 * epochs, epochs
    )
