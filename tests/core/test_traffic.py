"""Rounds that close, and work in flight, as columns."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from atoll.core.algebra.aggregate import Sum
from atoll.core.errors import ConfigError, QuorumError
from atoll.core.requests.cohort import Community
from atoll.core.requests.party import Names
from atoll.core.requests.results import Outcomes, Terms
from atoll.core.requests.task import Batch, Task, Work, Workload, task
from atoll.core.world import World
from atoll.engines import Inline
from atoll.simulation import run_in
from atoll.testing import Timetable


@task
def ran(island, message):
    island.state = (island.state or 0) + 1
    return island.data


@task
def runs(island, message):
    return island.state or 0


def live(program, cost=None, n=6, **more):
    return run_in(World(Community(list(range(n))), Inline(), cost=cost or Timetable(), **more), program)[0]


SPEEDS = Timetable({f"client-{i}": float(i + 1) for i in range(6)}, lost={"": ["client-2"]})


@pytest.mark.parametrize(
    ("terms", "senders", "moment"),
    [
        ({}, [0, 1, 3, 4, 5], 6.0),
        ({"deadline": 4.0}, [0, 1, 3], 4.0),  # at the deadline is in time
        ({"deadline": 3.9}, [0, 1], 3.9),
        ({"accept": 2}, [0, 1], 2.0),
        ({"accept": 4, "deadline": 4.5}, [0, 1, 3], 4.5),
        ({"accept": 5, "deadline": 100.0}, [0, 1, 3, 4, 5], 6.0),
    ],
)
def test_when_a_round_closes(terms, senders, moment):
    async def program(fed):
        replies = await fed.ask_all(fed.parties, ran, **terms)
        return replies.senders.positions.tolist(), replies.silent.positions.tolist(), fed.clock.now()

    got, silent, now = live(program, SPEEDS)
    assert (got, now) == (senders, moment)
    assert silent == [i for i in range(6) if i not in senders]


@pytest.mark.parametrize(("late", "counts"), [("cancel", [1, 1, 0, 0, 0, 0]), ("drop", [1, 1, 0, 1, 1, 1])])
def test_what_becomes_of_the_late(late, counts):
    async def program(fed):
        await fed.ask_all(fed.parties, ran, accept=2, late=late)
        return (await fed.ask_all(fed.parties, runs)).values

    lost_once = Timetable(SPEEDS.seconds, lost={":ran/": ["client-2"]})
    assert live(program, lost_once) == counts


def test_late_replies_may_arrive():
    async def program(fed):
        await fed.ask_all(fed.parties, ran, deadline=2.5, late="arrive")
        assert fed.under_way == 3
        arrivals = await fed.arrivals(count=2)
        assert fed.clock.now() == 5.0
        return arrivals.positions.tolist(), arrivals.time.tolist(), await arrivals.results(), fed.under_way

    assert live(program, SPEEDS) == ([3, 4], [4.0, 5.0], [3, 4], 1)


def test_a_missed_quorum_says_how_many_and_when():
    async def program(fed):
        await fed.ask_all(fed.parties, ran, deadline=2.0, quorum=3, at=("round", 7))

    with pytest.raises(
        QuorumError, match=r"2 of 6 parties answered within 2 s, fewer than the quorum of 3 \(in main/.*@round/7\)"
    ):
        live(program, SPEEDS)


@pytest.mark.parametrize(
    ("terms", "match"),
    [
        ({"deadline": 0.0}, "deadline=0.0 seconds"),
        ({"quorum": -1}, "quorum=-1"),
        ({"accept": 1, "quorum": 2}, "closes the round before quorum=2"),
        ({"late": "never"}, "late='never'"),
    ],
)
def test_terms_that_cannot_be_used(terms, match):
    with pytest.raises(ConfigError, match=match):
        Terms(**terms)


def test_ties_are_broken_by_position():
    async def program(fed):
        await fed.send(fed.parties[::-1], ran)
        first = await fed.arrivals(count=1)
        return first.positions.tolist(), first.time.tolist()

    assert live(program, Timetable({"client-3": 0.5, "client-1": 0.5})) == ([1, 3], [0.5, 0.5])


def test_arrivals_of_several_sends_come_in_order_of_time():
    async def program(fed):
        await fed.send(fed.parties[:3], ran, version=1)
        await fed.clock.sleep_until(0.5)
        flight = await fed.send(fed.parties[3:], ran, version=2)
        assert flight.cancel(np.array([1])) == 1
        everything = await fed.arrivals(count=100)
        return everything.version.tolist(), everything.positions.tolist(), (await fed.arrivals()).positions.tolist()

    speeds = Timetable({"client-0": 9.0, "client-5": 1.0})
    assert live(program, speeds) == ([1, 1, 2, 2, 1], [1, 2, 3, 5, 0], [])


def test_waiting_until_a_moment():
    async def program(fed):
        await fed.send(fed.parties, ran)
        empty = await fed.arrivals(count=3, until=0.5)
        return len(empty), fed.clock.now(), len(await fed.arrivals(count=3, until=9.0)), fed.clock.now()

    assert live(program, Timetable(default=2.0)) == (0, 0.5, 6, 2.0)


def test_the_work_of_an_arrival_is_done_once_and_when_touched():
    async def program(fed):
        await fed.send(fed.parties, ran)
        handles = (await fed.arrivals(count=6)).handles()
        before = (await fed.ask_all(fed.parties, runs)).values
        assert handles[5].cancel()
        assert not handles[5].cancel()
        values = [await handles[0].result(), await handles[0].result(), await handles[1].result()]
        with pytest.raises(ConfigError, match=r"client-5 .* was read, combined or cancelled before"):
            await handles[5].result()
        with pytest.raises(ConfigError, match=r"client-0 .* was read"):
            await fed.combine(handles[:1])
        return before, values, (await fed.ask_all(fed.parties, runs)).values

    assert live(program) == ([0] * 6, [0, 0, 1], [1, 1, 1, 1, 1, 0])


@task
def total(island, message):
    return {"x": Sum(float(island.data))}


def test_a_combined_arrival_cannot_be_combined_again():
    async def program(fed):
        await fed.send(fed.parties, total)
        arrivals = await fed.arrivals(count=6)
        first = (await fed.combine(arrivals.handles()[:4]))["x"]
        with pytest.raises(ConfigError, match="was read, combined or cancelled before"):
            await fed.combine(arrivals)
        return first, (await fed.combine(arrivals.handles()[4:]))["x"]

    assert live(program) == (6.0, 9.0)


class Wave:
    """A cost model in array operations."""

    def plan(self, parties, plan):
        n = len(parties)
        return Outcomes(1.0 + (parties.positions % 7).astype(np.float64), parties.positions % 10 != 0, np.ones(n))

    def transfer(self, source, target, nbytes):
        return 0.0


def everyone_at_once(cohort, message):
    yield Batch(np.arange(len(cohort)), {"x": Sum({"v": cohort.positions.astype(np.float64)})})


@task(many=everyone_at_once)
def number(island, message):
    return {"x": Sum({"v": np.float64(island.party.position)})}


class Million:
    names = Names(1_000_000)

    def __len__(self):
        return 1_000_000

    def shard(self, i):
        raise AssertionError("nobody asked for data")


class Vectorised(Inline):
    vectorised = True


def test_a_hundred_thousand_in_flight_are_columns():
    async def program(fed):
        cohort = fed.parties[:100_000]
        cohort.keys()  # hashed names are kept for good, and counted apart
        tracemalloc.start()
        await fed.send(cohort, number, {"w": np.zeros(10)})
        arrivals = await fed.arrivals(count=50_000)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return len(arrivals), fed.clock.now(), (await fed.combine(arrivals))["x"]["v"], fed.under_way, peak

    count, now, value, left, peak = run_in(World(Million(), Vectorised(), cost=Wave()), program)[0]
    p = np.arange(100_000)
    answered = (p % 10 != 0) & (p % 7 < 4)
    assert (count, now, left) == (answered.sum(), 4.0, (p % 10 != 0).sum() - count)
    assert value == p[answered].sum()
    assert peak < 250 * len(p)  # bytes: columns of numbers and flags, no object per party


def test_declared_work_and_mail_reach_the_cost_model():
    seen = []

    class Watch(Wave):
        def plan(self, parties, plan):
            seen.append((plan.request, plan.down, plan.up, plan.work()))
            return super().plan(parties, plan)

    async def program(fed):
        first = await fed.exchange(fed.parties[1:3], post, {"w": np.zeros(8)})
        await fed.exchange(fed.parties[1:4], post, None, mail=first.mail)
        return fed.bytes()

    sizes = run_in(World(Community([[1] * i for i in range(6)]), Inline(), cost=Watch()), program)[0]
    assert seen[0][3].examples.tolist() == [1.0, 2.0]
    assert seen[0][2] == 77
    down = seen[1][1]
    assert down.tolist()[0] == down.tolist()[1] > down.tolist()[2]  # two have mail
    assert sizes["bytes_down"] == 2 * seen[0][1] + down.sum()


def declared(data, args, message):
    return Work(examples=float(len(data)))


@task(work=declared, reply_bytes=77)
def post(island, message):
    for name in ("client-1", "client-2"):
        island.post(name, {"x": np.zeros(16)})


class Sized(Community):
    """A population whose sizes are known without looking at anybody's data."""

    def __init__(self, sizes):
        super().__init__([None] * len(sizes))
        self.sizes = np.array(sizes)
        self.touched = []

    def shard(self, i):
        self.touched.append(i)
        return [0] * int(self.sizes[i])


