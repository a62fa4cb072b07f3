"""Work that is called off costs what was done of it until the device heard; see ``Spending``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.algorithms import FedAvg
from atoll.core.algebra.aggregate import Sum
from atoll.core.requests.cohort import Community
from atoll.core.requests.party import Parties, Roster
from atoll.core.requests.task import Task, Work
from atoll.devices import Cycles, Fleet, GeneratedTrace, Normal, Power, Recorded, Throughput, Uniform, mec, planned
from atoll.models.idle import IdleIslands, IdleModel
from atoll.pacing import SAFA, FedBuff, HybridFL, Tiered
from atoll.selection import CFCFM
from atoll.topology import Hierarchical

COUNT = Task(
    "tests:count", lambda island, message: {"n": Sum(np.ones(1))}, work=lambda *_: Work(4, 1, 1), reply_bytes=5000
)
SENT = np.array([3000])
# A device of 1 GHz: 0.5 s of latency, 3 s down, 4 s of training, 5 s up, 0.5 s of latency; 1 J/s on the link, 2 J/s at work: 16 J.
DEVICE = Fleet(Cycles(1e9, 1e6, 1e3), Throughput(1000.0), latency=0.5, power=Power(1.0, 2.0))
LATER = replace(DEVICE, trace=GeneratedTrace(1.0, 0.25))  # crashes 4.5 s after it was asked, 1 s into its work


def spent(fleet, after):
    """Joules of one device whose request is called off so many seconds after it was sent; and its energy in the round's outcomes."""

    async def program(fed):
        sums = await fed.sum(fed.parties, COUNT, None, at=(1,), deadline=after, quorum=0, down=SENT)
        return fed.meter.devices(1)["energy"][0], sums.outcomes.energy[0], fed.meter.joules

    metered, told, total = atoll.simulate(program, Community([range(4)]), devices=fleet, tasks=(COUNT,))
    assert metered == total == pytest.approx(told)
    return metered


@pytest.mark.parametrize(
    ("after", "joules"),
    [
        (1.0, 1.0),  # of the download; the word is half a second on its way, as the request was
        (3.0, 3.0),
        (5.0, 3.0 + 4.0),  # two seconds at work
        (7.0, 3.0 + 8.0),
        (9.5, 3.0 + 8.0 + 2.5),  # half of the reply is sent
        (12.4, 3.0 + 8.0 + 5.0),  # it is sent, and has not arrived
        (13.0, 16.0),  # it has
    ],
)
def test_a_device_that_is_called_off_has_spent_what_it_did_until_it_heard(after, joules):
    assert spent(DEVICE, after) == pytest.approx(joules)
    assert spent(replace(DEVICE, power=Power(1.0, 2.0, stopped="full")), after) == 16.0


@pytest.mark.parametrize(("lost", "whole"), [("parts", 5.0), ("share", 4.0), ("full", 16.0)])
def test_who_would_have_crashed_later_is_called_off_like_anyone(lost, whole):
    """The word reaches the device at 2.5 s, before its crash; or at 6.5 s, after it."""
    fleet = replace(LATER, power=Power(1.0, 2.0, lost))
    assert spent(fleet, 2.0) == pytest.approx(2.0)
    assert spent(fleet, 6.0) == pytest.approx(whole)


def test_copies_that_the_server_has_not_sent_yet_cost_a_device_nothing():
    fleet = replace(DEVICE, egress=300.0)  # ten seconds
    assert [spent(fleet, after) for after in (5.0, 10.0, 12.0)] == pytest.approx([0.0, 0.0, 2.0])


def test_who_drops_its_reply_has_worked_all_the_same():
    async def program(fed):
        await fed.sum(fed.parties, COUNT, None, at=(1,), deadline=1.0, quorum=0, down=SENT, late="drop")
        return fed.meter.joules

    assert atoll.simulate(program, Community([range(4)]), devices=DEVICE, tasks=(COUNT,)) == 16.0


fleets = st.builds(
    lambda crash, point, seed, lost: Fleet(
        Cycles(Normal(1e9, 3e8, low=1e8)),
        Throughput(Uniform(500.0, 2000.0)),
        GeneratedTrace(crash, point, seed=seed),
        latency=0.3,
        notice=2.0,
        egress=1e5,
        power=Power(lost=lost),
        seed=seed,
    ),
    st.floats(0, 1),
    st.sampled_from(["during", "before", "uniform", 0.4]),
    st.integers(0, 5),
    st.sampled_from(["share", "parts", "full"]),
)


