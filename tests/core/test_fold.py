"""What a cohort leaves behind: a reply that is kept out leaves nothing, on every path."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

import atoll
from atoll.core.aggregate import Sum
from atoll.core.cohort import Community
from atoll.core.task import Batch, Task
from atoll.engines.inline import Inline


class Vectorised(Inline):
    """Inline, with the blocks of a task's ``many``."""

    vectorised: ClassVar[bool] = True


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
def test_a_rejected_reply_leaves_no_private_state(engine):
    """In round 2 the rejected client counts from where it was: 1, while the others are at 2."""
    work = counting(bad=1)

    async def program(fed):
        sums = [await fed.sum(fed.parties, work, {"round": number}) for number in (1, 2)]
        return [(s["u"].item(), dict(s.rejected)) for s in sums]

    rounds = atoll.simulate(program, Community([None] * 3), engine=engine(), tasks=[work])
    assert rounds == [(2.0, {"client-1": "u is not finite"}), (2.0 + 1.0 + 2.0, {})]
