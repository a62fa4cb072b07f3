"""Channels, and steps that all roles of a session agree on: what goes wrong by chance, what a crash takes, and what stays."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from atoll.core.algebra.rng import Rng
from atoll.core.errors import AtollError, ConfigError, SessionError, TaskError
from atoll.core.event import Laplace
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task
from atoll.core.time.clock import Clock
from atoll.core.world import World
from atoll.engines import ENGINES, Inline
from atoll.simulation import run_in
from atoll.testing import Timetable, killed_and_resumed

PAIR = ("client-0", "client-1")
EACH = [pytest.param(name, marks=pytest.mark.slow if name == "ray" else ()) for name in sorted(ENGINES)]


def held(roles, *, engine=None, cost=None, population=None, clock=None, **terms):
    """What a session of two roles gives, and the clock at its end."""

    async def program(fed):
        found = await fed.session(
            {role: (at, one) for (role, one), at in zip(roles.items(), ORDER, strict=False)}, **terms
        )
        return found, fed.clock.now(), fed.bytes()

    world = World(
        population or Community([1.0, 2.0, 3.0]), engine or Inline(), cost=cost or Timetable(), clock=clock or Clock()
    )
    for one in roles.values():
        world.registry[one.name] = one
    return run_in(world, program)[0]


ORDER = ("client-0", "client-1", "client-2")


# ---------------------------------------------------------------------- channels


@task
async def streams(island, peers, other, named):
    """Two coroutines exchange numbers with one peer at once, with pauses of their own."""

    async def stream(name, start, pauses):
        one, total = peers.channel(name) if named else peers, 0.0
        for i in range(5):
            await one.send(other, start + i)
            for _ in range(pauses):
                await asyncio.sleep(0)
            total = 0.5 * total + await one.recv(other)
        return total

    return await asyncio.gather(stream("slow", 0, 3), stream("fast", 100, int(island.data)))


def both(named):
    return {"x": streams.with_args(other="y", named=named), "y": streams.with_args(other="x", named=named)}


def alone(start):
    total = 0.0
    for i in range(5):
        total = 0.5 * total + start + i
    return total


@pytest.mark.parametrize("engine", EACH)
def test_two_streams_of_one_pair_never_mix(engine):
    found, _, _ = held(both(True), engine=ENGINES[engine](2))
    assert found == {"x": [alone(0), alone(100)], "y": [alone(0), alone(100)]}


@pytest.mark.parametrize("engine", ["inline", "socket"])
def test_a_second_coroutine_that_waits_for_one_peer_on_one_channel_is_refused(engine):
    told = r"two coroutines wait for a message of role '[xy]' on one channel.*Remedy: give each coroutine a channel of its own: peers\.channel"
    with pytest.raises(ConfigError, match=told):
        held(both(False), engine=ENGINES[engine](2))


@task
async def tells_all(island, peers):
    await peers.broadcast({"n": island.data})
    await peers.channel("late").broadcast(2 * island.data, [name for name in peers.names if name != "z"])
    return await peers.gather(), [
        await peers.channel("late").recv(name) for name in peers.names if peers.names != ["x", "y"]
    ]


def test_a_broadcast_reaches_all_and_gather_names_who_said_what():
    found, _, total = held(dict.fromkeys("xyz", tells_all))
    assert found["x"] == ({"y": {"n": 2.0}, "z": {"n": 3.0}}, [4.0, 6.0])
    assert found["z"] == ({"x": {"n": 1.0}, "y": {"n": 2.0}}, [])
    assert total["messages_relayed"] == 3 * 2 + 2 + 1 + 1


@pytest.mark.parametrize("name", ["", "x" * 101, 3])
def test_a_channel_has_a_name(name):
    @task(name="test:names")
    async def names(island, peers):
        peers.channel(name)

    with pytest.raises(ConfigError, match=r"channel\(.*1 to 100 characters"):
        held({"x": names, "y": names})


@task
async def gathers(island, peers, skip):
    return await peers.gather(skip_lost=skip)


@task
async def says(island, peers):
    await peers.send("x", island.data)


def test_gather_may_leave_out_who_was_lost():
    roles = {"x": gathers.with_args(skip=True), "y": says, "z": says}
    found, _, _ = held(roles, cost=Timetable(words={"client-1": 0}), quorum=1)
    assert found["x"] == {"z": 3.0}
    with pytest.raises(SessionError, match=r"role 'y' at client-1 was lost"):
        held({**roles, "x": gathers.with_args(skip=False)}, cost=Timetable(words={"client-1": 0}), quorum=3)


KEPT = []


@task
async def keeps_peers(island, peers):
    KEPT.append(peers)


def test_peers_serve_in_their_own_session_only():
    KEPT.clear()
    held({"x": keeps_peers, "y": keeps_peers})
    with pytest.raises(
        SessionError, match=r"role 'x' has ended, and talks to nobody any more.*Remedy: await every send"
    ):
        asyncio.run(KEPT[0].send("y", 1))


# ---------------------------------------------------------------------- steps


STEPS = 4
RAN = []


@task
async def walks(island, peers, other):
    """Each step is a number of its own, an exchange, memory at the island, and a secret that a seed makes repeatable."""
    state = await peers.restore({"step": 0, "x": 0.0, "heard": []})
    while state["step"] < STEPS:
        RAN.append((island.name, state["step"]))
        draw = island.rng.child("step", state["step"]).generator().normal() + island.secret.integer(1000)
        await peers.channel("numbers").send(other, draw)
        heard = await peers.channel("numbers").recv(other)
        island.state = {"sum": (0.0 if island.state is None else island.state["sum"]) + heard}
        state = {"step": state["step"] + 1, "x": 0.5 * state["x"] + heard, "heard": [*state["heard"], heard]}
        await peers.checkpoint(state)
    return {**state, "sum": island.state["sum"]}


def walk(sessions=1):
    async def program(fed):
        roles = {"x": ("client-0", walks.with_args(other="y")), "y": ("client-1", walks.with_args(other="x"))}
        state = await fed.restore({"found": []})
        while len(state["found"]) < sessions:
            state = {"found": [*state["found"], await fed.session(roles)]}
            await fed.checkpoint(state)
        return state["found"]

    return program


def world(make=Inline, **more):
    def made(folder, resume):
        return World(Community([1.0, 2.0]), make(), folder=folder, resume=resume, secret_seed=3, **more)

    return made


@pytest.mark.parametrize(
    ("engine", "points"),
    [
        ("inline", 40),
        pytest.param("socket", 8, marks=pytest.mark.slow),
        ("processes", 1),
        pytest.param("ray", 2, marks=pytest.mark.slow),
    ],
)
def test_a_killed_session_ends_where_an_undisturbed_one_does(tmp_path, engine, points):
    cost = Timetable(seconds={"client-0": 2.0}, latency=0.5)
    life = killed_and_resumed(
        world(lambda: ENGINES[engine](2), cost=cost), walk(2 if engine == "inline" else 1), tmp_path, points=points
    )
    heard = [number for found in life.result for number in found["x"]["heard"]]
    assert len(heard) == STEPS * len(life.result)
    assert life.result[-1]["x"]["sum"] == pytest.approx(sum(heard))  # the island's memory is that of the step, too
    # each step: 2 s of the slower role, and what it says then arrives half a second later at the other
    assert life.clock == len(life.result) * (STEPS * (2.0 + 0.5) + 2.0)


def test_no_step_is_done_again_that_all_have_agreed_on(tmp_path):
    RAN.clear()

    class Dies(Timetable):
        """The power fails when the second role sends its third number."""

        def transfer(self, source, target, nbytes):
            if source == "client-1" and (source, "died") not in RAN and sum(name == source for name, _ in RAN) == 3:
                RAN.append((source, "died"))
                raise BrokenPipeError
            return 0.0

    with pytest.raises(AtollError, match="BrokenPipe"):
        run_in(world(cost=Dies())(tmp_path, False), walk())
    again = run_in(world(cost=Dies())(tmp_path, True), walk())[0]
    undisturbed = run_in(world()(tmp_path / "other", False), walk())[0]
    assert again == undisturbed
    steps = [step for name, step in RAN[: RAN.index(("client-1", "died"))] if name == "client-1"]
    after = [step for name, step in RAN[RAN.index(("client-1", "died")) + 1 :] if name == "client-1"]
    assert steps == [0, 1, 2]
    assert after[:2] == [2, 3]  # not 0, 1


@task
async def spends(island, peers, other):
    state = await peers.restore({"step": 0})
    while state["step"] < 3:
        island.spend(Laplace(epsilon=1.0, scope=island.name))
        await peers.send(other, island.secret.uint64(4))
        await peers.recv(other)
        if state["step"] == 2 and island.name == "client-1" and not RAN:
            RAN.append("died")
            raise BrokenPipeError
        state = {"step": state["step"] + 1}
        await peers.checkpoint(state)


def test_what_agreed_steps_have_spent_is_booked_once(tmp_path):
    RAN.clear()

    async def program(fed):
        await fed.session(
            {"x": ("client-0", spends.with_args(other="y")), "y": ("client-1", spends.with_args(other="x"))}
        )

    def made(resume):
        return World(Community([1.0, 2.0]), Inline(), folder=tmp_path, resume=resume)

    with pytest.raises(TaskError, match="BrokenPipe"):
        run_in(made(False), program)
    run_in(made(True), program)
    booked = [entry["party"] for entry in made(True).ledger if entry["kind"] == "laplace"]
    # Three steps of two roles, and the third again, since its messages had left: it is another release.
    assert sorted(booked) == ["client-0"] * 4 + ["client-1"] * 4


def played(function, other=None):
    """A session of a role of one's own, and of one that agrees on one step."""

    @task(name="test:one")
    async def one(island, peers):
        return await function(island, peers)

    @task(name="test:other")
    async def agrees(island, peers):
        await peers.restore(None)
        await peers.checkpoint(None)

    chosen = agrees
    if other is not None:

        @task(name="test:other")
        async def chosen(island, peers):
            return await other(island, peers)

    return held({"x": one, "y": chosen})


