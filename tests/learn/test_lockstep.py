"""Edges in lockstep: HierFAVG whose rows are rounds of the clients, as its rivals' are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import atoll
from atoll.algorithms import FedAvg
from atoll.core.errors import CompositionError
from atoll.models import Linear
from atoll.pacing import Synchronous
from atoll.topology import Hierarchical
from tests.support.killed_trainings import killed_training
from tests.support.learn_toys import Fixed, flat, islands

SIZES = (6, 9, 4, 12, 7, 5)


class Far(Fixed):
    """Edges are a second from the cloud."""

    def transfer(self, source: str, target: str, nbytes: int) -> float:
        return 1.0


def training(rounds: int, **more: Any) -> Any:
    options = {"every": 3, "lockstep": True, **more.pop("topology", {})}
    return atoll.Training(
        model=Linear(4, 3),
        algorithm=FedAvg(lr=0.1, steps=2, batch_size=None),
        topology=Hierarchical(groups=2, **options),
        evaluation=atoll.Evaluation(every=1000),
        rounds=rounds,
        **{"selection": atoll.Everyone(), **more},
    )


def test_after_every_cloud_round_it_is_the_hierarchy():
    data = islands(SIZES)
    slow = atoll.simulate(training(6), data, devices=Far([1.0] * 6))
    fast = atoll.simulate(training(2, topology={"lockstep": False}), data, devices=Far([1.0] * 6))
    np.testing.assert_allclose(flat(slow.params), flat(fast.params), rtol=1e-12)
    assert slow.metrics[-1]["t_end"] == fast.metrics[-1]["t_end"] == 2 * (1 + 3 + 1)
    ways = [(row.get("cloud_bytes_down", 0) > 0, row.get("cloud_bytes_up", 0) > 0) for row in slow.metrics]
    assert ways == [(True, False), (False, False), (False, True)] * 2
    assert slow.bytes["bytes_up"] == pytest.approx(fast.bytes["bytes_up"], rel=0.01)


def test_edges_wait_for_each_other():
    """A round lasts as long as its slowest client, wherever it is; a client that is lost costs everyone the limit."""
    rows = atoll.simulate(training(2), islands(SIZES), devices=Fixed([1, 1, 1, 1, 1, 5])).metrics
    assert [row["t_end"] - row["t_start"] for row in rows] == [5, 5]
    job = training(2, pacing=Synchronous(deadline=9.0, on_failure="skip"))
    rows = atoll.simulate(job, islands(SIZES), devices=Fixed([1, 1, np.inf, 1, 1, 1])).metrics
    assert [row["t_end"] - row["t_start"] for row in rows] == [9, 9]
    assert [row["crashed"] for row in rows] == [1, 1]


def test_one_cohort_for_all_regions():
    data = islands(SIZES)
    each, together = (
        training(20, selection=atoll.Uniform(0.2), topology={"together": together}) for together in (False, True)
    )
    assert {row["selected"] for row in atoll.simulate(each, data).metrics} == {2}  # one of three, in both regions
    wide = islands(SIZES * 5)
    counts = [
        {row["selected"] for row in atoll.simulate(job.replace(selection=atoll.Uniform(0.1)), wide).metrics}
        for job in (each, together)
    ]
    assert counts == [{4}, {3}]
    one = atoll.simulate(together.replace(selection=atoll.Uniform(1)), data)
    assert {row["selected"] for row in one.metrics} == {1}  # and nobody of the other region
    with pytest.raises(CompositionError, match="a cohort drawn among all clients needs rounds in lockstep"):
        atoll.simulate(together.replace(topology=atoll.topology.Hierarchical(groups=2, together=True)), data)
    with pytest.raises(
        CompositionError, match="Hierarchical draws a cohort among all clients, and Everyone picks clients"
    ):
        atoll.simulate(training(1, topology={"together": True}), data)


def test_a_killed_run_resumes_to_the_bit(tmp_path: Any):
    job = training(4, selection=atoll.Uniform(0.5), topology={"together": True})
    killed_training(job, islands(SIZES), tmp_path, points=8, cost=lambda: Far([1.0, 2, 3, 4, 5, 6]))


@pytest.mark.network
def test_engines_agree():
    data = islands(SIZES)
    job = training(4, selection=atoll.Uniform(0.5))
    one = atoll.simulate(job, data, engine="inline")
    for engine in ("batched", "processes"):
        other = atoll.simulate(job, data, engine=engine, workers=2)
        np.testing.assert_allclose(flat(other.params), flat(one.params), rtol=1e-9, atol=1e-12)
        assert other.bytes == one.bytes