def test_work_by_size_touches_nobodys_data():
    loads = []

    class Watch(Wave):
        def plan(self, parties, plan):
            loads.append(plan.work().examples.tolist())
            return super().plan(parties, plan)

    calls = []

    def by_rows(data, args, message):
        return Work(examples=float(len(data)))

    def by_sizes(sizes, args, message):
        calls.append(sizes.tolist())
        return Workload(sizes * 1.0, np.zeros(len(sizes)), np.zeros(len(sizes)))

    sized = Task("tests:sized", lambda island, message: 1, load=by_sizes)
    people = Sized([3, 5, 3, 5, 3])

    async def program(fed):
        await fed.send(fed.parties, sized)
        assert not people.touched
        assert calls == [[3, 5, 3, 5, 3]]
        await fed.send(fed.parties, Task("tests:any", sized.run, work=by_rows))
        return people.touched

    world = World(people, Inline(), cost=Watch())
    world.registry.update({name: Task(name, sized.run) for name in ("tests:sized", "tests:any")})
    assert run_in(world, program)[0] == [0, 1, 2, 3, 4]
    assert loads[0] == loads[1] == [3.0, 5.0, 3.0, 5.0, 3.0]


def test_a_turn_is_the_number_in_the_label_or_the_count():
    turns = []

    class Watch(Wave):
        def plan(self, parties, plan):
            turns.append(plan.turn)
            return super().plan(parties, plan)

    async def program(fed):
        for at in (None, None, 7, (9, "train"), ("last",)):
            await fed.ask_all(fed.parties, post, at=at)

    run_in(World(Community([[1], [2], [3]]), Inline(), cost=Watch()), program)
    assert turns == [0, 1, 7, 9, 0]


