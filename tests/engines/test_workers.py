"""Workers that go away, and the privacy of what crosses."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from atoll.core.algebra.aggregate import Sum
from atoll.core.errors import TaskError
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task
from atoll.core.world import World
from atoll.engines import ENGINES
from atoll.simulation import run_in
from tests.support.worlds import soon


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


@task
def leaves(island, message):
    sys.exit(message)


@task
async def leaves_talking(island, peers):
    await peers.send("other", 1)
    sys.exit()


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_a_task_that_calls_exit_is_an_error_that_is_named(engine):
    async def program(fed):
        for work in (fed.ask_all, fed.sum):
            with pytest.raises(TaskError, match=r"the task called sys.exit\(3\) .*leaves\(\), request .* at client-0"):
                await work(fed.parties[:1], leaves, 3)
        with pytest.raises(TaskError, match=r"the task called sys.exit\(\) .*leaves_talking.* at client-0"):
            await fed.session({"one": ("client-0", leaves_talking), "other": ("client-1", listens)})

    run_in(World(Community([0.0] * 4), ENGINES[engine](2)), program)


@pytest.mark.parametrize("engine", ["processes", "socket"])
def test_a_worker_that_goes_away_is_named_and_replaced(engine):
    gone = r"a worker ended during its work \(exit code 7\).*engine='inline' runs the task in this process"

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


@task
def wants(island, message):
    if message == "memory":
        raise MemoryError("Unable to allocate 8 GiB")
    if message == "module":
        importlib.import_module("no_such_package.inner")
    if message == "own":
        raise ImportError("a message of the task's own")
    return {"x": Sum(1.0)}


@pytest.mark.quick("*-batched", "*-inline", "*-processes", "*-socket")
@pytest.mark.parametrize("engine", sorted(ENGINES))
@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("memory", r"memory ran out: Unable to allocate 8 GiB .*at client-0.*ask for more \(resources: \{memory"),
        (
            "module",
            r"the task imports no_such_package, which is not installed .* Remedy: install 'no_such_package' where client-0 computes",
        ),
        (
            "own",
            r"ImportError: a message of the task's own \(in .*test_workers:(\d+) in wants, .* Remedy: look at line \1 of .*test_workers",
        ),
    ],
)
def test_what_a_task_lacks_is_named_with_what_helps(engine, message, said):
    async def program(fed):
        with pytest.raises(TaskError, match=said):
            await fed.sum(fed.parties[:1], wants, message)

    run_in(World(Community([0.0] * 4), ENGINES[engine](2)), program)


def find_width(settings):
    return settings["width"]


@task
def reads(island, message):
    return {"x": Sum(find_width({"height": 1}) if message["how"] == "settings" else message["width"])}


def test_a_missing_key_is_named_beside_what_the_message_has_only_where_the_message_is():
    async def program(fed):
        found = []
        for how in ("settings", "message"):
            with pytest.raises(TaskError, match=r"^KeyError: 'width' \(in ") as caught:
                await fed.sum(fed.parties, reads, {"how": how})
            found.append(caught.value.remedy)
        return found

    lines = [one.__code__.co_firstlineno for one in (find_width, reads.run)]
    first, second = run_in(World(Community([0.0]), ENGINES["inline"](1)), program)[0]
    assert first == f"look at line {lines[0] + 1} of {__name__}"
    assert second == f"look at line {lines[1] + 2} of {__name__}; the message has how"
