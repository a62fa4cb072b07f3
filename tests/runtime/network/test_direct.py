"""Roles of sessions speak from site to site over mutual TLS: the same results, bytes and clock as through the server."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from atoll.core.errors import MessageError, TaskError
from atoll.core.federation.federation import run_program
from atoll.core.requests.cohort import Community
from atoll.core.requests.request import Request
from atoll.core.requests.task import task
from atoll.core.requests.wire import pack_request
from atoll.core.time.clock import run
from atoll.core.time.deadline import Prospect
from atoll.core.world import World
from atoll.engines import ENGINES
from atoll.engines.inline import Inline
from atoll.engines.link import LinkClosed
from atoll.runtime.network.session_site import WORDS, NeighbourLost
from atoll.testing import Timetable, killed_and_resumed
from atoll.testing.conformance import ENGINE_CHECKS
from atoll.testing.lying.sites import Rehearsal, site_of
from tests.support.bridge import Bridge
from tests.support.certificates import authority
from tests.support.worlds import soon
from tests.waist.test_split_learning import split_learning

ROUNDS = 12
STEPS = 200


@pytest.fixture(scope="module", params=["grpc", "tcp"])
def bridge(request, tmp_path_factory):
    made = Bridge(tmp_path_factory.mktemp("b"), request.param, authority())
    yield made
    made.close()


@pytest.mark.network
@pytest.mark.parametrize("law", ["sessions", "deadlocks", "session_outcomes", "large_messages", "states"])
@pytest.mark.parametrize("sites", [2, 3])
@pytest.mark.quick("tcp-2-*")
def test_the_laws_hold(bridge, law, sites):
    ENGINE_CHECKS[law](lambda: bridge.engine(sites=sites, direct=True), 1e-12)


# ---------------------------------------------------------------------- equality


class Slow(Timetable):
    """Every pair has a bandwidth of its own, so that the clock depends on who said how much to whom, and in which order."""

    def transfer(self, source, target, nbytes):
        return 0.1 + nbytes / (1e3 + 7.0 * ord(source[-1]) + 13.0 * ord(target[-1]))


@task
async def gossips(island, peers, me, names, rounds):
    """Speaks to two others in an order of its own, sizes drawn at random; hears both, once in order and once whoever comes."""
    draw, heard = np.random.default_rng(me), 0.0
    for i in range(rounds):
        for name in names[i % 2 :] + names[: i % 2]:
            await peers.send(
                name, {"x": np.full(draw.integers(1, 200), float(me)), "note": ("a", [i, "b"], None, True)}
            )
        if i % 3:
            said = [await peers.recv(name) for name in sorted(names, reverse=bool(i % 2))]
        else:
            said = list(await asyncio.gather(*(peers.recv(name) for name in names)))
        heard = 0.9 * heard + sum(m["x"].sum() for m in said)
    island.state = heard
    return heard, me


async def gossip(fed):
    """Four roles at two, three or four sites."""
    cast = {role: (f"client-{i}", [r for r in "abcd" if r != role]) for i, role in enumerate("abcd")}
    roles = {
        role: (at, gossips.with_args(me=i, names=others, rounds=ROUNDS))
        for i, (role, (at, others)) in enumerate(cast.items())
    }
    first = await fed.session(roles)
    again = await fed.session(roles)
    return first, again


def lived(engine, program, population, cost, **more):
    async def main():
        world = World(population, engine, cost=cost, **more)
        result, fed = await run_program(world, program)
        return result, fed.clock.now(), fed.bytes()

    return run(main())


@pytest.mark.network
@pytest.mark.parametrize("sites", [2, 3])
@pytest.mark.quick("tcp-3")
def test_it_equals_what_passes_through_the_server(bridge, sites):
    population = Community([np.arange(3.0)] * 4)
    whole = lived(Inline(), gossip, population, Slow())
    relayed, direct = bridge.engine(sites=sites), bridge.engine(sites=sites, direct=True)
    assert lived(relayed, gossip, population, Slow()) == whole
    result, clock, total = lived(direct, gossip, population, Slow())
    assert (result, clock) == whole[:2]
    # What goes directly crosses one link; the rest goes up from one and down to another.
    for unit in ("bytes", "messages"):
        talk = whole[2][f"{unit}_relayed"]
        assert total[f"{unit}_relayed"] + total[f"{unit}_between"] == talk
        for way in ("down", "up"):
            name = f"{unit}_{way}"
            assert total[name] - total[f"{unit}_relayed"] == whole[2][name] - talk
    # Encrypted or not, on whichever way: the same bytes, clock and words.
    assert lived(bridge.engine(sites=sites), gossip, population, Slow(), sealing="real") == whole
    assert lived(bridge.engine(sites=sites, direct=True), gossip, population, Slow(), sealing="real") == (
        result,
        clock,
        total,
    )
    said = 2 * 4 * 3 * ROUNDS
    assert total["messages_between"] == said - direct.frames["pass"]
    # Roles are dealt to sites in turn; roles at one site speak through the server.
    together = {2: 4, 3: 2}[sites]
    assert relayed.frames["pass"] == said
    assert direct.frames["pass"] == said * together // 12
    assert relayed.choices.get("direct") is None
    assert direct.choices["direct"] == ["site-1 and site-2", "site-1 and site-3", "site-2 and site-3"][: 2 * sites - 3]


@pytest.mark.slow
@pytest.mark.parametrize("bridge", ["tcp"], indirect=True)
def test_split_learning_survives_crashes(bridge, tmp_path):
    """The clock and what was said are in the sites' journals, and come back with them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3))
    population, cost = Community([x, np.tanh(x @ rng.normal(size=(3, 1)))]), Timetable(default=0.0, latency=0.25)
    engines = []

    def make_world(folder, resume):
        engines.append(bridge.engine(sites=2, direct=True))
        return World(population, engines[-1], cost=cost, folder=folder, resume=resume)

    life = killed_and_resumed(make_world, split_learning(STEPS), tmp_path, points=1)
    assert life.clock == 0.5 * STEPS
    assert sum(engine.frames["pass"] for engine in engines) == 0
    through = lived(Rehearsal(2), split_learning(STEPS), population, cost)
    for role, weights in through[0].items():
        np.testing.assert_array_equal(life.result[role], weights)
    assert through[1] == life.clock


