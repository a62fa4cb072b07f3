"""Conversations: who hears whom, in what order, at what time and cost."""

from __future__ import annotations

import pytest

from atoll.core import message as M
from atoll.core.clock import run
from atoll.core.cohort import Community
from atoll.core.errors import AtollError, ConfigError, TaskError
from atoll.core.session import Switch
from atoll.core.task import task
from atoll.core.world import World
from atoll.engines import Inline
from atoll.simulation import run_in
from atoll.testing import Timetable


def switch(roles="abc", seconds=None, meter=None):
    times = seconds or {}
    made = Switch({r: r.upper() for r in roles}, lambda s, t, n: times.get(s + t, 1.0), meter or (lambda n: None))
    return made, {r: made.peers(r, 0.0) for r in roles}


def test_channels_are_first_in_first_out_and_apart():
    async def main():
        _, peers = switch()
        for i in range(3):
            await peers["a"].send("c", ("a", i))
            await peers["b"].send("c", ("b", i))
        heard = [await peers["c"].recv("b") for _ in range(3)]
        return heard + [await peers["c"].recv("a") for _ in range(3)]

    assert run(main()) == [("b", 0), ("b", 1), ("b", 2), ("a", 0), ("a", 1), ("a", 2)]


def test_time_is_that_of_the_longest_chain():
    async def main():
        _, peers = switch(seconds={"AB": 2.0, "AC": 10.0, "BC": 3.0})
        await peers["a"].send("b", 1)
        await peers["a"].send("c", 1)
        await peers["b"].recv("a")
        await peers["b"].send("c", 1)
        await peers["c"].recv("b")
        early = peers["c"].time
        await peers["c"].recv("a")
        return early, peers["c"].time, peers["b"].time, peers["a"].time

    assert run(main()) == (5.0, 10.0, 2.0, 0.0)


def test_every_byte_is_metered_by_speaker():
    async def main():
        total = []
        made, peers = switch(meter=total.append)
        await peers["a"].send("b", {"x": [1, 2]})
        await peers["b"].send("a", "yes")
        return total, made.said

    total, said = run(main())
    assert total == [M.nbytes({"x": [1, 2]}), M.nbytes("yes")]
    assert said == {"a": total[0], "b": total[1], "c": 0}


def test_who_has_ended_is_known_after_its_last_message():
    async def main():
        made, peers = switch()
        await peers["a"].send("b", "last words")
        made.ended("a")
        assert await peers["b"].recv("a") == "last words"
        for _ in range(2):
            with pytest.raises(TaskError, match=r"role 'a' has ended and will not send what role 'b' waits for"):
                await peers["b"].recv("a")
        with pytest.raises(ConfigError, match=r"no role 'bb'\. Did you mean 'b'\? \(in role a\).*\['b', 'c'\]"):
            await peers["a"].send("bb", 1)

    run(main())


@task
async def asks(island, peers):
    return await peers.recv("two")


@task
async def asks_back(island, peers):
    return await peers.recv("one")


@task
async def slow(island, peers):
    await peers.send("two", b"x" * 1000)
    return "sent"


@task
async def takes(island, peers):
    return len(await peers.recv("one"))


def live(roles, **more):
    async def program(fed):
        result = await fed.session(roles)
        return result, fed.clock.now(), fed.bytes()["bytes_between"]

    return run_in(World(Community([1.0, 2.0]), Inline(), **more), program)[0]


def test_a_session_takes_its_longest_chain():
    roles = {"one": ("client-0", slow), "two": ("client-1", takes)}
    assert live(roles, cost=Timetable(latency=7.0)) == ({"one": "sent", "two": 1000}, 7.0, M.nbytes(b"x" * 1000))


def test_roles_that_wait_for_each_other_are_told():
    with pytest.raises(AtollError, match=r"waits for something that nobody will do.*roles that wait for each other"):
        live({"one": ("client-0", asks), "two": ("client-1", asks_back)})


def test_a_session_needs_two():
    with pytest.raises(ConfigError, match=r"a session of 1 role.*at least two"):
        live({"one": ("client-0", slow)})