async def no_restore(island, peers):
    await peers.checkpoint(1)


async def late_restore(island, peers):
    await peers.send("y", 1)
    await peers.restore(None)


async def no_tree(island, peers):
    await peers.restore(None)
    await peers.checkpoint(object())


async def waits_too(island, peers):
    await peers.restore(None)
    waiting = asyncio.create_task(peers.recv("y"))
    await asyncio.sleep(0)
    try:
        await peers.checkpoint(None)
    finally:
        waiting.cancel()


async def ahead(island, peers):
    await peers.restore(None)
    await peers.send("y", 1)
    await peers.send("y", 2)
    await peers.checkpoint(None)


async def twice(island, peers):
    await peers.restore(None)
    await peers.checkpoint(None)
    await peers.checkpoint(None)


async def impatient(island, peers):
    await peers.restore(None)
    try:
        async with asyncio.timeout(1.0):
            await peers.checkpoint(None)
    except TimeoutError:
        await peers.send("y", 1)


async def slow(island, peers):
    await peers.restore(None)
    await asyncio.sleep(2.0)
    await peers.checkpoint(None)


async def hears(island, peers):
    await peers.restore(None)
    await peers.recv("x")
    await peers.checkpoint(None)


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        (no_restore, None, r"did not begin with restore.*Remedy: begin the role with `state = await peers\.restore"),
        (late_restore, None, r"restore after the role has talked"),
        (no_tree, None, r"object"),
        (waits_too, None, r"a checkpoint while another coroutine of the role waits for a message of 'y'"),
        (ahead, None, r"at checkpoint 1, role 'y' has not received 2 messages of role 'x'.*before the checkpoint, or send it after"),
        (twice, None, r"role 'x' waits at checkpoint 2, and role 'y' has ended after 1.*equally often"),
        (impatient, slow, r"another coroutine of the role waits at a checkpoint.*no timeout of its own"),
        (twice, hears, r"'x' at client-0 waits for checkpoint 1 of all roles; 'y' at client-1 waits for a message of 'x'"),
    ],
)  # fmt: skip
def test_what_a_checkpoint_refuses(one, other, told):
    with pytest.raises(AtollError, match=told):
        played(one, other)


