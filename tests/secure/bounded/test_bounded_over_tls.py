"""Sums with a bound on norms between processes over mutual TLS: a site that sends ten times the norm is named, and the others' sum comes out."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.core.algebra.aggregate import Mean
from atoll.core.errors import QuorumError
from atoll.core.federation.federation import run_program
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task
from atoll.core.time.clock import Clock, run
from atoll.core.world import World
from atoll.reducers import BoundedSum

# Their quick siblings in one process are in `test_bounded_sum`.
pytestmark = pytest.mark.slow
HELPERS = {"first-server": None, "second-server": None, "dealer": None}
REDUCER = BoundedSum(norm=1.0, max_weight=64.0)
SIZE = 40


@task
def numbers(island, message):
    return {"w": Mean({"a": island.data[:30], "b": island.data[30:SIZE]}, examples=float(island.data[-1]))}


def rows_of(norms):
    """Updates of these norms, each with its weight."""
    rows = np.random.default_rng(0).normal(size=(len(norms), SIZE))
    rows *= (np.array(norms) / np.linalg.norm(rows, axis=1))[:, None]
    return np.c_[rows, 1.0 + np.arange(len(norms))]


@pytest.fixture(scope="module")
def bridge(tmp_path_factory):
    from tests.support.bridge import Bridge
    from tests.support.certificates import authority

    made = Bridge(tmp_path_factory.mktemp("bridge"), "tcp", authority())
    yield made
    made.close()


def summed(bridge, rows):
    people = Community({f"client-{i}": row for i, row in enumerate(rows)}, others=HELPERS)
    world = World(people, bridge.engine(), clock=Clock(virtual=False), sealing="real")
    program = lambda fed: fed.sum(fed.where("client"), numbers, None, reducer=REDUCER)  # noqa: E731
    return run(run_program(world, program), virtual=False)[0]


def spiked(rows, row):
    """The same norm in one entry: what the projections see worst."""
    made = rows.copy()
    made[row, :SIZE] = 0.0
    made[row, 7] = np.linalg.norm(rows[row, :SIZE])
    return made


@pytest.mark.parametrize("shape", ["dense", "one entry"])
def test_ten_times_the_norm_is_refused_by_name_and_the_others_are_added_up(bridge, shape):
    rows = rows_of([0.9, 10.01, 1.0, 0.2])
    rows = rows if shape == "dense" else spiked(rows, 1)
    found = summed(bridge, rows)
    assert found.senders.names == ["client-0", "client-2", "client-3"]
    ((who, why),) = found.rejected.items()
    assert who == "client-1"
    assert why.startswith("its update is longer than norm=1")
    kept = rows[[0, 2, 3]]
    total = np.r_[found["w"]["a"], found["w"]["b"]]
    assert np.abs(total - np.average(kept[:, :SIZE], axis=0, weights=kept[:, -1])).max() < 1e-6


def test_where_all_but_one_attack_there_is_no_sum_and_all_are_named(bridge):
    with pytest.raises(
        QuorumError, match="1 parties within norm=1, fewer than 2; beyond it: client-0, client-1, client-3"
    ):
        summed(bridge, rows_of([20.0, 11.0, 0.4, 500.0]))
