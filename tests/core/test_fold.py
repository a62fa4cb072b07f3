"""What a cohort leaves behind: a reply that is kept out leaves nothing, on every path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import atoll
from atoll.core.algebra.aggregate import Mean, Sum
from atoll.core.errors import MessageError, QuorumError
from atoll.core.requests.cohort import Community
from atoll.core.requests.stage import Stage
from atoll.core.requests.task import Batch, Task
from atoll.core.world import World
from atoll.engines import Batched, Processes
from atoll.engines.inline import Inline
from atoll.stages import ErrorFeedback
from atoll.testing import live


class Vectorised(Inline):
    """Inline, with the blocks of a task's ``many``."""

    vectorised: ClassVar[bool] = True


@dataclass(frozen=True)
class Half(Stage):
    """Sends half of everything."""

    def encode(self, value, context):
        return {"half": value * 0.5}

    def decode(self, total, public, n):
        return total["half"]


def counting(bad: int) -> Task:
    """Every party adds 1 to its private count and replies with it; one replies NaN in the first round."""

    def reply(position, number):
        return np.nan if position == bad and number == 1 else 1.0

    def run(island, message):
        island.state = {"count": np.float64((island.state or {"count": 0.0})["count"] + 1)}
        return {"u": Sum(np.array([reply(island.party.position, message["round"]) * island.state["count"]]))}

    def many(cohort, message):
        counts = np.array([(cohort.state(i) or {"count": 0.0})["count"] + 1 for i in range(len(cohort))])
        values = np.array([reply(p, message["round"]) for p in cohort.positions]) * counts
        yield Batch(np.arange(len(cohort)), {"u": Sum(values[:, None])}, states={"count": counts})

    return Task("t:count", run, many=many)


@pytest.mark.parametrize("engine", [Inline, Vectorised])
def test_a_weight_below_zero_is_refused_in_a_block_too(engine):
    def run(island, message):
        return {"u": Mean(np.ones(2), examples=-3.0 if island.party.position == 1 else 2.0)}

    def many(cohort, message):
        weights = np.where(cohort.positions == 1, -3.0, 2.0)
        yield Batch(np.arange(len(cohort)), {"u": Mean(np.ones((len(cohort), 2)), examples=weights)})

    async def program(fed):
        return await fed.sum(fed.parties, weigh, {})

    weigh = Task("t:weigh", run, many=many)
    world = World(Community([[0], [1], [2]]), engine=engine(), registry={weigh.name: weigh})
    with pytest.raises(MessageError, match=r"Mean\(\.\.\., examples=-3\.0\).*0 lets it count for nothing"):
        live(world, program)


@pytest.mark.parametrize("engine", [Inline, Vectorised])
def test_a_rejected_reply_leaves_no_private_state(engine):
    """In round 2 the rejected client counts from where it was: 1, while the others are at 2."""
    work = counting(bad=1)

    async def program(fed):
        sums = [await fed.sum(fed.parties, work, {"round": number}) for number in (1, 2)]
        return [(s["u"].item(), dict(s.rejected)) for s in sums]

    rounds = atoll.simulate(program, Community([None] * 3), engine=engine(), tasks=[work])
    assert rounds == [(2.0, {"client-1": "u is not finite"}), (2.0 + 1.0 + 2.0, {})]


@pytest.mark.parametrize(
    "engine", [Inline, Vectorised, lambda: Batched(1), pytest.param(lambda: Processes(2), id="processes")]
)
def test_a_sum_that_fails_for_want_of_replies_leaves_everyone_as_they_were(engine):
    """Nobody takes what the two others sent in round 1: neither their counts nor what their stages remember may go on from it."""
    work = counting(bad=1)
    stage = ErrorFeedback(Half())

    async def program(fed):
        with pytest.raises(QuorumError, match="2 of 3 replies can be used"):
            await fed.sum(fed.parties, work, {"round": 1}, uplink=[stage], quorum=3)
        sums = [await fed.sum(fed.parties, work, {"round": number}, uplink=[stage], quorum=3) for number in (2, 3)]
        return [s["u"].item() for s in sums]

    world = World(Community([None] * 3), engine(), registry={work.name: work, Half().name: Half})
    # Half of 1, and then half of 2 and of the half that was left over.
    assert live(world, program).result == [3 * 0.5, 3 * 1.25]


def test_a_sum_with_enough_replies_keeps_what_they_left():
    work = counting(bad=1)

    async def program(fed):
        return [(await fed.sum(fed.parties, work, {"round": n}, quorum=2))["u"].item() for n in (1, 2)]

    assert atoll.simulate(program, Community([None] * 3), engine=Inline(), tasks=[work]) == [2.0, 5.0]
