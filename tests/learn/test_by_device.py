"""What every device did: sums over devices are those of the rows, whatever the pace, the engine and the luck."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.algorithms import Mime
from atoll.core import message as M
from atoll.core.errors import ConfigError
from atoll.devices.presets import mec
from atoll.models.idle import IdleIslands, IdleModel
from atoll.pacing import SAFA, FedAsync, FedBuff, HybridFL, PartialBarrier, Synchronous, Tiered
from atoll.rounds.by_device import ByDevice
from atoll.selection import CFCFM
from atoll.topology import ClusteredGossip, Cooperative, Gossip, Hierarchical, RandomWalk

PACES = {
    "synchronous": {},
    "deadline": {"pacing": Synchronous(deadline=30.0, over_select=1.5)},
    "phases": {"algorithm": Mime()},
    "SAFA": {"pacing": SAFA(lag_tolerance=2, deadline=30.0), "selection": CFCFM(0.3)},
    "bounded": {"pacing": SAFA(lag_tolerance=2, deadline=30.0, bounded=True), "selection": CFCFM(0.3)},
    "FedAsync": {"pacing": FedAsync(arrivals=3, max_staleness=1)},
    "FedBuff": {"pacing": FedBuff(buffer=4, group=2)},
    "PartialBarrier": {"pacing": PartialBarrier(replies=3, max_delay=4)},
    "Tiered": {"pacing": Tiered(tiers=3, deadline=30.0)},
    "Hierarchical": {"topology": Hierarchical(groups=3)},
    "HybridFL": {"topology": Hierarchical(groups=3), "pacing": HybridFL(deadline=30.0)},
    "lockstep": {"topology": Hierarchical(groups=3, lockstep=True)},
    "ClusteredGossip": {"topology": ClusteredGossip(groups=3)},
    "Gossip": {"topology": Gossip(), "selection": atoll.Everyone()},
    "RandomWalk": {"topology": RandomWalk(tokens=3, hops=2), "selection": atoll.Everyone()},
    "Cooperative": {"topology": Cooperative(groups=3, every=2), "selection": atoll.Everyone()},
}
NODES = ("Gossip", "RandomWalk", "Cooperative")


def told(pace, engine="inline", *, rounds=5, **more):
    """A training of idle clients on devices of three regions that count energy and fail."""
    job = atoll.Training(
        **{
            "model": IdleModel(),
            "selection": atoll.Uniform(8),
            "evaluation": atoll.Evaluation(server=False, clients=-1),
        }
        | {"rounds": rounds, **PACES[pace]}
    )
    devices = mec("gas-turbine", 0.3, regions=3, seed=1)
    return atoll.simulate(job, IdleIslands(np.arange(24) % 5 + 40), devices=devices, engine=engine, **more)


def equal(one, other):
    return M.equal(one.packed(), other.packed())


@pytest.mark.parametrize("pace", PACES)
def test_the_sums_over_devices_are_those_of_the_rows(pace):
    """Whatever else the pace does: bytes, energy, and every request is accounted for. Measures of clients are an observer's."""
    result = told(pace)
    found, rows = result.devices, result.metrics
    for name in ("bytes_down", "bytes_up"):
        assert found[name].sum() + found.elsewhere[name] == sum(rows.column(name)), name
    assert (found.elsewhere["bytes_up"] > 0) == ("topology" in PACES[pace] and pace not in NODES)
    assert found.powered
    assert found.energy.sum() / 3600 == pytest.approx(rows.energy_wh)
    assert rows.energy_wh > 0
    under_way = found.asked - found.answered - found.crashed - found.called_off - found.refused
    assert (under_way >= 0).all()
    if pace not in ("SAFA", "FedAsync", "FedBuff", "PartialBarrier", "Tiered"):
        assert not under_way.any()
    phases = 2 if pace == "phases" else 1
    if pace not in ("SAFA", *NODES):  # a server goes on with clients that it does not ask again; nodes also mix
        assert found.asked.sum() == phases * sum(rows.column("selected"))
    crashed = phases * sum(rows.column("crashed"))
    assert crashed > 0
    if pace in ("SAFA", "bounded"):  # a row counts a crash when it is noticed
        assert found.crashed.sum() >= crashed
    else:
        assert found.crashed.sum() == crashed
    if pace not in ("FedAsync", "FedBuff", *NODES):  # those drop replies that came
        assert found.answered.sum() == phases * sum(rows.column("replied"))


@pytest.mark.parametrize("pace", ["deadline", "SAFA", "FedBuff", "HybridFL"])
def test_they_are_the_same_after_a_resume(pace, tmp_path):
    told(pace, rounds=2, folder=tmp_path / "run")
    assert equal(told(pace, folder=tmp_path / "run", resume=True).devices, told(pace).devices)


@pytest.mark.network
@pytest.mark.parametrize("pace", ["deadline", "SAFA", "HybridFL"])
def test_they_are_the_same_on_every_engine(pace):
    first = told(pace).devices
    for engine in ("batched", "processes", "socket"):
        assert equal(told(pace, engine, workers=2).devices, first), engine


def test_only_those_who_were_asked_take_room():
    at = np.array([7, 123_456_789])
    none = np.zeros(2, dtype=np.int64)
    found = ByDevice(
        10**9,
        at,
        ["a", "b"],
        at * 0 + 3,
        np.array([1, 3]),
        np.array([2, 0]),
        none,
        none,
        none,
        none,
        np.array([0.0, 9.0]),
        True,
    )
    assert len(found) == 2
    assert found.histogram() == {0: 10**9 - 2, 1: 1, 3: 1}
    assert found.histogram("crashed") == {0: 10**9 - 1, 2: 1}
    assert found.share("energy") == 1.0
    assert found.share("bytes_up") == 0.0
    assert found.fairness() == pytest.approx(16 / (10**9 * 10))
    assert found.by_region() == {}
    assert equal(ByDevice.unpacked(M.decode(M.encode(found.packed()))), found)


def test_columns_by_hand():
    job = atoll.Training(
        model=IdleModel(),
        selection=atoll.Uniform(2),
        rounds=3,
        evaluation=atoll.Evaluation(server=False, participants=True),
    )
    result = atoll.simulate(job, IdleIslands([1] * 6), engine="inline")
    found, counts = result.devices, result.metrics.participation(6)
    assert found.everyone("asked").tolist() == counts.selected.tolist()
    assert found.histogram() == counts.histogram()
    assert found.fairness() == pytest.approx(counts.fairness)
    assert [row["client"] for row in found.rows()] == [f"client-{i}" for i in np.flatnonzero(counts.selected)]
    assert all("energy" not in row and "region" not in row for row in found.rows())
    assert found.share("asked", top=1.0) == 1.0
    summary = found.summary()
    assert (summary["population"], summary["asked"], summary["took_part"]) == (6, 6, len(found))
    for bad, why in (("sent", "is not counted of devices"), ("Energy", "Did you mean 'energy'")):
        with pytest.raises(ConfigError, match=why):
            found[bad]
    with pytest.raises(ConfigError, match="top=0"):
        found.share(top=0)
    for missing in ({}, {**found.packed(), "asked": [1]}):
        with pytest.raises(ConfigError, match="columns of devices"):
            ByDevice.unpacked(missing)


def test_regions_are_those_of_the_devices():
    found = told("HybridFL").devices
    assert set(found.regions) == {"0", "1", "2"}
    by_region = found.by_region()
    assert sum(of["energy"] for of in by_region.values()) == pytest.approx(found.energy.sum())
    assert sum(of["clients"] for of in by_region.values()) == len(found)
    assert [row["region"] for row in found.rows()] == found.regions