@task
async def goes_on(island, peers, other):
    state, missed = await peers.restore(0), ""
    for step in range(state, 3):
        await peers.send(other, step)
        try:
            await peers.recv(other)
            await peers.checkpoint(step + 1)
        except SessionError as error:
            missed = missed or str(error)
            break
    return missed


def test_a_checkpoint_without_a_lost_role_is_an_error_that_names_it():
    roles = {"x": goes_on.with_args(other="y"), "y": goes_on.with_args(other="x")}
    found, _, _ = held(roles, cost=Timetable(words={"client-1": 4}), quorum=1)
    assert "role 'y' was lost, and will not send its state of checkpoint 2, which role 'x' waits for" in found["x"]


def test_the_seconds_of_a_party_count_in_each_step():
    async def two(island, peers):
        await peers.restore(None)
        await peers.checkpoint(None)
        await peers.checkpoint(None)

    names = {"test:two": task(name="test:two")(two)}
    roles = dict.fromkeys("xy", names["test:two"])
    assert held(roles, cost=Timetable({"client-1": 3.0}))[1] == 9.0
    assert held(roles, cost=Timetable({"client-1": 3.0, "client-0": 4.0}))[1] == 12.0
    with pytest.raises(SessionError, match=r"role 'y' at client-1 did not end in time within 8 s"):
        held(roles, cost=Timetable({"client-1": 3.0}), deadline=8.0)


