"""Workers that go away, and the privacy of what crosses."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from worlds import soon

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


@task
def held(island, message):
    """Says that it has begun, and ends once it may."""
    Path(message["folder"], island.name).touch()
    waits_for(lambda: Path(message["folder"], "go").exists())
    return {"x": Sum(1.0)}


@task
async def pours(island, peers):
    for _ in range(6):
        await peers.send("other", np.zeros(2_000_000))


@task
async def sips(island, peers):
    return float((await peers.recv("one")).sum())


@pytest.mark.parametrize("engine", ["processes", "socket"])
def test_others_get_their_answers_when_one_who_asked_is_cancelled(engine, tmp_path):
    async def program(fed):
        message = {"folder": str(tmp_path)}
        one, other = (asyncio.create_task(fed.scope(n).sum(fed.parties, held, message)) for n in "ab")
        begun = [tmp_path / name for name in ("client-0", "client-1")]
        await asyncio.to_thread(waits_for, lambda: all(path.exists() for path in begun))
        one.cancel()
        assert isinstance((await asyncio.gather(one, return_exceptions=True))[0], asyncio.CancelledError)
        (tmp_path / "go").touch()
        return (await soon(other))["x"]

    assert run_in(World(Community([0.0] * 2), ENGINES[engine](2)), program)[0] == 2.0


@pytest.mark.parametrize("engine", ["processes", "socket"])
def test_a_conversation_that_ends_with_long_messages_on_their_way_leaves_links_whole(engine, tmp_path):
    (tmp_path / "go").touch()

    async def program(fed):
        said = await fed.session({"one": ("client-0", pours), "other": ("client-1", sips)})
        assert said["other"] == 0.0
        return (await soon(fed.sum(fed.parties, held, {"folder": str(tmp_path)})))["x"]

    assert run_in(World(Community([0.0] * 2), ENGINES[engine](2)), program)[0] == 2.0


def waits_for(found):
    while not found():
        threading.Event().wait(0.001)
