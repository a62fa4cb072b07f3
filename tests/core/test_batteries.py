"""Batteries: what they lack, drawn on over time, never overfull, and the same after a resume."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core import message as M
from atoll.core.algebra.aggregate import Sum
from atoll.core.requests.cohort import Community
from atoll.core.requests.results import Outcomes
from atoll.core.requests.task import task
from atoll.core.time.meter import Batteries, Draw
from atoll.core.world import World
from atoll.engines import Inline
from atoll.testing import killed_and_resumed

NOBODY = np.zeros(0, dtype=np.int64)


def at(*positions):
    return np.array(positions, dtype=np.int64)


def test_what_a_full_battery_could_not_take_in_is_lost():
    """Two watts. By hand: 10 J at 5 s, full again at 10 s, 6 J at 20 s, 6 more at 21 s: 6 - 2 + 6 = 10, and 4 s later 2."""
    batteries = Batteries(2.0)
    seen = []
    for moment, joules in ((5.0, 10.0), (20.0, 6.0), (21.0, 6.0)):
        batteries.draw(Draw.of(moment, at(7), np.array([joules])))
        seen.append([float(batteries.lacking(at(7), moment + s)[0]) for s in (0.0, 0.5, 4.0, 9.0)])
    assert seen == [[10.0, 9.0, 2.0, 0.0], [6.0, 5.0, 0.0, 0.0], [10.0, 9.0, 2.0, 0.0]]
    batteries.draw(
        Draw.of(22.0, at(7), np.array([1.0]), np.array([6.0]))
    )  # called off after 1 of 6 J: it lacks 8, less 5
    assert batteries.lacking(at(3, 7), 22.0).tolist() == [0.0, 3.0]
    assert batteries.lacking(NOBODY, 22.0).tolist() == []


events = st.lists(
    st.tuples(st.floats(0, 10), st.lists(st.integers(0, 5), unique=True, min_size=1), st.floats(0, 20)), max_size=12
)


@settings(max_examples=60, deadline=None)
@given(events, st.floats(0.1, 5.0), st.integers(0, 12))
def test_batteries_follow_their_law_and_are_saved(gaps, watts, cut):
    """Against a device at a time in floating point; where no battery is ever full, it is what was spent less what came in since the first draw."""
    batteries, lacks, now, rows = Batteries(watts), dict.fromkeys(range(6), 0.0), 0.0, []
    first, spent, full = {}, dict.fromkeys(range(6), 0.0), set()
    for number, (gap, who, joules) in enumerate(gaps):
        now += gap
        for p in lacks:
            lacks[p] = lacks[p] - watts * gap
            if lacks[p] <= 0.0:
                full |= {p} & first.keys()
                lacks[p] = 0.0
        for p in who:
            lacks[p] += joules
            first.setdefault(p, now)
            spent[p] += joules
        row = Draw.of(now, at(*who), np.full(len(who), joules))
        batteries.draw(row)
        rows.append(row)
        if number == cut:
            settled, rows = M.decode(M.encode(batteries.settle(now))), []
            batteries.restart(settled, [])
    found = batteries.lacking(np.arange(6), now)
    assert (found >= 0).all()
    assert found == pytest.approx(list(lacks.values()), abs=2e-6 * (len(gaps) + 1))
    for p in first.keys() - full:
        assert found[p] == pytest.approx(spent[p] - watts * (now - first[p]), abs=2e-6 * (len(gaps) + 1))
    again = Batteries(watts)
    again.restart(batteries.settled, reversed(rows) if len({r.moment for r in rows}) == len(rows) else rows)
    assert again.lacking(np.arange(6), now).tolist() == found.tolist()


@task
def one(island, message):
    return {"n": Sum(np.ones(1))}


class Tiring:
    """Three joules and a second a request; who lacks more than five says no."""

    recharge = 0.75

    def plan(self, parties, plan):
        able = plan.lacking() <= 5.0
        n = len(parties)
        return Outcomes(np.ones(n), able, np.where(able, 1.0, 0.0), np.where(able, 3.0, 0.0))

    def transfer(self, source, target, nbytes):
        return 0.0


async def rounds(fed, count, pause, every):
    state = await fed.restore({"done": 0, "seen": []})
    while state["done"] < count:
        sums = await fed.sum(fed.parties, one, None, quorum=0)
        lacking = fed.world.lacking(np.arange(4), fed.clock.now())
        state = {"done": state["done"] + 1, "seen": [*state["seen"], [int(sums.n), *lacking.tolist()]]}
        await asyncio.sleep(pause)
        if state["done"] % every == 0:
            await fed.checkpoint(state)
    return state["seen"]


async def edge(fed, message):
    sums = await fed.sum(fed.parties, one, message, quorum=0)
    return int(sums.n)


async def everything(fed):
    """Two scopes that keep checkpoints at their own pace draw on the same batteries; before and after them, the outermost program and an edge do."""
    state = await fed.restore({"begun": [], "seen": None})
    if not state["begun"]:
        state["begun"] = await rounds_of(fed)
        await fed.checkpoint(state)
    if state["seen"] is None:
        left, right = fed.scope("left"), fed.scope("right", fed.parties[1:])
        state["seen"] = await asyncio.gather(rounds(left, 4, 1.25, 1), rounds(right, 4, 2.0, 2))
        await fed.checkpoint(state)
    last = await fed.nest("client-0", edge, fed.parties[1:], b"")
    return [*state["begun"], *state["seen"], last, fed.world.lacking(np.arange(4), fed.clock.now()).tolist()]


async def rounds_of(fed):
    return [int((await fed.sum(fed.parties, one, None, quorum=0, at=(turn,))).n) for turn in range(2)]


@pytest.mark.slow
def test_batteries_are_as_full_after_a_resume_whoever_goes_back_to_what(tmp_path):
    def world(folder, resume):
        return World(Community([0.0] * 4), Inline(), cost=Tiring(), folder=folder, resume=resume)

    life = killed_and_resumed(world, everything, tmp_path, points=settings.default.max_examples // 5)
    seen = [n for half in life.result[2:4] for n, *_ in half]
    assert 0 in seen  # some are too tired,
    assert max(seen) > 0  # and come back
