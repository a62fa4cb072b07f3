"""What becomes of the roles of a session: time for work and words, deadlines, and parties that are lost."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core import message as M
from atoll.core.errors import AtollError, ConfigError, PolicyError, SessionError, TaskError
from atoll.core.event import Laplace
from atoll.core.requests.cohort import Community
from atoll.core.requests.request import Request
from atoll.core.requests.task import Work, task
from atoll.core.sealing import sealed_nbytes
from atoll.core.time.clock import Clock
from atoll.core.time.deadline import Prospect
from atoll.core.world import World
from atoll.devices import Backhaul, BatchRate, Fleet, GeneratedTrace, Throughput
from atoll.devices.availability import Windows
from atoll.engines import ENGINES, Inline
from atoll.simulation import run_in
from atoll.testing import Timetable, killed_and_resumed

PAIR = ("client-0", "client-1")


def declared(data, args, message):
    return Work(examples=10.0, batches=10.0, epochs=1.0)


@task(work=declared)
async def guest(island, peers, steps=4):
    """Works a quarter, says something and hears the answer, four times."""
    island.state = "guest was here"
    for i in range(steps):
        await peers.work(1 / steps)
        await peers.send("host", i)
        await peers.recv("host")
    return "guest"


@task
async def host(island, peers, steps=4):
    island.state = "host was here"
    for _ in range(steps):
        await peers.send("guest", await peers.recv("guest"))
    return "host"


@task
async def careful(island, peers):
    """Goes on without its guest."""
    heard = []
    try:
        while True:
            heard.append(await peers.recv("guest"))
            await peers.send("guest", heard[-1])
    except SessionError as error:
        island.state = str(error)
    await peers.work()
    return heard


@task
def kept(island, message):
    return island.state


ROLES = {"guest": ("client-0", guest), "host": ("client-1", host)}


def lived(cost, roles=None, engine=None, clock=None, **terms):
    """What a session gave or raised, the clock, the states afterwards, and the meters."""

    async def program(fed):
        try:
            found = await fed.session(roles or ROLES, **terms)
        except SessionError as error:
            found = str(error)
        end = fed.clock.now()
        fates = {k: v.tolist() for k, v in fed.meter.parties()[1].items() if k in ("crashed", "called_off")}
        fed.observe()
        states = (await fed.ask_all(fed.parties, kept)).values
        return found, end, states, fed.bytes(), fates

    population = Community([1.0, 2.0])
    return run_in(World(population, engine or Inline(), cost=cost, clock=clock or Clock()), program)[0]


def test_work_and_words_take_time():
    found, end, states, _, _ = lived(Timetable(work={"client-0": 8.0}, latency=0.5))
    assert found == {"guest": "guest", "host": "host"}
    assert end == 8.0 + 4 * 2 * 0.5
    assert states == ["guest was here", "host was here"]


def test_work_that_a_role_does_not_speak_of_takes_its_time_at_the_end():
    @task(name="test:silent")
    async def silent(island, peers):
        await peers.send("host", 1)
        await peers.recv("host")

    async def program(fed):
        fed.world.registry["test:silent"] = silent
        await fed.session({"guest": ("client-0", silent), "host": ("client-1", host.with_args(steps=1))})
        return fed.clock.now()

    world = World(Community([1.0, 2.0]), Inline(), cost=Timetable(work={"client-0": 8.0}, latency=0.5))
    world.registry["test:silent"] = silent
    assert run_in(world, program)[0] == 8.0 + 2 * 0.5


CASES = [
    # At 5 s the guest has said two things, heard one and is lost; the host hears its second word at 5.5 s, and knows since 5.25 s.
    ({"words": {"client-0": 3}}, {}, "role 'guest' at client-0 was lost when it had sent 2 messages (", 5.5, [0]),
    (
        {"lost": {"guest": ["client-0"]}},
        {},
        "role 'guest' at client-0 was lost when it had sent 1 message (",
        5.25,
        [0],
    ),
    ({"leaves": {"client-1": 0}}, {}, "role 'host' at client-1 was lost when it had sent 0 messages (", 2.0, [1]),
    ({}, {"deadline": 4.5}, "role 'guest' at client-0 did not end in time within 4.5 s (", 4.5, []),
    ({}, {"deadline": 11.0}, "role 'host' at client-1 did not end in time within 11 s (", 11.0, []),
]


@pytest.mark.parametrize(("fates", "terms", "told", "end", "lost"), CASES)
def test_a_session_that_loses_a_role_or_is_late_leaves_nothing(fates, terms, told, end, lost):
    cost = Timetable(work={"client-0": 8.0}, latency=0.5, notice=0.25, **fates)
    found, clock, states, _, ended = lived(cost, **terms)
    assert isinstance(found, str), found
    assert told in found
    assert "main/" in found
    assert "Remedy: run the session again" in found
    assert states == [None, None]
    assert [i for i, n in enumerate(ended["crashed"]) if n] == lost
    assert sum(ended["called_off"]) == 2 - len(lost)
    assert clock == end


def test_a_deadline_that_is_met_changes_nothing():
    cost = Timetable(work={"client-0": 8.0}, latency=0.5)
    assert lived(cost, deadline=12.0)[:4] == lived(cost)[:4]


def test_a_lost_role_is_told_behind_its_last_message_and_the_others_may_go_on():
    cost = Timetable(work={"client-0": 8.0, "client-1": 3.0}, words={"client-0": 4}, latency=0.5, notice=0.25)
    roles = {"guest": ("client-0", guest), "host": ("client-1", careful)}
    found, end, states, _, ended = lived(cost, roles, quorum=1)
    assert found == {"host": [0, 1]}
    assert states[0] is None
    assert "role 'guest' was lost, and will not send what role 'host' waits for" in states[1]
    # two steps of 3 s each until the guest's fourth word; it begins to work again, is lost, and is missed after the notice
    assert end == 2 * 3.0 + 0.25 + 3.0
    assert (ended["crashed"], ended["called_off"]) == ([1, 0], [0, 0])


def test_with_a_quorum_a_session_of_too_few_still_fails():
    cost = Timetable(words={"client-0": 1, "client-1": 1})
    found, _, states, _, _ = lived(cost, quorum=1)
    assert "and 1 of 2 roles must end well" in found
    assert states == [None, None]


def test_one_deadline_for_a_session_and_a_question():
    async def program(fed):
        limit = fed.deadline(10, supersteps=2)
        await fed.session(ROLES, deadline=limit)
        left = limit.until - fed.clock.now()
        with pytest.raises(AtollError, match="within 10 s"):
            await fed.ask_all(fed.parties, kept, deadline=limit)
        return left, limit.begun, fed.clock.now()

    cost = Timetable(default=5.0, work={"client-0": 4.0}, latency=0.5)
    assert run_in(World(Community([1.0, 2.0]), Inline(), cost=cost), program)[0] == (2.0, 2, 10.0)


@pytest.mark.parametrize(
    ("share", "told"), [(-0.1, r"work\(-0.1\)"), (math.nan, r"work\(nan\)"), (1.5, r"work\(1.5\) after 0 of the work")]
)
def test_work_is_a_share(share, told):
    @task(name="test:works")
    async def works(island, peers):
        await peers.work(share)

    async def program(fed):
        await fed.session({"a": ("client-0", works), "b": ("client-1", host.with_args(steps=0))})

    world = World(Community([1.0, 2.0]), Inline())
    world.registry["test:works"] = works
    with pytest.raises(ConfigError, match=told):
        run_in(world, program)


@pytest.mark.parametrize("quorum", [0, 3])
def test_a_quorum_is_some_of_the_roles(quorum):
    with pytest.raises(ConfigError, match=rf"quorum={quorum} of 2 roles"):
        lived(Timetable(), quorum=quorum)


@task
async def deaf(island, peers):
    """Catches whatever it can, and goes on talking."""
    said = 0
    while said < 100:
        try:
            said += 1
            await peers.send("host", said)
        except Exception:
            continue
    return said


def test_a_lost_role_cannot_go_on():
    roles = {"guest": ("client-0", deaf), "host": ("client-1", hears)}
    found = lived(Timetable(words={"client-0": 7}), roles, quorum=1)[0]
    assert found == {"host": 7}


@task
async def hears(island, peers):
    heard = 0
    try:
        while True:
            await peers.recv("guest")
            heard += 1
    except SessionError:
        return heard


@task
async def gives_up(island, peers):
    raise SessionError("the labels are all the same", remedy="bring others")


def test_a_role_may_give_up():
    found, _, states, _, ended = lived(Timetable(), {"guest": ("client-0", gives_up), "host": ("client-1", hears)})
    assert "role 'guest' at client-0 gave up" in found
    assert states == [None, None]
    assert sum(ended["crashed"]) == 0


# ---------------------------------------------------------------------- a real clock; that every engine gives the same is a law of engines


@pytest.mark.parametrize("engine", ["inline", "processes"])
def test_on_a_real_clock_the_deadline_is_kept(engine):
    """A role that hangs is ended, and what the others did leaves nothing."""
    roles = {"guest": ("client-0", hangs), "host": ("client-1", hears)}
    found, clock, states, _, ended = lived(Timetable(), roles, ENGINES[engine](2), Clock(virtual=False), deadline=0.4)
    assert "did not end in time within 0.4 s" in found
    assert 0.4 <= clock < 60
    assert states == [None, None]
    assert sum(ended["called_off"]) == 2


@task
async def hangs(island, peers):
    import asyncio

    island.state = "hung"
    async with asyncio.timeout(600):
        await asyncio.Event().wait()


# ---------------------------------------------------------------------- killed and resumed


@task
async def sealed_host(island, peers):
    """Draws a secret and goes on without its guest."""
    island.spend(Laplace(epsilon=0.5))
    token = island.secret.bytes(4)
    runs = (island.state or 0) + 1
    island.state = runs
    try:
        await host.run(island, peers)
    except SessionError:
        island.state = runs
    return {"runs": runs, "bytes": len(token)}


def test_sessions_with_fates_survive_crashes(tmp_path):
    async def program(fed):
        state = await fed.restore({"sitting": 0, "told": []})
        while state["sitting"] < 2:
            roles = {"guest": ("client-0", guest), "host": ("client-1", sealed_host)}
            got = await fed.session(roles, quorum=1, at=state["sitting"])
            try:
                await fed.session(ROLES, at=(state["sitting"], "again"))
                told = "nothing"
            except SessionError as error:
                told = error.what
            state = {"sitting": state["sitting"] + 1, "told": [*state["told"], got["host"]["runs"], told]}
            await fed.checkpoint(state)
        return state["told"]

    cost = Timetable(work={"client-0": 8.0}, words={"client-0": 3}, latency=0.5, notice=0.25)

    def make(folder, resume):
        return World(Community([1.0, 2.0]), Inline(), cost=cost, folder=folder, resume=resume)

    whole = killed_and_resumed(make, program, tmp_path, points=10, exact_spending=False)
    lost = "role 'guest' at client-0 was lost when it had sent 2 messages"
    assert whole.result == [1, lost, 2, lost]


def test_what_a_deadline_decided_on_a_real_clock_stays_decided(tmp_path):
    class Died(BaseException):
        pass

    def program(dies, slow):
        async def sits(fed):
            await fed.restore(None)
            roles = {"guest": ("client-0", hangs), "host": ("client-1", hears)}
            with pytest.raises(SessionError, match="did not end in time"):
                await fed.session(roles, deadline=0.2 if slow else 300.0)
            if dies:
                raise Died("here")
            return "went on"

        return sits

    def world(resume):
        clock = Clock(virtual=False)
        return World(Community([1.0, 2.0]), Inline(), clock=clock, folder=tmp_path / "run", resume=resume)

    with pytest.raises(Died, match="here"):
        run_in(world(False), program(True, True))
    assert run_in(world(True), program(False, False))[0] == "went on"


# ---------------------------------------------------------------------- a fleet


def fleet(**more):
    base = {"compute": BatchRate(1.0), "link": Throughput(100.0), "latency": 0.5, "trace": GeneratedTrace(crash=0.0)}
    return Fleet(**{**base, **more})


def test_a_fleet_times_work_and_links():
    found, end, *_ = lived(fleet())
    each = sealed_nbytes(M.nbytes(0))
    assert found == {"guest": "guest", "host": "host"}
    assert end == pytest.approx(10.0 + 8 * (2 * each / 100.0 + 2 * 0.5))


def test_servers_talk_over_the_backhaul():
    async def program(fed):
        pair = {"guest": ("a", guest), "host": ("b", host)}
        await fed.session(pair)
        return fed.clock.now()

    made = fleet(backhaul=Backhaul(rate=1000.0, edges=1, up=1.0))
    world = World(Community([1.0], others={"a": None, "b": None}), Inline(), cost=made)
    assert run_in(world, program)[0] == pytest.approx(8 * 2 * sealed_nbytes(M.nbytes(0)) / 1000.0)


def test_a_fleet_draws_crashes_by_turn_and_superstep():
    """Over many turns, the chance is the trace's; half of the crashes fall on each of two sessions that share a turn."""
    made = fleet(trace=GeneratedTrace(crash=0.5, seed=3))

    async def program(fed):
        seen = []
        for turn in range(60):
            limit, ends = fed.deadline(supersteps=2), []
            for step in range(2):
                try:
                    await fed.session(
                        {"guest": ("client-0", guest), "host": ("key", host)}, at=(turn, step), deadline=limit
                    )
                    ends.append(True)
                except SessionError:
                    ends.append(False)
            seen.append(ends)
        return seen

    world = World(Community([1.0], others={"key": None}), Inline(), cost=made)
    seen = np.array(run_in(world, program)[0])
    crashed, point = made.record(59, 1).crashed[:, 0], made.record(59, 1).point[:, 0]
    np.testing.assert_array_equal(seen[:, 0], ~(crashed & (point < 0.5)))
    np.testing.assert_array_equal(seen[:, 1], ~crashed)
    assert 0 < (~seen[:, 0]).sum() < crashed.sum()


