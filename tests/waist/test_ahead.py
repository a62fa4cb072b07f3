"""Work in flight that runs in one block although its replies arrive one by one, as in FedAsync (Xie et al. 2019)."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.core.algebra.aggregate import Mean, Parts, Sum
from atoll.core.errors import ConfigError
from atoll.core.requests.cohort import Community
from atoll.core.requests.results import Outcomes
from atoll.core.requests.task import Batch, Task, Work, task
from atoll.stages import QSGD
from atoll.testing import Timetable, live
from tests.support.double_masked import DoubleMasked
from tests.support.worlds import SLOW, WORLDS, on_every_engine

LR = 0.5
BLOCKS: list[int] = []


def reply(data, w, visits):
    return {
        "update": Mean(LR * (data - w) + 0.125 * visits, examples=2.0),
        "total": Sum(data * 1.0),
        "who": Parts(visits * 1.0),
        "visits": Mean(np.float64(visits), role="metric"),
    }


def train_one(island, w):
    visits = (island.state or 0) + 1
    island.state = visits
    return reply(island.data, w, visits)


def train_many(cohort, w):
    BLOCKS.append(len(cohort))
    for i in range(len(cohort)):
        visits = (cohort.states(np.array([i]), fresh=np.int64(0))[0]) + 1
        one = reply(cohort.shard(i), w, visits)
        stacked = {k: type(a)(np.asarray(a.value)[None], role=a.role, **weight(a)) for k, a in one.items()}
        yield Batch(np.array([i]), stacked, np.array([visits]))


def weight(aggregate):
    return {"examples": aggregate.weight} if aggregate.kind in ("mean", "parts") else {}


train = Task(f"{__name__}:train", train_one, many=train_many)


def fedasync(ahead, steps, uplink=(), alpha=0.5):
    """Everyone at work; every arrival is mixed, and its client sent the new model; new work goes out two at a time."""

    async def program(fed):
        state = await fed.restore({"t": 0, "w": np.zeros(2), "idle": fed.parties.positions, "seen": []})
        held = []
        while state["t"] < steps:
            idle = fed.world.roster.all()[np.asarray(state["idle"], dtype=np.int64)]
            if len(idle) >= 2:
                await fed.send(idle, train, state["w"], version=state["t"], ahead=ahead)
                idle = idle[:0]
            if not held:
                held = (await fed.arrivals()).handles()
            one, *held = held
            got = await fed.combine([one], uplink=uplink)
            w = (1 - alpha) * state["w"] + alpha * (one.flight.request.message + got["update"])
            assert (got.n, got.weight["update"], got.kinds["update"], got.kinds["total"]) == (1, 2.0, "mean", "sum")
            assert got["who"][0].value == got["visits"]
            seen = [one.party.position, one.version, float(got["visits"]), float(got["total"][0])]
            fed.record({"seen": seen})
            idle = np.append(idle.positions, one.party.position)
            state = {"t": state["t"] + 1, "w": w, "idle": idle, "seen": [*state["seen"], seen]}
            await fed.checkpoint(state)
        return {"w": state["w"], "seen": state["seen"], "up": fed.bytes()["bytes_up"]}

    return program


TARGETS = [np.array([float(i), -float(i)]) for i in range(5)]
DEVICES = Timetable({"client-0": 1.0, "client-1": 2.0, "client-2": 2.0, "client-3": 5.0}, default=3.0)


@pytest.mark.quick("inline-uplink2", "batched-uplink0")
@pytest.mark.parametrize(("engine", "uplink"), on_every_engine(((QSGD(levels=4),),), ((),)), indirect=["engine"])
def test_it_goes_on_where_it_was(survive, uplink):
    life = survive(fedasync(True, 9, uplink), Community(TARGETS), cost=DEVICES)
    assert [row[0] for row in life.result["seen"][:3]] == [0, 1, 2]
    assert any(row[2] > 1 for row in life.result["seen"])


def run(program, engine="inline", cost=DEVICES, data=TARGETS, **more):
    from atoll.core.world import World

    return live(World(Community(data), WORLDS[engine](2), cost=cost, **more), program)


AHEAD = [pytest.param(engine, marks=pytest.mark.slow if engine in SLOW else ()) for engine in sorted(WORLDS)]


@pytest.mark.parametrize("engine", AHEAD)
def test_work_done_ahead_gives_what_work_done_on_arrival_gives(engine):
    ahead, later = (run(fedasync(flag, 12), engine).result for flag in (True, False))
    np.testing.assert_allclose(ahead["w"], later["w"], rtol=1e-12)
    assert (ahead["seen"], ahead["up"]) == (later["seen"], later["up"])


def test_a_flight_is_one_block():
    BLOCKS.clear()
    run(fedasync(True, 5), "batched")
    assert BLOCKS[0] == 5, "the first arrival runs everyone"
    BLOCKS.clear()
    run(fedasync(False, 5), "batched")
    assert BLOCKS[:2] == [1, 1]


@task
def shout(island, message):
    if island.party.position == message:
        raise ValueError("no")
    island.state = (island.state or 0) + 1
    return {"x": Mean(np.array([np.nan if island.party.position == 1 else 1.0]))}


@task
def visits(island, message):
    return island.state


async def cancelled(fed):
    flight = await fed.send(fed.parties, shout, -1, ahead=True)
    assert flight.cancel(np.array([4])) == 1
    arrived = await fed.arrivals(3)
    first = arrived[0]
    assert arrived[1].cancel()
    assert (await fed.combine([first])).n == 1
    with pytest.raises(ConfigError, match="work that is done cannot be cancelled"):
        flight.cancel()
    with pytest.raises(ConfigError, match="work that is done cannot be cancelled"):
        arrived[2].cancel()
    with pytest.raises(ConfigError, match=r"client-1 to main/.*:shout/0 was read, combined or cancelled before"):
        await fed.combine([arrived[1]])
    with pytest.raises(ConfigError, match="can be combined, but not read one by one"):
        await arrived[2].result()
    return (await fed.ask_all(fed.parties, visits)).values


def test_what_is_given_up_before_is_never_done_and_nothing_after():
    result = run(cancelled, cost=Timetable({}, default=3.0, lost={":shout/": ["client-3"]})).result
    assert result == [1, None, 1, None, None], "one cancelled when it arrived, a crash, one cancelled under way"


async def kept_out(fed):
    await fed.send(fed.parties, shout, 2, ahead=True)
    rows = []
    for handle in (await fed.arrivals(5)).handles():
        got = await fed.combine([handle])
        rows.append([got.n, list(got.rejected.values()), [str(e) for e in got.errors.values()], got.bytes_up > 0])
    return rows


def test_replies_that_are_kept_out_are_named_when_they_are_used():
    rows = run(kept_out, cost=Timetable(), errors="drop").result
    assert rows[0] == [1, [], [], True]
    assert rows[1] == [0, ["x is not finite"], [], False]
    assert rows[2][0] == 0
    assert "ValueError: no" in rows[2][2][0]


class ByWork:
    """A second a declared batch, and one for every message that has none."""

    def plan(self, parties, plan):
        batches = plan.work().batches
        took = np.where(batches > 0, batches * (1 + parties.positions), 1.0)
        return Outcomes(took, np.ones(len(parties), dtype=bool), np.ones(len(parties)))

    def transfer(self, source, target, nbytes):
        return 0.0


@task(work=lambda data, args, message: Work(batches=10.0))
def weighty(island, message):
    return {"x": Sum(island.data * message)}


async def secure_groups(fed):
    state = await fed.restore({"sums": []})
    while len(state["sums"]) < 2:
        await fed.send(fed.parties, weighty, 1 + len(state["sums"]))
        arrived = await fed.arrivals(6)
        before = fed.clock.now()
        got = await fed.combine(arrived, reducer=DoubleMasked())
        row = {"x": got["x"], "n": got.n, "took": fed.clock.now() - before}
        state = {"sums": [*state["sums"], row]}
        await fed.checkpoint(state)
    return state


@pytest.mark.slow
def test_a_protocol_may_combine_arrivals_and_does_not_charge_their_work_again(survive):
    data = [np.array([10**k, -k, 3]) for k in range(6)]
    life = survive(secure_groups, Community(data), cost=ByWork())
    for k, got in enumerate(life.result["sums"], 1):
        np.testing.assert_array_equal(got["x"], k * sum(data))
        assert (got["n"], got["took"]) == (6, 3.0), "three steps of the protocol, a second each"


async def refused(fed):
    first = await fed.send(fed.parties, weighty, 1, ahead=True)
    with pytest.raises(ConfigError, match="DoubleMasked for arrivals of 1 requests, sent ahead"):
        await fed.combine(await fed.arrivals(6), reducer=DoubleMasked())
    await fed.send(fed.parties[:3], weighty, 1)
    await fed.send(fed.parties[3:], weighty, 1)
    with pytest.raises(ConfigError, match="DoubleMasked for arrivals of 2 requests"):
        await fed.combine(await fed.arrivals(6), reducer=DoubleMasked())
    return first.ahead


def test_a_protocol_takes_the_arrivals_of_one_request():
    assert run(refused, data=[np.array([k]) for k in range(6)]).result
