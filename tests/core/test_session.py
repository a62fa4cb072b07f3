"""Sessions: who hears whom, in what order, at what time and cost."""

from __future__ import annotations

import asyncio

import pytest

from atoll.core import message as M
from atoll.core.errors import AtollError, ConfigError, TaskError
from atoll.core.execution.session import Switch
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task
from atoll.core.sealing import sealed_nbytes
from atoll.core.time.clock import Clock, run
from atoll.core.time.meter import Said
from atoll.core.world import World
from atoll.engines import ENGINES, Inline
from atoll.simulation import run_in
from atoll.testing import Timetable


def switch(roles="abc", seconds=None):
    times = seconds or {}
    made = Switch({r: r.upper() for r in roles}, lambda s, t, n: times.get(s + t, 1.0))
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


def test_every_byte_is_counted_by_speaker_and_hearer():
    async def main():
        made, peers = switch()
        await peers["a"].send("b", {"x": [1, 2]})
        await peers["a"].send("b", None)
        await peers["b"].send("a", "yes")
        return made.said

    long, none, yes = (sealed_nbytes(M.nbytes(said)) for said in ({"x": [1, 2]}, None, "yes"))
    assert run(main()) == {"a": {"b": Said(2, long + none)}, "b": {"a": Said(1, yes)}, "c": {}}


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


def live(roles, engine=None, **more):
    async def program(fed):
        result = await fed.session(roles)
        return result, fed.clock.now(), fed.bytes()["bytes_relayed"]

    return run_in(World(Community([1.0, 2.0]), engine or Inline(), **more), program)[0]


def test_a_session_takes_its_longest_chain():
    roles = {"one": ("client-0", slow), "two": ("client-1", takes)}
    assert live(roles, cost=Timetable(latency=7.0)) == (
        {"one": "sent", "two": 1000},
        7.0,
        sealed_nbytes(M.nbytes(b"x" * 1000)),
    )


TOLD = [
    pytest.param(engine, virtual, marks=pytest.mark.slow if engine == "ray" else ())
    for engine in sorted(ENGINES)
    for virtual in (True, False)
]


@pytest.mark.parametrize(("engine", "virtual"), TOLD)
def test_roles_that_wait_for_each_other_are_told(engine, virtual):
    said = r"'one' at client-0 waits for a message of 'two'; 'two' at client-1 waits for a message of 'one' \(in session\)\. Remedy: let one"
    with pytest.raises(TaskError, match=said):
        live({"one": ("client-0", asks), "two": ("client-1", asks_back)}, ENGINES[engine](2), clock=Clock(virtual))


def test_a_message_on_its_way_is_no_deadlock():
    async def main():
        made, _ = switch()
        made.attach("b", lambda *message: None, lambda *ended: None)
        made.carry("a", "b", "hello", 0.0)
        made.ended("c")
        assert not made.waiting("a", {"b": 0})
        assert not made.waiting("b", {"a": 0})  # it has not had the message yet
        assert not made.verdict().done()
        assert made.waiting("b", {"a": 1})
        with pytest.raises(TaskError, match="wait for each other"):
            await made.verdict()

    run(main())


def test_an_end_may_leave_the_others_waiting_for_each_other():
    async def main():
        made, _ = switch()
        assert not made.waiting("a", {"b": 0})
        assert not made.waiting("b", {"a": 0, "c": 0})
        made.ended("c")  # wakes b, which may go on
        assert not made.verdict().done()
        assert made.waiting("b", {"a": 0})
        with pytest.raises(TaskError, match=r"'a' at A waits for a message of 'b'; 'b' at B waits"):
            await made.verdict()

    run(main())


def test_all_have_ended_is_a_verdict_too():
    async def main():
        made, _ = switch("ab")
        made.ended("a")
        made.ended("b")
        assert await made.verdict() is None

    run(main())


@task
async def minds_itself(island, peers):
    await asyncio.Event().wait()


def test_a_role_that_waits_for_itself_is_told_in_virtual_time():
    with pytest.raises(AtollError, match=r"waits for something that cannot happen.*roles that wait for each other"):
        live({"one": ("client-0", minds_itself), "two": ("client-1", asks_back)})


@task
async def patient(island, peers):
    try:
        async with asyncio.timeout(5.0):
            await peers.recv("two")
    except TimeoutError:
        await peers.send("two", "enough")


def test_a_timer_is_no_deadlock():
    talked, _, _ = live({"one": ("client-0", patient), "two": ("client-1", asks_back)})
    assert talked == {"one": None, "two": "enough"}


def test_a_session_needs_two():
    with pytest.raises(ConfigError, match=r"a session of 1 role.*at least two"):
        live({"one": ("client-0", slow)})
