"""Workers that go away, and the privacy of what crosses."""

from __future__ import annotations

import asyncio
import os

import pytest

from atoll.core.aggregate import Sum
from atoll.core.cohort import Community
from atoll.core.errors import TaskError
from atoll.core.task import task
from atoll.core.world import World
from atoll.engines import ENGINES
from atoll.simulation import run_in


@task
def dies(island, message):
    if island.name == message:
        os._exit(7)
    return {"x": Sum(1.0)}


@task
async def dies_talking(island, peers):
    await peers.send("other", 1)
    os._exit(7)


@task
async def listens(island, peers):
    await peers.recv("one")
    return await peers.recv("one")


@pytest.mark.parametrize("engine", ["processes", "socket"])
def test_a_worker_that_goes_away_is_named_and_replaced(engine):
    gone = r"a worker went away while it was working \(exit code 7\).*engine='inline' runs the task in this process"

    async def program(fed):
        with pytest.raises(TaskError, match=gone):
            await fed.ask_all(fed.parties, dies, "client-3")
        first = (await fed.sum(fed.parties, dies))["x"]
        with pytest.raises(TaskError, match=gone):
            await fed.sum(fed.parties, dies, "client-0")
        with pytest.raises(TaskError, match=gone):
            await fed.session({"one": ("client-0", dies_talking), "other": ("client-1", listens)})
        sums = await asyncio.gather(*(fed.scope(name).sum(fed.parties, dies) for name in "ab"))
        return [first, *(s["x"] for s in sums)]

    assert run_in(World(Community([0.0] * 4), ENGINES[engine](2)), program)[0] == [4.0, 4.0, 4.0]
