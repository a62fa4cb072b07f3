"""Pacings that look at single replies, between real parties: nobody is taken for crashed who was only asked, and who is lost is noticed."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

import numpy as np
import pytest

import atoll
from atoll.core import message as M
from atoll.core.errors import ConfigError
from atoll.core.federation.federation import run_program
from atoll.core.requests.party import Roster
from atoll.core.time.clock import Clock, run
from atoll.core.world import World
from atoll.learn.pacing.slack import ChanceConstrained, UncensoredOnly
from atoll.models.idle import IdleIslands, IdleLearner, IdleModel
from atoll.pacing import SAFA, FedAsync, FedBuff, HybridFL, Tiered
from atoll.selection import CFCFM
from atoll.testing.lying.sites import Rehearsal
from atoll.topology import Hierarchical, Star
from tests.support.gates import Gate, wait_at

pytestmark = pytest.mark.network

IDLE = IdleIslands([3, 4, 5])


@dataclass(frozen=True)
class WaitingReplies(IdleModel):
    """An idle model at whose clients a gate stands."""

    gate: str = ""

    def learner(self, settings, data):
        return HeldLearner(self, settings.algorithm)


class HeldLearner(IdleLearner):
    def _train(self, island, message):
        wait_at(self.model.gate, island.name)
        return super()._train(island, message)


def training(pacing, *, data=IDLE, **parts):
    quiet = {"evaluation": atoll.Evaluation(server=False), "rounds": 4, "model": IdleModel()}
    return atoll.Training(pacing=pacing, **{**quiet, **parts}), data


def live(job, data, events=(), **terms):
    """The training between three sites; ``events`` happen after rounds: number -> what to do with the engine."""
    engine, learner = Rehearsal(3, **terms), job.learner(data)
    job = job.replace(callbacks=[lambda row: dict(events).get(row["round"], lambda engine: None)(engine)])
    registry = {task.name: task for task in job.named_tasks(learner, data)}
    roster = Roster(data.names, others=job.others(len(data)))
    world = World(data, engine, roster=roster, clock=Clock(virtual=False), registry=registry)
    return run(run_program(world, job.program(data, learner)), virtual=False)[0]


def killed(site):
    def kill(engine):
        os.kill(engine.processes[site].pid, signal.SIGKILL)
        engine.processes[site].join()  # its socket is closed before the others can do the rounds that are left

    return kill


def test_safa_between_real_parties_ends_where_its_simulation_does():
    data = atoll.data.iid(atoll.data.digits(), parties=3, seed=0)
    job, _ = training(
        SAFA(), selection=CFCFM(1.0), model=atoll.models.linear(64, 10), algorithm=atoll.FedAvg(lr=0.1), rounds=3
    )
    virtual, real = atoll.simulate(job, data, engine="inline"), live(job, data)
    np.testing.assert_array_equal(virtual.params["weight"], real.params["weight"])
    told = ("picked", "undrafted", "crashed", "late", "silent", "deprecated", "synchronised", "wasted", "begun")
    for name in (*told, "bytes_up", "bytes_down"):
        assert virtual.metrics.column(name) == real.history.column(name), name
    assert M.equal(virtual.devices.packed(), real.devices.packed())


def test_safa_tells_the_slow_from_the_lost(tmp_path):
    """Client 2 is late in the first round, counts in the second, and is lost from the third on."""
    gate = Gate(tmp_path / "gate", "client-2")
    job, data = training(SAFA(), model=WaitingReplies(gate=gate.path), selection=CFCFM(2 / 3))
    found = live(job, data, {1: lambda _: gate.open("client-2"), 2: killed(2)}, on_lost="drop")
    rows, devices = found.history, found.devices
    names = ("picked", "undrafted", "crashed", "late", "silent", "wasted")
    assert [tuple(row[name] for name in names) for row in rows] == [
        (2, 0, 0, 1, 0, 0.0),
        (2, 1, 0, 0, 0, 0.0),
        (2, 0, 1, 0, 1, 1.0),
        (2, 0, 1, 0, 1, 1.0),
    ]
    assert (devices.asked.tolist(), devices.answered.tolist()) == ([4, 4, 3], [4, 4, 1])
    assert devices.crashed.tolist() == [0, 0, 2]
    assert rows[1]["version_variance"] > 0  # its base was the first model


@pytest.mark.parametrize("pacing", [FedAsync(), FedBuff(buffer=2)], ids=["FedAsync", "FedBuff"])
def test_asynchronous_pacings_ask_another_when_a_real_party_is_lost(pacing):
    """Everyone asked has answered, was lost at work or with a finished reply (``rejected``), or is one of the two at work."""
    job, data = training(pacing, selection=atoll.Uniform(2), rounds=12)
    found = live(job, data, {2: killed(2)}, on_lost="drop")
    rows = found.history
    names = ("selected", "replied", "crashed", "rejected")
    asked, heard, lost, unread = (np.cumsum(rows.column(name)) for name in names)
    assert (lost[1], unread[1]) == (0, 0)
    assert lost[-1] + unread[-1] >= 1
    assert (asked - heard - lost - unread >= 0).all()
    assert (asked - heard - lost - unread <= 2).all()
    assert rows.column("wasted") == rows.column("crashed")
    assert found.devices.answered.sum() == heard[-1]
    assert (
        0 <= found.devices.crashed.sum() - lost[-1] <= 2
    )  # who is asked after the last round may be lost before the end


@pytest.mark.parametrize(
    ("pacing", "why"),
    [
        (SAFA(bounded=True), "bounded=True between real parties"),
        (SAFA(published=True, deadline=1.0), "published=True between real parties"),
        (Tiered(tiers=1, by="observed"), "it is unknown when real parties will answer"),
        (HybridFL(), "LateCount between real parties"),
        (HybridFL(slack=ChanceConstrained()), "ChanceConstrained between real parties"),
    ],
)
def test_what_needs_foresight_is_refused(pacing, why):
    topology = Hierarchical(groups=[[0, 1], [2]]) if isinstance(pacing, HybridFL) else Star()
    selection = CFCFM(1.0) if isinstance(pacing, SAFA) else atoll.Uniform(2)
    with pytest.raises(ConfigError, match=why):
        live(*training(pacing, selection=selection, topology=topology))


def test_hybridfl_between_real_parties_counts_what_it_sees(tmp_path):
    """The quota is full before client 2 ends the first round: that round teaches nothing about either region."""
    gate = Gate(tmp_path / "gate", "client-2")
    pacing = HybridFL(slack=UncensoredOnly(initial=0.5))
    job, data = training(
        pacing,
        model=WaitingReplies(gate=gate.path),
        selection=atoll.Uniform(2),
        topology=Hierarchical(groups=[[0, 1], [2]]),
        rounds=2,
    )
    rows = live(job, data, {1: lambda _: gate.open("client-2")}).history
    assert [rows[0][f"edge-{r}/{name}"] for name in ("selected", "submitted", "completed") for r in (0, 1)] == [
        2, 1, 2, 0, None, None,
    ]  # fmt: skip
    assert rows[1]["edge-1/theta"] == rows[0]["edge-1/theta"] == 0.5
