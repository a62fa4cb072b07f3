"""Meters: every byte on every link."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core import message as M
from atoll.core.algebra.aggregate import Sum
from atoll.core.errors import QuorumError
from atoll.core.requests.cohort import Community
from atoll.core.requests.results import Outcomes
from atoll.core.requests.task import task
from atoll.core.time.meter import Meter, Said
from atoll.core.world import World
from atoll.engines import Inline
from atoll.simulation import run_in
from atoll.testing import Timetable


@task
def echo(island, message):
    return island.data


rows = st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=5, unique=True), st.integers(0, 1000)), max_size=8)


def at(positions):
    return np.array(positions, dtype=np.int64)


@given(rows, rows)
def test_totals_and_links_agree(down, up):
    meter = Meter()
    for positions, size in down:
        meter.down("server", at(positions), size)
    for positions, size in up:
        meter.up("server", at(positions), at([size + p for p in positions]))
    assert meter.bytes_down == sum(size * len(p) for p, size in down) == sum(meter.links("server", "down").values())
    assert meter.bytes_up == sum(meter.links("server", "up").values())
    assert meter.messages_down == sum(len(p) for p, _ in down)
    for position, total in meter.links("server", "up").items():
        assert total == sum(size + position for p, size in up if position in p)
    again = Meter.load(M.decode(M.encode(meter.save())))
    assert M.equal(again.save(), meter.save())
    assert again.totals() == meter.totals()


def test_hubs_are_apart_and_meters_add_up():
    one, other = Meter(), Meter()
    one.down("server", at([0, 1]), 10)
    one.between(Said(2, 5, direct=True), ("a", 0), ("b", 1), "server")
    other.down("edge", at([1, 2]), at([3, 4]))
    other.up("edge", at([2]), at([7]))
    one.absorb(other)
    assert one.links("server") == {0: 10, 1: 10}
    assert one.links("edge") == {1: 3, 2: 4}
    assert one.links("edge", "up") == {2: 7}
    assert one.totals() == {
        "bytes_down": 27, "bytes_up": 7, "bytes_relayed": 0, "bytes_between": 5,
        "messages_down": 4, "messages_up": 1, "messages_relayed": 0, "messages_between": 2,
    }  # fmt: skip
    assert one.links("a") == {1: 5}  # a direct link: down from who speaks, up to who hears
    assert one.links("b", "up", count="messages") == {0: 2}


def test_many_rounds_stay_small():
    meter = Meter()
    for _ in range(5000):
        meter.down("server", at([3, 1]), 2)
    assert len(meter._tally._columns["server", "down"]) <= 1025
    assert meter.links() == {1: 10_000, 3: 10_000}


@given(rows)
def test_what_devices_were_asked_and_spent(sends):
    meter = Meter()
    for number, (positions, size) in enumerate(sends):
        meter.down("server", at(positions), size)
        meter.energy("edge" if number % 2 else "server", at(positions), np.full(len(positions), 0.1 * number))
        if number == 3:
            meter = Meter.load(M.decode(M.encode(meter.save())))
    table = meter.devices(10)
    for p in range(10):
        assert table["asked"][p] == sum(p in positions for positions, _ in sends)
        assert table["bytes_down"][p] == sum(size for positions, size in sends if p in positions)
        joules = sum(0.1 * number for number, (positions, _) in enumerate(sends) if p in positions)
        assert abs(table["energy"][p] - joules) < 1e-9
    some = at([7, 2, 7, 0])
    assert np.array_equal(meter.spent(some), table["energy"][some])
    assert meter.devices(1)["asked"].shape == (1,)


def test_energy_of_the_devices_survives_in_flight_and_on_disk(tmp_path):
    """The meter, the columns of a flight and what a model is told of earlier energy are the same after a resume."""
    told = []

    class Hungry:
        def plan(self, parties, plan):
            told.append(plan.lacking().tolist())
            n = len(parties)
            done = np.arange(n) != 1
            return Outcomes(
                np.arange(1.0, n + 1), done, np.ones(n), np.full(n, 2.5), np.where(done, 0, 4).astype(np.int8)
            )

        def transfer(self, source, target, nbytes):
            return 0.0

    async def program(fed):
        state = await fed.restore({"sent": 0})
        if state["sent"] == 0:
            await fed.send(fed.parties, echo)
            await fed.scope("side").ask_all(fed.parties[:1], echo)
            await fed.checkpoint({"sent": 1})
            if not fed.world.resume:
                raise KeyboardInterrupt("cut off")
        flight = fed.traffic.flights[0]
        await fed.ask_all(fed.parties, echo, quorum=0)
        return flight.energy.tolist(), flight.reason.tolist(), fed.meter.devices(3)["energy"].tolist()

    def live(resume):
        world = World(Community([1, 2, 3]), Inline(), cost=Hungry(), folder=tmp_path, resume=resume)
        return run_in(world, program)[0]

    with pytest.raises(KeyboardInterrupt, match="cut off"):
        live(False)
    assert live(True) == ([2.5] * 3, [0, 4, 0], [5.0] * 3)
    assert told == [[0.0] * 3, [2.5], [5.0, 2.5, 2.5]]


@task
def spoiled(island, message):
    return {"x": Sum(np.array([np.nan if island.data in message["bad"] else 1.0]))}


def fates_of(program, **more):
    """Of clients 0 to 5, who take 1 to 6 seconds and of whom client 2 is lost: asked, answered, crashed, called off, refused."""
    lost = Timetable({f"client-{i}": i + 1.0 for i in range(6)}, lost={"": ["client-2"]})

    async def whole(fed):
        await program(fed)
        return fed.meter.devices(6)

    table = run_in(World(Community(list(range(6))), Inline(), cost=lost, **more), whole)[0]
    return {name: np.flatnonzero(table[name]).tolist() for name in ("answered", "crashed", "called_off", "refused")}


def test_what_became_of_every_request():
    everyone = [0, 1, 3, 4, 5]

    async def cut(fed):
        await fed.sum(fed.parties, spoiled, {"bad": [1]}, accept=3)

    async def kept(fed):
        await fed.sum(fed.parties, spoiled, {"bad": []}, accept=3, late="drop")

    async def failed(fed):
        with pytest.raises(QuorumError, match="2 of 6 parties"):
            await fed.sum(fed.parties, spoiled, {"bad": []}, deadline=2.0, quorum=3)

    async def flown(fed):
        await fed.send(fed.parties, spoiled, {"bad": []})
        here = await fed.arrivals(2)
        assert here[0].cancel()
        await fed.combine([here[1]])
        fed.cancel(at([3, 4]))  # and 5 stays under way

    assert fates_of(cut) == {"answered": [0, 3], "crashed": [2], "called_off": [4, 5], "refused": [1]}
    assert fates_of(kept) == {"answered": everyone, "crashed": [2], "called_off": [], "refused": []}
    assert fates_of(failed) == {"answered": [], "crashed": [2], "called_off": everyone, "refused": []}
    assert fates_of(flown) == {"answered": [1], "crashed": [2], "called_off": [0, 3, 4], "refused": []}