def test_a_rule_chooses_among_replies_and_closes_the_round():
    """It takes odd clients only and closes at the second of them."""
    rule_saw = []

    def odd(arrived):
        rule_saw.append(arrived.tolist())
        places = np.flatnonzero(arrived % 2 == 1)[:2]
        return places, int(places[1]) if len(places) == 2 else None

    async def program(fed):
        full = await fed.ask_all(fed.parties, post, accept=odd)
        first = fed.clock.now()
        few = await fed.ask_all(fed.parties[:3], post, accept=odd)
        return full.senders.names, first, few.senders.names, fed.clock.now() - first

    speeds = {f"client-{i}": float(6 - i) for i in range(6)}  # 5 answers first
    found = run_in(World(Community([[1]] * 6), Inline(), cost=Timetable(speeds)), program)[0]
    assert rule_saw == [[5, 4, 3, 2, 1, 0], [2, 1, 0]]
    assert found == (["client-3", "client-5"], 3.0, ["client-1"], 6.0)


def test_a_rule_that_waits_on_waits_for_replies_that_it_may_not_take_too():
    """With a loss as without one: the round is over when nobody is left to answer."""

    def one(arrived):
        return np.zeros(1, dtype=np.int64), None

    async def program(fed):
        await fed.ask_all(fed.parties[:2], ran, accept=one)
        first = fed.clock.now()
        await fed.ask_all(fed.parties[:4], ran, accept=one)  # client 2 is lost
        return first, fed.clock.now() - first

    assert live(program, SPEEDS) == (2.0, 4.0)


def test_arrivals_of_three_looks_may_be_put_back():
    async def program(fed):
        await fed.send(fed.parties[3:6], ran)
        found = await fed.arrivals(1)
        for _ in range(2):
            found = found.then(await fed.arrivals(1))
        found.until(4.5)
        again = await fed.arrivals(2)
        return again.positions.tolist(), fed.under_way

    assert live(program, SPEEDS) == ([4, 5], 0)
