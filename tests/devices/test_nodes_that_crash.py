"""Crashes where there is no server: every round draws its own, a replayed trace gives the same run, and an observer sees everyone."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import atoll
from atoll.algorithms import FedAvg
from atoll.core.errors import ConfigError
from atoll.devices import Fleet, GeneratedTrace, Recorded
from atoll.models.quadratic import Quadratic, quadratics
from atoll.topology import Complete, Cooperative, DefKT, Gossip, Membership, RandomWalk

NODES, ROUNDS = 10, 6
FLEET = Fleet(trace=GeneratedTrace(crash=0.3, seed=3))
CRASHED = FLEET.record(ROUNDS, NODES).crashed


def run(topology, devices=FLEET, rounds=ROUNDS, clients=0):
    job = atoll.Training(
        model=Quadratic(20),
        algorithm=FedAvg(lr=0.01, steps=2, batch_size=None),
        topology=topology,
        selection=atoll.Everyone(),
        rounds=rounds,
        evaluation=atoll.Evaluation(clients=clients),
    )
    return atoll.simulate(job, quadratics(), engine="inline", devices=devices, seed=1)


def digits(topology, devices):
    job = atoll.Training(
        model=atoll.models.linear(64, 10),
        algorithm=FedAvg(lr=0.1, steps=1),
        topology=topology,
        selection=atoll.Everyone(),
        rounds=ROUNDS,
    )
    data = atoll.data.iid(atoll.data.digits().take(slice(0, 80)), parties=NODES, seed=0)
    return atoll.simulate(job, data, engine="inline", devices=devices, seed=1)


def trace(crashed):
    return Fleet(trace=Recorded(crashed, np.zeros(crashed.shape)))


def test_every_round_of_gossip_has_its_own_crashes():
    rows = list(run(Gossip(graph=Complete(), mixing=2)).metrics)
    down = CRASHED[1:].sum(axis=1)
    assert len(set(down.tolist())) > 2
    assert [row["silent"] for row in rows] == down.tolist()
    assert [row["replied"] for row in rows] == (NODES - down).tolist()  # who is up is up for the mixing too


def test_a_pair_of_which_either_crashes_has_no_part_in_the_round():
    crashed = np.zeros((ROUNDS + 1, NODES), dtype=bool)
    crashed[2], crashed[5] = True, True
    rows = list(digits(DefKT(pairs=5), trace(crashed)).metrics)
    assert [row["replied"] for row in rows] == [10, 0, 10, 10, 0, 10]


def test_def_kt_meets_the_crashes_of_the_trace():
    rows, whole = list(digits(DefKT(pairs=5), FLEET).metrics), 2 * 5
    for number, row in enumerate(rows, 1):
        down = int(CRASHED[number].sum())
        assert whole - 2 * down <= row["replied"] <= whole - down


def test_a_walk_waits_for_a_node_that_is_down_and_goes_on():
    crashed = np.zeros((4, NODES), dtype=bool)
    crashed[1], crashed[3] = True, True
    rows = list(run(RandomWalk(graph=Complete(), tokens=3, hops=2), trace(crashed), rounds=3).metrics)
    assert [row["replied"] for row in rows] == [0, 6, 0]


def test_the_server_of_clusters_may_hear_nobody():
    crashed = np.zeros((4, NODES), dtype=bool)
    crashed[2] = np.arange(NODES) != 1  # and node 1 is not asked
    rows = list(run(Cooperative(groups=2, every=1), trace(crashed), rounds=3).metrics)
    assert [row["server_bytes_down"] > 0 for row in rows] == [True, False, True]


def test_a_newcomer_that_hears_nobody_begins_as_everyone_did():
    crashed = np.zeros((4, NODES), dtype=bool)
    crashed[2, 0] = True  # its sponsor
    members = Membership(joins=((9, 2),))
    rows = list(run(Gossip(graph=Complete(), members=members), trace(crashed), rounds=3).metrics)
    assert [row["replied"] for row in rows] == [9, 9, 10]
    assert rows[-1]["consensus"] < 1e-12


@pytest.mark.parametrize("topology", [Gossip(graph=Complete()), RandomWalk(graph=Complete(), tokens=2, hops=2)])
def test_a_recorded_trace_gives_the_same_run_and_a_short_one_is_refused_beforehand(topology):
    drawn = run(topology)
    again = run(topology, replace(FLEET, trace=FLEET.record(ROUNDS, NODES)))
    assert list(again.metrics) == list(drawn.metrics)
    assert np.array_equal(again.params["w"], drawn.params["w"])
    with pytest.raises(ConfigError, match="the run has turns up to 6, but the trace has 6"):
        run(topology, replace(FLEET, trace=FLEET.record(ROUNDS - 1, NODES)))


def test_an_observer_sees_nodes_that_are_down_and_takes_no_time():
    rows = list(run(Gossip(graph=Complete()), clients=-1).metrics)
    assert CRASHED[1:].any(axis=1).all()
    for row, following in pairwise(rows):
        assert len(row["clients/loss/values"]) == NODES
        assert following["t_start"] == row["t_end"]
