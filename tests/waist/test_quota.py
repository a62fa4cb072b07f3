"""A quota that cancels: the first replies are enough, and the work of the others is never done."""

from __future__ import annotations

import numpy as np

from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task
from atoll.testing import Timetable

QUOTA = 3


@task
def measure(island, message):
    island.state = (island.state or 0) + 1
    return island.data


@task
def executions(island, message):
    return island.state or 0


async def first_come(fed):
    state = await fed.restore({"rounds": 0, "seen": []})
    while state["rounds"] < 4:
        if state["rounds"] % 2:  # the round closes by itself
            replies = await fed.ask_all(fed.parties, measure, accept=QUOTA, quorum=QUOTA)
            seen = replies.senders.names
        else:  # the program watches work in flight
            flight = await fed.send(fed.parties, measure)
            arrivals = await fed.arrivals(count=QUOTA)
            flight.cancel()
            handles = arrivals.handles()
            extra = [h.cancel() for h in handles[QUOTA:]]  # came in the same moment
            await handles[0].result()
            seen = [h.party.name for h in handles[:QUOTA]]
            assert all(extra)
        state = {"rounds": state["rounds"] + 1, "seen": [*state["seen"], seen]}
        await fed.checkpoint(state)
    counts = (await fed.ask_all(fed.parties, executions)).values
    return {**state, "counts": counts, "under_way": fed.under_way}


def test_only_the_quota_runs(survive):
    clients = Community([float(i) for i in range(8)])
    slow = {f"client-{i}": 1.0 + (7 - i) // 2 for i in range(8)}  # 7 and 6 first, then 5 and 4 in one moment, ...
    life = survive(first_come, clients, cost=Timetable(slow))
    assert life.result["seen"][0] == ["client-6", "client-7", "client-4"]
    assert life.result["seen"][1] == ["client-4", "client-6", "client-7"]  # single replies come in cohort order
    assert life.result["counts"] == [0, 0, 0, 0, 4, 0, 4, 4]
    assert np.sum(life.result["counts"]) == 4 * QUOTA
    assert life.result["under_way"] == 0
    assert life.clock == 4 * 2.0 + 4.0