@settings(max_examples=25, deadline=None)
@given(fleets, st.floats(0, 30), st.floats(0, 30))
def test_spending_grows_with_time_and_ends_at_the_energy(fleet, one, other):
    n = 20
    found = fleet.plan(
        Parties(Roster(n), np.arange(n)), planned(np.full(n, 5.0), epochs=40, batch=1, down=4000, turn=1)
    )
    at = [
        np.minimum(found.energy, found.spending.by(t, np.arange(n)))
        for t in (0.0, min(one, other), max(one, other), 1e9)
    ]
    assert (np.diff(at, axis=0) >= -1e-12).all()
    assert (at[0] >= 0).all()
    assert np.array_equal(at[-1], found.energy)
    arrived = float(found.seconds.max())
    assert np.array_equal(np.minimum(found.energy, found.spending.by(arrived, np.arange(n))), found.energy)


def test_what_is_called_off_after_a_resume_is_credited(tmp_path):
    """Two devices at work, one of them towards a crash; both are called off after the run was cut off and taken up again."""
    crashed = np.array([[False, True]] * 3)
    fleet = replace(DEVICE, trace=Recorded(crashed, np.where(crashed, 0.25, 0.0)))
    people = Community([range(4)] * 2)

    def program(stop):
        async def run(fed):
            if not (await fed.restore({"sent": False}))["sent"]:
                await fed.send(fed.parties, COUNT, None, at=(1,), down=SENT.repeat(2))
                await fed.checkpoint({"sent": True})
            if stop:
                raise KeyboardInterrupt("cut off")
            await fed.clock.sleep_until(3.5)
            assert fed.cancel() == 1  # the other one would not have answered
            return fed.meter.devices(2)["energy"].tolist(), fed.world.spent(np.arange(2)).tolist(), fed.meter.joules

        return run

    def live(stop, **more):
        return atoll.simulate(program(stop), people, devices=fleet, tasks=(COUNT,), **more)

    whole = live(False)
    assert whole == ([4.0, 4.0], [4.0, 4.0], 8.0)  # 0.5 s into the work, the second by its crash's share: 0.25 of 16
    with pytest.raises(KeyboardInterrupt, match="cut off"):
        live(True, folder=tmp_path)
    assert live(False, folder=tmp_path, resume=True) == whole


def totals(fleet, **parts):
    """Energy of a training in its rows and in the meter, joules."""
    job = atoll.Training(model=IdleModel(), algorithm=FedAvg(epochs=5), rounds=12, **parts)
    data = IdleIslands([40] * 12)
    program = job.program(data)

    async def watched(fed):
        trained = await program(fed)
        return sum(row["energy_wh"] for row in trained.history) * 3600, fed.meter.devices(12)["energy"].sum()

    watched.tasks = job.named_tasks(job.learner(data), data)
    watched.others = job.topology.servers(len(data))
    return atoll.simulate(watched, data, devices=fleet, seed=3)


@pytest.mark.parametrize(
    "parts",
    [
        {"selection": atoll.Uniform(8), "pacing": atoll.Synchronous(over_select=1.5, deadline=60.0)},
        {"selection": CFCFM(3), "pacing": SAFA(lag_tolerance=1, deadline=60.0, bounded=True)},
        {"selection": CFCFM(3), "pacing": SAFA(lag_tolerance=1, deadline=60.0)},
        {"selection": atoll.Uniform(9), "pacing": Tiered(tiers=2, deadline=30.0)},
        {"selection": atoll.Uniform(8), "pacing": FedBuff(buffer=3)},
        {"selection": atoll.Uniform(0.3), "pacing": HybridFL(deadline=90.0), "topology": Hierarchical(groups=3)},
    ],
    ids=lambda parts: type(parts["pacing"]).__name__ + str(getattr(parts["pacing"], "bounded", "")),
)
def test_rows_add_up_to_the_meter_and_calling_off_saves_energy(parts):
    fleet = replace(mec("aerofoil", 0.3, regions=3, seed=2), backhaul=None)
    rows, metered = totals(fleet, **parts)
    assert rows == pytest.approx(metered, rel=1e-6)
    full, all_of_it = totals(replace(fleet, power=Power(stopped="full")), **parts)
    assert full == pytest.approx(all_of_it, rel=1e-6)
    if isinstance(parts["pacing"], FedBuff):  # it calls nobody off
        assert rows == full
    else:
        assert 0.3 * full < rows < full