def test_a_session_begins_anew_where_a_state_is_gone(tmp_path):
    """A restored backup, a lost disk: without all states of the agreed step the session runs from its first step, as before there were steps."""
    RAN.clear()
    population = Community([1.0, 2.0])

    async def program(fed):
        await fed.session(
            {"x": ("client-0", spends.with_args(other="y")), "y": ("client-1", spends.with_args(other="x"))}
        )

    def made(resume):
        return World(population, Inline(), folder=tmp_path, resume=resume)

    with pytest.raises(TaskError, match="BrokenPipe"):
        run_in(made(False), program)
    (tmp_path / "journal.log").write_bytes(b"")
    run_in(made(True), program)
    booked = [entry["party"] for entry in made(True).ledger if entry["kind"] == "laplace"]
    assert len(booked) == 2 * (3 + 3)


def test_seeds_are_restarted_at_each_step():
    from atoll.core.requests.island import Secret

    first, again = Secret(Rng.of(1).key), Secret(Rng.of(2).key)
    first.bytes(70)
    first.restart(again)
    np.testing.assert_array_equal(first.uint64(3), Secret(Rng.of(2).key).uint64(3))


@task
async def draws(island, peers):
    drawn = await peers.restore([])
    for _ in range(len(drawn), 3):
        drawn = [*drawn, island.secret.integer(2**60)]
        await peers.checkpoint(drawn)
    return drawn


def test_secrets_of_a_seed_differ_from_step_to_step():
    async def program(fed):
        return await fed.session({"x": ("client-0", draws), "y": ("client-1", draws)})

    found = run_in(World(Community([1.0, 2.0]), Inline(), secret_seed=3), program)[0]
    assert len({*found["x"], *found["y"]}) == 6