@pytest.mark.network
@pytest.mark.parametrize("bridge", ["tcp"], indirect=True)
@pytest.mark.parametrize(
    "neighbours", [{}, {"site-1": ["site-2"]}, {"site-2": ["site-1"]}], ids=["nobody", "one end", "the other end"]
)
def test_without_a_link_at_both_ends_the_server_passes_it_on(bridge, neighbours):
    population = Community([np.arange(3.0)] * 4)
    engine = bridge.engine(sites=2, direct=True, neighbours=neighbours)
    assert lived(engine, gossip, population, Slow()) == lived(Inline(), gossip, population, Slow())
    assert engine.frames["pass"] == 2 * 4 * 3 * ROUNDS
    assert engine.frames["words"] == 0
    assert engine.choices["direct"] == []


# ---------------------------------------------------------------------- one site, everybody else is the test


class Wire:
    """A link in memory whose other end is the test."""

    def __init__(self):
        self.came, self.sent = asyncio.Queue(), asyncio.Queue()

    async def send(self, tree):
        self.sent.put_nowait(tree)

    async def recv(self):
        found = await self.came.get()
        if isinstance(found, Exception):
            raise found
        return found


@task
async def tells(island, peers, count, fails=False):
    """Speaks and does not listen."""
    for i in range(count):
        await peers.send("b", i)
    if fails:
        raise ValueError("it gives up")


async def announced():
    """A site that knows of a session in which role ``a`` will live there: the server, the neighbour at which ``b`` is, the site at work."""
    server, neighbour = Wire(), Wire()
    world = World(Community([np.arange(3.0)] * 2), Inline(), registry={one.name: one for one in (gossips, tells)})
    site_engine = site_of(
        world.executor(vectorised=False), world.registry, None, False, 1e3, server, {"site-2": neighbour}
    )
    serving = asyncio.create_task(site_engine.serve())
    server.came.put_nowait(
        {
            "op": "meet",
            "number": 1,
            "session": 5,
            "places": {"a": "site-1", "b": "site-2", "c": "site-3"},
            "here": ["a"],
        }
    )
    assert (await server.sent.get())["neighbours"] == ["site-2"]
    return server, neighbour, serving


def role_of(role):
    return {
        "op": "role", "number": 2, "session": 5, "role": "a", "others": ["b", "c"], "start": 0.0, "step": 0, "direct": {"b": "site-2"},
        "cast": {}, "position": 0, "request": packed(role), "prospect": Prospect().pack(),
    }  # fmt: skip


async def begun(role):
    """The same, and ``a`` begins."""
    server, neighbour, serving = await announced()
    server.came.put_nowait(role_of(role))
    assert (await neighbour.sent.get())["role"] == "b"  # it has begun
    return server, neighbour, serving


async def stage(*said):
    """The site's neighbour says something."""
    _, neighbour, serving = await begun(gossips.with_args(me=0, names=["b", "c"], rounds=3))
    for word in said:
        neighbour.came.put_nowait(word)
    async with asyncio.timeout(60):
        await serving


def packed(role):
    request = Request("r", role, None, "main", 0)
    return {key: value for key, value in pack_request(request, []).items() if key != "message"}


def test_words_of_many_messages_go_in_few_frames():
    async def main():
        server, neighbour, serving = await begun(tells.with_args(count=WORDS + 90))
        frames = [await server.sent.get()]
        while frames[-1]["op"] != "answer":
            frames.append(await server.sent.get())
        server.came.put_nowait(LinkClosed("the session is over"))
        await serving
        return frames, neighbour.sent.qsize()

    frames, direct = asyncio.run(main())
    assert [len(frame["words"]) for frame in frames[:-1]] == [WORDS, 90]
    assert all(word[:2] == ["sent", "b"] for frame in frames[:-1] for word in frame["words"])
    assert direct == WORDS + 90  # one was seen to begin; the last says that the role has ended


