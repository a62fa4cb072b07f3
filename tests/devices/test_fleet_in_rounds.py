"""Fleets under real programs: rounds, work in flight, hierarchies, engines and resumes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

import atoll
from atoll.algorithms import Scaffold
from atoll.core import message as M
from atoll.core.algebra.aggregate import Sum
from atoll.core.errors import QuorumError
from atoll.core.requests.cohort import Community
from atoll.core.requests.party import Names, Parties
from atoll.core.requests.task import Batch, Task, Workload
from atoll.devices import (
    Battery,
    Cycles,
    Fleet,
    GeneratedTrace,
    Markov,
    Power,
    Throughput,
    Trace,
    Uniform,
    Windows,
    load_trace,
    mec,
    safa,
)
from atoll.selection import SizeProportional


class Registered:
    """Many devices, of which nothing is known but names and sizes."""

    def __init__(self, count):
        self.names = Names(count)
        self.sizes = np.random.default_rng(0).integers(50, 150, count)

    def __len__(self):
        return len(self.names)

    def shard(self, i):
        return range(int(self.sizes[i]))


def _one(island, message):
    return {"count": Sum(np.ones(1))}


def _many(cohort, message):
    yield Batch(np.arange(len(cohort)), {"count": Sum(np.ones((len(cohort), 1)))})


def _load(sizes, args, message):
    return Workload(sizes * 1.0, -(-sizes // 10), np.ones(len(sizes)))


COUNT = Task("tests:count", _one, _many, load=_load)


def live(program, people, fleet, **more):
    return atoll.simulate(program, people, devices=fleet, tasks=(COUNT,), **more)


def fresh(seed=0):
    return replace(safa("mnist", 0.3, model_over=0, seed=seed), power=None)  # a count is charged as a model


def test_rounds_and_flights_over_many_devices_agree_with_the_fleet():
    """The path that benchmarks/events.py times: what the waist gives is what the fleet said, device by device."""
    people, fleet = Registered(20_000), fresh()
    asked_of = []

    async def program(fed):
        rng = np.random.default_rng(3)
        for turn in (1, 2, 3):
            asked = fed.parties[np.sort(rng.choice(len(people), 300, replace=False))]
            seconds = fed.forecast(asked, COUNT, None)
            result = await fed.sum(asked, COUNT, None, at=(turn,), deadline=400.0)
            crashed = fleet.record(3, len(people)).crashed[turn, asked.positions]
            late = ~crashed & (seconds + 300 * 0.008 > 400.0)
            assert np.array_equal(result.senders.positions, asked.positions[~crashed & ~late])
            assert np.array_equal(result.outcomes.reason == 1, crashed)
            assert float(result["count"][0]) == result.n
            asked_of.append(asked.positions)
        begin = fed.clock.now()
        flight = await fed.send(asked, COUNT, None, at=(4,))
        total = 0
        while True:
            arrived = await fed.arrivals(count=50)
            if not len(arrived):
                break
            assert np.array_equal(arrived.time, np.sort(arrived.time))
            total += (await fed.combine(arrived)).n
        crashed = fleet.record(4, len(people)).crashed[4, asked.positions]
        assert total == int((~crashed).sum()) == int(np.isfinite(flight.arrives).sum())
        assert fed.clock.now() == flight.arrives[~crashed].max() > begin
        asked_of.append(asked.positions)
        return fed.meter.devices(len(people))

    table = live(program, people, fleet)
    counts = np.bincount(np.concatenate(asked_of), minlength=len(people))
    assert np.array_equal(table["asked"], counts)
    assert (table["answered"] <= counts).all()


@pytest.mark.parametrize("engine", ["inline", "batched"])
def test_a_fleet_is_the_same_on_every_engine(engine):
    islands = atoll.data.dirichlet(atoll.data.digits(), parties=12, alpha=0.5, seed=1)
    job = atoll.Training(model=atoll.models.linear(64, 10), selection=atoll.Uniform(6), rounds=4)
    fleet = replace(mec("mnist", 0.3, regions=3, seed=5), backhaul=None)
    rows = [
        (r["round"], r["clock"], r["replied"])
        for r in atoll.simulate(job, islands, engine=engine, devices=fleet).metrics
    ]
    expected = [(r["round"], r["clock"], r["replied"]) for r in atoll.simulate(job, islands, devices=fleet).metrics]
    assert rows == expected
    assert any(replied < 6 for _, _, replied in rows)


@dataclass(frozen=True, eq=False)
class Watched(Trace):
    """Another trace, and what it said."""

    inner: Trace
    said: dict = field(default_factory=dict)

    @property
    def span(self):
        return self.inner.span

    def at(self, turn, population, positions):
        crashed, point = self.inner.at(turn, population, positions)
        for who, *what in zip(positions.tolist(), crashed.tolist(), point.tolist(), strict=True):
            assert self.said.setdefault((turn, who), what) == what
        return crashed, point


def test_methods_meet_the_same_crashes_in_the_same_round(tmp_path):
    """The same trace, from a file, under three methods that ask different devices in different ways."""
    islands = atoll.data.iid(atoll.data.digits(), parties=12)
    path = safa(crash=0.4, seed=9).record(5, 12).save(tmp_path / "trace.npz")
    seen = []
    methods = [
        {"selection": atoll.Uniform(6)},
        {"selection": atoll.Everyone(), "algorithm": Scaffold()},
        {"selection": SizeProportional(4), "pacing": atoll.Synchronous(deadline=200.0)},
    ]
    for number, method in enumerate(methods):
        trace = Watched(load_trace(path))
        job = atoll.Training(model=atoll.models.linear(64, 10), rounds=5, **method)
        atoll.simulate(job, islands, devices=replace(safa("kdd"), trace=trace), seed=number)
        seen.append({key: said for key, said in trace.said.items() if key[0] > 0})
    assert {turn for turn, _ in seen[1]} == {1, 2, 3, 4, 5}
    recorded = load_trace(path).crashed
    for said in seen:
        assert all(crashed == recorded[key] for key, (crashed, _) in said.items())
        assert all(seen[1][key] == what for key, what in said.items())
        assert len({key[1] for key in said}) > 6


def test_a_battery_runs_down_over_rounds_and_across_scopes():
    fleet = Fleet(Cycles(1e9, 1e6, 1e3), Throughput(1e9), power=Power(0.0, 1.0), battery=Battery(10.0))

    async def program(fed):
        answered = []
        for turn in range(4):
            scope = fed if turn % 2 else fed.scope("other")
            result = await scope.sum(fed.parties, COUNT, None, at=(turn,), quorum=0)
            answered.append(result.n)
        return answered, fed.world.spent(np.arange(2)).tolist()

    people = Community([range(3), range(6)])
    assert live(program, people, fleet) == ([2, 1, 1, 0], [9.0, 6.0])


def test_edges_share_the_backhaul_and_their_devices_keep_their_traits():
    fleet = replace(mec("aerofoil", 0.0, regions=2), backhaul=replace(mec("aerofoil").backhaul, edges=2))
    people = Community([range(10)] * 4)

    async def inner(fed, message):
        return (await fed.sum(fed.parties, COUNT, message)).n

    async def program(fed):
        seconds = fed.forecast(fed.parties, COUNT, b"model")
        n = await fed.nest("client-0", inner, fed.parties[1:], b"model")
        return n, fed.clock.now(), seconds

    n, now, seconds = live(program, people, fleet)
    assert n == 3
    assert now == pytest.approx(5e6 * 2 / 125e6 * 3 + seconds[1:].max())


def test_who_is_away_is_not_asked():
    fleet = Fleet(availability=Windows([(1, 5.0, 10.0)]))

    async def program(fed):
        first = fed.available(fed.parties).positions.tolist()
        await fed.clock.sleep_until(6.0)
        return first, fed.available(fed.parties).positions.tolist()

    assert live(program, Community([range(3)] * 3), fleet) == ([0, 2], [0, 1, 2])


def test_a_round_in_which_everyone_crashes_says_when_it_knew():
    async def program(fed):
        with pytest.raises(QuorumError, match="0 of 3 parties answered"):
            await fed.sum(fed.parties, COUNT, None, at=(1,))
        return fed.clock.now()

    fleet = Fleet(link=Throughput(1.0), trace=GeneratedTrace(1.0, "before"), notice=7.0)
    assert live(program, Community([range(3)] * 3), fleet) == pytest.approx(7.0 + M.nbytes(None))


def test_a_resumed_run_meets_the_same_devices(tmp_path):
    people = Registered(50)
    fleet = Fleet(
        Cycles(Uniform(0.5e9, 1e9)), Throughput(1e3), GeneratedTrace(0.3), Markov(500.0, 50.0, step=5.0),
        power=Power(), battery=Battery(40.0),
    )  # fmt: skip

    def program(stop):
        async def run(fed):
            state = await fed.restore({"turn": 0, "seen": []})
            for turn in range(state["turn"], 6):
                parties = Parties(fed.world.roster, np.arange(turn, 50, 2))
                await fed.send(parties, COUNT, {"w": np.zeros(20)}, at=(turn,))
                arrived = await fed.arrivals(count=10)
                await fed.combine(arrived)
                state["seen"] += [[int(p), float(t)] for p, t in zip(arrived.positions, arrived.time, strict=True)]
                state["turn"] = turn + 1
                await fed.checkpoint(state)
                if turn == stop:
                    raise KeyboardInterrupt("cut off")
            return state["seen"], fed.meter.devices(50)["energy"].tolist()

        return run

    whole = live(program(None), people, fleet)
    with pytest.raises(KeyboardInterrupt, match="cut off"):
        live(program(2), people, fleet, folder=tmp_path)
    assert live(program(None), people, fleet, folder=tmp_path, resume=True) == whole
    assert max(whole[1]) > 0
