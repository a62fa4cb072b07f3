"""One deadline for several supersteps, and a turn's bad luck spread over them."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from atoll.core.algebra.aggregate import Sum
from atoll.core.errors import ConfigError, QuorumError
from atoll.core.requests.cohort import Community
from atoll.core.requests.results import Free
from atoll.core.requests.task import Work, task
from atoll.core.time.deadline import Deadline
from atoll.core.world import World
from atoll.devices import Fleet, GeneratedTrace, Throughput
from atoll.devices.rules import BatchRate
from atoll.engines import Inline
from atoll.simulation import run_in
from atoll.testing import Timetable

N, TURN = 200, 3


@task
def says(island, message):
    return island.data


@task(work=lambda data, args, message: Work(batches=10.0))
def works(island, message):
    return {"n": Sum(np.float64(1.0))}


def live(program, cost, n=4):
    return run_in(World(Community([float(i) for i in range(n)]), Inline(), cost=cost or Free()), program)[0]


def test_one_deadline_covers_all_supersteps():
    """Each takes a second, under a deadline of 2.5: the third comes too late, and the clock says when it closed."""

    async def program(fed):
        limit = fed.deadline(2.5)
        await fed.ask_all(fed.parties, says, deadline=limit)
        await fed.exchange(fed.parties, says, deadline=limit)
        with pytest.raises(QuorumError, match=r"0 of 4 parties answered within 2\.5 s"):
            await fed.sum(fed.parties, works, deadline=limit)
        return fed.clock.now()

    assert live(program, Timetable(default=1.0)) == 2.5


def test_after_the_moment_nobody_is_in_time():
    """Also where replies take no time at all."""

    async def program(fed):
        limit = fed.deadline(5)
        await asyncio.sleep(6)
        with pytest.raises(QuorumError, match="within 5 s"):
            await fed.ask_all(fed.parties, says, deadline=limit)
        return fed.clock.now()

    assert live(program, None) == 6.0


def test_a_timetable_loses_a_party_at_a_superstep():
    async def program(fed):
        limit = fed.deadline(supersteps=3)
        steps = [await fed.ask_all(fed.parties, says, deadline=limit) for _ in range(3)]
        return [step.senders.positions.tolist() for step in steps]

    lost = Timetable(leaves={"client-1": 1, "client-3": 2})
    assert live(program, lost) == [[0, 1, 2, 3], [0, 2, 3], [0, 2]]


def fleet(**trace):
    return Fleet(compute=BatchRate(1.0), link=Throughput(1e6), trace=GeneratedTrace(crash=0.4, seed=5, **trace))


def silent_at(supersteps, point="during", turn=TURN):
    """Who is silent at each superstep of a turn: everyone is asked at each."""

    async def program(fed):
        limit = None if supersteps is None else fed.deadline(supersteps=supersteps)
        number = 1 if supersteps is None else len(limit._ends)
        steps = [await fed.sum(fed.parties, works, deadline=limit, at=(turn, i)) for i in range(number)]
        return [set(step.silent.positions.tolist()) for step in steps], fed.clock.now()

    return live(program, fleet(point=point), N)


@pytest.mark.parametrize("point", ["during", "uniform"])
def test_crashes_fall_on_every_superstep_of_a_turn(point):
    """The same devices crash in the turn as in a round of one request; where they do follows the weights; who crashed stays silent."""
    (whole,), _ = silent_at(None, point)
    (single,), _ = silent_at(1, point)
    assert whole == single
    assert 0.3 * N < len(whole) < 0.5 * N
    first, second, third = silent_at((1, 2, 1), point)[0]
    assert first < second < third == whole
    fresh = [len(first), len(second - first), len(third - second)]
    np.testing.assert_allclose(np.array(fresh) / len(whole), [0.25, 0.5, 0.25], atol=0.12)


def test_a_crash_falls_where_its_point_lies():
    """Crashes at 0.7 of the work: in the third of four supersteps, 0.8 of the way."""
    (first, second, third, fourth), _ = silent_at(4, 0.7)
    assert first == second == set()
    assert third == fourth != set()

    async def program(fed):
        limit = fed.deadline(supersteps=4)
        steps = [await fed.sum(fed.parties, works, deadline=limit, at=(TURN, i), quorum=0) for i in range(4)]
        who = min(third)
        return [float(step.outcomes.fraction[who]) for step in steps]

    np.testing.assert_allclose(live(program, fleet(point=0.7), N), [1.0, 1.0, 0.8, 0.0], atol=1e-9)


@pytest.mark.parametrize(
    ("seconds", "supersteps", "match"),
    [(0.0, None, r"deadline=0\.0 seconds"), (1.0, 0, "supersteps=0"), (1.0, (1, -1), "supersteps="), (1, (0, 0), "=")],
)
def test_deadlines_that_make_no_sense(seconds, supersteps, match):
    with pytest.raises(ConfigError, match=match):
        Deadline(1.0, seconds, supersteps)


def test_more_supersteps_than_were_said():
    async def program(fed):
        limit = fed.deadline(supersteps=2)
        for _ in range(3):
            await fed.ask_all(fed.parties, says, deadline=limit)

    with pytest.raises(ConfigError, match=r"superstep 3 under a deadline for 2.*supersteps=\.\.\."):
        live(program, Timetable())
