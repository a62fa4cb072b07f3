"""A quota that requests of several hubs fill together: what each takes, when all close, ties, and what is metered."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.algebra.aggregate import Sum
from atoll.core.errors import ConfigError
from atoll.core.requests.cohort import Community
from atoll.core.requests.results import Outcomes
from atoll.core.requests.task import task
from atoll.core.time.clock import Clock
from atoll.core.time.deadline import Quota
from atoll.core.time.meter import Meter
from atoll.core.world import World
from atoll.engines import Inline
from atoll.simulation import run_in
from atoll.testing import Timetable


@task
def add(island, message):
    island.state = (island.state or 0) + 1
    return {"x": Sum(np.float64(island.data))}


@task
def runs(island, message):
    return island.state or 0


class Table:
    """Seconds of each position; ``inf`` crashes, which nobody notices before a thousand seconds."""

    def __init__(self, seconds, latency=0.0):
        self.seconds, self.latency = np.asarray(seconds, dtype=np.float64), latency

    def plan(self, parties, plan):
        times = self.seconds[parties.positions]
        done = np.isfinite(times)
        return Outcomes(np.where(done, times, 1000.0), done, done.astype(np.float64))

    def transfer(self, source, target, nbytes):
        return self.latency


def live(program, seconds, groups, cost=None, **more):
    names = {f"edge-{e}": None for e in range(len(groups))}
    population = Community({f"c{i}": float(i) for i in range(len(seconds))}, others=names)
    return run_in(World(population, Inline(), cost=cost or Table(seconds), **more), program)[0]


def rounds(groups, count, deadline=None, most=None, order=None):
    """Every group asks at a hub of its own; gives what each took and when all had closed."""

    async def program(fed):
        quota = Quota(count)
        shares = [quota.share(most) for _ in groups]
        found = {}

        def visit(e):
            async def at_edge(edge, message):
                got = await edge.sum(edge.parties, add, accept=shares[e], quorum=0, deadline=deadline)
                found[e] = (got.senders.positions.tolist(), edge.clock.now())

            return fed.nest(f"edge-{e}", at_edge, fed.parties[np.array(groups[e], dtype=np.int64)])

        await asyncio.gather(*(visit(e) for e in order or range(len(groups))))
        return [found[e] for e in range(len(groups))], shares, fed

    return program


GROUPS = [[0, 2, 4], [1, 3, 5]]


def test_the_first_wherever_they_are():
    got, shares, _ = live(rounds(GROUPS, 3, deadline=9.0), [1, 6, 2, 7, 3, 8], GROUPS)
    assert got == [([0, 2, 4], 3.0), ([], 3.0)]  # all close at once, though one has nothing
    assert [share.completed for share in shares] == [3, 3]  # the late are counted
    assert [share.moment for share in shares] == [3.0, 3.0]
    assert shares[1].late.tolist() == [1, 3, 5]


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_ties_go_by_position_whoever_sends_first(order):
    got, *_ = live(rounds(GROUPS, 3, order=order), [1] * 6, GROUPS)
    assert got == [([0, 2], 1.0), ([1], 1.0)]


def test_in_a_world_without_devices_too():
    from atoll.core.requests.results import Free

    got, *_ = live(rounds(GROUPS, 4), [0] * 6, GROUPS, cost=Free())
    assert got == [([0, 2], 0.0), ([1, 3], 0.0)]


def test_a_quota_that_is_not_met_closes_nothing():
    seconds = [1, 6, 2, np.inf, 3, 8]
    got, shares, _ = live(rounds(GROUPS, 6, deadline=7.0), seconds, GROUPS)
    assert got == [([0, 2, 4], 3.0), ([1], 7.0)]  # the first knows that all its own are there
    assert [share.moment for share in shares] == [None, None]
    assert [share.completed for share in shares] == [3, 1]


def test_a_request_contributes_at_most_its_share():
    got, shares, _ = live(rounds(GROUPS, 3, most=2), [1, 6, 2, 7, 3, 8], GROUPS)
    assert got == [([0, 2], 6.0), ([1], 6.0)]
    assert shares[0].completed == 3


def test_the_work_of_the_others_is_never_done():
    async def program(fed):
        _, _, fed = await rounds(GROUPS, 3)(fed)
        counts = {}

        async def ask(edge, message):
            counts.update((await edge.ask_all(edge.parties, runs)).by_name())

        for e, group in enumerate(GROUPS):
            await fed.nest(f"edge-{e}", ask, fed.parties[np.array(group)])
        return [counts[f"c{i}"] for i in range(6)]

    assert live(program, [1, 6, 2, 7, 3, 8], GROUPS) == [1, 0, 1, 0, 1, 0]


def test_counting_begins_when_everyone_has_sent_or_given_up():
    """A hub that sends later is waited for, and then those that came first are taken."""

    async def program(fed):
        quota = Quota(2)
        shares = [quota.share() for _ in range(3)]
        took = []

        async def part(e, wait):
            await asyncio.sleep(wait)
            scope = fed.scope(f"hub-{e}", fed.parties[np.array(GROUPS[e])])
            got = await scope.sum(scope.parties, add, accept=shares[e], quorum=0)
            took.append((e, got.senders.positions.tolist(), fed.clock.now()))

        await asyncio.gather(part(0, 0.0), part(1, 5.0), shares[2].give_up())
        await shares[0].give_up()  # nothing happens
        return sorted(took)

    assert live(program, [1, 1, 7, 7, 9, 9], GROUPS) == [(0, [0], 6.0), (1, [1], 6.0)]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(st.integers(1, 5).map(float), st.just(np.inf)), min_size=2, max_size=12),
    st.integers(1, 12),
    st.integers(1, 4),
    st.data(),
)
def test_law_of_a_quota(seconds, count, hubs, data):
    """``sum_r |Psi_r| = min(quota, sum_r |X_r|)``, those taken are the first, and nobody closes after the deadline."""
    owner = data.draw(st.lists(st.integers(0, hubs - 1), min_size=len(seconds), max_size=len(seconds)))
    groups = [[i for i, e in enumerate(owner) if e == h] for h in range(hubs)]
    got, shares, _ = live(rounds(groups, count, deadline=4.0), seconds, groups)
    survived = [i for i in np.argsort(seconds, kind="stable").tolist() if seconds[i] <= 4.0]
    assert sorted(i for who, _ in got for i in who) == sorted(survived[:count])
    assert sum(share.completed for share in shares) == len(survived)
    assert all(share.taken == len(who) for share, (who, _) in zip(shares, got, strict=True))
    assert max(moment for _, moment in got) <= 4.0
    if len(survived) >= count:
        assert {moment for _, moment in got} == {seconds[survived[count - 1]]}


def test_on_a_real_clock():
    got, shares, _ = live(
        rounds(GROUPS, 3, deadline=1.0), np.array([1, 6, 2, 7, 3, 8]) / 1000, GROUPS, clock=Clock(virtual=False)
    )
    assert [who for who, _ in got] == [[0, 2, 4], []]
    assert all(0.003 <= moment < 1.0 for _, moment in got)
    assert shares[1].completed == 3


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ConfigError, match=r"Quota\(0\)"):
        Quota(0)
    with pytest.raises(ConfigError, match=r"Quota\(2\.5\)"):
        Quota(2.5)
    with pytest.raises(ConfigError, match="most=-1"):
        Quota(1).share(-1)

    async def twice(fed):
        share = Quota(2).share()
        await fed.ask_all(fed.parties, runs, accept=share)
        await fed.ask_all(fed.parties, runs, accept=share)

    with pytest.raises(ConfigError, match="a share of a quota is for one request"):
        live(twice, [1] * 6, GROUPS)

    async def late(fed):
        quota = Quota(2)
        await fed.ask_all(fed.parties, runs, accept=quota.share())
        quota.share()

    with pytest.raises(ConfigError, match="a share of a quota that is being counted"):
        live(late, [1] * 6, GROUPS)


def test_control_messages_are_bytes_and_nobody_was_asked():
    meter, who = Meter(), np.array([0, 2])
    meter.down("edge", who, 100)
    meter.control("edge", "down", who, 1)
    meter.control("edge", "up", who[:1], 3, times=4)
    for made in (meter, Meter.load(meter.save())):
        assert made.totals()["bytes_down"] == 202
        assert made.totals()["messages_up"] == 4
        assert made.links("edge", "up") == {0: 12}
        assert made.devices(3)["asked"].tolist() == [1, 0, 1]
        assert made.devices(3)["answered"].tolist() == [0, 0, 0]


def test_timetables_take_part():
    got, *_ = live(rounds(GROUPS, 1), [1] * 6, GROUPS, cost=Timetable({"c3": 0.5}, latency=2.0))
    assert got == [([], 2.5), ([3], 2.5)]