def test_a_device_that_leaves_is_lost_at_that_moment():
    made = fleet(availability=Windows.of(np.array([0, 1]), np.array([0.0, 0.0]), np.array([7.0, 1e9]), 1e9), notice=1.0)
    found, end, *_ = lived(made, deadline=100.0)
    assert "role 'guest' at client-0 was lost" in found
    assert end == 8.0
    away = fleet(availability=Windows.of(np.array([1]), np.array([0.0]), np.array([1e9]), 1e9))
    found, end, *_ = lived(away, deadline=100.0)
    assert "role 'guest' at client-0 was lost when it had sent 0 messages" in found


# ---------------------------------------------------------------------- the law


@given(
    time=st.floats(0, 100),
    worked=st.floats(0, 1),
    words=st.integers(0, 5),
    wait=st.floats(0, 100),
    share=st.floats(0, 1),
    work=st.floats(0, 50),
    at=st.floats(0, 1) | st.just(math.inf),
    limit=st.integers(0, 5) | st.just(math.inf),
    moment=st.floats(0, 200) | st.just(math.inf),
    until=st.floats(0, 200) | st.just(math.inf),
)
def test_how_far_a_role_gets(time, worked, words, wait, share, work, at, limit, moment, until):
    """It never goes back, stops at the earliest end, and goes on exactly if there is none."""
    prospect = Prospect(work=work, share=at, words=limit, moment=moment, until=until)
    target = time + wait + share * work
    now, ending = prospect.find_reach(time, worked, words, target, share)
    assert time <= now <= target
    free = words < limit and worked + share < at and target <= moment and target <= until
    assert (ending == "") == free
    if free:
        assert now == target
    if ending == "late":
        assert now == max(time, until)
    again = Prospect.unpack(prospect.pack())
    assert again == prospect


def test_a_task_error_is_still_a_task_error():
    with pytest.raises(TaskError, match="has ended and will not send"):
        lived(Timetable(), {"guest": ("client-0", host.with_args(steps=0)), "host": ("client-1", thirsty)})


@task
async def thirsty(island, peers):
    await peers.recv("guest")


def test_a_session_of_a_sum_is_begun_three_times_and_no_more():
    world = World(Community([1.0, 2.0]), Inline())
    executor = world.executor(vectorised=False)
    request = Request("main/sum/@0//Talk/talk/0", guest, None, "main", 0, sum="main/sum/@0//Talk")
    for _ in range(3):
        executor._begin_session(request, 0)
    with pytest.raises(PolicyError, match="attempt 4 at a session of one sum"):
        executor._begin_session(request, 0)
    executor._begin_session(request, 1)  # another party's own
    for _ in range(9):
        executor._begin_session(
            dataclasses.replace(request, sum=""), 0
        )  # outside sums a session tells what its program says