def test_only_the_server_tells_that_a_role_failed():
    """Else what the other roles make of its end may reach the server first, and is told in place of the error."""

    async def main():
        server, neighbour, serving = await begun(tells.with_args(count=2, fails=True))
        assert (await server.sent.get())["op"] == "words"
        told = (await server.sent.get())["error"]
        server.came.put_nowait(LinkClosed("the session is over"))
        await serving
        return told, [neighbour.sent.get_nowait()["op"] for _ in range(neighbour.sent.qsize())]

    told, direct = asyncio.run(main())
    assert "it gives up" in str(told)
    assert direct == ["hand"]  # behind the one that was seen to begin


def test_a_site_whose_neighbour_is_lost_tells_the_server_nothing_more():
    """Its roles are stopped: told as their error, that would end the job, where only the attempt ends."""

    async def main():
        server, neighbour, serving = await begun(gossips.with_args(me=0, names=["b", "c"], rounds=3))
        while (await server.sent.get())["op"] != "waits":
            pass
        neighbour.came.put_nowait(LinkClosed("gone"))
        with pytest.raises(NeighbourLost, match="ended in the middle"):
            await serving
        await asyncio.sleep(0.2)  # as the process takes to close its line
        return [server.sent.get_nowait()["op"] for _ in range(server.sent.qsize())]

    assert asyncio.run(main()) == []


def test_a_neighbour_that_is_lost_before_the_role_begins_ends_the_attempt():
    """Orders before it may take long; else what the role sends is lost, and it waits for ever."""

    async def main():
        server, neighbour, serving = await announced()
        neighbour.came.put_nowait(LinkClosed("gone"))
        while neighbour.came.qsize():
            await asyncio.sleep(0)
        server.came.put_nowait(role_of(gossips.with_args(me=0, names=["b", "c"], rounds=3)))
        async with asyncio.timeout(60):
            await serving

    with pytest.raises(NeighbourLost, match="'site-2' ended before role 'a' began"):
        asyncio.run(main())


@task
async def goes_on(island, peers, count, size):
    """Sends the same array again and again, and counts in it."""
    x = np.zeros(size)
    for _ in range(count):
        await peers.send("b", x)
        x += 1


@task
async def keeps(island, peers, count):
    said = [await peers.recv("a") for _ in range(count)]
    return [[float(x.min()), float(x.max())] for x in said]


@pytest.mark.parametrize("size", [2, 50_000])
@pytest.mark.parametrize(
    "make", [Inline, lambda: ENGINES["processes"](2), lambda: Rehearsal(2)], ids=["inline", "processes", "network"]
)
def test_what_was_sent_is_as_it_was_then(make, size):
    async def program(fed):
        cast = {"a": ("client-0", goes_on.with_args(count=20, size=size)), "b": ("client-1", keeps.with_args(count=20))}
        return (await fed.session(cast))["b"]

    whole = lived(make(), program, Community([0.0] * 2), Timetable())[0]
    assert whole == [[float(i), float(i)] for i in range(20)]


@task
async def says_nonsense(island, peers, gives):
    await peers.send("b", 1 if gives else object())
    return object()


@task
async def hears(island, peers):
    return await peers.recv("a")


@pytest.mark.network
@pytest.mark.parametrize("gives", [False, True])
@pytest.mark.parametrize("make", [lambda: ENGINES["processes"](2), lambda: Rehearsal(2)], ids=["processes", "network"])
def test_what_no_message_can_hold_is_the_error_that_is_told(make, gives):
    async def program(fed):
        cast = {"a": ("client-0", says_nonsense.with_args(gives=gives)), "b": ("client-1", hears)}
        return await soon(fed.session(cast))

    with pytest.raises(MessageError, match=r"a value of type builtins\.object cannot be sent"):
        lived(make(), program, Community([0.0] * 2), Timetable())


HAND = {"op": "hand", "session": 5, "role": "a", "message": {"x": np.zeros(1)}, "time": 0.0}


@pytest.mark.parametrize(
    ("word", "kind", "told"),
    [
        ({**HAND, "source": "c"}, TaskError, "it spoke for role 'c', who is at 'site-3'"),
        ({**HAND, "source": "z"}, TaskError, "it spoke for role 'z', who is at 'no site'"),
        ({"op": "hand", "session": 5, "source": "b"}, TaskError, "is not a message of a role: KeyError"),
        (["hand"], TaskError, "is not a message of a role: TypeError"),
        (LinkClosed("gone"), NeighbourLost, "'site-2' ended in the middle of a session: gone"),
    ],
    ids=["another's role", "nobody's role", "half a frame", "no frame", "it goes"],
)
def test_a_neighbour_that_does_wrong_ends_the_attempt(word, kind, told):
    with pytest.raises(kind, match=told):
        asyncio.run(stage(word))
